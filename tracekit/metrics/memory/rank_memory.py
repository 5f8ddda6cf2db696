"""Allocated GPU memory over time and by phase of the step, from PyTorch's ``[memory]`` events.

These events carry the time at which the host asks for memory, which is when it launches work, not when the GPU runs it.
The phase of an event is therefore that of the *host*, as the launches around it show. Where the launches on both sides
disagree, the event belongs to no phase, and the peak of a phase is a range: what was certainly allocated in it, and
what may have been.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
import polars as pl

from tracekit.documents.analysis import Peak
from tracekit.metrics.memory.chunk_memory import ChunkMemory, measure_chunk_memory

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
        find_outermost_ops(ops).drop("operator"), left_on="at_ns", right_on="op_ns", by="tid", check_sortedness=False
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


def find_outermost_ops(ops: pl.DataFrame) -> pl.DataFrame:
    """Return the operators that are inside no other: thread, name, start and end."""
    spans = ops.select("tid", op_ns="start_ns", op_end_ns="end_ns", operator=pl.col("name").cast(pl.String))
    spans = spans.drop_nulls(["tid", "op_ns", "op_end_ns"])
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
