"""Notices of many ranks as one list: each notice once, with the ranks that have it."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

from msgspec.structs import replace

from tracekit._util.text import ranks_named
from tracekit.errors import Notice

VALUES_OF_A_RANK = frozenset(["file"])
"""Names of values that are no numbers and differ from rank to rank, though the notices say the
same."""


def of_ranks(ranks: Sequence[int]) -> str:
    """Return the ranks that a sentence is about, as it begins with them; empty if it names none.

    >>> of_ranks((0, 1)), of_ranks(())
    ('ranks 0, 1: ', '')
    """
    return f"{ranks_named(ranks)}: " if ranks else ""


def with_ranks(notice: Notice, ranks: Sequence[int], *, varies: bool = False) -> Notice:
    """Return a notice of one rank as that of all *ranks* that have it; *varies*: with other numbers each.

    >>> varied = with_ranks(Notice("graphs-whole", "4 graphs were recorded whole"), (0, 1), varies=True)
    >>> varied.message
    'rank 0: 4 graphs were recorded whole (rank 1 too, with other numbers)'
    """
    message = notice.message
    if message and varies and len(ranks) > 1:
        others = ranks_named(ranks[1:])
        message = f"{of_ranks(ranks[:1])}{message} ({others} too, with other numbers)"
    elif message:
        message = f"{of_ranks(ranks)}{message}"
    return replace(notice, message=message, ranks=tuple(ranks), varies=varies)


def merge_notices(
    by_rank: Iterable[tuple[int, Sequence[Notice]]], *, ranks: int | None = None
) -> list[Notice]:
    """Merge notices that differ in nothing but numbers, and name the ranks that have them.

    Args:
        by_rank: Ranks and their notices.
        ranks: Number of ranks; if it is given, a notice that all of them have alike names none.

    >>> cut = Notice("no-steps")
    >>> [note.ranks for note in merge_notices([(0, [cut]), (1, [cut])])]
    [(0, 1)]
    >>> [note.ranks for note in merge_notices([(0, [cut]), (1, [cut])], ranks=2)]
    [()]
    >>> lost = [(rank, [Notice("bad-events", values={"count": rank + 3})]) for rank in (0, 1)]
    >>> [(note.ranks, note.values, note.varies) for note in merge_notices(lost)]
    [((0, 1), {'count': 3}, True)]
    """
    groups: dict[Hashable, list[tuple[int, Notice]]] = defaultdict(list)
    for rank, notices in by_rank:
        for notice in notices:
            groups[_meaning(notice)].append((rank, notice))
    return [_merge(group, ranks) for group in groups.values()]


def _meaning(notice: Notice) -> Hashable:
    """Return what is equal in notices that differ in nothing but numbers."""
    words = [
        (name, value)
        for name, value in notice.values.items()
        if isinstance(value, str | bool) and name not in VALUES_OF_A_RANK
    ]
    return notice.code, notice.labels, frozenset(words)


def _merge(group: Sequence[tuple[int, Notice]], rank_count: int | None) -> Notice:
    """Return one notice for those of some ranks that differ in nothing but numbers."""
    ranks = tuple(dict.fromkeys(rank for rank, _ in group))
    first = group[0][1]
    if any(notice.values != first.values for _, notice in group):
        return with_ranks(first, ranks, varies=True)
    of_all_ranks = rank_count is not None and len(ranks) == rank_count > 1
    return with_ranks(first, () if of_all_ranks else ranks)
