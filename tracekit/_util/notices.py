"""Many ranks' notices as one list: each thing said once, with the ranks it is about."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from tracekit._util.text import ranks_named
from tracekit.errors import Notice

MOST_RANKS = 8
"""Ranks that a notice names."""


def merge_notices(by_rank: Iterable[tuple[int, Sequence[Notice]]], *, ranks: int | None = None) -> list[Notice]:
    """Return one notice for each code and text, with the ranks it is about; texts that differ in numbers are one.

    Where *ranks* says how many there are, what all of them say names none.

    >>> cut = Notice("cut", "ends early")
    >>> [note.message for note in merge_notices([(0, [cut]), (1, [cut])])]
    ['ranks 0, 1: ends early']
    >>> [note.message for note in merge_notices([(0, [cut]), (1, [cut])], ranks=2)]
    ['ends early']
    >>> [note.message for note in merge_notices([(r, [Notice("lost", f"{r + 3} events lost")]) for r in (0, 1)])]
    ['rank 0: 3 events lost (rank 1 too, with other numbers)']
    """
    about: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for rank, notices in by_rank:
        for notice in notices:
            text = without_rank(notice.message)
            about[notice.code, re.sub(r"\d[\d.,]*", "#", text)].append((rank, text))
    return [Notice(code, _together(several, ranks)) for (code, _), several in about.items()]


def _together(several: Sequence[tuple[int, str]], ranks: int | None) -> str:
    named, text = list(dict.fromkeys(rank for rank, _ in several)), several[0][1]
    if len({message for _, message in several}) > 1:
        others = ranks_named(named[1:], most=MOST_RANKS) if named[1:] else ""
        return f"rank {named[0]}: {text}" + (f" ({others} too, with other numbers)" if others else "")
    return text if ranks is not None and len(named) == ranks > 1 else f"{ranks_named(named, most=MOST_RANKS)}: {text}"


def without_rank(message: str) -> str:
    """Return a notice without the rank it begins with, so that ranks with the same one can share it.

    >>> without_rank("rank 3: ends early")
    'ends early'
    """
    return re.sub(r"^rank \d+: ", "", message)
