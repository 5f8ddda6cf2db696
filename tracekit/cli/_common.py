"""What commands share: how their words are read and notices shown."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from tracekit._util.text import counted
from tracekit.cli._base import say
from tracekit.errors import Notice, OptionError
from tracekit.parsers.ranks import MOST_RANKS

NSYS_VARIABLE = "TRACEKIT_NSYS"


def parse_ranks(text: str | None) -> tuple[int, ...] | None:
    """Read a list of ranks: numbers and spans, joined by commas.

    >>> parse_ranks("0,4-6")
    (0, 4, 5, 6)
    """
    if text is None:
        return None
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise OptionError(f"--ranks {text}: {part.strip()!r} is not a rank", hint="write 0,2 or 0-7")
        if int(last or first) >= MOST_RANKS:
            raise OptionError(f"--ranks {text}: {last or first} is more than any run has", hint="write 0,2 or 0-7")
        ranks.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(ranks))


def use_nsys(program: str | None) -> str | None:
    """Name the exporter for this process and the workers it starts."""
    if program:
        os.environ[NSYS_VARIABLE] = program
    return program


@contextlib.contextmanager
def keeping(store: Path | None) -> Iterator[None]:
    """Print, when Ctrl-C ends the work, what it leaves in *store*."""
    try:
        yield
    except KeyboardInterrupt:
        from tracekit.store.files import is_store, open_store

        if store is not None and is_store(store):
            kept = open_store(store)
            again = "" if kept.complete else "; --resume goes on with it"
            say(f"note: {store} holds {counted(len(kept.entries), 'rank')}{again}", err=True)
        raise


def show_notices(notices: Iterable[Notice]) -> None:
    """Print notices on stderr, one line each."""
    for notice in notices:
        say(f"note: {notice.message}", err=True)
