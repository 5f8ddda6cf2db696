"""Assignment of training steps to events."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.schema import GPU_KINDS

_PROFILER_STEP = r"^ProfilerStep#(\d+)$"


def assign_steps(events: pl.DataFrame, marks: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return *events* with the column ``step``.

    A CPU event belongs to the innermost step around its start, a GPU event to the step of its launch. Events outside
    every step, and GPU events whose launch is not recorded, get null.

    Args:
        events: Events of one rank.
        marks: When each step ran (``step``, ``start_ns``, ``end_ns``); by default the ``ProfilerStep#N`` annotations.

    >>> marks = pl.DataFrame({"step": [7], "start_ns": [10], "end_ns": [20]})
    >>> events = pl.DataFrame({"kind": ["runtime", "kernel"], "start_ns": [12, 25], "correlation": [1, 1]})
    >>> assign_steps(events, marks)["step"].to_list()
    [7, 7]
    """
    marks = _profiler_steps(events) if marks is None else marks
    marks = marks.drop_nulls().sort("start_ns", "end_ns", "step", descending=[False, True, False])
    if marks.is_empty():
        return events.with_columns(step=pl.lit(None, pl.Int64))
    bounds, innermost = _innermost_marks(marks)
    times = _deciding_times(events)
    # The step holds from its bound up to the next. Before the first bound, and without a time, the interval is -1.
    interval = np.searchsorted(bounds, times.fill_null(0).to_numpy(), side="right") - 1
    row = np.where((interval >= 0) & times.is_not_null().to_numpy(), innermost[interval], -1)
    steps = np.append(marks["step"].to_numpy(), -1)[row]  # row -1 picks the appended value, which becomes null
    step = pl.Series("step", steps)
    return events.with_columns(step if (row >= 0).all() else step.set(pl.Series(row < 0), None))


def _deciding_times(events: pl.DataFrame) -> pl.Series:
    """Return the time that decides on each event's step: of GPU events the start of their launch, null without one.

    Of several launches with one id the last counts.
    """
    columns = events.select("kind", "correlation", "start_ns")
    is_gpu = columns["kind"].is_in([*GPU_KINDS, "gpu_annotation"])
    launches = columns.filter(pl.col("kind").is_in(["runtime", "driver"]), pl.col("correlation") >= 0)
    launches = launches.select("correlation", launch_ns="start_ns").unique("correlation", keep="last")
    launched = columns.filter(is_gpu).join(launches, on="correlation", how="left", maintain_order="left")
    return columns["start_ns"].clone().scatter(is_gpu.arg_true(), launched["launch_ns"])


def filter_by_name(frame: pl.DataFrame, pattern: str) -> pl.DataFrame:
    """Return the rows whose name matches *pattern*, which is matched once per distinct name."""
    names = frame["name"].unique()
    matching = names.filter(names.cast(pl.String).str.contains(pattern))
    return frame.filter(pl.col("name").is_in(matching.implode())) if len(matching) else frame.clear()


def _profiler_steps(events: pl.DataFrame) -> pl.DataFrame:
    """Return the ``ProfilerStep#N`` annotations as marks.

    Files of 2021 list the steps among the operators. Copies of the marks on the GPU's tracks are not counted.
    """
    named = events.select("kind", "name", "start_ns", "end_ns").filter(pl.col("kind").is_in(["annotation", "cpu_op"]))
    step = pl.col("name").cast(pl.String).str.extract(_PROFILER_STEP).cast(pl.Int64, strict=False)
    return filter_by_name(named, _PROFILER_STEP).select("start_ns", "end_ns", step=step)


def _innermost_marks(marks: pl.DataFrame) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the times at which the step may change, and for each the row of the innermost mark, -1 for none.

    Marks may be nested: a trainer that marks steps too, or the copy of a mark among the operators. A sweep over the
    times keeps the open marks in a heap, whose top is the mark that began last.
    """
    starts, ends = marks["start_ns"].to_numpy(), marks["end_ns"].to_numpy()
    bounds = np.unique(np.concatenate([starts, ends]))
    innermost = np.full(len(bounds), -1, np.int64)
    open_rows: list[int] = []  # negated, because heapq keeps the smallest on top
    started = np.searchsorted(starts, bounds, side="right")  # number of marks started up to each bound
    for i, bound in enumerate(bounds):
        for row in range(started[i - 1] if i else 0, started[i]):
            heapq.heappush(open_rows, -row)
        while open_rows and ends[-open_rows[0]] <= bound:
            heapq.heappop(open_rows)
        innermost[i] = -open_rows[0] if open_rows else -1
    return bounds, innermost
