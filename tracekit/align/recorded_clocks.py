"""Clock offsets of ranks from the operations that recorders saw, with bounds.

An operation that needs all its members ends after the last of them has joined, and at about the
same time on all. Where ends were measured, their differences give the offsets. A flight recorder
has only bounds: an operation cannot end before its call plus its duration, and had ended when the
watchdog looked. Many operations make these bounds tight.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from tracekit.documents.late import RecordedClock
from tracekit.schema import SYMMETRIC_OPS

MIN_COMMON_OPS = 3
"""Operations that two ranks must share for an offset between them."""
MEDIAN_DEVIATION_TO_SIGMA = 1.4826
"""Standard deviation over median absolute deviation, of a normal distribution."""
MAX_CLOCK_ROUNDS = 64
"""Rounds in which offsets spread from rank to rank: ranks of a chain of groups need one each."""


def align_recorded_clocks(members: pl.DataFrame) -> dict[int, RecordedClock]:
    """Return the clocks of the ranks that share operations, directly or through others, with the reference rank.

    The reference is the lowest of the ranks that have most operations. Ranks that share none are
    left out.
    """
    ends = _ends(members)
    if ends.is_empty():
        return {}
    counts = ends.group_by("rank").len().sort(["len", "rank"], descending=[True, False])
    reference = counts["rank"][0]
    clocks = {reference: RecordedClock(reference, 0, 0)}
    for _ in range(MAX_CLOCK_ROUNDS):
        added = _next_clocks(ends, clocks)
        if not added:
            break
        clocks.update(added)
    return clocks


def clock_offsets(clocks: Mapping[int, RecordedClock], *, default: int | None) -> pl.Expr:
    """Return the offset of the clock of each row's ``rank``; *default* for a rank without a clock.

    >>> clocks = {0: RecordedClock(0, 0, 0), 1: RecordedClock(1, 50, 2)}
    >>> pl.DataFrame({"rank": [1, 0, 7]}).select(clock_offsets(clocks, default=None)).to_series().to_list()
    [50, 0, None]
    """
    offset_of_rank = {rank: clock.offset_ns for rank, clock in clocks.items()}
    return pl.col("rank").replace_strict(offset_of_rank, default=default, return_dtype=pl.Int64)


def _ends(members: pl.DataFrame) -> pl.DataFrame:
    """Return, per operation and member, the earliest and the latest moment at which it may have ended."""
    # Operations of a group run one after the other: each ends no earlier than the one before it
    # plus its own duration. With the durations summed up, that is a running maximum.
    known_start = pl.max_horizontal("enqueued_ns", "started_ns")
    total = pl.col("duration_ns").fill_null(0).cum_sum().over("rank", "group")
    total_before = total - pl.col("duration_ns").fill_null(0)
    earliest_in_order = total + (known_start - total_before).cum_max().over("rank", "group")
    ordered = members.sort("rank", "group", "order_ns", "op_id").with_columns(
        earliest_ns=earliest_in_order
    )
    symmetric = ordered.filter(pl.col("op").cast(pl.String).is_in(SYMMETRIC_OPS))
    ends = symmetric.select(
        "op_id",
        "rank",
        earliest_ns=pl.coalesce("completed_ns", "earliest_ns"),
        latest_ns=pl.coalesce("completed_ns", "completed_by_ns"),
        is_measured=pl.col("completed_ns").is_not_null(),
    )
    return ends.drop_nulls()


def _next_clocks(ends: pl.DataFrame, clocks: dict[int, RecordedClock]) -> dict[int, RecordedClock]:
    """Return the clocks of ranks that share operations with ranks whose clocks are known."""
    offsets = pl.DataFrame(
        [(clock.rank, clock.offset_ns, clock.uncertainty_ns or 0) for clock in clocks.values()],
        schema={"rank": pl.Int32, "offset_ns": pl.Int64, "uncertainty_ns": pl.Int64},
        orient="row",
    )
    on_reference = ends.join(offsets, on="rank").with_columns(
        earliest_ns=pl.col("earliest_ns") - pl.col("offset_ns") - pl.col("uncertainty_ns"),
        latest_ns=pl.col("latest_ns") - pl.col("offset_ns") + pl.col("uncertainty_ns"),
    )
    # Times since 1970 are too large for a float: only what they differ by is averaged.
    end_ns = pl.col("earliest_ns") + (pl.col("latest_ns") - pl.col("earliest_ns")) // 2
    since_first_ns = (end_ns - end_ns.min()).median().round().cast(pl.Int64)
    of_op = on_reference.group_by("op_id").agg(
        known_earliest_ns=pl.col("earliest_ns").max(),
        known_latest_ns=pl.col("latest_ns").min(),
        known_end_ns=end_ns.min() + since_first_ns,
        known_is_measured=pl.col("is_measured").all(),
        known_uncertainty_ns=pl.col("uncertainty_ns").min(),
    )
    unknown = ends.join(offsets, on="rank", how="anti").join(of_op, on="op_id")
    added = {}
    for (rank,), shared in unknown.group_by("rank"):
        assert isinstance(rank, int), "ranks are numbers"
        if shared.height >= MIN_COMMON_OPS:
            added[rank] = _clock(rank, shared)
    return added


def _clock(rank: int, shared: pl.DataFrame) -> RecordedClock:
    """Return the clock of one rank from the operations it shares with ranks whose clocks are known."""
    measured = shared.filter(pl.col("is_measured") & pl.col("known_is_measured"))
    if measured.height >= MIN_COMMON_OPS:
        difference_ns = (measured["latest_ns"] - measured["known_end_ns"]).to_numpy()
        first_ns = int(difference_ns[0])
        offset_ns = first_ns + round(float(np.median(difference_ns - first_ns)))
        spread_ns = MEDIAN_DEVIATION_TO_SIGMA * float(np.median(np.abs(difference_ns - offset_ns)))
        inherited_ns = int(measured["known_uncertainty_ns"].to_numpy().min())
        return RecordedClock(rank, offset_ns, round(spread_ns) + inherited_ns)
    # The end on the rank's own clock lies between its bounds; the same end on the reference clock
    # between the others'.
    lowest = int((shared["earliest_ns"] - shared["known_latest_ns"]).to_numpy().max())
    highest = int((shared["latest_ns"] - shared["known_earliest_ns"]).to_numpy().min())
    offset_ns = (lowest + highest) // 2
    if lowest > highest:
        return RecordedClock(rank, offset_ns, None)
    return RecordedClock(rank, offset_ns, (highest - lowest + 1) // 2)
