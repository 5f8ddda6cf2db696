"""Numbers and lists as people say them, for messages and reports."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def counted(count: float, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "rank"), counted(1024, "rank")
    ('1 rank', '1,024 ranks')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def listing(names: Iterable[str], *, most: int = 4) -> str:
    """Join names, the first few and how many more.

    >>> listing("abcdef")
    'a, b, c, d, +2 more'
    """
    every = list(names)
    more = [f"+{len(every) - most} more"] if len(every) > most else []
    return ", ".join([*every[:most], *more])


def size(count: int) -> str:
    """Return a number of bytes.

    >>> size(3_400_000)
    '3.4 MB'
    """
    for unit, divisor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= divisor:
            return f"{count / divisor:.1f} {unit}"
    return f"{count} bytes"


def did_you_mean(word: str, known: Iterable[str], *, otherwise: str, cutoff: float = 0.6) -> str:
    """Return the hint for a word that is not *known*: the nearest one, or *otherwise* where none is near.

    >>> did_you_mean("dualpip", ["1f1b", "dualpipe"], otherwise="--list names them all")
    'did you mean dualpipe?'
    """
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]}?" if near else otherwise
