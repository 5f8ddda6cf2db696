"""Arrival of ranks at collectives: who joined last, how much later than the others, and how long these waited.

An operation that needs all its members ends on all of them at about the same time, so a member that
joined later has a shorter duration, by as much: durations on the GPU tell lateness without any
clock. Without durations the times of the host's calls are compared: how they change, and, as far as
clocks are known, how late a rank always is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from tracekit._util.arrays import Ints, SortedGroups
from tracekit.align.recorded_clocks import clock_offsets
from tracekit.documents.late import RecordedClock
from tracekit.schema import SYMMETRIC_OPS

Basis = Literal["durations", "calls", "changes of calls"]
"""What lateness rests on."""

MIN_SHARE_WITH_DURATIONS = 0.5
"""Share of symmetric operations with all durations from which lateness rests on durations."""

ON_TIME_QUANTILE = 0.1
"""Share of a rank's calls that are on time, at least: by how late these are its clock may be
off."""

ARRIVALS = pl.Schema(
    {
        "op_id": pl.Int64(),
        "rank": pl.Int32(),
        "late_ns": pl.Int64(),  # joined after the median of the other members; negative: before
        "wait_ns": pl.Int64(),  # waited for the member that joined last
        "is_last": pl.Boolean(),  # joined last
        "call_late_ns": pl.Int64(),  # called by the host after the median of the others' calls; null: not known
    }
)
"""Members of the operations that can be compared."""


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Arrival of every member of every operation that can be compared."""

    members: pl.DataFrame
    """Columns of the members, and ``ARRIVALS``; sorted by operation and arrival."""
    basis: Basis | None
    """None if nothing can be compared."""


def measure_arrivals(members: pl.DataFrame, clocks: Mapping[int, RecordedClock]) -> Arrivals:
    """Return who joined each operation when, relative to the other members.

    Args:
        members: Operations by member (``recorded_ops.RECORDED_MEMBERS``), with ``step`` and ``place``.
        clocks: Clocks of the ranks (``align_recorded_clocks``).

    """
    several = members.filter(pl.len().over("op_id") > 1)
    symmetric = several.filter(pl.col("op").cast(pl.String).is_in(SYMMETRIC_OPS))
    has_durations = pl.col("duration_ns").is_not_null().all().over("op_id")
    timed = symmetric.filter(has_durations)
    called = several.filter(pl.col("enqueued_ns").is_not_null().all().over("op_id"))
    operations = symmetric["op_id"].n_unique()
    basis: Basis
    if operations and timed["op_id"].n_unique() >= MIN_SHARE_WITH_DURATIONS * operations:
        basis = "durations"
        arriving = timed.with_columns(arrival_ns=-pl.col("duration_ns"))
    elif called.is_empty():
        return Arrivals(conform_arrivals(several.clear()), None)
    else:
        basis = "calls" if _all_known(clocks, called) else "changes of calls"
        arriving = compare_calls(called, clocks)
    arriving = arriving.filter(pl.len().over("op_id") > 1).sort("op_id", "arrival_ns", "rank")
    if arriving.is_empty():
        return Arrivals(conform_arrivals(several.clear()), None)
    late, wait, is_last = _compare(arriving["op_id"].to_numpy(), arriving["arrival_ns"].to_numpy())
    compared = arriving.with_columns(
        late_ns=pl.Series(late), wait_ns=pl.Series(wait), is_last=pl.Series(is_last)
    )
    return Arrivals(_with_call_lateness(compared, clocks), basis)


def conform_arrivals(members: pl.DataFrame) -> pl.DataFrame:
    """Return members with empty columns of ``ARRIVALS``."""
    missing = [
        pl.lit(None, dtype).alias(name)
        for name, dtype in ARRIVALS.items()
        if name not in members.columns
    ]
    return members.with_columns(missing)


def _all_known(clocks: Mapping[int, RecordedClock], members: pl.DataFrame) -> bool:
    ranks = members["rank"].unique().to_list()
    return all(rank in clocks and clocks[rank].uncertainty_ns is not None for rank in ranks)


def _on_reference(members: pl.DataFrame, clocks: Mapping[int, RecordedClock]) -> pl.Series:
    """Return the times of the calls on the reference clock."""
    called_ns = pl.col("enqueued_ns") - clock_offsets(clocks, default=None)
    return members.select(called_ns).to_series()


def compare_calls(called: pl.DataFrame, clocks: Mapping[int, RecordedClock]) -> pl.DataFrame:
    """Return members with the times of their calls, relative to those of the other members.

    What a rank is always late by may be its clock: of that only the part beyond the clock's
    uncertainty counts, a lower bound, and nothing where the clock is not known. Changes in time
    count in full.
    """
    if _all_known(clocks, called):
        called = called.with_columns(called_ns=_on_reference(called, clocks))
        own = {rank: clock.uncertainty_ns or 0 for rank, clock in clocks.items()}
        typical = int(np.median(list(own.values())))
        allowed = {rank: uncertainty + typical for rank, uncertainty in own.items()}
    else:
        called = called.with_columns(called_ns=pl.col("enqueued_ns"))
        allowed = {}
    difference = pl.col("called_ns") - pl.col("called_ns").median().over("op_id")
    usual = pl.col("difference_ns").quantile(ON_TIME_QUANTILE).over("group", "rank")
    allowance = pl.col("rank").replace_strict(allowed, default=None, return_dtype=pl.Int64)
    certain = pl.col("usual_ns").sign() * (pl.col("usual_ns").abs() - allowance).clip(lower_bound=0)
    relative = called.with_columns(difference_ns=difference).with_columns(usual_ns=usual)
    arrival = pl.col("difference_ns") - pl.col("usual_ns") + certain.fill_null(0)
    return relative.with_columns(arrival_ns=arrival.cast(pl.Int64)).drop(
        "called_ns", "difference_ns", "usual_ns"
    )


def _compare(op_id: Ints, arrival: Ints) -> tuple[Ints, Ints, np.ndarray]:
    """Return lateness, wait and whether it is the last, of members sorted by operation and arrival.

    Lateness is measured from the median of the *other* members: of the others in order of arrival,
    the one in the middle, or the mean of the two. Of all members, positions from the member's own
    on are shifted by one.
    """
    operations = SortedGroups.of(op_id)
    start = operations.spread(operations.first)
    size = operations.spread(operations.size)
    position = operations.positions()
    # Positions of the two middle ones among the others; the same one twice if their number is odd.
    others = size - 1
    low = (others - 1) // 2
    high = others // 2
    # The row of the other member at a position: from the own position on it is one further.
    low_row = start + low + (low >= position)
    high_row = start + high + (high >= position)
    median_of_others = (arrival[low_row] + arrival[high_row]) // 2
    last_arrival = arrival[start + size - 1]
    is_last = position == size - 1
    return arrival - median_of_others, last_arrival - arrival, is_last


def _with_call_lateness(
    compared: pl.DataFrame, clocks: Mapping[int, RecordedClock]
) -> pl.DataFrame:
    """Add how much later than the others' median the host called each operation, where clocks are known."""
    if not _all_known(clocks, compared) or compared["enqueued_ns"].null_count() == compared.height:
        return compared.with_columns(call_late_ns=pl.lit(None, pl.Int64))
    all_called = pl.col("enqueued_ns").is_not_null().all().over("op_id")
    is_called = compared.select(all_called).to_series()
    called = compared.filter(is_called)
    called = called.with_columns(called_ns=_on_reference(called, clocks)).sort(
        "op_id", "called_ns", "rank"
    )
    call_late, _, _ = _compare(called["op_id"].to_numpy(), called["called_ns"].to_numpy())
    called = called.with_columns(call_late_ns=pl.Series(call_late)).drop("called_ns")
    others = compared.filter(~is_called).with_columns(call_late_ns=pl.lit(None, pl.Int64))
    return pl.concat([called, others]).sort("op_id", "arrival_ns", "rank")
