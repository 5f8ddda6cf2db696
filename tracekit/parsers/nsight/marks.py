"""Steps as NVTX tells them: ranges that are steps, or instants between them."""

from __future__ import annotations

import polars as pl

from tracekit.schema import GPU_KINDS

_PATTERNS = (
    r"^ProfilerStep#(\d+)$",
    r"(?i)^(?:global[ _]?|train(?:ing)?[ _])?step[ _#:=\[]*(\d+)\]?$",
    r"(?i)^(?:global[ _]?|train(?:ing)?[ _])?iter(?:ation)?[ _#:=\[]*(\d+)\]?$",
)
_UNNUMBERED = r"(?i)(?:^|[.\]:/ ])(?:run_training_batch|train_batch|train_step|training_iteration|train_iteration)$"
"""Ranges that trainers put around each whole step, without its number."""
_CAPTURE = r"^(?:cuda|cu)Profiler(Start|Stop)"
MOST = 0.9
"""Share of the launches between the first and the last of unnumbered ranges that must lie inside one of them."""


def step_marks(frame: pl.DataFrame) -> pl.DataFrame | None:
    """Return the steps, ``step, start_ns, end_ns``, or None when nothing marks any.

    Ranges are taken as they are. An instant ``step N`` begins step N and ends the one before, as a profiler's
    ``step()`` does, so what runs before the first instant is step N-1.

    >>> instants = pl.DataFrame({"kind": ["mark"], "name": ["step 3"], "start_ns": [50], "end_ns": [50]})
    >>> step_marks(instants).rows()
    [(2, -9223372036854775808, 50), (3, 50, 9223372036854775807)]
    """
    for kind in ("annotation", "mark"):
        for pattern in _PATTERNS:
            numbered = (
                frame.filter(pl.col("kind") == kind)
                .select(
                    pl.col("name").cast(pl.String).str.extract(pattern).cast(pl.Int64, strict=False).alias("step"),
                    "start_ns",
                    "end_ns",
                )
                .drop_nulls("step")
            )
            if numbered.height:
                return _ranges(numbered) if kind == "annotation" else _between(numbered)
    return None


def unnumbered_steps(ranges: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame | None:
    """Return the steps that ranges without a number mark, or the program's own starts and stops of the profiler.

    They are steps only where there are several, one after the other, and hardly a launch lies between them: a range
    around the forward alone is not a step.

    >>> calls = pl.DataFrame({"name": ["cudaLaunchKernel"] * 2, "start_ns": [5, 25], "end_ns": [6, 26]})
    >>> both = {"start_ns": [0, 20], "end_ns": [9, 29]}
    >>> ranges = pl.DataFrame({"kind": "annotation", "name": ["train_step"] * 2, **both})
    >>> unnumbered_steps(ranges, calls).rows()
    [(0, 0, 9), (1, 20, 29)]
    """
    named = _called(ranges.filter(pl.col("kind") == "annotation"), _UNNUMBERED)
    for candidates in (named.select("start_ns", "end_ns"), _captures(calls)):
        steps = candidates.unique().sort("start_ns")
        apart = bool((steps["start_ns"].shift(-1) >= steps["end_ns"]).fill_null(True).all())
        if len(steps) > 1 and apart and _cover(steps, calls):
            return steps.select(pl.int_range(pl.len(), dtype=pl.Int64).alias("step"), "start_ns", "end_ns")
    return None


def _called(frame: pl.DataFrame, pattern: str) -> pl.DataFrame:
    """Return the rows whose name has the *pattern*, which is tried once for each distinct name."""
    names = frame.select(pl.col("name").unique())["name"]
    wanted = names.filter(names.cast(pl.String).str.contains(pattern))
    return frame.filter(pl.col("name").is_in(wanted.implode())) if len(wanted) else frame.clear()


def _captures(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the times from each start of the profiler to the stop after it."""
    what = pl.col("name").cast(pl.String).str.extract(_CAPTURE)
    asked = _called(calls, _CAPTURE).select("start_ns", "end_ns", what=what).sort("start_ns")
    stop = pl.col("start_ns").shift(-1).alias("stop_ns")
    begun = asked.with_columns(stop, after=pl.col("what").shift(-1)).filter(what="Start", after="Stop")
    return begun.select("start_ns", end_ns="stop_ns")


def _cover(steps: pl.DataFrame, calls: pl.DataFrame) -> bool:
    """Return whether nearly all launches between the first and the last of the *steps* lie inside one."""
    launches = _called(calls, "Launch").select("start_ns").sort("start_ns")
    first, last = steps["start_ns"].min(), steps["end_ns"].max()
    between = launches.filter(pl.col("start_ns").is_between(first, last))
    inside = between.join_asof(steps.rename({"end_ns": "until"}), on="start_ns").filter(
        pl.col("start_ns") <= pl.col("until")
    )
    return bool(between.height) and inside.height >= MOST * between.height


def used_steps(events: pl.DataFrame) -> pl.DataFrame:
    """Forget steps that launched nothing: what runs after the last instant, or before the first, may not be a step.

    >>> events = pl.DataFrame({"kind": ["kernel", "runtime"], "step": [2, 3]})
    >>> used_steps(events)["step"].to_list()
    [2, None]
    """
    worked = events.select(pl.col("step").filter(pl.col("kind").is_in(GPU_KINDS)).unique().drop_nulls())["step"]
    if not len(worked) or len(worked) == events["step"].n_unique():
        return events
    return events.with_columns(pl.when(pl.col("step").is_in(worked.implode())).then("step").alias("step"))


def _ranges(numbered: pl.DataFrame) -> pl.DataFrame:
    """Return one range per step; threads that each mark the same step widen it."""
    merged = numbered.group_by("step").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).sort("start_ns")
    overlap = (merged["start_ns"] < merged["end_ns"].shift(1)).any()
    return numbered.unique().sort("start_ns") if overlap else merged


def _between(numbered: pl.DataFrame) -> pl.DataFrame:
    low, high = -(1 << 63), (1 << 63) - 1
    marks = numbered.select("step", "start_ns").unique().sort("start_ns")
    first, at = marks.row(0)
    steps = marks.with_columns(end_ns=pl.col("start_ns").shift(-1).fill_null(high))
    before = pl.DataFrame({"step": [first - 1], "start_ns": [low], "end_ns": [at]}, schema=steps.schema)
    return pl.concat([before, steps]) if first > 0 else steps
