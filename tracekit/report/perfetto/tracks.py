"""Where events are drawn: every process and thread of an exported trace, numbered so that no two ranks share one.

ui.perfetto.dev keeps process and thread numbers in 32 bits and looks a thread up by its number alone, so that both are
counted from 1 over the whole file. On one thread events must nest: one that overlaps another only in part gets a second
line beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
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

GPU, ANNOTATED, CPU = 0, 1, 2
"""What a track shows: a stream's work, the annotations projected on it, or a thread."""
MOST_LINES = 64
"""Lines of one track; what does not nest in any of them shares the last."""


@dataclass
class Numbers:
    """Counts processes and threads, and keeps the metadata events that name them."""

    processes: int = 0
    threads: int = 0
    lines: list[str] = field(default_factory=list)

    def process(self, name: str, *, label: str = "") -> int:
        """Number a process; those numbered first are shown first."""
        self.processes += 1
        pid = self.processes
        self._say("process_name", pid, None, {"name": name})
        self._say("process_sort_index", pid, None, {"sort_index": pid})
        if label:
            self._say("process_labels", pid, None, {"labels": label})
        return pid

    def thread(self, pid: int, name: str) -> int:
        """Number a thread of a process."""
        self.threads += 1
        tid = self.threads
        self._say("thread_name", pid, tid, {"name": name})
        self._say("thread_sort_index", pid, tid, {"sort_index": tid})
        return tid

    def taken(self) -> Iterator[str]:
        """Hand over the metadata events that were not yet written."""
        lines, self.lines = self.lines, []
        yield from lines

    def _say(self, name: str, pid: int, tid: int | None, args: dict[str, Any]) -> None:
        event = {"ph": "M", "name": name, "pid": pid, **({} if tid is None else {"tid": tid}), "ts": 0, "args": args}
        self.lines.append(json.dumps(event, separators=(",", ":"), ensure_ascii=False))


TRACK = ("side", "owner", "line")
BATCH = 500_000
"""Events whose nesting is worked out at once, or those of one track."""
_NONE_MOVED = pl.Schema({"id": pl.Int64(), "track": pl.Int64(), "at": pl.Int64()})


def side_columns() -> list[pl.Expr]:
    """Which track an event belongs to: what it shows, its device or process, its stream or thread."""
    kind = pl.col("kind")
    gpu = kind.is_in([*GPU_KINDS, "gpu_annotation"])
    return [
        pl.when(kind == "gpu_annotation")
        .then(ANNOTATED)
        .when(gpu)
        .then(GPU)
        .otherwise(CPU)
        .cast(pl.Int8)
        .alias("side"),
        pl.when(gpu).then(pl.col("device").cast(pl.Int64)).otherwise("pid").fill_null(-1).alias("owner"),
        pl.when(gpu).then("stream").otherwise("tid").fill_null(-1).alias("line"),
    ]


class Tracks(msgspec.Struct, frozen=True, eq=False):
    """The threads of one rank: one a track, and those that take what does not nest."""

    table: pl.DataFrame  # side, owner, line, pid, tid
    beside: pl.DataFrame  # id, beside_tid: events drawn elsewhere than their track says

    def placed(self, events: pl.DataFrame) -> pl.DataFrame:
        """Return events with the process and thread they are drawn on, as ``to_pid`` and ``to_tid``."""
        joined = events.with_columns(side_columns()).join(self.table, on=TRACK, how="left", maintain_order="left")
        if self.beside.height:
            joined = joined.join(self.beside, on="id", how="left", maintain_order="left")
            joined = joined.with_columns(to_tid=pl.coalesce("beside_tid", "to_tid")).drop("beside_tid")
        return joined.drop(TRACK)


def tracks(scan: pl.LazyFrame, rank: int, numbers: Numbers) -> Tracks:
    """Number the processes and threads of one rank's events."""
    placed = scan.select("id", *side_columns(), "start_ns", "end_ns")
    table = placed.group_by(TRACK).len().collect(engine="streaming").sort(TRACK).with_row_index("track")
    table = table.cast({"track": pl.Int64})
    moved = pl.concat([_moved(placed, some) for some in _batches(table)]) if table.height else _NONE_MOVED.to_frame()
    lines = dict(moved.group_by("track").agg(pl.col("at").max()).iter_rows())
    rows: list[tuple[int, int]] = []
    extra: list[tuple[int, int, int]] = []
    processes: dict[tuple[bool, int], int] = {}
    for track, side, owner, number, _ in table.iter_rows():
        where = (side == CPU, owner)
        if where not in processes:
            processes[where] = numbers.process(_process(rank, *where))
        pid = processes[where]
        name = _thread(side, number)
        rows.append((pid, numbers.thread(pid, name)))
        extra += [(track, at, numbers.thread(pid, f"{name} ({at + 1})")) for at in range(1, lines.get(track, 0) + 1)]
    pids, tids = zip(*rows, strict=True) if rows else ((), ())
    table = table.with_columns(to_pid=pl.Series(pids, dtype=pl.Int64), to_tid=pl.Series(tids, dtype=pl.Int64))
    schema = {"track": pl.Int64, "at": pl.Int64, "beside_tid": pl.Int64}
    beside = moved.join(pl.DataFrame(extra, schema=schema, orient="row"), on=("track", "at"))
    return Tracks(table.drop("track", "len"), beside.select("id", "beside_tid"))


def _batches(table: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Take tracks together until they hold many events: few enough to sort, enough to read the file few times."""
    batch = ((pl.col("len").cum_sum() - 1) // BATCH).alias("batch")
    for _, some in table.with_columns(batch).group_by("batch", maintain_order=True):
        yield some.drop("batch", "len")


def _moved(placed: pl.LazyFrame, some: pl.DataFrame) -> pl.DataFrame:
    """Find the events of some tracks that do not nest with those before them."""
    events = placed.join(some.lazy(), on=TRACK).drop(TRACK).collect(engine="streaming")
    line = nested_lines(*(events[name].to_numpy() for name in ("track", "start_ns", "end_ns")))
    return events.select("id", "track").with_columns(at=pl.Series(line)).filter(pl.col("at") > 0).cast(_NONE_MOVED)


def _process(rank: int, cpu: bool, owner: int) -> str:
    if cpu:
        return f"rank {rank} · CPU" + (f" · process {owner}" if owner >= 0 else "")
    return f"rank {rank} · GPU" + (f" {owner}" if owner >= 0 else "")


def _thread(side: int, line: int) -> str:
    word = {GPU: "stream", ANNOTATED: "annotations of stream", CPU: "thread"}[side]
    return f"{word} {line}" if line >= 0 else word


def nested_lines(track: Ints, start: Ints, end: Ints) -> Ints:
    """For every event, the first line of its track in which it nests with all others there; 0 for nearly all.

    >>> zero = np.zeros(4, np.int64)
    >>> nested_lines(zero, np.array([0, 1, 5, 9]), np.array([9, 3, 12, 12])).tolist()
    [0, 0, 1, 0]
    """
    order = np.lexsort((-end, start, track))
    found, line, around = np.zeros((3, len(order)), np.int64)
    nesting.assign_lines(
        track=as_int64(track[order]),
        start=as_int64(start[order]),
        end=as_int64(end[order]),
        around=around,
        innermost=np.empty(MOST_LINES, np.int64),
        line=line,
    )
    found[order] = line
    return found


def joined(lines: Iterable[str]) -> bytes:
    r"""Events as they stand in the file, each after the first led in by a comma; empty for none.

    >>> joined(['{"a":1}', '{"b":2}'])
    b',\n{"a":1},\n{"b":2}'
    """
    return "".join(f",\n{line}" for line in lines).encode()
