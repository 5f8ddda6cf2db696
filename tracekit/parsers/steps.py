"""Assignment of training steps to events."""

import heapq
from itertools import pairwise

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
    calls = events.select("kind", "correlation", launch_ns="start_ns").filter(
        pl.col("kind").is_in(["runtime", "driver"]), pl.col("correlation") >= 0
    )
    launches = calls.select("correlation", "launch_ns").unique("correlation", keep="last")
    bounds, innermost = _innermost_marks(marks)
    # Number of bounds up to each time: the step is that of the last of them, and null before the first.
    index = np.searchsorted(bounds, events["start_ns"].to_numpy(), side="right")
    # GPU events take the step at the start of their launch instead of their own start.
    gpu_rows = events.select(pl.col("kind").is_in([*GPU_KINDS, "gpu_annotation"]).arg_true()).to_series()
    correlation = events.select(pl.col("correlation").gather(gpu_rows))
    launch_ns = correlation.join(launches, on="correlation", how="left", maintain_order="left")["launch_ns"]
    launch_index = np.searchsorted(bounds, launch_ns.fill_null(0).to_numpy(), side="right")
    index[gpu_rows.to_numpy()] = np.where(launch_ns.is_null().to_numpy(), 0, launch_index)
    steps = marks["step"].gather(pl.Series([None, *innermost], dtype=pl.UInt32))
    return events.with_columns(step=steps.gather(pl.Series(index)))


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


def _innermost_marks(marks: pl.DataFrame) -> tuple[npt.NDArray[np.int64], list[int | None]]:
    """Return the times at which the step may change, and for each the row of the innermost mark, None for none.

    Marks may be nested: a trainer that marks steps too, or the copy of a mark among the operators. A sweep over the
    times keeps the open marks in a heap, whose top is the mark that began last.
    """
    starts, ends = marks["start_ns"].to_numpy(), marks["end_ns"].to_numpy()
    bounds = np.unique(np.concatenate([starts, ends]))
    innermost: list[int | None] = []
    open_rows: list[int] = []  # negated, because heapq keeps the smallest on top
    started = np.searchsorted(starts, bounds, side="right").tolist()  # number of marks started up to each bound
    for bound, (first, last) in zip(bounds, pairwise([0, *started]), strict=True):
        for row in range(first, last):
            heapq.heappush(open_rows, -row)
        while open_rows and ends[-open_rows[0]] <= bound:
            heapq.heappop(open_rows)
        innermost.append(-open_rows[0] if open_rows else None)
    return bounds, innermost
