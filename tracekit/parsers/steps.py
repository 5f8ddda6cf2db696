"""Which training step each event belongs to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.schema import GPU_KINDS

_MARK = r"^ProfilerStep#(\d+)$"


def assign_steps(events: pl.DataFrame, marks: pl.DataFrame | None = None) -> pl.DataFrame:
    """Fill ``step``: of a CPU event the step that contains its start, of a GPU event its launch's.

    *events* are one rank's. *marks* (``step``, ``start_ns``, ``end_ns``) says when each step ran; without it the
    ``ProfilerStep#N`` annotations say so. Events outside every step, and GPU events whose launch the file does not
    hold, get null.

    >>> marks = pl.DataFrame({"step": [7], "start_ns": [10], "end_ns": [20]})
    >>> events = pl.DataFrame({"kind": ["runtime", "kernel"], "start_ns": [12, 25], "correlation": [1, 1]})
    >>> assign_steps(events, marks)["step"].to_list()
    [7, 7]
    """
    marks = _profiler_steps(events) if marks is None else marks
    marks = marks.drop_nulls().sort("start_ns")
    if marks.is_empty():
        return events.with_columns(step=pl.lit(None, pl.Int64))
    starts = events["start_ns"].to_numpy()
    row, found = _containing(marks, starts)
    kind = events["kind"].cast(pl.String)
    gpu = kind.is_in([*GPU_KINDS, "gpu_annotation"]).to_numpy()
    launch = kind.is_in(["runtime", "driver"]).to_numpy()
    steps = marks["step"].to_numpy()[row]
    origin = _launches(events["correlation"], launch, gpu)
    found[gpu] = False
    known = origin >= 0
    which = np.flatnonzero(gpu)[known]
    source_row, source_found = _containing(marks, starts[origin[known]])
    steps[which], found[which] = marks["step"].to_numpy()[source_row], source_found
    column = pl.Series("step", steps, dtype=pl.Int64)
    return events.with_columns(column.set(pl.Series(~found), None))


def _profiler_steps(events: pl.DataFrame) -> pl.DataFrame:
    # Files of 2021 list the steps among the operators.
    named = events.filter(pl.col("kind").is_in(["annotation", "cpu_op"]))
    names = named["name"].unique().cast(pl.String)
    names = names.filter(names.str.contains(_MARK))
    return (
        named.lazy()
        .with_columns(pl.col("name").cast(pl.String))
        .filter(pl.col("name").is_in(names.implode()))
        .select(pl.col("name").str.extract(_MARK).cast(pl.Int64, strict=False).alias("step"), "start_ns", "end_ns")
        .collect()
    )


def _containing(
    marks: pl.DataFrame, times: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """For each time the last mark that starts at or before it, and whether it has not ended by then."""
    row = np.searchsorted(marks["start_ns"].to_numpy(), times, side="right") - 1
    ends = marks["end_ns"].to_numpy()
    inside = (row >= 0) & (times < ends[row])
    return np.maximum(row, 0), inside


def _launches(
    correlation: pl.Series, launch: npt.NDArray[np.bool_], gpu: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64]:
    """For each GPU event the row of its launch, -1 for none; of several launches with one id the last."""
    ids = correlation.fill_null(-1).to_numpy()
    rows = np.flatnonzero(launch & (ids >= 0))
    wanted = ids[gpu]
    if not len(rows):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(ids[rows], kind="stable")
    rows = rows[order]
    at = np.searchsorted(ids[rows], wanted, side="right") - 1
    hit = (at >= 0) & (ids[rows[np.maximum(at, 0)]] == wanted)
    return np.where(hit, rows[np.maximum(at, 0)], -1)
