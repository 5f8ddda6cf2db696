"""Memory of one rank from whatever recorded it: a memory snapshot, or the allocator's events in its trace."""

from __future__ import annotations

import polars as pl
from msgspec.structs import replace

from tracekit._util.text import ms, percent
from tracekit.align.snapshot_clock import SnapshotClock, place_snapshot
from tracekit.analysis.measure.room_measures import LabelledSteps, RoomMeasure
from tracekit.errors import Notice, NoticeValues
from tracekit.memory.measures.activations import ACTIVATIONS
from tracekit.memory.measures.contents import CONTENTS
from tracekit.memory.measures.history import (
    FRAMES,
    HISTORY_LEVELS,
    HISTORY_STACKS,
    LIVES,
    SEGMENT_LIVES,
)
from tracekit.memory.measures.host_work import find_threads
from tracekit.memory.measures.leaks import LEAKS
from tracekit.memory.measures.rank_contents import (
    STACKS,
    STEP_STARTS,
    MemoryHistory,
    RankContents,
    measure_contents,
)
from tracekit.memory.measures.rank_memory import RankMemory, measure_rank_memory
from tracekit.memory.measures.replay import gpu_memory, replay_trace
from tracekit.schema import MemorySnapshot, RankEvents

MIN_UNKNOWN_SHARE_TO_REPORT = 0.05
"""Share of the peak from before the history from which that is reported."""
MIN_SEEN_SHARE = 0.9
"""Share of the trace's launches between the first and the last event of a snapshot from which it
saw the trace."""
MAX_CLOCK_UNCERTAINTY_NS = 1_000_000
"""Uncertainty of a snapshot's place on the trace's clock above which moments may belong to a
neighbouring cell."""


def measure_memory_of_steps(
    steps: LabelledSteps,
) -> tuple[RankMemory | None, tuple[Notice, ...]]:
    """Return the memory that the allocator held while the host launched the selected steps, and notices about it."""
    rank = steps.rank
    if rank.memory.is_empty() and not rank.snapshots:
        return None, ()
    launches = steps.gpu_events["launch_ns"].drop_nulls()
    window = None
    if not steps.all_steps and len(launches):
        window = int(launches.min()), int(launches.max())  # type: ignore[arg-type]  # polars types them as any value
    return measure_memory(rank, steps.gpu_events, window=window, chunks=steps.chunks)


def measure_memory(
    rank: RankEvents,
    labelled: pl.DataFrame,
    *,
    window: tuple[int, int] | None = None,
    chunks: pl.DataFrame | None = None,
) -> tuple[RankMemory | None, tuple[Notice, ...]]:
    """Return one rank's memory, None where nothing recorded it, and notices about its recording.

    A memory snapshot is used before the allocator's events of the trace, because it has stacks.

    Args:
        rank: Events, allocator events and snapshots of the rank.
        labelled: Its GPU events.
        window: First and last host time of the selected steps; None for the whole trace.
        chunks: Its cells in the pipeline; None without a pipeline.

    """
    ops = rank.events.filter(pl.col("kind") == "cpu_op")
    placed, notices = choose_snapshot(rank, labelled["launch_ns"].drop_nulls())
    if placed is None:
        replay = replay_trace(rank.memory)
        if replay is None:
            return None, notices
        events = gpu_memory(rank.memory)
        history = MemoryHistory(replay, int(events["device"][0] or 0))
        memory = rank.memory
        tids = events["tid"]
    else:
        snapshot, clock = placed
        history = MemoryHistory.of_snapshot(snapshot, clock)
        memory = history.memory_events()
        memory = memory.with_columns(tid=find_threads(memory["at_ns"], ops))
        tids = None
        # A snapshot may have seen more of the run than the trace: the peak is that of the trace's
        # time.
        window = window or _host_time(rank.events)
    measured = measure_rank_memory(
        memory, labelled, ops, source=rank.source, window=window, chunks=chunks
    )
    if measured is None:
        return None, notices
    # A redacted trace: nothing tells which allocation a free belongs to.
    if memory["address"].is_null().all():
        return measured, notices
    contents = measure_contents(
        history,
        labelled=labelled,
        ops=ops,
        tids=tids,
        chunks=chunks,
        step_starts=_step_starts(labelled),
        window=window,
        capacity_bytes=rank.source.memory_bytes,
    )
    if contents is not None:
        notices = (*notices, *history_notices(contents))
    return replace(measured, contents=contents), notices


def history_notices(contents: RankContents) -> tuple[Notice, ...]:
    """Return a notice if much of the peak was allocated before the history of a snapshot began."""
    share = contents.unknown_share
    if contents.figures.source != "snapshot" or share < MIN_UNKNOWN_SHARE_TO_REPORT:
        return ()
    return (
        Notice(
            "memory-history-short",
            (
                f"{percent(share)} of the memory at the peak was allocated before the "
                "snapshot's history began (it was switched on late, or cut by "
                "max_entries): what it is for is not known"
            ),
            values={"case": "begins_late", "share": share},
        ),
    )


def choose_snapshot(
    rank: RankEvents, launches: pl.Series
) -> tuple[tuple[MemorySnapshot, SnapshotClock] | None, tuple[Notice, ...]]:
    """Return the snapshot that saw most of the trace, with its place on the trace's clock.

    And notices.

    None if none is of the same process and time, or if it saw less of the trace than the trace's
    own events did.
    """
    placed: list[tuple[MemorySnapshot, SnapshotClock]] = []
    notices: list[Notice] = []
    for snapshot in rank.snapshots:
        clock = place_snapshot(snapshot, rank)
        if clock is None:
            notices.append(
                Notice(
                    "memory-snapshot-failed",
                    (
                        f"{snapshot.path} is left out: it is not of this process "
                        "and time (its allocations do not lie in the trace's "
                        "operators)"
                    ),
                    values={"case": "elsewhere", "file": snapshot.path},
                )
            )
        else:
            placed.append((snapshot, clock))
    if not placed:
        return None, tuple(notices)
    chosen = max(placed, key=lambda pair: pair[1].events)
    notices += chosen[0].notices
    share = _seen_share(*chosen, launches)
    if share < MIN_SEEN_SHARE:
        has_own_events = len(rank.memory) > 0
        file = chosen[0].path
        launches_seen = f"saw {percent(share)} of the trace's launches alone"
        case = "used"
        message = (
            f"{file} {launches_seen} (its history was cut, or it was written early): the peak may be "
            "outside of it"
        )
        if has_own_events:
            case = "not_used"
            message = f"{file} is left out: it {launches_seen} (its history was cut, or it was written early)"
        values: NoticeValues = {"file": file, "share": share, "case": case}
        notices.append(Notice("memory-history-short", message, values=values))
        if has_own_events:
            return None, tuple(notices)
    if chosen[1].on_trace.uncertainty_ns > MAX_CLOCK_UNCERTAINTY_NS:
        notices.append(
            Notice(
                "memory-clock-uncertain",
                (
                    "the memory snapshot is placed on the trace's clock to within "
                    f"{ms(chosen[1].on_trace.uncertainty_ns, 3)}: what is allocated between "
                    "two cells may be counted to the wrong one"
                ),
                values={"uncertainty_ns": chosen[1].on_trace.uncertainty_ns},
            )
        )
    return chosen, tuple(notices)


def _seen_share(snapshot: MemorySnapshot, clock: SnapshotClock, launches: pl.Series) -> float:
    """Return the share of launches that lie between the first and the last event of a snapshot, 0 to 1."""
    if launches.is_empty() or snapshot.events.is_empty():
        return 1.0
    times = snapshot.events["at_ns"].to_numpy() + clock.on_trace.offset_ns
    is_seen = launches.is_between(
        int(times.min()) - clock.on_trace.uncertainty_ns,
        int(times.max()) + clock.on_trace.uncertainty_ns,
    )
    return int(is_seen.sum()) / len(launches)


def _host_time(events: pl.DataFrame) -> tuple[int, int] | None:
    """Return the first and last time of the host's operators and calls; None if there are none."""
    host = events.filter(pl.col("kind").is_in(["cpu_op", "runtime", "driver", "annotation"]))
    if host.is_empty():
        return None
    first_ns, last_ns = host.select(pl.min("start_ns"), pl.max("end_ns")).row(0)
    return int(first_ns), int(last_ns)


def _step_starts(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return the host time of the first launch of every step."""
    launches = labelled.select("step", "launch_ns").drop_nulls()
    return launches.group_by("step").agg(start_ns=pl.min("launch_ns")).sort("start_ns")


def _check_memory(memory: RankMemory) -> None:
    """Raise ValueError if the memory of a rank in a store is not such as is measured."""
    line = memory.figures.line
    if not len(line.at_ns) == len(line.allocated) == len(line.reserved):
        raise ValueError("the memory over time has columns of different lengths")


RANK_MEMORY = RoomMeasure(
    name="memory",
    measured_type=RankMemory,
    measure=measure_memory_of_steps,
    columns={
        "contents.contents": CONTENTS,
        "contents.end_contents": CONTENTS,
        "contents.stacks": STACKS,
        "contents.activations": ACTIVATIONS,
        "contents.leaks": LEAKS,
        "contents.step_starts": STEP_STARTS,
        "contents.history.lives": LIVES,
        "contents.history.levels": HISTORY_LEVELS,
        "contents.history.segments": SEGMENT_LIVES,
        "contents.history.frames": FRAMES,
        "contents.history.stacks": HISTORY_STACKS,
    },
    check=_check_memory,
)
"""Memory of each rank in an analysis."""
