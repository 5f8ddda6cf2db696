"""What a rank's number can be, and ranks that are not there: one sentence, whoever says it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

from tracekit._util.text import listing
from tracekit.errors import InputError

MOST_RANKS = 10_000_000
"""No run has as many ranks: a larger number in a file is damage, in a command a slip of the finger."""


def rank_number(value: int | None) -> int | None:
    """Return a rank, or a number of ranks, that a run can have; None for any other number.

    >>> rank_number(3), rank_number(3_000_000_000), rank_number(-1), rank_number(None)
    (3, None, None, None)
    """
    return value if value is not None and 0 <= value < MOST_RANKS else None


def absent(present: Collection[int], size: int, *, most: int) -> tuple[int, list[int]]:
    """Return how many of *size* ranks are not *present*, and the first *most* of them; the rest is never listed.

    >>> absent({0, 2, 9}, 5, most=2)
    (3, [1, 3])
    """
    here = {rank for rank in present if 0 <= rank < size}
    missing = (rank for rank in range(size) if rank not in here)
    return size - len(here), list(islice(missing, most))


def unknown_rank(asked: Iterable[int], present: Iterable[int], *, where: str = "") -> InputError:
    """Return the error for ranks that are not there, with the ranks that are.

    >>> str(unknown_rank([9], [0, 1]))
    'there is no rank 9 (ranks here: 0, 1)'
    >>> str(unknown_rank([9], [], where="run.store"))
    'run.store: there is no rank 9 (leave out --ranks to read every rank)'
    """
    known = listing(map(str, sorted(present)), most=8)
    text = f"there is no rank {listing(map(str, sorted(asked)), most=8)}"
    return InputError(
        f"{where}: {text}" if where else text,
        hint=f"ranks here: {known}" if known else "leave out --ranks to read every rank",
    )
