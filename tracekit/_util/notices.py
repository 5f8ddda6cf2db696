"""Notices of many ranks as one list: each text once, with the ranks it is about."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from tracekit._util.text import ranks_named
from tracekit.errors import Notice

MAX_RANKS_NAMED = 8
"""Ranks that a merged notice names; of the others it says how many there are."""
_NUMBER = re.compile(r"\d[\d.,]*")


def merge_notices(by_rank: Iterable[tuple[int, Sequence[Notice]]], *, ranks: int | None = None) -> list[Notice]:
    """Merge notices of the same code whose texts differ in nothing but numbers.

    If the number of *ranks* is given, a notice that all of them have names no ranks.

    >>> cut = Notice("cut", "ends early")
    >>> [note.message for note in merge_notices([(0, [cut]), (1, [cut])])]
    ['ranks 0, 1: ends early']
    >>> [note.message for note in merge_notices([(0, [cut]), (1, [cut])], ranks=2)]
    ['ends early']
    >>> [note.message for note in merge_notices([(r, [Notice("lost", f"{r + 3} events lost")]) for r in (0, 1)])]
    ['rank 0: 3 events lost (rank 1 too, with other numbers)']
    """
    groups: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for rank, notices in by_rank:
        for notice in notices:
            text = strip_rank(notice.message)
            groups[notice.code, _NUMBER.sub("#", text)].append((rank, text))
    return [Notice(code, _merged_text(group, ranks)) for (code, _), group in groups.items()]


def _merged_text(group: Sequence[tuple[int, str]], rank_count: int | None) -> str:
    """Return the text for notices, as (rank, text), that differ in nothing but numbers."""
    ranks = list(dict.fromkeys(rank for rank, _ in group))
    first_text = group[0][1]
    if any(text != first_text for _, text in group):
        if len(ranks) == 1:
            return f"rank {ranks[0]}: {first_text}"
        others = ranks_named(ranks[1:], most=MAX_RANKS_NAMED)
        return f"rank {ranks[0]}: {first_text} ({others} too, with other numbers)"
    if rank_count is not None and len(ranks) == rank_count > 1:
        return first_text
    return f"{ranks_named(ranks, most=MAX_RANKS_NAMED)}: {first_text}"


def strip_rank(message: str) -> str:
    """Return a notice's text without the rank it begins with.

    >>> strip_rank("rank 3: ends early")
    'ends early'
    """
    return re.sub(r"^rank \d+: ", "", message)
