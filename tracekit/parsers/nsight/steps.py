"""Training steps marked with NVTX: ranges around steps, or instants between them."""

from __future__ import annotations

import polars as pl

from tracekit.parsers.steps import filter_by_name
from tracekit.schema import GPU_KINDS

_NUMBERED = (
    r"^ProfilerStep#(\d+)$",
    r"(?i)^(?:global[ _]?|train(?:ing)?[ _])?step[ _#:=\[]*(\d+)\]?$",
    r"(?i)^(?:global[ _]?|train(?:ing)?[ _])?iter(?:ation)?[ _#:=\[]*(\d+)\]?$",
)
_UNNUMBERED = r"(?i)(?:^|[.\]:/ ])(?:run_training_batch|train_batch|train_step|training_iteration|train_iteration)$"
"""Ranges that trainers put around each whole step, without its number."""
_PROFILER_CALL = r"^(?:cuda|cu)Profiler(Start|Stop)"
MIN_LAUNCHES_INSIDE = 0.9
"""Minimum share of the launches between the first and the last unnumbered range that must lie inside one of them."""


def find_steps(ranges: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame | None:
    """Return the steps of one process, ``step, start_ns, end_ns``, or None if nothing marks any.

    Ranges are taken as they are. An instant ``step N`` begins step N and ends the one before, as a profiler's
    ``step()`` does, so events before the first instant are in step N-1.

    >>> instants = pl.DataFrame({"kind": ["mark"], "name": ["step 3"], "start_ns": [50], "end_ns": [50]})
    >>> find_steps(instants, instants.clear()).rows()
    [(2, -9223372036854775808, 50), (3, 50, 9223372036854775807)]
    """
    for kind in ("annotation", "mark"):
        for pattern in _NUMBERED:
            step = pl.col("name").cast(pl.String).str.extract(pattern).cast(pl.Int64, strict=False).alias("step")
            marks = ranges.filter(pl.col("kind") == kind).select(step, "start_ns", "end_ns").drop_nulls("step")
            if marks.height:
                return _steps_from_ranges(marks) if kind == "annotation" else _steps_between_instants(marks)
    return _unnumbered_steps(ranges, calls)


def _unnumbered_steps(ranges: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame | None:
    """Return the steps marked by ranges without a number, or by the program's own starts and stops of the profiler.

    They are steps only if there are several, one after the other, with hardly a launch between them: a range around the
    forward alone is not a step.

    >>> calls = pl.DataFrame({"name": ["cudaLaunchKernel"] * 2, "start_ns": [5, 25], "end_ns": [6, 26]})
    >>> times = {"start_ns": [0, 20], "end_ns": [9, 29]}
    >>> ranges = pl.DataFrame({"kind": "annotation", "name": ["train_step"] * 2, **times})
    >>> _unnumbered_steps(ranges, calls).rows()
    [(0, 0, 9), (1, 20, 29)]
    """
    named = filter_by_name(ranges.filter(pl.col("kind") == "annotation"), _UNNUMBERED).select("start_ns", "end_ns")
    for candidates in (named, _profiler_captures(calls)):
        steps = candidates.unique().sort("start_ns")
        is_disjoint = bool((steps["start_ns"].shift(-1) >= steps["end_ns"]).fill_null(True).all())
        if len(steps) > 1 and is_disjoint and _contain_launches(steps, calls):
            return steps.select(pl.int_range(pl.len(), dtype=pl.Int64).alias("step"), "start_ns", "end_ns")
    return None


def _profiler_captures(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the times from each start of the profiler to the stop that follows it."""
    action = pl.col("name").cast(pl.String).str.extract(_PROFILER_CALL)
    profiler_calls = filter_by_name(calls, _PROFILER_CALL).select("start_ns", action=action).sort("start_ns")
    following = profiler_calls.with_columns(end_ns=pl.col("start_ns").shift(-1), next_action=pl.col("action").shift(-1))
    return following.filter(action="Start", next_action="Stop").select("start_ns", "end_ns")


def _contain_launches(steps: pl.DataFrame, calls: pl.DataFrame) -> bool:
    """Return whether nearly all launches between the first and the last step lie inside a step."""
    first, last = steps["start_ns"].min(), steps["end_ns"].max()
    launches = filter_by_name(calls, "Launch").select("start_ns").sort("start_ns")
    launches = launches.filter(pl.col("start_ns").is_between(first, last))
    inside = launches.join_asof(steps, on="start_ns").filter(pl.col("start_ns") <= pl.col("end_ns"))
    return bool(launches.height) and inside.height >= MIN_LAUNCHES_INSIDE * launches.height


def _steps_from_ranges(marks: pl.DataFrame) -> pl.DataFrame:
    """Return one range per step, as wide as the ranges of all threads that mark it; overlapping ranges as they are."""
    merged = marks.group_by("step").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).sort("start_ns")
    overlap = (merged["start_ns"] < merged["end_ns"].shift(1)).any()
    return marks.unique().sort("start_ns") if overlap else merged


def _steps_between_instants(marks: pl.DataFrame) -> pl.DataFrame:
    earliest, latest = -(1 << 63), (1 << 63) - 1
    marks = marks.select("step", "start_ns").unique().sort("start_ns")
    steps = marks.with_columns(end_ns=pl.col("start_ns").shift(-1).fill_null(latest))
    first_step, first_start_ns = marks.row(0)
    if first_step <= 0:
        return steps
    before = {"step": [first_step - 1], "start_ns": [earliest], "end_ns": [first_start_ns]}
    return pl.concat([pl.DataFrame(before, schema=steps.schema), steps])


def drop_idle_steps(events: pl.DataFrame) -> pl.DataFrame:
    """Set the step to null where it ran nothing on the GPU: what follows the last instant may not be a step.

    >>> events = pl.DataFrame({"kind": ["kernel", "runtime"], "step": [2, 3]})
    >>> drop_idle_steps(events)["step"].to_list()
    [2, None]
    """
    worked = events.select(pl.col("step").filter(pl.col("kind").is_in(GPU_KINDS)).unique().drop_nulls())["step"]
    if not len(worked) or len(worked) == events["step"].n_unique():
        return events
    return events.with_columns(pl.when(pl.col("step").is_in(worked.implode())).then("step").alias("step"))
