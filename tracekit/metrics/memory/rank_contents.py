"""Contents of one rank's memory at its peak, from a memory snapshot or from the allocator's events in a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import polars as pl
from msgspec import structs

from tracekit.align.snapshot_clock import SnapshotClock
from tracekit.metrics.memory.activations import measure_activations, most_in_flight
from tracekit.metrics.memory.contents import contents_at, find_purposes
from tracekit.metrics.memory.failed_request import FailedRequest, find_failed_request
from tracekit.metrics.memory.fragmentation import Fragmentation, measure_fragmentation
from tracekit.metrics.memory.history import AllocationHistory, allocation_history
from tracekit.metrics.memory.host_work import find_host_work
from tracekit.metrics.memory.leaks import find_leaked_rows, find_leaks
from tracekit.metrics.memory.replay import Replay, replay_snapshot
from tracekit.metrics.memory.stacks import Stack, source_line
from tracekit.metrics.memory.steps_by_stack import starts_by_allocations
from tracekit.schema import MEMORY, MemorySnapshot, conform

STEP_LEVELS = pl.Schema(
    {
        "step": pl.Int64(),
        "start_ns": pl.Int64(),  # host time
        "first_bytes": pl.Int64(),  # allocated when it starts
        "peak_bytes": pl.Int64(),  # most allocated in it
    }
)
"""Allocated memory by step."""

STACKS = pl.Schema({"stack": pl.Int32(), "line": pl.String(), "frames": pl.List(pl.String())})
"""Stacks of the contents: the source line that stands for each, and all frames, outermost first."""

MODULES = pl.Schema({"module": pl.String(), "bytes": pl.Int64(), "step_bytes": pl.Int64()})
"""Activations by module: at the peak, and allocated by a step (a mean)."""

_PROFILER_STEP = r"^ProfilerStep#(\d+)$"
_OPTIMIZER_STEP = r"^Optimizer\.step#"


class PeakMoment(msgspec.Struct, frozen=True):
    """The moment at which most is allocated, and what the host was doing then."""

    bytes: int
    """Allocated."""
    at_ns: int | None
    """Host time; None without a history."""
    active_bytes: int | None
    """Allocated or still in use by a stream; None if unknown."""
    requested_bytes: int | None
    """Of what is allocated, the bytes that were asked for: blocks are larger. None if unknown."""
    reserved_bytes: int | None
    """None if unknown."""
    step: int | None = None
    op: str | None = None
    """Op of the pipeline chunk that the host was launching: F, B, I or W; None outside of
    chunks."""
    pair: int | None = None
    """Index of that chunk's forward within its step; None outside of chunks."""
    phase: str | None = None
    operator: str | None = None


class RankContents(msgspec.Struct, frozen=True, eq=False):
    """What one rank's memory holds.

    Times are the host's, on the trace's clock if there is a trace.
    """

    source: str
    """``snapshot`` or ``trace``."""
    clock: SnapshotClock | None
    """Place of the snapshot on the trace's clock; None for a trace's own events, or a snapshot
    alone."""
    device: int
    peak: PeakMoment
    contents: pl.DataFrame
    """``CONTENTS`` at the peak."""
    end_contents: pl.DataFrame
    """``CONTENTS`` after the last event."""
    stacks: pl.DataFrame
    """``STACKS`` of contents and leaks."""
    activations: pl.DataFrame
    """``ACTIVATIONS``"""
    modules: pl.DataFrame
    """``MODULES``"""
    in_flight: int | None
    """Most forwards whose activations are in memory at once; None without a pipeline."""
    outlived_bytes: int
    """Activations at the peak whose own backward had ended."""
    leaks: pl.DataFrame
    """``LEAKS``"""
    steps: pl.DataFrame
    """``STEP_LEVELS``"""
    fragmentation: Fragmentation | None
    """None without a snapshot's history."""
    end_allocated_bytes: int
    end_active_bytes: int | None
    end_difference_bytes: int
    """Difference between the replayed events and the snapshot's segments; 0 if they agree."""
    expandable: bool
    """Whether segments may grow (``expandable_segments``)."""
    oom_bytes: int | None
    """Largest request that failed; None if none did."""
    failed_request: FailedRequest | None
    """The last request that failed; None if none did."""
    history: AllocationHistory
    """All allocations."""

    @property
    def unknown_share(self) -> float:
        """Share of the peak that was allocated before the history began, and of which no purpose is known, 0 to 1."""
        is_older = pl.col("category") == "before_recording"
        return int(self.contents.filter(is_older)["bytes"].sum()) / max(1, self.peak.bytes)


@dataclass(frozen=True, eq=False)
class MemoryHistory:
    """The allocator's events of one rank, replayed, on the clock of its trace if there is one."""

    replay: Replay
    device: int
    snapshot: MemorySnapshot | None = None
    clock: SnapshotClock | None = None

    @property
    def stacks(self) -> Sequence[Stack]:
        """Stacks by number."""
        return () if self.snapshot is None else self.snapshot.stacks

    @classmethod
    def of_snapshot(
        cls, snapshot: MemorySnapshot, clock: SnapshotClock | None = None
    ) -> MemoryHistory:
        """Return the history of a snapshot, moved to the trace's clock."""
        replay = replay_snapshot(snapshot)
        if clock is not None:
            moved = pl.col("^.*_ns$") + clock.offset_ns
            allocations = replay.allocations.with_columns(moved)
            replay = replace(
                replay, allocations=allocations, levels=replay.levels.with_columns(moved)
            )
        return cls(replay, snapshot.device, snapshot, clock)

    def memory_events(self) -> pl.DataFrame:
        """Return the allocations and frees of a snapshot as a trace has them (``schema.MEMORY``)."""
        assert self.snapshot is not None, "a trace has them already"
        events = self.snapshot.events.select(
            "address", "action", device_type=pl.lit(1), device=pl.lit(self.device)
        )
        rows = pl.concat([events, self.replay.levels], how="horizontal")
        change = pl.col("allocated") - pl.col("allocated").shift(
            1, fill_value=self.replay.first_allocated
        )
        is_change = pl.col("action").is_in(["alloc", "free_requested"])
        return conform(rows.with_columns(bytes=change).filter(is_change), MEMORY)


def measure_contents(
    history: MemoryHistory,
    *,
    labelled: pl.DataFrame | None = None,
    ops: pl.DataFrame | None = None,
    tids: pl.Series | None = None,
    chunks: pl.DataFrame | None = None,
    step_starts: pl.DataFrame | None = None,
    window: tuple[int, int] | None = None,
) -> RankContents | None:
    """Return what fills a rank's memory at its peak; None without any event or block.

    Args:
        history: The allocator's events.
        labelled: GPU events of the rank's trace; None without a trace.
        ops: CPU operators of the trace; None without a trace.
        tids: Thread of each event; None if unknown.
        chunks: The rank's pipeline chunks; None without a pipeline.
        step_starts: Columns ``step`` and ``start_ns`` of the trace's steps; a snapshot's own are
            used before these.
        window: Host times between which the peak is looked for; None for all.

    """
    replay = history.replay
    snapshot = history.snapshot
    starts = _step_starts(history, step_starts)
    start_ns, end_ns = (None, None) if window is None else window
    row = replay.peak_row(start_ns, end_ns)
    if row is None and (window is not None or replay.allocations.is_empty()):
        return None
    work = None
    if labelled is not None and ops is not None:
        threads = pl.Series([None], dtype=pl.Int64).new_from_index(0, len(replay.levels))
        if tids is not None:
            threads = tids
        events = replay.levels.with_row_index("row").select(
            pl.col("row").cast(pl.Int64), "at_ns", threads.alias("tid")
        )
        work = find_host_work(events, labelled, ops, chunks)
    purposes = find_purposes(
        replay,
        work,
        stacks=history.stacks,
        chunks=chunks,
        step_starts=starts,
        optimizer_times=_optimizer_times(history),
    )
    contents = contents_at(purposes, -1 if row is None else row)
    end_contents = contents_at(purposes, len(replay.levels))
    peak = _peak_moment(replay, row, work, chunks)
    activations = measure_activations(purposes)
    leaks = find_leaks(purposes, starts)
    in_flight = None
    if chunks is not None and not chunks.is_empty():
        in_flight = most_in_flight(activations)
    fragmentation = None
    oom_bytes = None
    failed_request = None
    if snapshot is not None:
        fragmentation = measure_fragmentation(replay, snapshot, start_ns=start_ns, end_ns=end_ns)
        oom_bytes = _largest_failed_request(snapshot)
        failed_request = find_failed_request(replay, snapshot, purposes, leaks)
    failed_stacks: list[pl.Series] = []
    if failed_request is not None:
        own_stack = pl.Series([failed_request.stack], dtype=pl.Int32)
        failed_stacks = [failed_request.contents["stack"], own_stack]
    return RankContents(
        source="trace" if snapshot is None else "snapshot",
        clock=history.clock,
        device=history.device,
        peak=peak,
        contents=contents,
        end_contents=end_contents,
        stacks=_stack_table(
            history.stacks,
            [contents["stack"], end_contents["stack"], leaks["stack"], *failed_stacks],
            fragmentation,
        ),
        activations=activations,
        modules=_module_table(purposes, contents),
        in_flight=in_flight,
        outlived_bytes=_outlived_bytes(contents, chunks, peak.at_ns),
        leaks=leaks,
        steps=_step_levels(replay, starts),
        fragmentation=fragmentation,
        end_allocated_bytes=replay.end_allocated,
        end_active_bytes=replay.end_active,
        end_difference_bytes=replay.difference_bytes,
        expandable=snapshot is not None and snapshot.expandable,
        oom_bytes=oom_bytes,
        failed_request=failed_request,
        history=allocation_history(
            replay,
            purposes,
            find_leaked_rows(purposes, starts),
            stacks=history.stacks,
            snapshot=snapshot,
            peak_row=row,
        ),
    )


def _step_starts(history: MemoryHistory, trace_starts: pl.DataFrame | None) -> pl.DataFrame:
    """Return ``step`` and ``start_ns`` of all steps in the history, in order of time.

    A snapshot's own ranges come first: they also name the steps before the trace began. Without
    ``ProfilerStep`` ranges a step ends with the optimizer's, and without any range what allocates
    tells.
    """
    schema = pl.Schema({"step": pl.Int64(), "start_ns": pl.Int64()})
    snapshot = history.snapshot
    offset_ns = 0 if history.clock is None else history.clock.offset_ns
    if snapshot is not None:
        starts = snapshot.annotations.filter("is_start")
        numbered = starts.select(
            step=pl.col("name").str.extract(_PROFILER_STEP).cast(pl.Int64, strict=False),
            start_ns=pl.col("at_ns") + offset_ns,
        ).drop_nulls()
        if len(numbered):
            return numbered.unique("step", keep="first").sort("start_ns").cast(schema)
    if trace_starts is not None and len(trace_starts):
        return trace_starts.select("step", "start_ns").drop_nulls().sort("start_ns").cast(schema)
    if snapshot is not None:
        ends = snapshot.annotations.filter(
            ~pl.col("is_start") & pl.col("name").str.contains(_OPTIMIZER_STEP)
        )
        times = sorted(set((ends["at_ns"] + offset_ns).to_list()))
        first_ns = history.replay.levels["at_ns"].to_list()[:1]
        if times:
            boundaries = [*first_ns, *times[:-1]]
            return pl.DataFrame(
                {"step": range(len(boundaries)), "start_ns": boundaries}, schema=schema
            )
    start_times = starts_by_allocations(history.replay.allocations, history.stacks)
    return pl.DataFrame({"step": range(len(start_times)), "start_ns": start_times}, schema=schema)


def _optimizer_times(history: MemoryHistory) -> pl.DataFrame | None:
    """Return the ranges around optimizer steps that a snapshot recorded; None if it has none."""
    if history.snapshot is None:
        return None
    offset_ns = 0 if history.clock is None else history.clock.offset_ns
    ranges = history.snapshot.annotations.filter(pl.col("name").str.contains(_OPTIMIZER_STEP)).sort(
        "at_ns"
    )
    # Begins and ends alternate: an optimizer's step is not called inside another of the same
    # process.
    starts = ranges.filter("is_start")["at_ns"] + offset_ns
    ends = ranges.filter(~pl.col("is_start"))["at_ns"] + offset_ns
    if starts.is_empty() or len(starts) != len(ends):
        return None
    return pl.DataFrame({"start_ns": starts, "end_ns": ends})


def _peak_moment(
    replay: Replay, row: int | None, work: pl.DataFrame | None, chunks: pl.DataFrame | None
) -> PeakMoment:
    """Return the moment after an event; without events, what is there is all there is."""
    if row is None:
        return PeakMoment(
            replay.first_allocated, None, replay.end_active, None, replay.first_reserved
        )
    level = replay.levels.row(row, named=True)
    moment = PeakMoment(
        bytes=int(level["allocated"]),
        at_ns=int(level["at_ns"]),
        active_bytes=level["active"],
        requested_bytes=level["requested"],
        reserved_bytes=level["reserved"],
    )
    if work is None:
        return moment
    host = work.row(row, named=True)
    moment = structs.replace(
        moment, step=host["step"], phase=host["phase"], operator=host["operator"]
    )
    if chunks is None or host["chunk"] is None:
        return moment
    chunk = chunks.row(host["chunk"], named=True)
    return structs.replace(
        moment, step=int(chunk["step"]), op=str(chunk["op"]), pair=int(chunk["pair"])
    )


def _module_table(purposes: pl.DataFrame, contents: pl.DataFrame) -> pl.DataFrame:
    """Return ``MODULES``, those with the most activations at the peak first."""
    is_activation = (pl.col("category") == "activations") & pl.col("module").is_not_null()
    at_peak = contents.filter(is_activation).group_by("module").agg(pl.sum("bytes"))
    if at_peak.is_empty():
        return MODULES.to_frame()
    allocated = purposes.filter(is_activation & (pl.col("phase") == "forward"))
    steps = max(1, allocated["step"].n_unique())
    by_step = allocated.group_by("module").agg(step_bytes=pl.sum("bytes") // steps)
    table = at_peak.join(by_step, on="module", how="left").with_columns(
        pl.col("step_bytes").fill_null(0)
    )
    return conform(table.sort("bytes", "module", descending=[True, False]), MODULES)


def _stack_table(
    stacks: Sequence[Stack], columns: Sequence[pl.Series], fragmentation: Fragmentation | None
) -> pl.DataFrame:
    """Return ``STACKS`` of the numbers in *columns*, and of the request that forced a segment."""
    numbers = set(pl.concat(columns).drop_nulls().to_list())
    if fragmentation is not None and fragmentation.largest_request_stack is not None:
        numbers.add(fragmentation.largest_request_stack)
    table: dict[str, list[Any]] = {"stack": [], "line": [], "frames": []}
    for number in sorted(numbers):
        stack = stacks[number]
        table["stack"].append(number)
        table["line"].append(source_line(stack))
        table["frames"].append([f"{file}:{line} {name}" for name, file, line in reversed(stack)])
    return pl.DataFrame(table, schema=STACKS)


def _outlived_bytes(
    contents: pl.DataFrame, chunks: pl.DataFrame | None, peak_ns: int | None
) -> int:
    """Return the bytes of activations at the peak whose own backward had been launched completely."""
    if chunks is None or chunks.is_empty() or peak_ns is None:
        return 0
    backwards = chunks.filter(pl.col("op").cast(pl.String) != "F")
    ends = backwards.group_by(pl.col("step").cast(pl.Int64), pl.col("pair").cast(pl.Int64)).agg(
        pl.max("last_ns")
    )
    activations = contents.filter(pl.col("category") == "activations").join(
        ends, on=["step", "pair"]
    )
    return int(activations.filter(pl.col("last_ns") < peak_ns)["bytes"].sum())


def _step_levels(replay: Replay, starts: pl.DataFrame) -> pl.DataFrame:
    """Return ``STEP_LEVELS`` of the steps that began after the history did."""
    if starts.is_empty() or replay.levels.is_empty():
        return STEP_LEVELS.to_frame()
    levels = replay.levels.select("at_ns", "allocated").sort("at_ns")
    starts = starts.filter(pl.col("start_ns") >= levels["at_ns"][0])
    at_start = starts.join_asof(
        levels, left_on="start_ns", right_on="at_ns", check_sortedness=False
    )
    at_start = at_start.select(
        "step", "start_ns", first_bytes=pl.col("allocated").fill_null(replay.first_allocated)
    )
    within = levels.join_asof(starts, left_on="at_ns", right_on="start_ns", check_sortedness=False)
    peaks = within.drop_nulls("step").group_by("step").agg(peak_bytes=pl.max("allocated"))
    joined = at_start.join(peaks, on="step", how="left", maintain_order="left")
    peak = pl.max_horizontal("first_bytes", "peak_bytes")
    return conform(joined.with_columns(peak_bytes=peak), STEP_LEVELS)


def _largest_failed_request(snapshot: MemorySnapshot) -> int | None:
    failed = snapshot.events.filter(pl.col("action") == "oom")["bytes"]
    return None if failed.is_empty() else int(failed.to_numpy().max())
