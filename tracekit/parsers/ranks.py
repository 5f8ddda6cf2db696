"""Rank validation and its error messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

from tracekit._util.text import listing
from tracekit.errors import InputError

MAX_RANKS = 10_000_000
"""Upper limit of ranks in a run: a larger number in a file is damage, in a command a typing error."""


def valid_rank(value: int | None) -> int | None:
    """Return *value* if it is a possible rank or number of ranks, else None.

    >>> valid_rank(3), valid_rank(3_000_000_000), valid_rank(-1), valid_rank(None)
    (3, None, None, None)
    """
    return value if value is not None and 0 <= value < MAX_RANKS else None


def missing_ranks(present: Collection[int], size: int, *, most: int) -> tuple[int, list[int]]:
    """Return how many of *size* ranks are not *present*, and the first *most* of those.

    >>> missing_ranks({0, 2, 9}, 5, most=2)
    (3, [1, 3])
    """
    valid = {rank for rank in present if 0 <= rank < size}
    missing = (rank for rank in range(size) if rank not in valid)  # lazy: a damaged size may be in the millions
    return size - len(valid), list(islice(missing, most))


def unknown_rank_error(requested: Iterable[int], present: Iterable[int], *, where: str = "") -> InputError:
    """Return the error for *requested* ranks that are not present, with those that are.

    >>> str(unknown_rank_error([9], [0, 1]))
    'there is no rank 9 (ranks here: 0, 1)'
    >>> str(unknown_rank_error([9], [], where="run.store"))
    'run.store: there is no rank 9 (leave out --ranks to read every rank)'
    """
    available = listing(map(str, sorted(present)), most=8)
    text = f"there is no rank {listing(map(str, sorted(requested)), most=8)}"
    return InputError(
        f"{where}: {text}" if where else text,
        hint=f"ranks here: {available}" if available else "leave out --ranks to read every rank",
    )
