"""Which training step each event belongs to."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.schema import GPU_KINDS, KINDS

_MARK = r"^ProfilerStep#(\d+)$"


def assign_steps(events: pl.DataFrame, marks: pl.DataFrame | None = None) -> pl.DataFrame:
    """Fill ``step``: of a CPU event the innermost step around its start, of a GPU event its launch's.

    *events* are one rank's. *marks* (``step``, ``start_ns``, ``end_ns``) says when each step ran; without it the
    ``ProfilerStep#N`` annotations say so. Events outside every step, and GPU events whose launch the file does not
    hold, get null.

    >>> marks = pl.DataFrame({"step": [7], "start_ns": [10], "end_ns": [20]})
    >>> events = pl.DataFrame({"kind": ["runtime", "kernel"], "start_ns": [12, 25], "correlation": [1, 1]})
    >>> assign_steps(events, marks)["step"].to_list()
    [7, 7]
    """
    kind = events["kind"].cast(pl.Enum(KINDS)).to_physical().to_numpy()
    marks = _profiler_steps(events, kind) if marks is None else marks
    marks = marks.drop_nulls().sort("start_ns", "end_ns", "step", descending=[False, True, False])
    if marks.is_empty():
        return events.with_columns(step=pl.lit(None, pl.Int64))
    starts, numbers = events["start_ns"].to_numpy(), marks["step"].to_numpy()
    pieces = _pieces(marks)
    row, marked = _containing(pieces, starts)
    steps = numbers[row]
    del row
    gpu = _of_kind(kind, *GPU_KINDS, "gpu_annotation")
    launch = _launches(events["correlation"], _of_kind(kind, "runtime", "driver"), gpu)
    known = launch >= 0
    launched = np.flatnonzero(gpu)[known]
    row, inside = _containing(pieces, starts[launch[known]])
    marked[gpu] = False
    steps[launched], marked[launched] = numbers[row], inside
    return events.with_columns(pl.Series("step", steps, dtype=pl.Int64).set(pl.Series(~marked), None))


def _of_kind(kind: npt.NDArray[np.uint8], *names: str) -> npt.NDArray[np.bool_]:
    table = np.zeros(len(KINDS), np.bool_)
    table[[KINDS.index(name) for name in names]] = True
    return table[kind]


def _profiler_steps(events: pl.DataFrame, kind: npt.NDArray[np.uint8]) -> pl.DataFrame:
    names = events["name"].unique()
    text = names.cast(pl.String)
    steps = pl.DataFrame({"name": names, "step": text.str.extract(_MARK).cast(pl.Int64, strict=False)}).drop_nulls()
    if steps.is_empty():
        return pl.DataFrame(schema={"step": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64})
    # Files of 2021 list the steps among the operators; the copies that are drawn over the GPU do not count.
    rows = pl.DataFrame({"row": np.flatnonzero(_of_kind(kind, "annotation", "cpu_op"))})
    named = events.select("name", "start_ns", "end_ns")[rows["row"]]
    return named.join(steps, on="name").select("step", "start_ns", "end_ns")


def _pieces(marks: pl.DataFrame) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Moments at which the step changes, and from each on the row of the innermost mark, -1 for none.

    Marks may lie within each other: a trainer that marks steps too, or the copy of a mark among the operators.
    """
    starts, ends = marks["start_ns"].to_numpy(), marks["end_ns"].to_numpy()
    bounds = np.unique(np.concatenate([starts, ends]))
    owner = np.full(len(bounds), -1, np.int64)
    open_rows: list[int] = []  # the heap's top is the mark that began last
    first = np.searchsorted(starts, bounds, side="right")
    for at, bound in enumerate(bounds):
        for row in range(first[at - 1] if at else 0, first[at]):
            heapq.heappush(open_rows, -row)
        while open_rows and ends[-open_rows[0]] <= bound:
            heapq.heappop(open_rows)
        owner[at] = -open_rows[0] if open_rows else -1
    return bounds, owner


def _containing(
    pieces: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]], times: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """For each time the innermost mark around it, and whether there is one."""
    bounds, owner = pieces
    at = np.searchsorted(bounds, times, side="right") - 1
    row = np.where(at >= 0, owner[np.maximum(at, 0)], -1)
    return np.maximum(row, 0), row >= 0


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
