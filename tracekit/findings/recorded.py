"""Contents of a recording: the one source for findings that ask for more of it, and for the doctor."""

from __future__ import annotations

from collections.abc import Iterable

from tracekit.parsers.rank_numbers import missing_ranks
from tracekit.schema import Source


def absent_ranks(sources: Iterable[Source], *, most: int) -> tuple[int, list[int]]:
    """Return how many ranks of a run have no trace, and the first *most* of those.

    None is absent where no trace says how many there are.

    >>> absent_ranks([Source("a.json", "kineto", 1, "name", world_size=4)], most=2)
    (3, [0, 2])
    """
    all_sources = list(sources)
    world_size = max((source.world_size or 0 for source in all_sources), default=0)
    return missing_ranks({source.rank for source in all_sources}, world_size, most=most)


def lacks_groups(source: Source, *, collectives: int, named: int) -> bool:
    """Return whether nothing tells which process group collectives belong to.

    Args:
        source: The rank's trace, whose header may list its groups.
        collectives: Number of collectives.
        named: How many of them name their group.

    """
    return collectives > 0 and named == 0 and not source.groups


def has_host_calls(source: Source) -> bool:
    """Return whether calls of the GPU's library were recorded, by which the host launches and waits."""
    return source.counts.get("runtime", 0) + source.counts.get("driver", 0) > 0
