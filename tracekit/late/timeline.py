"""Collectives of a few steps over time: when each rank called, joined and completed them, on one clock.

Where the record has no end of an operation, its end is the earliest that calls and durations allow:
no member is done before its own call and its duration have passed, and all are done together.
"""

from __future__ import annotations

import polars as pl

from tracekit.align.recorded_clocks import clock_offsets
from tracekit.documents.late import LateRanks
from tracekit.late.result import WholeRun

STEPS_AROUND = 1
"""Steps that are shown before and after the step in question."""
MAX_OPERATIONS = 160
"""Collectives that are shown at most, the last ones."""

BARS = pl.Schema(
    {
        "rank": pl.Int32(),
        "op_id": pl.Int64(),
        "step": pl.Int64(),
        "op": pl.String(),
        "bytes": pl.Int64(),
        "called_ns": pl.Int64(),  # by the host; null: not recorded
        "joined_ns": pl.Int64(),  # by the GPU; null: not known
        "all_joined_ns": pl.Int64(),  # by the last member
        "end_ns": pl.Int64(),
    }
)
"""Members of collectives on the reference clock, sorted by op_id and rank."""


def shown_steps(run: WholeRun) -> tuple[int, int] | None:
    """Return the first and last step that a timeline of collectives shows.

    None if steps are not known.

    They are those around the step in which the rank that costs most is latest, or the last ones.
    Steps that a profiler's trace shows are left to the trace's own timeline where there are others.
    """
    steps = run.lateness.steps
    if not run.steps.count or not len(steps):
        return None
    culprits = [fact for fact in run.document.late if fact.cause != "waited_itself"]
    middle = _latest_step(run, culprits[0]) if culprits else int(steps[-1])
    return max(int(steps[0]), middle - STEPS_AROUND), min(int(steps[-1]), middle + STEPS_AROUND)


def _latest_step(run: WholeRun, fact: LateRanks) -> int:
    """Return the step in which the first of some late ranks is latest."""
    of_rank = run.lateness.table.filter(
        (pl.col("rank") == fact.ranks[0]) & pl.col("step").is_in(fact.steps)
    )
    unprofiled = of_rank.filter(~pl.col("step").is_in(fact.profiled_steps))
    candidates = of_rank if unprofiled.is_empty() else unprofiled
    return int(candidates.sort("late_ns", "step", descending=[True, False])["step"][0])


def collective_bars(run: WholeRun) -> pl.DataFrame:
    """Return the collectives of the steps that a timeline shows, or the last ones (``BARS``)."""
    steps = shown_steps(run)
    members = run.members
    if steps is not None:
        members = members.filter(pl.col("step").is_between(*steps))
    last_ids = members["op_id"].unique().sort().tail(MAX_OPERATIONS)
    members = members.filter(pl.col("op_id").is_in(last_ids.implode()))
    clocks = {clock.rank: clock for clock in run.document.clocks}
    offset = clock_offsets(clocks, default=0)
    placed = members.with_columns(
        op=pl.col("op").cast(pl.String),
        called_ns=pl.col("enqueued_ns") - offset,
        started_ns=pl.col("started_ns") - offset,
        completed_ns=pl.col("completed_ns") - offset,
    )
    earliest_end = pl.max_horizontal("called_ns", "started_ns") + pl.col("duration_ns").fill_null(0)
    end = pl.coalesce(
        pl.col("completed_ns").median().over("op_id").cast(pl.Int64),
        earliest_end.max().over("op_id"),
    )
    timed = placed.with_columns(end_ns=end)
    joined = pl.coalesce(pl.col("end_ns") - pl.col("duration_ns"), "started_ns")
    timed = timed.with_columns(joined_ns=joined).with_columns(
        all_joined_ns=pl.col("joined_ns").max().over("op_id")
    )
    drawable = timed.filter(pl.col("end_ns").is_not_null() | pl.col("called_ns").is_not_null())
    return drawable.sort("op_id", "rank").select(
        pl.col(name).cast(dtype) for name, dtype in BARS.items()
    )
