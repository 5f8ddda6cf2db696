"""Processes and threads of an exported trace.

ui.perfetto.dev keeps process and thread numbers in 32 bits and looks a thread up by its number alone, so both are
counted from 1 over the whole file. Events of one thread must nest: an event that overlaps another only in part is drawn
on a second line beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._loops import nesting
from tracekit._util.arrays import as_int64
from tracekit.schema import GPU_KINDS

Ints = npt.NDArray[np.int64]

GPU_WORK, GPU_ANNOTATIONS, CPU = 0, 1, 2
"""Kinds of track: the work of a stream, the annotations projected on it, the events of a thread."""
MAX_LINES_PER_TRACK = 64
"""Events that nest in none of so many lines share the last."""
EVENTS_PER_BATCH = 500_000
"""Events whose nesting is computed at once; a track is never split."""
TRACK_KEY = ("track_kind", "owner", "lane")
"""Columns that name a track: its kind, the device or process, the stream or thread."""
MOVED_EVENTS = pl.Schema({"id": pl.Int64(), "track": pl.Int64(), "line": pl.Int64()})


@dataclass
class TrackNumbers:
    """Counters of processes and threads, and the metadata events that name them."""

    processes: int = 0
    threads: int = 0
    lines: list[str] = field(default_factory=list)

    def add_process(self, name: str) -> int:
        """Return the number of a new process; processes are shown in the order of their numbers."""
        self.processes += 1
        self._add_name("process", name, self.processes, {"pid": self.processes})
        return self.processes

    def add_thread(self, pid: int, name: str) -> int:
        """Return the number of a new thread of a process."""
        self.threads += 1
        self._add_name("thread", name, self.threads, {"pid": pid, "tid": self.threads})
        return self.threads

    def take_lines(self) -> list[str]:
        """Return the metadata events since the last call."""
        lines, self.lines = self.lines, []
        return lines

    def _add_name(self, kind: str, name: str, number: int, track: dict[str, int]) -> None:
        metadata: dict[str, dict[str, Any]] = {
            f"{kind}_name": {"name": name},
            f"{kind}_sort_index": {"sort_index": number},
        }
        for event_name, args in metadata.items():
            event = {"ph": "M", "name": event_name, **track, "ts": 0, "args": args}
            self.lines.append(json.dumps(event, separators=(",", ":"), ensure_ascii=False))


class RankTracks(msgspec.Struct, frozen=True, eq=False):
    """Threads of one rank's events."""

    table: pl.DataFrame
    """One row per track: ``TRACK_KEY``, ``to_pid``, ``to_tid``."""
    moved: pl.DataFrame
    """Events drawn on another line of their track: ``id``, ``line_tid``."""

    def place(self, events: pl.DataFrame) -> pl.DataFrame:
        """Return events with the process and thread they are drawn on, ``to_pid`` and ``to_tid``."""
        placed = events.with_columns(track_key()).join(self.table, on=TRACK_KEY, how="left", maintain_order="left")
        placed = placed.join(self.moved, on="id", how="left", maintain_order="left")
        return placed.with_columns(to_tid=pl.coalesce("line_tid", "to_tid")).drop(*TRACK_KEY, "line_tid")


def track_key() -> list[pl.Expr]:
    """Return the columns of ``TRACK_KEY`` of events."""
    kind = pl.col("kind")
    on_gpu = kind.is_in([*GPU_KINDS, "gpu_annotation"])
    track_kind = (
        pl.when(kind == "gpu_annotation").then(GPU_ANNOTATIONS).when(on_gpu).then(GPU_WORK).otherwise(CPU).cast(pl.Int8)
    )
    owner = pl.when(on_gpu).then(pl.col("device").cast(pl.Int64)).otherwise("pid")
    lane = pl.when(on_gpu).then("stream").otherwise("tid")
    return [track_kind.alias("track_kind"), owner.fill_null(-1).alias("owner"), lane.fill_null(-1).alias("lane")]


def number_rank_tracks(events: pl.LazyFrame, rank_name: str, numbers: TrackNumbers) -> RankTracks:
    """Number the processes and threads of one rank's events; *rank_name* begins the names of its processes."""
    keyed = events.select("id", *track_key(), "start_ns", "end_ns")
    table = keyed.group_by(TRACK_KEY).len().collect(engine="streaming").sort(TRACK_KEY).with_row_index("track")
    table = table.cast({"track": pl.Int64})
    moved = pl.concat([MOVED_EVENTS.to_frame(), *(_moved_events(keyed, batch) for batch in _batches(table))])
    last_line = dict(moved.group_by("track").agg(pl.col("line").max()).iter_rows())
    tracks: list[tuple[int, int]] = []  # process and thread of each row of the table
    extra_threads: list[tuple[int, int, int]] = []  # track, line, thread
    processes: dict[tuple[bool, int], int] = {}
    for track, track_kind, owner, lane, _ in table.iter_rows():
        process = (track_kind == CPU, owner)
        if process not in processes:
            processes[process] = numbers.add_process(_process_name(rank_name, *process))
        pid = processes[process]
        name = _thread_name(track_kind, lane)
        tracks.append((pid, numbers.add_thread(pid, name)))
        extra_threads += [
            (track, line, numbers.add_thread(pid, f"{name} ({line + 1})"))
            for line in range(1, last_line.get(track, 0) + 1)
        ]
    numbered = pl.DataFrame(tracks, schema={"to_pid": pl.Int64, "to_tid": pl.Int64}, orient="row")
    line_threads = pl.DataFrame(
        extra_threads, schema={"track": pl.Int64, "line": pl.Int64, "line_tid": pl.Int64}, orient="row"
    )
    return RankTracks(
        pl.concat([table.drop("track", "len"), numbered], how="horizontal"),
        moved.join(line_threads, on=("track", "line")).select("id", "line_tid"),
    )


def _batches(table: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield tracks in batches of about ``EVENTS_PER_BATCH`` events: few enough to sort, many enough to read seldom."""
    batch = ((pl.col("len").cum_sum() - 1) // EVENTS_PER_BATCH).alias("batch")
    for _, tracks in table.with_columns(batch).group_by("batch", maintain_order=True):
        yield tracks.drop("batch", "len")


def _moved_events(keyed: pl.LazyFrame, tracks: pl.DataFrame) -> pl.DataFrame:
    """Return the events of some tracks that do not nest with those before them, and the line they move to."""
    events = keyed.join(tracks.lazy(), on=TRACK_KEY).collect(engine="streaming")
    line = nesting_lines(*(events[name].to_numpy() for name in ("track", "start_ns", "end_ns")))
    moved = events.select("id", "track").with_columns(line=pl.Series(line)).filter(pl.col("line") > 0)
    return moved.cast(MOVED_EVENTS)


def _process_name(rank_name: str, is_cpu: bool, owner: int) -> str:
    if is_cpu:
        return f"{rank_name} · CPU" + (f" · process {owner}" if owner >= 0 else "")
    return f"{rank_name} · GPU" + (f" {owner}" if owner >= 0 else "")


def _thread_name(track_kind: int, lane: int) -> str:
    name = {GPU_WORK: "stream", GPU_ANNOTATIONS: "annotations of stream", CPU: "thread"}[track_kind]
    return f"{name} {lane}" if lane >= 0 else name


def nesting_lines(track: Ints, start: Ints, end: Ints) -> Ints:
    """Return for every event the first line of its track in which it nests with all others; 0 for nearly all.

    >>> track = np.zeros(4, np.int64)
    >>> nesting_lines(track, np.array([0, 1, 5, 9]), np.array([9, 3, 12, 12])).tolist()
    [0, 0, 1, 0]
    """
    # By track, then start, the longer of two events that start together first: an event follows those around it.
    order = np.lexsort((-end, start, track))
    sorted_line, around = np.zeros((2, len(order)), np.int64)
    nesting.assign_lines(
        track=as_int64(track[order]),
        start=as_int64(start[order]),
        end=as_int64(end[order]),
        around=around,
        innermost=np.empty(MAX_LINES_PER_TRACK, np.int64),
        line=sorted_line,
    )
    line = np.empty_like(sorted_line)
    line[order] = sorted_line
    return line
