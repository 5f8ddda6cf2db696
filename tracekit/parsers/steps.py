"""Which training step each event belongs to."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.schema import GPU_KINDS, KINDS

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

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
    bounds, owner = _pieces(marks)
    numbers = np.append(marks["step"].to_numpy(), -1)[owner]  # from each bound on; -1 where there is none, and not used
    starts = events["start_ns"].to_numpy()
    steps, inside = _steps_at(starts, bounds, numbers, owner >= 0)
    rows = np.flatnonzero(_of_kind(kind, *GPU_KINDS, "gpu_annotation"))
    launch = _launches(events["correlation"], _of_kind(kind, "runtime", "driver"), rows)
    inside[rows] = False
    rows, launch = rows[launch >= 0], launch[launch >= 0]
    steps[rows], inside[rows] = _steps_at(starts[launch], bounds, numbers, owner >= 0)
    step = pl.Series("step", steps)
    return events.with_columns(step if inside.all() else step.set(pl.Series(~inside), None))


def _steps_at(times: Ints, bounds: Ints, numbers: Ints, inside: Bools) -> tuple[Ints, Bools]:
    """Return the step at each of *times*, and whether there is one; step and *inside* hold from each bound on."""
    piece = np.searchsorted(bounds, times, side="right") - 1
    return numbers[piece], inside[piece] & (piece >= 0)


def _of_kind(kind: npt.NDArray[np.uint8], *names: str) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = np.logical_or.reduce([kind == KINDS.index(name) for name in names])
    return found


def _profiler_steps(events: pl.DataFrame, kind: npt.NDArray[np.uint8]) -> pl.DataFrame:
    names = events["name"].unique().cast(pl.Categorical())
    text = names.cast(pl.String)
    steps = pl.DataFrame({"name": names, "step": text.str.extract(_MARK).cast(pl.Int64, strict=False)}).drop_nulls()
    if steps.is_empty():
        return pl.DataFrame(schema={"step": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64})
    codes = events["name"].cast(pl.Categorical()).to_physical().fill_null(0).to_numpy()
    marked = np.zeros(int(codes.max()) + 1, np.bool_)
    marked[steps["name"].to_physical().to_numpy()] = True
    # Files of 2021 list the steps among the operators; the copies that are drawn over the GPU do not count.
    rows = np.flatnonzero(marked[codes] & _of_kind(kind, "annotation", "cpu_op"))
    named = events.select("name", "start_ns", "end_ns")[pl.Series(rows)].cast({"name": pl.Categorical()})
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


def _launches(
    correlation: pl.Series, launch: npt.NDArray[np.bool_], gpu: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """For each GPU event the row of its launch, -1 for none; of several launches with one id the last."""
    wanted = _ids(correlation, gpu)
    rows = np.flatnonzero(launch)
    ids = _ids(correlation, rows)
    rows, ids = rows[ids >= 0], ids[ids >= 0]
    if not len(rows):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(ids, kind="stable")
    rows, ids = rows[order], ids[order]
    at = np.searchsorted(ids, wanted, side="right") - 1
    hit = (at >= 0) & (ids[np.maximum(at, 0)] == wanted)
    return np.where(hit, rows[np.maximum(at, 0)], -1)


def _ids(correlation: pl.Series, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return correlation.gather(pl.Series(rows)).fill_null(-1).to_numpy()
