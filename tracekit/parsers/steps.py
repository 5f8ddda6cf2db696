"""Assignment of training steps to events."""

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.arrays import Bools, Ints, find_ids, take_or_missing
from tracekit.schema import GPU_KINDS, KINDS

_PROFILER_STEP = r"^ProfilerStep#(\d+)$"


def assign_steps(events: pl.DataFrame, marks: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return *events* with the column ``step``.

    A CPU event belongs to the innermost step around its start, a GPU event to the step of its
    launch. Events outside every step, and GPU events whose launch is not recorded, get null.

    Args:
        events: Events of one rank.
        marks: When each step ran (``step``, ``start_ns``, ``end_ns``); by default the
            ``ProfilerStep#N`` annotations.

    >>> marks = pl.DataFrame({"step": [7], "start_ns": [10], "end_ns": [20]})
    >>> events = pl.DataFrame({"kind": ["runtime", "kernel"], "start_ns": [12, 25], "correlation": [1, 1]})
    >>> assign_steps(events, marks)["step"].to_list()
    [7, 7]
    """
    kind = events["kind"].cast(pl.Enum(KINDS)).to_physical().to_numpy()
    marks = _profiler_steps(events) if marks is None else marks
    marks = marks.drop_nulls().sort("start_ns", "end_ns", "step", descending=[False, True, False])
    if marks.is_empty():
        return events.with_columns(step=pl.lit(None, pl.Int64))
    bounds, innermost = _innermost_marks(marks)
    # Step number from each bound on; owner -1 picks the appended value, which is masked out below.
    numbers = np.append(marks["step"].to_numpy(), -1)[innermost]
    starts = events["start_ns"].to_numpy()
    steps, inside = _steps_at(starts, bounds, numbers, innermost >= 0)
    # GPU events take the step at the start of their launch instead of their own start.
    gpu_rows = np.flatnonzero(_of_kind(kind, *GPU_KINDS, "gpu_annotation"))
    launch_rows = _find_launches(
        events["correlation"], _of_kind(kind, "runtime", "driver"), gpu_rows
    )
    inside[gpu_rows] = False
    has_launch = launch_rows >= 0
    gpu_rows = gpu_rows[has_launch]
    launch_rows = launch_rows[has_launch]
    steps[gpu_rows], inside[gpu_rows] = _steps_at(
        starts[launch_rows], bounds, numbers, innermost >= 0
    )
    step = pl.Series("step", steps)
    return events.with_columns(step if inside.all() else step.set(pl.Series(~inside), None))


def _steps_at(times: Ints, bounds: Ints, numbers: Ints, inside: Bools) -> tuple[Ints, Bools]:
    """Return the step at each of *times*, and whether there is one.

    *numbers* and *inside* hold the step, and whether there is one, from each of *bounds* up to the
    next.
    """
    interval = np.searchsorted(bounds, times, side="right") - 1  # -1 before the first bound
    return numbers[interval], inside[interval] & (interval >= 0)


def _of_kind(kind: npt.NDArray[np.uint8], *names: str) -> Bools:
    """Return the mask of events whose kind is one of *names*."""
    return np.isin(kind, [KINDS.index(name) for name in names])


def filter_by_name(frame: pl.DataFrame, pattern: str) -> pl.DataFrame:
    """Return the rows whose name matches *pattern*, which is matched once per distinct name."""
    names = frame["name"].unique()
    matching = names.filter(names.cast(pl.String).str.contains(pattern))
    return (
        frame.filter(pl.col("name").is_in(matching.implode())) if len(matching) else frame.clear()
    )


def _profiler_steps(events: pl.DataFrame) -> pl.DataFrame:
    """Return the ``ProfilerStep#N`` annotations as marks.

    Files of 2021 list the steps among the operators. Copies of the marks on the GPU's tracks are
    not counted.
    """
    named = events.select("kind", "name", "start_ns", "end_ns").filter(
        pl.col("kind").is_in(["annotation", "cpu_op"])
    )
    step = pl.col("name").cast(pl.String).str.extract(_PROFILER_STEP).cast(pl.Int64, strict=False)
    return filter_by_name(named, _PROFILER_STEP).select("start_ns", "end_ns", step=step)


def _innermost_marks(marks: pl.DataFrame) -> tuple[Ints, Ints]:
    """Return the times at which the step may change, and for each the row of the innermost mark, -1 for none.

    Marks may be nested: a trainer that marks steps too, or the copy of a mark among the operators.
    They come in order of their start, so that an inner mark is written over the one around it.
    """
    starts = marks["start_ns"].to_numpy()
    ends = marks["end_ns"].to_numpy()
    bounds = np.unique(np.concatenate([starts, ends]))
    innermost = np.full(len(bounds), -1, np.int64)
    first = np.searchsorted(bounds, starts).tolist()
    behind = np.searchsorted(bounds, ends).tolist()
    for row in range(len(marks)):
        innermost[first[row] : behind[row]] = row
    return bounds, innermost


def _find_launches(correlation: pl.Series, is_launch: Bools, gpu_rows: Ints) -> Ints:
    """Return the row of each GPU event's launch, -1 for none.

    Of several launches with one id the last.
    """
    rows = np.flatnonzero(is_launch)[::-1]
    wanted = correlation.gather(pl.Series(gpu_rows)).fill_null(-1).to_numpy()
    ids = correlation.gather(pl.Series(rows)).fill_null(-1).to_numpy()
    return take_or_missing(rows, find_ids(wanted, ids))
