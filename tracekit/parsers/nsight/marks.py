"""Steps as NVTX tells them: ranges that are steps, or instants between them."""

from __future__ import annotations

import polars as pl

from tracekit.schema import GPU_KINDS

_PATTERNS = (
    r"^ProfilerStep#(\d+)$",
    r"(?i)^(?:train(?:ing)?[ _])?step[ _#:=]*(\d+)$",
    r"(?i)^(?:train(?:ing)?[ _])?iter(?:ation)?[ _#:=]*(\d+)$",
)


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
            found = (
                frame.filter(pl.col("kind") == kind)
                .select(
                    pl.col("name").cast(pl.String).str.extract(pattern).cast(pl.Int64, strict=False).alias("step"),
                    "start_ns",
                    "end_ns",
                )
                .drop_nulls("step")
            )
            if found.height:
                return _ranges(found) if kind == "annotation" else _between(found)
    return None


def used_steps(events: pl.DataFrame) -> pl.DataFrame:
    """Forget steps that launched nothing: what runs after the last instant, or before the first, may be no step.

    >>> events = pl.DataFrame({"kind": ["kernel", "runtime"], "step": [2, 3]})
    >>> used_steps(events)["step"].to_list()
    [2, None]
    """
    worked = events.select(pl.col("step").filter(pl.col("kind").is_in(GPU_KINDS)).unique().drop_nulls())["step"]
    if not len(worked) or len(worked) == events["step"].n_unique():
        return events
    return events.with_columns(pl.when(pl.col("step").is_in(worked.implode())).then("step").alias("step"))


def _ranges(found: pl.DataFrame) -> pl.DataFrame:
    """One range a step; threads that each mark the same step widen it."""
    merged = found.group_by("step").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).sort("start_ns")
    overlap = (merged["start_ns"] < merged["end_ns"].shift(1)).any()
    return found.unique().sort("start_ns") if overlap else merged


def _between(found: pl.DataFrame) -> pl.DataFrame:
    low, high = -(1 << 63), (1 << 63) - 1
    marks = found.select("step", "start_ns").unique().sort("start_ns")
    first, at = marks.row(0)
    steps = marks.with_columns(end_ns=pl.col("start_ns").shift(-1).fill_null(high))
    before = pl.DataFrame({"step": [first - 1], "start_ns": [low], "end_ns": [at]}, schema=steps.schema)
    return pl.concat([before, steps]) if first > 0 else steps
