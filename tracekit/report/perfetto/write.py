"""The trace with what tracekit found in it, as Chrome's JSON for ui.perfetto.dev.

Above every rank's own events stand the pipeline as it ran, its ideal, the critical path, and the labels. Ranks are read
from a store and written one after the other, a stretch of time at once, so that memory does not grow with the number of
ranks, and only by a few columns with the length of a trace.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
from zlib_ng import gzip_ng

from tracekit._util.files import atomic_write, check_output_path
from tracekit._version import __version__
from tracekit.analysis import Analysis
from tracekit.compare.comparison import StepComparison
from tracekit.errors import Notice, OptionError
from tracekit.intervals import union
from tracekit.report.perfetto.events import event_lines, flow_lines
from tracekit.report.perfetto.path import arrows, path_lines
from tracekit.report.perfetto.tracks import Numbers, Tracks, joined, nested_lines, tracks
from tracekit.schedules import Op
from tracekit.schema import GPU_KINDS, LABELS
from tracekit.store.files import Store

Write = Callable[[bytes], object]
STRETCH = 200_000
"""Events read at once."""
LINES = 20_000
"""Events that are text at once."""
LABELLING = ("label", "pass", "module", "microbatch", "stage", "rule", "confidence")


class Exported(msgspec.Struct, frozen=True):
    """What was written."""

    path: Path
    ranks: tuple[int, ...]
    events: int
    cells: int
    notices: tuple[Notice, ...] = ()


def write_perfetto(
    store: Store, analysis: Analysis, output: str | os.PathLike[str], *, ranks: Collection[int] | None = None
) -> Exported:
    """Write the ranks of a labelled *store*, with what *analysis* found in them, to *output* (.json or .json.gz)."""
    target = check_output(output)
    with atomic_write(target) as part, _opened(part, packed=target.name.lower().endswith(".gz")) as write:
        return _Export(store, analysis, ranks, write).run(target)


def check_output(path: str | os.PathLike[str]) -> Path:
    """Return where to write, before any work is done.

    >>> check_output("trace.pftrace")
    Traceback (most recent call last):
    tracekit.errors.OptionError: trace.pftrace: cannot write this kind of file (end it in .json or .json.gz)
    """
    target = Path(path)
    if not target.name.lower().endswith((".json", ".json.gz")):
        raise OptionError(f"{target}: cannot write this kind of file", hint="end it in .json or .json.gz")
    return check_output_path(target)


class _Export:
    """One export: what is numbered and counted on the way."""

    def __init__(self, store: Store, analysis: Analysis, ranks: Collection[int] | None, write: Write) -> None:
        self.write = write
        self.begun = False
        self.store = store
        self.analysis = analysis
        self.ranks = tuple(number for number in store.ranks if ranks is None or number in ranks)
        self.held = analysis.schedule.all if analysis.schedule is not None else ()
        self.clocks = analysis.clocks
        self.base_ns = self._base()
        self.numbers = Numbers()
        self.events = self.cells = self.flows = 0

    def run(self, target: Path) -> Exported:
        self.write(self._head())
        self._pipeline()
        self._critical()
        for number in self.ranks:
            self._labels(number)
            self._rank(number)
        self.write(b"\n]}\n")
        return Exported(target, self.ranks, self.events, self.cells, self.analysis.notices)

    def _base(self) -> int:
        """Return the moment that is 0 in the file: small numbers keep their nanoseconds in any reader."""
        starts = [
            int(self.clocks.to_common(entry.rank, np.array([entry.start_ns]))[0])
            for entry in self.store.entries
            if entry.start_ns is not None and entry.rank in self.ranks
        ]
        if self.analysis.critical is not None and not self.analysis.critical.segments.is_empty():
            starts.append(int(self.analysis.critical.segments["start_ns"].to_numpy().min()))
        starts += [int(one.cells["start_ns"].to_numpy().min()) for one in self.held if one.cells.height]
        return min(starts, default=0) // 1000 * 1000

    def _head(self) -> bytes:
        found = self.analysis.schedule
        about = {
            "tracekit": __version__,
            "ranks": list(self.ranks),
            "schedule": found.name if found is not None else None,
            "clock_offset_ns": {str(number): ns for number, ns in self.clocks.offset_ns.items()},
        }
        head = {"displayTimeUnit": "ms", "baseTimeNanoseconds": self.base_ns, "otherData": about}
        text = json.dumps(head, separators=(",", ":"), ensure_ascii=False)[:-1]
        return f'{text},"traceEvents":['.encode()

    def _put(self, lines: Iterable[str]) -> None:
        """Write events, each on a line of its own."""
        text = joined(lines)
        if text and not self.begun:
            text, self.begun = text[1:], True  # no comma before the first
        self.write(text)

    def _pipeline(self) -> None:
        """Write the cells of all pipelines and steps, a thread a rank, and below them their ideal."""
        if not self.held:
            return
        ranks = list(dict.fromkeys(number for one in self.held for number in one.pipeline.ranks))
        for name in ("measured", "ideal"):
            table = pl.concat([_cells(one, ideal=name == "ideal") for one in self.held])
            pid = self.numbers.process(f"pipeline · {name}")
            placed = self._placed(table, pid, {number: f"rank {number}" for number in ranks}, "rank")
            args = [column for column in table.columns if column not in ("start_ns", "end_ns", "rank", "name")]
            self._put(self.numbers.taken())
            self._put(_cell_line(row, args, name, self.base_ns) for row in placed.iter_rows(named=True))
            self.cells += table.height

    def _critical(self) -> None:
        """Write the critical path, a thread a rank, with arrows where it goes on elsewhere."""
        path = self.analysis.critical
        if path is None or path.segments.is_empty():
            return
        pid = self.numbers.process("critical path")
        ranks = sorted(path.segments["rank"].unique().to_list())
        tids = {number: self.numbers.thread(pid, f"rank {number}") for number in ranks}
        self._put(self.numbers.taken())
        self._put(path_lines(path.segments, pid, tids, self.base_ns, self.flows + 1))
        self.flows += arrows(path.segments)

    def _placed(self, table: pl.DataFrame, pid: int, names: Mapping[int, str], column: str) -> pl.DataFrame:
        """Give each row its thread: one for each value of *column*, more where rows overlap only in part."""
        code = {value: at for at, value in enumerate(names)}
        group = table[column].replace_strict(code, return_dtype=pl.Int64).to_numpy()
        line = nested_lines(group, table["start_ns"].to_numpy(), table["end_ns"].to_numpy())
        tids: dict[tuple[int, int], int] = {}
        used = sorted(set(zip(group.tolist(), line.tolist(), strict=True)) | {(at, 0) for at in code.values()})
        shown = list(names.values())
        for at, number in used:
            tids[at, number] = self.numbers.thread(pid, shown[at] + (f" ({number + 1})" if number else ""))
        rows = zip(group.tolist(), line.tolist(), strict=True)
        return table.with_columns(
            to_pid=pl.lit(pid), to_tid=pl.Series([tids[row] for row in rows], dtype=pl.Int64)
        ).sort("start_ns", -pl.col("end_ns"), maintain_order=True)

    def _labels(self, number: int) -> None:
        """Write, a thread a label, when something with that label ran."""
        scan = self.store.scan_labelled(number)
        assert scan is not None, "the store is labelled"
        events = scan.select("label", "start_ns", "end_ns").collect()
        code = events["label"].to_physical().to_numpy().astype(np.int64)
        runs = union(events["start_ns"].to_numpy(), events["end_ns"].to_numpy(), code)
        table = pl.DataFrame({"code": runs.group, "start_ns": runs.start_ns, "end_ns": runs.end_ns})
        table = table.with_columns(self.clocks.moved(number, "start_ns", "end_ns"))
        pid = self.numbers.process(f"rank {number} · labels")
        present = sorted(set(runs.group.tolist()))
        placed = self._placed(table, pid, {at: LABELS[at] for at in present}, "code")
        named = placed.with_columns(
            name=pl.col("code").replace_strict(
                {at: LABELS[at] for at in present}, return_dtype=pl.String, default=None
            ),
            kind=pl.lit("label"),
        )
        self._put(self.numbers.taken())
        for part in named.iter_slices(LINES):
            self._put(event_lines(part, self.base_ns))

    def _rank(self, number: int) -> None:
        """Write one rank's own events, a stretch of time after the other, then what joins launches to kernels."""
        scan = self.store.scan(number)
        placed = tracks(scan, number, self.numbers)
        self._put(self.numbers.taken())
        labelled = self.store.scan_labelled(number)
        assert labelled is not None, "the store is labelled"
        labels = labelled.select("id", *LABELLING).collect()
        for begin, end in _stretches(scan.select("start_ns").collect()["start_ns"]):
            events = scan.filter(pl.col("start_ns").is_between(begin, end, closed="left")).collect()
            events = events.join(labels, on="id", how="left")
            events = placed.placed(events).sort("start_ns", -pl.col("end_ns"), "id")
            events = events.with_columns(self.clocks.moved(number, "start_ns", "end_ns"))
            for part in events.iter_slices(LINES):
                self._put(event_lines(part, self.base_ns))
            self.events += events.height
        del labels
        self._launches(scan, placed, self.clocks.moved(number, "start_ns", "launch_ns"))

    def _launches(self, scan: pl.LazyFrame, placed: Tracks, moved: list[pl.Expr]) -> None:
        columns = ["id", "kind", "device", "pid", "stream", "tid", "start_ns", "correlation"]
        kind = pl.col("kind").cast(pl.String)
        some = scan.select(columns).filter(pl.col("correlation") > 0)
        calls = some.filter(kind.is_in(["runtime", "driver"])).unique("correlation", keep="first")
        works = some.filter(kind.is_in(GPU_KINDS)).unique("correlation", keep="first")  # a graph launches many
        ends = ["correlation", "start_ns", "to_pid", "to_tid"]
        launches = (
            placed.placed(calls.collect())
            .select(ends)
            .rename({"start_ns": "launch_ns", "to_pid": "launch_pid", "to_tid": "launch_tid"})
        )
        flows = placed.placed(works.collect()).select(ends).join(launches, on="correlation").sort("start_ns")
        flows = flows.with_columns(moved)
        for part in flows.iter_slices(LINES):
            self._put(flow_lines(part, self.base_ns, self.flows + 1))
            self.flows += part.height


def _cells(held: StepComparison, *, ideal: bool) -> pl.DataFrame:
    """Return a pipeline's cells at their measured times, or at the ideal ones counted from its first cell."""
    cells = held.cells
    if ideal:
        origin = pl.col("start_ns").min()
        cells = cells.with_columns(start_ns=origin + pl.col("ideal_start_ns"), end_ns=origin + pl.col("ideal_end_ns"))
    known = cells["stage"].null_count() == 0
    ops = cells.select(pl.col("op").cast(pl.String), "stage", "microbatch", "b_stage", "b_microbatch").iter_rows()
    names = [str(Op(*row)) if known else row[0] for row in ops]
    return cells.with_columns(name=pl.Series(names, dtype=pl.String)).select(
        "name", "rank", "start_ns", "end_ns", "step", "op", "stage", "microbatch", "b_stage", "b_microbatch",
        *([] if ideal else ["busy_ns", "confidence", "shift_ns"]),
    )  # fmt: skip


def _cell_line(row: Mapping[str, Any], args: list[str], category: str, base_ns: int) -> str:
    start, length = row["start_ns"] - base_ns, row["end_ns"] - row["start_ns"]
    shown = {
        key: round(row[key], 3) if isinstance(row[key], float) else row[key] for key in args if row[key] is not None
    }
    head = {"ph": "X", "cat": f"cell_{category}", "name": row["name"], "pid": row["to_pid"], "tid": row["to_tid"]}
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False)[:-1]
    times = f'"ts":{start // 1000}.{start % 1000:03d},"dur":{length // 1000}.{length % 1000:03d}'
    return f'{text},{times},"args":{json.dumps(shown, separators=(",", ":"))}}}'


def _stretches(start_ns: pl.Series) -> Iterator[tuple[int, int]]:
    """Cut a rank's time into stretches of about as many events each.

    >>> list(_stretches(pl.Series([3, 1, 2])))
    [(1, 4)]
    """
    if not len(start_ns):
        return
    times = np.sort(start_ns.to_numpy())
    edges = np.unique(np.append(times[::STRETCH], times[-1] + 1))
    yield from zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)


@contextmanager
def _opened(path: Path, *, packed: bool) -> Iterator[Write]:
    with path.open("wb") as file:
        if not packed:
            yield file.write
            return
        with gzip_ng.GzipNGFile("", "wb", 5, file, mtime=0) as archive:  # type: ignore[no-untyped-call]
            yield archive.write
