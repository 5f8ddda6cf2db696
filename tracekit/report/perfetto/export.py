"""Traces with tracekit's results for ui.perfetto.dev, as Chrome's JSON or as an archive.

Above every rank's own events stand the pipeline as it ran, its ideal, the critical path, findings,
and the labels. Ranks are read from a store, which lives as long as it is needed, and written one
after the other, so that memory does not grow with their number.
"""

import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
from zlib_ng import gzip_ng

from tracekit._util.files import atomic_write
from tracekit._version import __version__
from tracekit.analysis import Analysis
from tracekit.errors import Notice
from tracekit.intervals import union
from tracekit.parsers.source_refs import SourceRef
from tracekit.report.findings import findings_of, shown_findings
from tracekit.report.gap_words import relevant_notices
from tracekit.report.perfetto.archive import (
    MANIFEST_NAME,
    RESULTS_NAME,
    ArchiveWriter,
    describe_rank_file,
    make_manifest,
    manifest_bytes,
    name_apart,
)
from tracekit.report.perfetto.events import EVENT_DETAILS, TrackNumbers, arrow_lines, event_lines
from tracekit.report.schedule.layout import layout_pipeline
from tracekit.report.words import WORDS
from tracekit.schema import GPU_KINDS, LABELS
from tracekit.store.files import Store

Write = Callable[[bytes], object]
ARCHIVE_EXTENSION = ".tar"
EXPORT_EXTENSIONS = (".json", ".json.gz", ARCHIVE_EXTENSION)
EVENTS_PER_WRITE = 20_000
LABEL_COLUMNS = ("label", "pass", "module", "microbatch", "stage", "rule", "confidence")
"""Columns that classification adds to an event."""
CELL_DETAILS = (
    "step",
    "op",
    "stage",
    "microbatch",
    "b_stage",
    "b_microbatch",
    "busy_ns",
    "confidence",
    "shift_ns",
)
MEASURED_ONLY = ("busy_ns", "confidence", "shift_ns")
"""Details that an ideal cell does not have."""
PATH_DETAILS = {
    "step": "step",
    "path_kind": "kind",
    "label": "label",
    "cause": "cause",
    "stage": "stage",
    "peer": "peer",
}


FINDING_EVENTS = pl.Schema(
    {
        "thread": pl.String(),
        "name": pl.String(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "advice": pl.String(),
        "saves_ns": pl.Int64(),
        "step": pl.Int64(),
        "event": pl.String(),
        "source": pl.String(),
    }
)
"""Places that show findings; the columns behind the times are details."""
FINDING_DETAILS = {column: column for column in list(FINDING_EVENTS)[4:]}


class Exported(msgspec.Struct, frozen=True):
    """Result of an export."""

    path: Path
    ranks: tuple[int, ...]
    events: int
    cells: int
    notices: tuple[Notice, ...] = ()


def write_perfetto(
    store: Store,
    analysis: Analysis,
    output: str | os.PathLike[str],
    *,
    ranks: Collection[int] | None = None,
) -> Exported:
    """Write the ranks of a *store* and the results of *analysis* to *output* (.json or .json.gz)."""
    with atomic_write(output) as part, part.open("wb") as file:
        target: Any = nullcontext(file)
        if Path(output).suffix.lower() == ".gz":
            target = gzip_ng.GzipNGFile("", "wb", 5, file, mtime=0)  # type: ignore[no-untyped-call]
        with target as opened:
            return _TraceExport(store, analysis, ranks, opened.write).run(Path(output))


def write_archive(
    store: Store,
    analysis: Analysis,
    output: str | os.PathLike[str],
    *,
    traces: Mapping[str, tuple[SourceRef, str]],
    ranks: Collection[int] | None = None,
) -> Exported:
    """Write the files of the ranks of a *store*, their manifest and the results of *analysis* to *output* (.tar).

    The files are those of *traces*, which were named: paths in a store may be anybody's choice and are not opened.
    """
    files = []
    stores: dict[str | None, Store] = dict(store.roles.items()) or {None: store}
    for role, role_store in stores.items():
        entries = []
        for entry in role_store.entries:
            if ranks is None or entry.rank in ranks:
                entries.append(entry)
        for entry in sorted(entries, key=lambda entry: entry.rank):
            files.append(describe_rank_file(entry, role, traces))
    files = name_apart(files)
    with (
        atomic_write(output) as part,
        part.open("wb") as file,
        tempfile.TemporaryDirectory() as folder,
    ):
        results = Path(folder) / RESULTS_NAME
        with results.open("wb") as results_file:
            export_in_progress = _TraceExport(
                store, analysis, ranks, results_file.write, with_events=False
            )
            done = export_in_progress.run(Path(output))
        schedule = analysis.comparison
        attributes: dict[str, str | int] = (
            {} if schedule is None else {"tracekit.schedule": schedule.name}
        )
        manifest = make_manifest(
            files,
            analysis.clocks,
            results_base_ns=export_in_progress.base_ns,
            attributes=attributes,
        )
        archive = ArchiveWriter(file)
        archive.add_bytes(MANIFEST_NAME, manifest_bytes(manifest))
        for rank_file in files:
            archive.add_trace(rank_file)
        archive.add_path(RESULTS_NAME, results)
        archive.close()
    return done


class _TraceExport:
    """One export in progress: the numbers given and the events counted so far."""

    def __init__(
        self,
        store: Store,
        analysis: Analysis,
        ranks: Collection[int] | None,
        write: Write,
        *,
        with_events: bool = True,
    ) -> None:
        self.write = write
        self.with_events = with_events
        self.separator = "\n"  # written before the next event; with a comma after the first
        self.store = store
        self.analysis = analysis
        self.ranks = store.ranks
        if ranks is not None:
            self.ranks = tuple(rank for rank in store.ranks if rank in ranks)
        self.roles: dict[str | None, Store] = dict(store.roles.items()) or {None: store}
        self.names = ""  # before the names of tracks: the role that is written
        self.pipelines = analysis.comparison.all if analysis.comparison is not None else ()
        self.clocks = analysis.clocks
        self.base_ns = self._first_time()
        self.numbers = TrackNumbers()
        self.event_count = self.cell_count = self.arrow_count = 0

    def run(self, target: Path) -> Exported:
        """Write everything, the tracks in the order in which they are shown."""
        self.write(self._header())
        self._write_pipelines()
        self._write_critical_path()
        self._write_findings()
        self._write_phases()
        for role, store in self.roles.items():
            self.store = store
            self.names = "" if role is None else f"{role} · "
            for rank in self.ranks:
                if rank not in store.ranks:
                    continue
                labels = (
                    store.scan_labelled(rank)
                    .select("id", "start_ns", "end_ns", *LABEL_COLUMNS)
                    .collect()
                )
                self._write_labels(rank, labels)
                if self.with_events:
                    self._write_events(rank, labels.drop("start_ns", "end_ns"))
        self.write(b"\n]}\n")
        path = self.analysis.critical_path
        notices = (*relevant_notices(self.analysis), *(() if path is None else path.notices))
        return Exported(target, self.ranks, self.event_count, self.cell_count, notices)

    def _first_time(self) -> int:
        """Return the time that is 0 in the file: small numbers keep their nanoseconds in any reader."""
        starts = [
            int(self.clocks.to_common(entry.rank, np.array([entry.start_ns]))[0])
            for entry in self.store.entries
            if entry.start_ns is not None and entry.rank in self.ranks
        ]
        tables = [compared.cells for compared in self.pipelines]
        path = self.analysis.critical_path
        tables += [] if path is None else [path.segments]
        starts += [
            int(table["start_ns"].to_numpy().min()) for table in tables if not table.is_empty()
        ]
        return min(starts, default=0) // 1000 * 1000

    def _header(self) -> bytes:
        comparison = self.analysis.comparison
        about = {
            "tracekit": __version__,
            "ranks": list(self.ranks),
            "schedule": comparison.name if comparison is not None else None,
            "clock_offset_ns": {str(rank): ns for rank, ns in self.clocks.offset_ns.items()},
        }
        header = {"displayTimeUnit": "ms", "baseTimeNanoseconds": self.base_ns, "otherData": about}
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False)
        return f'{text[:-1]},"traceEvents":['.encode()

    def _write_lines(self, lines: Iterable[str]) -> None:
        """Write events, each on a line of its own."""
        if text := ",\n".join(lines):
            self.write(f"{self.separator}{text}".encode())
            self.separator = ",\n"

    def _write_table(
        self, events: pl.DataFrame, details: Mapping[str, str] = EVENT_DETAILS
    ) -> None:
        """Write the names of new tracks, then events that have their ``to_pid`` and ``to_tid``."""
        self._write_lines(self.numbers.take_lines())
        for part in events.iter_slices(EVENTS_PER_WRITE):
            self._write_lines(event_lines(part, self.base_ns, details=details))

    def _write_process(
        self,
        name: str,
        events: pl.DataFrame,
        threads: Sequence[str],
        details: Mapping[str, str] = EVENT_DETAILS,
    ) -> pl.DataFrame:
        """Write events as a process of their own, on *threads* by the names in their column ``thread``; return them."""
        pid = self.numbers.add_process(name)
        track = pl.col("thread").replace_strict(threads, range(len(threads)), return_dtype=pl.Int64)
        tracks = [(pid, thread) for thread in threads]
        placed = self.numbers.place_events(events.select(pl.exclude("thread"), track=track), tracks)
        self._write_table(placed, details)
        return placed

    def _write_pipelines(self) -> None:
        """Write the cells of all pipelines and steps, one thread per rank, and below them their ideal."""
        if not self.pipelines:
            return
        layouts = [layout_pipeline(compared) for compared in self.pipelines]
        threads: dict[str, None] = {}
        for compared in self.pipelines:
            for rank in compared.pipeline.ranks:
                threads[f"rank {rank}"] = None
        for name in ("measured", "ideal"):
            details = {
                column: column
                for column in CELL_DETAILS
                if name == "measured" or column not in MEASURED_ONLY
            }
            cells_of_pipelines = []
            for sides in layouts:
                layout = sides[name]
                times = (pl.col("start", "end") + layout.origin_ns).name.suffix("_ns")
                cells_of_pipelines.append(layout.cells.select("name", "rank", *details, times))
            cells = pl.concat(cells_of_pipelines).with_columns(
                kind=pl.lit(f"cell_{name}"), thread=pl.format("rank {}", "rank")
            )
            self._write_process(f"pipeline · {name}", cells, list(threads), details)
            self.cell_count += cells.height

    def _write_critical_path(self) -> None:
        """Write the critical path, one thread per rank, with arrows where it continues on another rank."""
        path = self.analysis.critical_path
        if path is None or path.segments.is_empty():
            return
        threads = [f"rank {rank}" for rank in path.segments["rank"].unique().sort()]
        what = pl.coalesce(pl.when(pl.col("what") != "").then("what"), "kind")
        segments = path.segments.with_columns(
            name=pl.when(pl.col("kind") == "host").then("host: " + what).otherwise(what),
            path_kind="kind",
            cause=pl.col("cause").replace(WORDS.exposure_causes),
            kind=pl.lit("critical_path"),
            thread=pl.format("rank {}", "rank"),
        )
        placed = self._write_process("critical path", segments, threads, PATH_DETAILS).sort(
            "step", "start_ns"
        )
        # An arrow must begin inside the segment that it leaves: at its last nanosecond.
        changes_rank = pl.col("rank") != pl.col("rank").shift(1)
        same_step = pl.col("step").eq_missing(pl.col("step").shift(1))
        arrows = placed.with_columns(
            from_ns=(pl.col("start_ns") - 1).clip(self.base_ns),
            from_pid="to_pid",
            from_tid=pl.col("to_tid").shift(1),
        ).filter(changes_rank & same_step)
        self._write_arrows(arrows, category="critical_path", name="goes on")

    def _write_findings(self) -> None:
        """Write the places that show findings, one thread per rank.

        What to do stands in the details.
        """
        rows = []
        for finding in shown_findings(findings_of(self.analysis)):
            for example in finding.where:
                if example.rank not in self.ranks:
                    continue
                start_ns, end_ns = self.clocks.to_common(
                    example.rank, np.array([example.start_ns, example.end_ns])
                ).tolist()
                details = (
                    finding.advice,
                    finding.saves_ns,
                    example.step,
                    example.name,
                    example.source,
                )
                rows.append((f"rank {example.rank}", finding.text, start_ns, end_ns, *details))
        if not rows:
            return
        table = pl.DataFrame(rows, schema=FINDING_EVENTS, orient="row").with_columns(
            kind=pl.lit("finding")
        )
        threads = sorted({row[0] for row in rows}, key=lambda thread: int(thread.split()[1]))
        self._write_process("findings", table, threads, FINDING_DETAILS)

    def _write_phases(self) -> None:
        """Write the phases of every process of an RL loop, and the buffers of every device in weight updates."""
        results = self.analysis.role_results
        phases = []
        for band in results.bands:
            title = f"{band.role} · rank {band.rank}"
            phases.append((title, band.phase, band.start_ns, band.end_ns))
        updates = []
        for update in results.weight_updates:
            for cell in update.cells:
                title = f"rank {cell.rank} · {cell.lane}"
                updates.append((title, f"{cell.op} {cell.bucket}", cell.start_ns, cell.end_ns))
        tracks = {"phases": phases, "weight updates": updates}
        for process, rows in tracks.items():
            if not rows:
                continue
            table = pl.DataFrame(
                rows, schema=["thread", "name", "start_ns", "end_ns"], orient="row"
            )
            threads = list(dict.fromkeys(row[0] for row in rows))
            self._write_process(process, table.with_columns(kind=pl.lit("phase")), threads)

    def _write_arrows(self, arrows: pl.DataFrame, **look: str) -> None:
        for part in arrows.iter_slices(EVENTS_PER_WRITE):
            self._write_lines(
                arrow_lines(part, self.base_ns, first_id=self.arrow_count + 1, **look)
            )
            self.arrow_count += part.height

    def _write_labels(self, rank: int, events: pl.DataFrame) -> None:
        """Write, one thread per label, when events of that label ran."""
        code = events["label"].to_physical().to_numpy().astype(np.int64)
        busy = union(events["start_ns"].to_numpy(), events["end_ns"].to_numpy(), code).to_frame()
        label = pl.lit(pl.Series(LABELS)).gather("group")
        times = self.clocks.moved(rank, "start_ns", "end_ns")
        table = busy.with_columns(times, name=label, thread=label, kind=pl.lit("label")).drop(
            "group"
        )
        labels = [LABELS[code] for code in busy["group"].unique().sort()]
        self._write_process(f"{self.names}rank {rank} · labels", table, labels)

    def _write_events(self, rank: int, labels: pl.DataFrame) -> None:
        """Write one rank's own events with their labels, then arrows from launches to kernels."""
        events = (
            self.store.scan(rank)
            .collect()
            .sort("id")
            .join(labels, on="id", how="left", maintain_order="left")
        )
        placed = self.numbers.place_rank(events, f"{self.names}rank {rank}").with_columns(
            self.clocks.moved(rank, "start_ns", "end_ns")
        )
        self._write_table(placed)
        self.event_count += placed.height
        self._write_arrows(_launch_arrows(placed))


def _launch_arrows(events: pl.DataFrame) -> pl.DataFrame:
    """Return an arrow from each launching call to what it launched, of a graph to its first event."""
    calls = _first_by_correlation(events, ("runtime", "driver"))
    gpu_events = _first_by_correlation(events, GPU_KINDS)
    # ``to_pid`` and ``to_tid`` are the track on which an event is drawn: an arrow begins on that of
    # the call and ends on that of the GPU event.
    begins = calls.select("correlation", from_ns="start_ns", from_pid="to_pid", from_tid="to_tid")
    ends = gpu_events.select("correlation", "start_ns", "to_pid", "to_tid")
    return ends.join(begins, on="correlation").sort("start_ns", "correlation")


def _first_by_correlation(events: pl.DataFrame, kinds: Collection[str]) -> pl.DataFrame:
    """Return the first event of some *kinds* with each correlation."""
    is_correlated = pl.col("correlation") > 0
    of_kinds = events.filter(is_correlated & pl.col("kind").is_in(kinds)).sort("id")
    return of_kinds.unique("correlation", keep="first", maintain_order=True)
