"""Saving and loading of analyses: a whole analysis as JSON, and the tables of one rank as a file of a store.

A saved analysis (``read_analysis``) holds every figure and none of the events behind them.

A rank's tables (``write_tables``, ``read_tables``) are all that ``combine`` needs of a rank. Their file is a zip with
one Arrow stream per table (as small as Parquet for small tables, and read in a fifth of the time) and ``tables.json``
for everything else. Reading runs no code from the file: each field is built as the type that it is declared with.
Tables stay in the file and are read each time they are used, because the tables of a thousand ranks do not fit in
memory.
"""

from __future__ import annotations

import dataclasses
import io
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Self, get_args, get_type_hints

import msgspec
import polars as pl
from msgspec import UNSET
from msgspec.structs import replace

from tracekit._version import __version__
from tracekit.analysis.measure.tables import Measures, RankTables
from tracekit.analysis.measured import Measured, RankResult
from tracekit.analysis.result import BaseAnalysis, Tables
from tracekit.documents.analysis import AnalysisDocument, Figures, RankFigures, Schedule, StepFigures
from tracekit.documents.coding import decode, encode, read_document, to_plain, to_plain_rows
from tracekit.documents.store_manifest import TABLES_FORMAT, TablesDocument
from tracekit.errors import InputError, Notice
from tracekit.intervals import Intervals
from tracekit.metrics.budget import Bubble, Budget
from tracekit.metrics.step_time import TimedStep
from tracekit.reconstruct import RankPipeline

# ---- a whole analysis, as JSON

_JSON_TABLES = ("stragglers", "kernels", "copies", "lanes", "critical_path")
"""Keys of the JSON object whose values are rows of a table."""
ANALYZE_AGAIN = "write it again with analyze -o FILE.json"


@dataclass(frozen=True, eq=False, repr=False)
class SavedAnalysis(BaseAnalysis):
    """An analysis read from JSON (``read_analysis``): the figures of every rank, and the small tables.

    It can be compared (``tracekit.diff``, ``tracekit.gate``) like the analysis it was. Pages and pictures show events
    that the JSON does not hold; they are made from the traces or a store.

    >>> import tempfile
    >>> from tracekit import analyze, read_analysis
    >>> file = tempfile.mkdtemp() + "/run.json"
    >>> analyze("sample_traces/reload", schedule="none").save(file)
    >>> read_analysis(file).total.overlap["broadcast"]
    0.0
    """

    document: AnalysisDocument
    rank_results: tuple[RankResult, ...]
    tables: Mapping[str, pl.DataFrame]
    schedule: Schedule | None
    """The comparison of the run with its ideal, as the document has it. Drawing it needs the traces."""
    notices: tuple[Notice, ...]
    paths: tuple[str, ...]

    @classmethod
    def of(cls, document: AnalysisDocument) -> SavedAnalysis:
        """Return the analysis that a document describes."""
        plain = to_plain(document)
        rows = {name: plain[name] for name in _JSON_TABLES if name in plain} | {"clocks": plain["clocks"]["ranks"]}
        return cls(
            document=document,
            rank_results=tuple(_rank_result(rank) for rank in document.ranks),
            tables=Tables.of({name: pl.DataFrame(table, infer_schema_length=None) for name, table in rows.items()}),
            schedule=document.schedule,
            notices=tuple(warning.to_notice() for warning in document.warnings),
            paths=tuple(document.source.paths),
        )

    @property
    def world_size(self) -> int | None:
        """Number of ranks in the run, as far as the files showed."""
        return self.document.source.world_size

    def to_document(self) -> AnalysisDocument:
        """Return the JSON document as it was read, without keys that only a later version knows."""
        return self.document


def read_analysis(path: str | PathLike[str]) -> SavedAnalysis:
    """Return the analysis that ``save`` or ``analyze -o`` wrote as ``.json`` (or that file gzipped).

    >>> import tempfile
    >>> from tracekit import analyze
    >>> file = tempfile.mkdtemp() + "/run.json"
    >>> run = analyze("sample_traces/1f1b")
    >>> run.save(file)
    >>> saved = read_analysis(file)
    >>> saved.schedule.name, saved.to_dict() == run.to_dict()
    ('1f1b', True)
    """
    document = read_document(path, AnalysisDocument, hint=ANALYZE_AGAIN)
    try:
        return SavedAnalysis.of(document)
    except UnicodeEncodeError as error:  # paths may hold lone surrogates, names in tables may not
        raise InputError(f"{path}: a name in its tables is not Unicode text", hint=ANALYZE_AGAIN) from error


def _rank_result(rank: RankFigures) -> RankResult:
    """Return the result of one rank; host activity beyond the longest rows has no detail."""
    rest_ns = Counter(rank.idle_host_ns or {})
    for activity in rank.idle_host:
        rest_ns[activity.instead] -= activity.ns
    rest_rows = ({"instead": kind, "what": None, "ns": ns} for kind, ns in rest_ns.items() if ns)
    return RankResult(
        rank=rank.rank,
        steps=tuple(rank.steps),
        whole=_measured(rank),
        per_step=tuple(replace(_measured(step), step=step.step, partial=step.partial) for step in rank.per_step),
        timed_steps=tuple(_timed_step(step) for step in rank.per_step),
        phases=tuple(to_plain_rows(rank.phases)),
        idle_causes=rank.idle_causes_ns or {},
        instead=(*to_plain_rows(rank.idle_host), *rest_rows),
        inside_launch_ns=rank.inside_launch_ns,
    )


def _timed_step(step: StepFigures) -> TimedStep:
    """Return the time of one step of a rank."""
    parts = step.time_budget_ns
    budget = Budget(step.time_ns or 0, parts.compute, parts.exposed, parts.idle or 0, parts.not_recorded or 0)
    return TimedStep(step.step, step.time_ns, budget, step.partial)


def _measured(figures: Figures) -> Measured:
    """Return the figures of a rank or a step."""
    budget, bubble, span_ns = figures.budget_ns, figures.bubble, figures.span_ns
    label_ns = {**figures.label_ns, **figures.set_ns}
    # If the whole wait is unknown, its lower bound follows from the fraction: (idle + bound) / span.
    bound_ns = bubble.wait_ns or 0
    if bubble.wait_ns is None and bubble.fraction is not None:
        bound_ns = round(bubble.fraction * span_ns) - (budget.idle or 0)
    return Measured(
        budget=Budget(span_ns, budget.compute, budget.exposed, budget.idle or 0, budget.not_recorded or 0),
        label_ns=label_ns,
        label_count=figures.label_count,
        hidden_ns={name: round((share or 0) * label_ns.get(name, 0)) for name, share in figures.overlap.items()},
        hidden_by_ns=figures.hidden_ns,
        wait_ns=figures.wait_ns,
        wait_open_ns={} if figures.wait_open_ns is UNSET else figures.wait_open_ns,
        bubble=Bubble(span_ns, budget.idle or 0, bubble.wait_ns, bound_ns),
        because_ns=figures.exposed_because_ns,
        blocking_ns=figures.blocking_ns,
        weak_ns=figures.weak_ns,
        idle_known=budget.idle is not None,
        lower_bound=bubble.lower_bound,
        pipeline=bubble.fraction is not None or budget.idle is None or not span_ns,
    )


# ---- a rank's tables

FILE = "tables.zip"
_JSON_MEMBER = "tables.json"
_TABLE_SUFFIX = ".arrows"
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile, pl.exceptions.PolarsError)
"""Errors that reading a damaged file of tables may raise."""
_ZIP_HEADER_BYTES = 30
"""Bytes of a zip member before its name, which its content follows if it has no extra fields."""


class TableFile:
    """The tables in a zip file, read one at a time.

    The positions of the tables are kept, so that reading one opens and seeks instead of parsing the zip's directory
    again: a run of a thousand ranks reads forty thousand tables.
    """

    def __init__(self, file: Path, archive: zipfile.ZipFile) -> None:
        self.file = file.absolute()
        self._positions = {
            info.filename: (info.header_offset + _ZIP_HEADER_BYTES + len(info.filename), info.file_size)
            for info in archive.infolist()
        }
        self._stamp = self._file_stamp()

    def _file_stamp(self) -> tuple[int, int]:
        status = self.file.stat()
        return status.st_mtime_ns, status.st_size

    def table(self, name: str) -> pl.DataFrame:
        """Read one table; raise if the file has changed since it was opened."""
        try:
            if self._file_stamp() != self._stamp:
                raise OSError("it was written again since")
            offset, size = self._positions[f"{name}{_TABLE_SUFFIX}"]
            with self.file.open("rb", buffering=0) as opened:
                opened.seek(offset)
                return pl.read_ipc_stream(opened.read(size))
        except _UNREADABLE as error:
            raise InputError(f"{self.file}: cannot be read: {error}", hint="analyze the store again") from error

    def intervals(self, name: str) -> Intervals:
        """Read a table as a set of intervals."""
        frame = self.table(name)
        return Intervals(frame["group"].to_numpy(), frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy())


class Stored:
    """Mixin of classes whose tables stay in a file: a field in ``table_readers`` is read each time it is used.

    Pickled, an object takes the position of its tables along, not their content.
    """

    table_readers: Mapping[str, Callable[[], Any]]

    @classmethod
    def of(cls, fields: Mapping[str, Any], table_readers: Mapping[str, Callable[[], Any]]) -> Self:
        """Return an object with these fields and these readers of its other fields."""
        stored = cls.__new__(cls)
        stored.__dict__.update(fields, table_readers=table_readers)
        return stored

    def __getattr__(self, name: str) -> Any:
        reader = self.__dict__.get("table_readers", {}).get(name)
        if reader is None:
            raise AttributeError(name)
        return reader()

    def changed(self, **fields: Any) -> Self:
        """Return the same with other values of *fields*, the tables still in the file."""
        return self.of(self.__dict__ | fields, self.table_readers)

    def loaded(self) -> Any:
        """Return it with all tables in memory, independent of the file."""
        plain_class: Any = type(self).__mro__[2]  # the class beside this mixin
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(plain_class)}
        # By id: the measures of the window and of the only step are one object, and must be one afterwards.
        loaded = {id(value): value.loaded() for value in values.values() if isinstance(value, Stored)}
        return plain_class(**{name: loaded.get(id(value), value) for name, value in values.items()})


class StoredMeasures(Stored, Measures):
    """Measures whose tables stay in the file."""


class StoredPipeline(Stored, RankPipeline):
    """A rank's part of the pipeline whose tables stay in the file."""


class StoredTables(Stored, RankTables):
    """A rank's tables that stay in the file."""


_STORED: dict[type[Any], type[Stored]] = {
    RankTables: StoredTables,
    Measures: StoredMeasures,
    RankPipeline: StoredPipeline,
}
"""Classes with many tables, and those that leave the tables in the file."""
_READ_AT_ONCE = "steps"
"""Table that is small and used often: it is read with the object."""
_FIELD_TYPES = {cls: get_type_hints(cls) for cls in _STORED}


def write_tables(tables: RankTables, folder: Path) -> Path:
    """Write a rank's tables into its folder of a store; return the file.

    >>> import tempfile
    >>> from tracekit.run.measure import Options
    >>> from tracekit.store.sources import find
    >>> measured = Options().source_tables(find("sample_traces/reload", ranks=[0])[0][0])[0]
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = write_tables(measured, folder)
    >>> read_tables(folder).operations.equals(measured.operations)
    True
    """
    frames: dict[str, pl.DataFrame] = {}
    if tables.by_step is tables.window:  # a run of one step has one object for both, which is written once
        tables = dataclasses.replace(tables, by_step=None)  # type: ignore[arg-type]
    document = TablesDocument(TABLES_FORMAT, __version__, _encode(tables, "", frames))
    # ZipInfo without a time: equal tables are equal bytes, and a clock before 1980 does no harm.
    with zipfile.ZipFile(folder / FILE, "w") as archive:
        archive.writestr(zipfile.ZipInfo(_JSON_MEMBER), encode(document, indent=None))
        for name, frame in frames.items():
            buffer = io.BytesIO()
            frame.write_ipc_stream(buffer, compression="zstd")
            archive.writestr(zipfile.ZipInfo(f"{name}{_TABLE_SUFFIX}"), buffer.getvalue())
    return folder / FILE


def _encode(value: Any, path: str, frames: dict[str, pl.DataFrame]) -> Any:
    """Return a value as plain data; its tables are put into *frames*, and their names stand in their place."""
    if type(value) in _STORED:
        names = _FIELD_TYPES[type(value)]
        return {name: _encode(getattr(value, name), f"{path}.{name}".lstrip("."), frames) for name in names}

    def put_table(table: pl.DataFrame) -> str:
        name = f"{path}.{len(frames)}"
        frames[name] = table
        return name

    plain = value.to_frame() if isinstance(value, Intervals) else value
    return msgspec.to_builtins(plain, str_keys=True, enc_hook=put_table)


def read_tables(folder: Path) -> StoredTables | None:
    """Return a rank's tables; None if there are none, they are damaged, or another version measured them.

    In these cases the rank must be measured again, from the labelled events in the same folder.
    """
    file = folder / FILE
    try:
        with zipfile.ZipFile(file) as archive:
            document = decode(archive.read(_JSON_MEMBER), TablesDocument, file, hint="analyze the store again")
            if document.tracekit != __version__:
                return None
            tables = _decode(RankTables, document.tables, TableFile(file, archive))
    except (*_UNREADABLE, InputError):
        return None
    assert isinstance(tables, StoredTables)
    return tables.changed(by_step=tables.window) if document.tables["by_step"] is None else tables


def _decode(cls: type[Any], data: Mapping[str, Any], file: TableFile) -> Stored:
    """Return the object of a class in ``_STORED`` that ``_encode`` turned into *data*; its tables stay in the file."""
    values: dict[str, Any] = {}
    readers: dict[str, Callable[[], Any]] = {}
    for name, field_type in _FIELD_TYPES[cls].items():
        item, types = data[name], {field_type, *get_args(field_type)}
        nested = types & _STORED.keys()
        if Intervals in types:
            readers[name] = partial(file.intervals, item)
        elif pl.DataFrame in types and item is not None and name != _READ_AT_ONCE:
            readers[name] = partial(file.table, item)
        elif nested:
            values[name] = None if item is None else _decode(nested.pop(), item, file)
        else:
            values[name] = msgspec.convert(item, field_type, str_keys=True, dec_hook=lambda _, table: file.table(table))
    return _STORED[cls].of(values, readers)
