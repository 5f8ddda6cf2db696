"""Allocated GPU memory over time and by phase of the step, from PyTorch's ``[memory]`` events.

These events carry the time at which the host asks for memory, which is when it launches work, not when the GPU runs it.
The phase of an event is therefore that of the *host*, as the launches around it show. Where the launches on both sides
disagree, the event belongs to no phase, and the peak of a phase is a range: what was certainly allocated in it, and
what may have been.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit.documents.analysis import Peak

MEMORY_PHASES = {
    "forward": "forward",
    "dgrad": "backward",
    "wgrad": "backward",
    "backward": "backward",
    "recompute": "recompute",
    "optimizer": "optimizer",
}
"""Phase of the host while it launches work of a label; for communication its pass, where known, is the phase."""

MAX_CURVE_POINTS = 200
"""Points of a rank's memory curve; each is the maximum of its stretch of time, so that no peak is lost."""
MEMORY_CURVE = pl.Schema({"at_ns": pl.Int64(), "allocated": pl.Int64(), "reserved": pl.Int64()})

_HOST_DEVICE_TYPE = 0


class RankMemory(msgspec.Struct, frozen=True, eq=False):
    """One rank's memory over the selected steps, in bytes."""

    device: int
    peak_bytes: int
    """Peak of memory allocated to tensors."""
    reserved_bytes: int | None
    """Peak of memory reserved by the allocator, used or not."""
    first_bytes: int
    """Allocated before the first event."""
    by_phase: Mapping[str, Peak] = {}
    chunks: ChunkMemory | None = None
    """Memory of pipeline chunks; None without a pipeline."""
    line: pl.DataFrame = msgspec.field(default_factory=MEMORY_CURVE.to_frame)
    """``MEMORY_CURVE`` on the host's clock; the value of a point lasts until the next."""


def gpu_memory(memory: pl.DataFrame) -> pl.DataFrame:
    """Return the allocator events of the GPU that has most of them, with the allocation ``before`` each event.

    >>> rows = {"at_ns": [1, 2, 3], "device_type": [1, 1, 0], "device": [0, 0, -1], "bytes": [5, -5, 9],
    ...         "allocated": [15, 10, 9], "reserved": [20, 20, 0]}
    >>> gpu_memory(pl.DataFrame(rows)).select("at_ns", "allocated", "before").rows()
    [(1, 15, 10), (2, 10, 15)]
    """
    on_gpus = memory.filter((pl.col("device_type") != _HOST_DEVICE_TYPE) & pl.col("allocated").is_not_null())
    if on_gpus.is_empty():
        return on_gpus.with_columns(before=pl.col("allocated"))
    counts = on_gpus.group_by("device_type", "device").len().sort(["len", "device"], descending=[True, False])
    device_type, device = counts.select("device_type", "device").row(0)
    on_gpu = on_gpus.filter((pl.col("device_type") == device_type) & pl.col("device").eq_missing(device))
    return on_gpu.with_columns(before=pl.col("allocated") - pl.col("bytes")).sort("at_ns", maintain_order=True)


def measure_rank_memory(
    memory: pl.DataFrame,
    labelled: pl.DataFrame,
    ops: pl.DataFrame,
    *,
    window: tuple[int, int] | None = None,
    chunks: pl.DataFrame | None = None,
) -> RankMemory | None:
    """Return one rank's memory; None where the allocator's events were not recorded.

    Args:
        memory: Allocator events of the rank (``schema.MEMORY``).
        labelled: Its GPU events.
        ops: Its CPU operators.
        window: First and last host time of the selected steps; None for the whole trace.
        chunks: Its cells in the pipeline (``measure_chunk_memory``); None without a pipeline.

    """
    events = gpu_memory(memory)
    if window is not None:
        events = events.filter(pl.col("at_ns").is_between(*window))
    if events.is_empty():
        return None
    peaks = events.select(pl.max("allocated", "before", "reserved"))
    return RankMemory(
        device=int(events["device"][0] or 0),
        peak_bytes=max(int(peaks["allocated"][0]), int(peaks["before"][0])),
        reserved_bytes=peaks["reserved"][0],
        first_bytes=int(events["before"][0]),
        by_phase=phase_peaks(add_phases(events, labelled, ops)),
        chunks=None if chunks is None else measure_chunk_memory(events, chunks),
        line=thin_curve(events),
    )


def phase_peaks(phased: pl.DataFrame) -> dict[str, Peak]:
    """Return the peak of each phase that occurs; *phased* comes from ``add_phases``.

    >>> rows = {"phase": ["forward", None], "previous": ["forward"] * 2, "following": ["forward", "backward"],
    ...         "allocated": [10, 12], "before": [8, 10]}
    >>> phase_peaks(pl.DataFrame(rows))
    {'forward': Peak(at_least=10, at_most=12)}
    """
    levels = phased.with_columns(level=pl.max_horizontal("allocated", "before"))
    ambiguous = levels.filter(pl.col("phase").is_null())
    peaks = {}
    for phase in dict.fromkeys(MEMORY_PHASES.values()):
        certain = levels.filter(pl.col("phase") == phase)["level"]
        possible = ambiguous.filter((pl.col("previous") == phase) | (pl.col("following") == phase))["level"]
        if len(certain):
            at_least = _largest(certain)
            peaks[phase] = Peak(at_least, max(at_least, _largest(possible)))
    return peaks


def _largest(values: pl.Series) -> int:
    """Return the largest value; 0 if there is none."""
    return int(values.to_numpy().max(initial=0))


def add_phases(events: pl.DataFrame, labelled: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the allocator's events with the host's ``phase``, and with the phases of the launches around them.

    Inside an operator, the launches of this operator decide. Between operators the launches before and after must
    agree, on whichever thread they are. Else the phase is null.

    Args:
        events: Allocator events.
        labelled: GPU events of the rank.
        ops: CPU operators of the rank.

    """
    launches = _find_launches(labelled)
    rows = events.with_row_index("event").sort("at_ns", maintain_order=True)
    rows = _add_neighbours(rows, launches, "")
    rows = _add_neighbours(rows, launches, "own_", by="tid")
    rows = rows.sort("at_ns").join_asof(
        _find_outermost(ops), left_on="at_ns", right_on="op_ns", by="tid", check_sortedness=False
    )
    # Launches of the same thread before and after the event, if they are inside the operator around it.
    in_op = pl.col("at_ns") <= pl.col("op_end_ns")
    op_previous = pl.when(in_op & (pl.col("own_previous_ns") >= pl.col("op_ns"))).then("own_previous")
    op_following = pl.when(in_op & (pl.col("own_following_ns") <= pl.col("op_end_ns"))).then("own_following")
    has_op_launch = op_previous.is_not_null() | op_following.is_not_null()
    op_agrees = op_previous.is_null() | op_following.is_null() | (op_previous == op_following)
    op_phase = pl.when(op_agrees).then(pl.coalesce(op_previous, op_following))
    # Launches of any thread before and after the event; the thread's own launches must not contradict them.
    own_previous, own_following = pl.col("own_previous"), pl.col("own_following")
    is_consistent = (
        (own_previous.is_null() & own_following.is_null())
        | (own_previous == pl.col("previous"))
        | (own_following == pl.col("previous"))
    ).fill_null(False)
    phase_around = pl.when((pl.col("previous") == pl.col("following")) & is_consistent).then("previous")
    return rows.with_columns(phase=pl.when(has_op_launch).then(op_phase).otherwise(phase_around)).sort("event")


def _find_launches(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return time, thread and phase of the launches of work with a known phase, in order of time."""
    label = pl.col("label").cast(pl.String)
    compute_phase = label.replace_strict(MEMORY_PHASES, default=None, return_dtype=pl.String)
    comm_phase = pl.when(label != "other").then(pl.col("pass").cast(pl.String))
    launches = labelled.select("launch_ns", tid="launch_tid", phase=pl.coalesce(compute_phase, comm_phase))
    return launches.drop_nulls(["launch_ns", "phase"]).sort("launch_ns")


def _add_neighbours(rows: pl.DataFrame, launches: pl.DataFrame, prefix: str, by: str | None = None) -> pl.DataFrame:
    """Add phase (*prefix* and ``previous``, ``following``) and time (``…_ns``) of the launches around each event.

    Args:
        rows: Allocator events, in order of time.
        launches: Launches (``_find_launches``).
        prefix: Beginning of the new columns' names.
        by: A column that must be the same in both.

    """
    neighbours: dict[str, Literal["backward", "forward"]] = {"previous": "backward", "following": "forward"}
    for neighbour, strategy in neighbours.items():
        time, phase = f"{prefix}{neighbour}_ns", f"{prefix}{neighbour}"
        renamed = launches.select(*([by] if by else []), pl.col("launch_ns").alias(time), pl.col("phase").alias(phase))
        rows = rows.join_asof(
            renamed, left_on="at_ns", right_on=time, by=by, strategy=strategy, check_sortedness=False, coalesce=False
        )
    return rows


def _find_outermost(ops: pl.DataFrame) -> pl.DataFrame:
    """Return the operators that are inside no other, by thread."""
    spans = ops.select("tid", op_ns="start_ns", op_end_ns="end_ns").drop_nulls()
    spans = spans.sort("op_ns", "op_end_ns", descending=[False, True])
    previous_end = pl.col("op_end_ns").cum_max().shift(1).over("tid")
    return spans.filter(previous_end.is_null() | (pl.col("op_ns") >= previous_end))


def thin_curve(events: pl.DataFrame, *, points: int = MAX_CURVE_POINTS) -> pl.DataFrame:
    """Return ``MEMORY_CURVE``: the maximum of each of *points* stretches of equal time; every event if there are fewer.

    >>> rows = {"at_ns": [0, 1, 10], "allocated": [5, 9, 2], "reserved": [9, 9, 9]}
    >>> thin_curve(pl.DataFrame(rows), points=2).rows()
    [(0, 9, 9), (10, 2, 9)]
    """
    if len(events) > points:
        first, last = int(events["at_ns"][0]), int(events["at_ns"][-1])
        stretch_ns = max(1, -(-(last - first + 1) // points))
        stretch = (pl.col("at_ns") - first) // stretch_ns
        events = events.group_by(stretch.alias("stretch"), maintain_order=True).agg(
            pl.first("at_ns"), pl.max("allocated", "reserved")
        )
    return events.select(MEMORY_CURVE.names()).cast(MEMORY_CURVE)


# ---- Memory of pipeline chunks: growth over a forward cell, and fall over its backward.
#
# Both are measured between cells, at the least allocated memory from the last launch of one cell to the first launch
# of the next: what an operator needs only while it runs is free again there. All times are the host's (see
# ``metrics.memory``).


MAX_GROWTH_RATIO = 1.5
"""Largest ratio between growth over a forward and fall over a backward; beyond it, a chunk's memory is unknown."""
MIN_CELLS = 2
"""Measured cells of each kind needed to state a chunk's memory."""
_UNKNOWN = np.iinfo(np.int64).min


class ChunkMemory(msgspec.Struct, frozen=True):
    """Memory of a rank's chunks, in bytes."""

    low: int | None
    """Smaller median of growth over forwards and fall over backwards; None where they do not agree."""
    high: int | None
    """Larger of the two medians."""
    base_bytes: int
    """Allocated before the first forward: weights, optimizer state and other memory that stays."""
    kept_bytes: int
    """Allocated beyond that at the last launch of the last cell: gradients, at most."""
    passing_bytes: int
    """Largest amount that a cell needs only while it runs."""
    peak_chunks: int
    """Largest number of chunks in memory at once, each from its forward to its B or W."""


def measure_chunk_memory(memory: pl.DataFrame, chunks: pl.DataFrame) -> ChunkMemory | None:
    """Return the memory of a rank's chunks; None without allocator events or chunks.

    Args:
        memory: Allocator events of one GPU (``metrics.memory.gpu_memory``).
        chunks: Cells of the rank, with columns ``step``, ``op`` (F, B, I, W), ``pair``, ``launch_ns`` and ``last_ns``
            (first and last launch).

    >>> memory = pl.DataFrame({"at_ns": [1, 11, 21, 31, 41, 51], "allocated": [7, 9, 11, 9, 7, 5], "before": [5] * 6})
    >>> cells = pl.DataFrame({"step": [0] * 6, "op": list("FFFBBB"), "pair": [0, 1, 2, 2, 1, 0],
    ...                       "launch_ns": [0, 10, 20, 30, 40, 50], "last_ns": [5, 15, 25, 35, 45, 55]})
    >>> measure_chunk_memory(memory, cells)
    ChunkMemory(low=2, high=2, base_bytes=5, kept_bytes=0, passing_bytes=0, peak_chunks=3)

    """
    if memory.is_empty() or chunks.is_empty():
        return None
    level = _MemoryLevel.build(memory)
    changes, base_bytes, kept_bytes, peak_chunks = [], [], [], []
    previous_end = int(level.time_ns[1]) - 1
    for cells in chunks.partition_by("step", maintain_order=True):
        step = cells.sort("launch_ns")
        first_launch = int(step["launch_ns"][0])
        changes.append(_measure_changes(step, level))
        base = level.extremes(np.min, np.array([min(previous_end, first_launch)]), np.array([first_launch]))
        base_bytes.append(int(base[0]))
        previous_end = max(first_launch, int(step["last_ns"].to_numpy().max()))
        kept_bytes.append(level.at(previous_end) - base_bytes[-1])
        peak_chunks.append(_max_chunks_in_memory(step["op"].to_list()))
    table = pl.concat(changes)
    growth = table.filter(pl.col("op") == "F")["change"]
    fall = -_changes_over_backwards(table)
    low, high = _agreeing_medians(growth, fall)
    return ChunkMemory(
        low,
        high,
        base_bytes=int(np.median(base_bytes)),
        kept_bytes=max(0, *kept_bytes),
        passing_bytes=int(table["passing"].max() or 0),  # type: ignore[arg-type]
        peak_chunks=max(peak_chunks),
    )


class _MemoryLevel(msgspec.Struct, frozen=True, eq=False):
    """Allocated bytes over time; each level lasts until the next time, the first since ever."""

    time_ns: Ints
    allocated: Ints

    @classmethod
    def build(cls, memory: pl.DataFrame) -> _MemoryLevel:
        """Return the level over time from the allocator's events."""
        time_ns = np.concatenate([[np.iinfo(np.int64).min], memory["at_ns"].to_numpy()])
        return cls(time_ns, np.concatenate([memory["before"].to_numpy()[:1], memory["allocated"].to_numpy()]))

    def at(self, time_ns: int) -> int:
        """Return the level at a time."""
        return int(self.allocated[np.searchsorted(self.time_ns, time_ns, side="right") - 1])

    def extremes(self, function: Callable[[Ints], np.int64], start: Ints, end: Ints) -> Ints:
        """Return the lowest (``np.min``) or highest level in each period from *start* to *end*, both included."""
        first = np.maximum(np.searchsorted(self.time_ns, start, side="right") - 1, 0)
        stop = np.maximum(np.searchsorted(self.time_ns, end, side="right"), first + 1)
        levels = (self.allocated[low:high] for low, high in zip(first.tolist(), stop.tolist(), strict=True))
        return np.array([function(level) for level in levels], np.int64)


def _measure_changes(step: pl.DataFrame, level: _MemoryLevel) -> pl.DataFrame:
    """Return the change of memory over each cell of a step that does not overlap the cells before and after it."""
    launch, last = step["launch_ns"].to_numpy(), np.maximum.accumulate(step["last_ns"].to_numpy())
    # Level between neighbouring cells; unknown where they overlap, and before the first and after the last cell.
    is_apart = last[:-1] <= launch[1:]
    between = np.full(len(launch) + 1, _UNKNOWN)
    between[1:-1][is_apart] = level.extremes(np.min, last[:-1][is_apart], launch[1:][is_apart])
    is_measured = (between[:-1] != _UNKNOWN) & (between[1:] != _UNKNOWN)
    before, after = between[:-1][is_measured], between[1:][is_measured]
    peak = level.extremes(np.max, launch[is_measured], last[is_measured])
    cells = step.select(pl.col("op").cast(pl.String), pl.col("step", "pair").cast(pl.Int64))
    return cells.filter(pl.Series(is_measured)).with_columns(
        change=pl.Series(after - before), passing=pl.Series(np.maximum(0, peak - np.maximum(before, after)))
    )


def _changes_over_backwards(table: pl.DataFrame) -> pl.Series:
    """Return the change over each backward; over I and W together where it is split."""
    whole = table.filter(pl.col("op") == "B")["change"]
    split = table.filter(pl.col("op").is_in(["I", "W"])).group_by("step", "pair").agg(pl.sum("change"), pl.len())
    return pl.concat([whole, split.filter(pl.col("len") == 2)["change"]])


def _agreeing_medians(growth: pl.Series, fall: pl.Series) -> tuple[int | None, int | None]:
    """Return the smaller and the larger median; None and None where they disagree or too few cells were measured."""
    if min(len(growth), len(fall)) < MIN_CELLS:
        return None, None
    low, high = sorted((int(np.median(growth.to_numpy())), int(np.median(fall.to_numpy()))))
    return (low, high) if low > 0 and high <= MAX_GROWTH_RATIO * low else (None, None)


def _max_chunks_in_memory(ops: list[str]) -> int:
    """Return the largest number of chunks in memory at once: F adds one, B or W frees one.

    >>> _max_chunks_in_memory(list("FFBFBB"))
    2
    """
    change = np.array([(op == "F") - (op in ("B", "W")) for op in ops], np.int64)
    return int(np.cumsum(change).max(initial=0))
