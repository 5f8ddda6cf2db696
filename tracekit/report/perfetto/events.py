"""Chrome's JSON trace format: the processes and threads of a trace, and its events as lines, built column by column.

ui.perfetto.dev keeps process and thread numbers in 32 bits and looks a thread up by its number
alone, so both are counted from 1 over the whole file. Events of one thread must nest: an event that
overlaps another only in part is drawn on a second line beside it. Times are microseconds with three
digits, so that no nanosecond is lost.
"""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from tracekit._loops import nesting
from tracekit._util.arrays import Ints, as_int64
from tracekit.schema import GPU_KINDS

_NAMES: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("names.toml").read_text(encoding="utf-8")
)
EVENT_DETAILS = _NAMES["details"]
"""Columns of an event that its details show, and their names: those of PyTorch's traces where they
have one."""


def event_lines(
    events: pl.DataFrame, base_ns: int, *, details: Mapping[str, str] = EVENT_DETAILS
) -> pl.Series:
    r"""Return one line of JSON per event.

    Args:
        events: Columns ``kind`` (the category), ``name``, ``start_ns``, ``end_ns``, ``to_pid`` and
            ``to_tid``, and any of *details*. Events of kind ``mark`` are instants.
        base_ns: Time that is 0 in the file.
        details: Column → name of a detail; nulls are left out.

    >>> event = pl.DataFrame({"kind": ["kernel"], "name": ['a"b'], "start_ns": [1_000_001_234],
    ...                       "end_ns": [1_000_001_239], "to_pid": [1], "to_tid": [2], "bytes": [7]})
    >>> print(event_lines(event, 1_000_000_000)[0])
    {"ph":"X","cat":"kernel","name":"a\"b","pid":1,"tid":2,"ts":1.234,"dur":0.005,"args":{"bytes":7}}
    """
    kind = pl.col("kind").cast(pl.String)
    is_instant = kind == "mark"
    duration = _microseconds((pl.col("end_ns") - pl.col("start_ns")).clip(0))
    texts = [pl.lit("")]
    for column, name in details.items():
        if column in events.columns:
            texts.append(_detail(events[column], name))
    details_text = pl.concat_str(texts)
    line = pl.concat_str(
        pl.when(is_instant)
        .then(pl.lit('{"ph":"i","cat":"'))
        .otherwise(pl.lit('{"ph":"X","cat":"')),
        kind.replace(_NAMES["categories"]),
        pl.lit('","name":'),
        pl.lit(_as_json(events["name"])),
        *_track_and_time("to_pid", "to_tid", pl.col("start_ns") - base_ns),
        pl.lit(","),
        pl.when(is_instant)
        .then(pl.lit('"s":"t"'))
        .otherwise(pl.concat_str(pl.lit('"dur":'), duration)),
        pl.lit(',"args":{'),
        details_text.str.strip_prefix(","),
        pl.lit("}}"),
    )
    return events.select(line=line)["line"]


def arrow_lines(
    arrows: pl.DataFrame, base_ns: int, *, first_id: int, category: str = "ac2g", name: str = "ac2g"
) -> pl.Series:
    r"""Return two lines per arrow: its start and its end.

    Args:
        arrows: Columns ``from_ns``, ``from_pid`` and ``from_tid`` of the start; ``start_ns``,
            ``to_pid`` and ``to_tid`` of the end.
        base_ns: Time that is 0 in the file.
        first_id: Number of the first arrow.
        category: Category of all arrows; PyTorch's for arrows from a launch to what it launched.
        name: Name of all arrows.

    >>> arrow = pl.DataFrame({"from_ns": [5], "from_pid": [1], "from_tid": [2], "start_ns": [7],
    ...                       "to_pid": [3], "to_tid": [4]})
    >>> print(*arrow_lines(arrow, 0, first_id=9), sep="\n")
    {"ph":"s","cat":"ac2g","name":"ac2g","id":9,"pid":1,"tid":2,"ts":0.005}
    {"ph":"f","bp":"e","cat":"ac2g","name":"ac2g","id":9,"pid":3,"tid":4,"ts":0.007}
    """
    common = f',"cat":{json.dumps(category)},"name":{json.dumps(name)},"id":'
    start = _track_and_time("from_pid", "from_tid", pl.col("from_ns") - base_ns)
    end = _track_and_time("to_pid", "to_tid", pl.col("start_ns") - base_ns)
    lines = [
        pl.concat_str(pl.lit(opening + common), "id", *track_and_time, pl.lit("}"))
        for opening, track_and_time in (('{"ph":"s"', start), ('{"ph":"f","bp":"e"', end))
    ]
    numbered = arrows.with_row_index("id", offset=first_id)
    return numbered.select(line=pl.concat_list(lines))["line"].explode()


def _track_and_time(pid: str, tid: str, time_ns: pl.Expr) -> list[pl.Expr]:
    """Return the text of process, thread and time, to be joined; *pid* and *tid* are columns."""
    return [
        pl.lit(',"pid":'),
        pl.col(pid),
        pl.lit(',"tid":'),
        pl.col(tid),
        pl.lit(',"ts":'),
        _microseconds(time_ns),
    ]


def _detail(values: pl.Series, name: str) -> pl.Expr:
    """Return ``,"name":value`` for each value, nothing for null."""
    if values.dtype.is_float():
        text = values.round(3).cast(pl.String)
    elif values.dtype.is_numeric():
        text = values.cast(pl.String)
    else:
        text = _as_json(values)
    return (pl.lit(f",{json.dumps(name)}:") + pl.lit(text)).fill_null("")


def _as_json(texts: pl.Series) -> pl.Series:
    """Return texts as JSON strings, each distinct text converted once."""
    texts = texts.cast(pl.String)
    distinct = texts.unique().drop_nulls()
    # Letters are not escaped: Perfetto does not decode all escapes.
    quoted = pl.Series([json.dumps(text, ensure_ascii=False) for text in distinct], dtype=pl.String)
    return texts.replace_strict(distinct, quoted, default=None)


def _microseconds(ns: pl.Expr) -> pl.Expr:
    """Return non-negative nanoseconds as microseconds with three digits."""
    return pl.concat_str(ns // 1000, pl.lit("."), (ns % 1000).cast(pl.String).str.zfill(3))


GPU_WORK = 0
GPU_ANNOTATIONS = 1
CPU = 2
"""Kinds of track: the work of a stream, the annotations projected on it, the events of a thread."""
MAX_LINES_PER_TRACK = 64
"""Events that nest in none of so many lines share the last."""
TRACK_KEY = ("track_kind", "owner", "lane")
"""Columns that name a track of a rank: its kind, the device or process, the stream or thread."""


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

    def _add_name(self, kind: str, name: str, number: int, track: dict[str, int]) -> None:
        for argument, value in (("name", name), ("sort_index", number)):
            event = {
                "ph": "M",
                "name": f"{kind}_{argument}",
                **track,
                "ts": 0,
                "args": {argument: value},
            }
            self.lines.append(json.dumps(event, separators=(",", ":"), ensure_ascii=False))

    def take_lines(self) -> list[str]:
        """Return the metadata events since the last call."""
        lines = self.lines
        self.lines = []
        return lines

    def place_events(self, events: pl.DataFrame, tracks: Iterable[tuple[int, str]]) -> pl.DataFrame:
        """Return events with the process and thread they are drawn on, ``to_pid`` and ``to_tid``, in order of time.

        Args:
            events: Events with their ``track``, an index into *tracks*.
            tracks: Process and name of each track. Each gets a thread, and more threads for events
                that overlap others only in part.
        """
        line = nesting_lines(*(events[name].to_numpy() for name in ("track", "start_ns", "end_ns")))
        numbered = events.with_columns(
            pl.col("track").cast(pl.Int64), line=pl.Series(line, dtype=pl.Int64)
        )
        last_line = dict(numbered.group_by("track").agg(pl.col("line").max()).iter_rows())
        threads = []
        for track, (pid, name) in enumerate(tracks):
            for number in range(last_line.get(track, 0) + 1):
                title = f"{name} ({number + 1})" if number else name
                threads.append((track, number, pid, self.add_thread(pid, title)))
        schema = dict.fromkeys(("track", "line", "to_pid", "to_tid"), pl.Int64)
        table = pl.DataFrame(threads, schema=schema, orient="row")
        placed = numbered.join(table, on=("track", "line"), how="left", maintain_order="left").drop(
            "track", "line"
        )
        return placed.sort("start_ns", -pl.col("end_ns"), maintain_order=True)

    def place_rank(self, events: pl.DataFrame, rank_name: str) -> pl.DataFrame:
        """Return one rank's own events as ``place_events`` does, a thread for each stream and CPU thread.

        *rank_name* begins the names of its processes.
        """
        kind = pl.col("kind")
        on_gpu = kind.is_in([*GPU_KINDS, "gpu_annotation"])
        gpu_kind = pl.when(kind == "gpu_annotation").then(GPU_ANNOTATIONS).otherwise(GPU_WORK)
        keyed = events.with_columns(
            track_kind=pl.when(on_gpu).then(gpu_kind).otherwise(CPU),
            owner=pl.when(on_gpu)
            .then(pl.col("device").cast(pl.Int64))
            .otherwise("pid")
            .fill_null(-1),
            lane=pl.when(on_gpu).then("stream").otherwise("tid").fill_null(-1),
        )
        keys = keyed.select(TRACK_KEY).unique().sort(TRACK_KEY)
        numbered = keyed.join(
            keys.with_row_index("track"), on=TRACK_KEY, how="left", maintain_order="left"
        )
        return self.place_events(numbered.drop(TRACK_KEY), self._rank_tracks(rank_name, keys))

    def _rank_tracks(self, rank_name: str, keys: pl.DataFrame) -> Iterator[tuple[int, str]]:
        """Yield process and name of each track; *keys* has the columns ``TRACK_KEY``."""
        kinds = {GPU_WORK: "stream", GPU_ANNOTATIONS: "annotations of stream", CPU: "thread"}
        processes: dict[tuple[str, int], int] = {}
        for track_kind, owner, lane in keys.iter_rows():
            unit, separator = ("CPU", " · process ") if track_kind == CPU else ("GPU", " ")
            if (unit, owner) not in processes:
                name = f"{rank_name} · {unit}" + (f"{separator}{owner}" if owner >= 0 else "")
                processes[unit, owner] = self.add_process(name)
            yield (
                processes[unit, owner],
                f"{kinds[track_kind]} {lane}" if lane >= 0 else kinds[track_kind],
            )


def nesting_lines(track: Ints, start: Ints, end: Ints) -> Ints:
    """Return for every event the first line of its track in which it nests with all others.

    0 for nearly all.

    >>> track = np.zeros(4, np.int64)
    >>> nesting_lines(track, np.array([0, 1, 5, 9]), np.array([9, 3, 12, 12])).tolist()
    [0, 0, 1, 0]
    """
    # By track, then start, the longer of two events that start together first: an event follows
    # those around it.
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
