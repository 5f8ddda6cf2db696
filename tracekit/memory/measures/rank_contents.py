"""Contents of one rank's memory at its peak, from a memory snapshot or from the allocator's events in a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import polars as pl
from msgspec import structs

from tracekit.align.snapshot_clock import SnapshotClock
from tracekit.documents.coding import rows
from tracekit.documents.memory import (
    MemoryContents,
    MemoryLeak,
    MemoryPeak,
    ModuleMemory,
    StepMemory,
)
from tracekit.memory.measures.activations import (
    cells_with_activations,
    measure_activations,
    most_in_flight,
)
from tracekit.memory.measures.contents import (
    bytes_by_category,
    contents_at,
    find_purposes,
    largest_lines,
)
from tracekit.memory.measures.fragmentation import measure_fragmentation
from tracekit.memory.measures.history import AllocationHistory, allocation_history
from tracekit.memory.measures.host_work import find_host_work
from tracekit.memory.measures.leaks import MAX_LEAKS, find_leaked_rows, find_leaks
from tracekit.memory.measures.out_of_memory import find_out_of_memory
from tracekit.memory.measures.replay import Replay, replay_snapshot
from tracekit.memory.measures.stacks import Stack, shared_line, source_line
from tracekit.memory.measures.steps_by_stack import starts_by_allocations
from tracekit.schema import MEMORY, MemorySnapshot, conform

STEP_STARTS = pl.Schema({"step": pl.Int64(), "start_ns": pl.Int64()})
"""Host time at which steps begin, in order of time."""

STACKS = pl.Schema({"stack": pl.Int32(), "line": pl.String(), "frames": pl.List(pl.String())})
"""Stacks of the contents: the source line that stands for each, and all frames, outermost first."""

_PROFILER_STEP = r"^ProfilerStep#(\d+)$"
_OPTIMIZER_STEP = r"^Optimizer\.step#"


class RankContents(msgspec.Struct, frozen=True, eq=False):
    """What one rank's memory holds, and the tables that the schedule, pictures and comparisons need.

    Times are the host's, on the trace's clock if there is a trace.
    """

    device: int
    figures: MemoryContents
    """As far as the rank alone tells: without stages and micro-batches, and without times of
    modules."""
    peak_pair: int | None
    """Index within its step of the forward of the pipeline chunk that the host was launching at the
    peak; None outside of chunks."""
    contents: pl.DataFrame
    """``CONTENTS`` at the peak."""
    end_contents: pl.DataFrame
    """``CONTENTS`` after the last event."""
    stacks: pl.DataFrame
    """``STACKS`` of both."""
    activations: pl.DataFrame
    """``ACTIVATIONS``"""
    leaks: pl.DataFrame
    """``LEAKS``"""
    step_starts: pl.DataFrame
    """``STEP_STARTS`` of the steps that began after the history did."""
    history: AllocationHistory
    """All allocations."""

    @property
    def unknown_share(self) -> float:
        """Share of the peak that was allocated before the history began, and of which no purpose is known, 0 to 1."""
        older_bytes = self.figures.by_category.get("before_recording", 0)
        return older_bytes / max(1, self.figures.peak.bytes)


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
            moved = pl.col("^.*_ns$") + clock.on_trace.offset_ns
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
    capacity_bytes: int | None = None,
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
        capacity_bytes: Memory of the GPU; None if unknown.

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
    peak, peak_pair = _peak_moment(replay, row, work, chunks)
    activations = measure_activations(purposes)
    leaks = find_leaks(purposes, starts)
    in_flight = None
    if chunks is not None and not chunks.is_empty():
        in_flight = most_in_flight(activations)
    fragmentation = None
    failed_request_bytes = None
    out_of_memory = None
    if snapshot is not None:
        fragmentation = measure_fragmentation(replay, snapshot, start_ns=start_ns, end_ns=end_ns)
        failed_request_bytes = _largest_failed_request(snapshot)
        out_of_memory = find_out_of_memory(
            replay, snapshot, purposes, leaks, capacity_bytes=capacity_bytes
        )
    levels = _step_levels(replay, starts)
    clock = history.clock
    figures = MemoryContents(
        source="trace" if snapshot is None else "snapshot",
        clock=None if clock is None else clock.on_trace,
        peak=peak,
        by_category=bytes_by_category(contents),
        activations=cells_with_activations(contents, {}),
        lines=largest_lines(contents, history.stacks),
        modules=_modules(purposes, contents),
        in_flight=in_flight,
        ideal_in_flight=None,
        microbatch_bytes=None,
        outlived_bytes=_outlived_bytes(contents, chunks, peak.at_ns),
        leaks=_largest_leaks(leaks, history.stacks, by_place=chunks is not None),
        fragmentation=fragmentation,
        steps=rows(levels, StepMemory),
        end_allocated_bytes=replay.end_allocated,
        end_active_bytes=replay.end_active,
        end_difference_bytes=replay.difference_bytes,
        failed_request_bytes=failed_request_bytes,
        out_of_memory=out_of_memory,
    )
    return RankContents(
        device=history.device,
        figures=figures,
        peak_pair=peak_pair,
        contents=contents,
        end_contents=end_contents,
        stacks=_stack_table(history.stacks, pl.concat([contents["stack"], end_contents["stack"]])),
        activations=activations,
        leaks=leaks,
        step_starts=levels.select(STEP_STARTS.names()),
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
    snapshot = history.snapshot
    offset_ns = 0 if history.clock is None else history.clock.on_trace.offset_ns
    if snapshot is not None:
        starts = snapshot.annotations.filter("is_start")
        numbered = starts.select(
            step=pl.col("name").str.extract(_PROFILER_STEP).cast(pl.Int64, strict=False),
            start_ns=pl.col("at_ns") + offset_ns,
        ).drop_nulls()
        if len(numbered):
            return numbered.unique("step", keep="first").sort("start_ns").cast(STEP_STARTS)
    if trace_starts is not None and len(trace_starts):
        return (
            trace_starts.select("step", "start_ns").drop_nulls().sort("start_ns").cast(STEP_STARTS)
        )
    if snapshot is not None:
        ends = snapshot.annotations.filter(
            ~pl.col("is_start") & pl.col("name").str.contains(_OPTIMIZER_STEP)
        )
        times = sorted(set((ends["at_ns"] + offset_ns).to_list()))
        first_ns = history.replay.levels["at_ns"].to_list()[:1]
        if times:
            boundaries = [*first_ns, *times[:-1]]
            return pl.DataFrame(
                {"step": range(len(boundaries)), "start_ns": boundaries}, schema=STEP_STARTS
            )
    start_times = starts_by_allocations(history.replay.allocations, history.stacks)
    return pl.DataFrame(
        {"step": range(len(start_times)), "start_ns": start_times}, schema=STEP_STARTS
    )


def _optimizer_times(history: MemoryHistory) -> pl.DataFrame | None:
    """Return the ranges around optimizer steps that a snapshot recorded; None if it has none."""
    if history.snapshot is None:
        return None
    offset_ns = 0 if history.clock is None else history.clock.on_trace.offset_ns
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
) -> tuple[MemoryPeak, int | None]:
    """Return the moment after an event, and the pair of the chunk that the host was launching.

    Without events, what is there is all there is.
    """
    moment = MemoryPeak(
        bytes=replay.first_allocated,
        at_ns=None,
        active_bytes=replay.end_active,
        requested_bytes=None,
        reserved_bytes=replay.first_reserved,
        step=None,
        op=None,
        stage=None,
        microbatch=None,
        phase=None,
        operator=None,
    )
    if row is None:
        return moment, None
    level = replay.levels.row(row, named=True)
    moment = structs.replace(
        moment,
        bytes=int(level["allocated"]),
        at_ns=int(level["at_ns"]),
        active_bytes=level["active"],
        requested_bytes=level["requested"],
        reserved_bytes=level["reserved"],
    )
    if work is None:
        return moment, None
    host = work.row(row, named=True)
    moment = structs.replace(
        moment, step=host["step"], phase=host["phase"], operator=host["operator"]
    )
    if chunks is None or host["chunk"] is None:
        return moment, None
    chunk = chunks.row(host["chunk"], named=True)
    moment = structs.replace(moment, step=int(chunk["step"]), op=str(chunk["op"]))
    return moment, int(chunk["pair"])


def _modules(purposes: pl.DataFrame, contents: pl.DataFrame) -> list[ModuleMemory]:
    """Return the activations of each module, those with the most at the peak first."""
    is_activation = (pl.col("category") == "activations") & pl.col("module").is_not_null()
    at_peak = contents.filter(is_activation).group_by("module").agg(pl.sum("bytes"))
    allocated = purposes.filter(is_activation & (pl.col("phase") == "forward"))
    steps = max(1, allocated["step"].n_unique())
    by_step = allocated.group_by("module").agg(step_bytes=pl.sum("bytes") // steps)
    table = at_peak.join(by_step, on="module", how="left").sort(
        "bytes", "module", descending=[True, False]
    )
    return [
        ModuleMemory(
            module=module,
            bytes=size,
            step_bytes=step_bytes or 0,
            forward_ns=None,
            recompute_bytes_per_ms=None,
            offload_ns=None,
            offload_bytes_per_ms=None,
        )
        for module, size, step_bytes in table.iter_rows()
    ]


def _largest_leaks(
    leaks: pl.DataFrame, stacks: Sequence[Stack], *, by_place: bool
) -> list[MemoryLeak]:
    """Return the largest leaks, without the stages and micro-batches that a schedule gives them.

    What the same steps left behind from places below one line is one leak: of a loss that is kept, the whole graph.
    *by_place* keeps places apart, in a pipeline, whose schedule tells more of each.
    """
    by_steps: dict[tuple[tuple[int, ...], str | None], list[dict[str, Any]]] = {}
    for leak in leaks.iter_rows(named=True):
        stack = None if leak["stack"] is None else stacks[leak["stack"]]
        outermost = None if stack is None else shared_line([stack])
        is_apart = by_place or outermost is None
        key = (tuple(leak["steps"]), str(len(by_steps)) if is_apart else outermost)
        by_steps.setdefault(key, []).append(leak)
    merged = [_merged_leak(places, stacks) for places in by_steps.values()]
    return sorted(merged, key=lambda leak: -leak.bytes)[:MAX_LEAKS]


def _merged_leak(places: Sequence[Mapping[str, Any]], stacks: Sequence[Stack]) -> MemoryLeak:
    """Return the leak of several places, which have stacks if they are more than one."""
    largest = places[0]
    of_places = [stacks[place["stack"]] for place in places if place["stack"] is not None]

    def common(column: str) -> Any:
        values = {place[column] for place in places}
        return values.pop() if len(values) == 1 else None

    line = None
    if of_places:
        line = source_line(of_places[0]) if len(of_places) == 1 else shared_line(of_places)
    return MemoryLeak(
        line=line,
        operator=common("operator"),
        module=common("module"),
        phase=common("phase"),
        stage=None,
        microbatches=(),
        bytes=sum(place["bytes"] for place in places),
        bytes_per_step=sum(place["bytes_per_step"] for place in places),
        steps=tuple(largest["steps"]),
        places=len(places),
    )


def _stack_table(stacks: Sequence[Stack], used: pl.Series) -> pl.DataFrame:
    """Return ``STACKS`` of the numbers in *used*."""
    table: dict[str, list[Any]] = {"stack": [], "line": [], "frames": []}
    for number in sorted(used.drop_nulls().unique()):
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
    """Return ``STEP_STARTS`` of the steps that began after the history did, with ``first_bytes`` and ``peak_bytes``.

    Allocated when the step starts, and the most in it.
    """
    columns = {**STEP_STARTS, "first_bytes": pl.Int64(), "peak_bytes": pl.Int64()}
    if starts.is_empty() or replay.levels.is_empty():
        return pl.DataFrame(schema=columns)
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
    return conform(joined.with_columns(peak_bytes=peak), pl.Schema(columns))


def _largest_failed_request(snapshot: MemorySnapshot) -> int | None:
    failed = snapshot.events.filter(pl.col("action") == "oom")["bytes"]
    return None if failed.is_empty() else int(failed.to_numpy().max())
