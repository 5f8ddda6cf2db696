"""Notices of many ranks as one list: each notice once, with the ranks that have it."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

from msgspec.structs import replace

from tracekit.errors import Notice

VALUES_OF_A_RANK = frozenset(["file"])
"""Names of values that are no numbers and differ from rank to rank, though the notices say the
same."""


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
    >>> lost = [(rank, [Notice("bad-values", values={"count": rank + 3})]) for rank in (0, 1)]
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
        return replace(first, ranks=ranks, varies=True)
    of_all_ranks = rank_count is not None and len(ranks) == rank_count > 1
    return replace(first, ranks=() if of_all_ranks else ranks)
