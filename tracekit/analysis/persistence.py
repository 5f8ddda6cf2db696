"""Saving and loading of analyses: a whole analysis as JSON, and the tables of one rank as a file of a store.

A saved analysis (``read_analysis``) holds every figure and none of the events behind them.

A rank's tables (``write_tables``, ``read_tables``) are all that ``combine`` needs of a rank. Their file is a zip with
one Arrow stream per table (as small as Parquet for small tables, and read in a fifth of the time) and ``tables.json``
for everything else. Reading runs no code from the file: only the classes listed here are built, from their own fields.
Tables stay in the file and are read each time they are used, because the tables of a thousand ranks do not fit in
memory.
"""

from __future__ import annotations

import dataclasses
import io
import struct
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import polars as pl
from msgspec.structs import replace

from tracekit._version import __version__
from tracekit.analysis.measured import Measured, RankResult
from tracekit.analysis.rank_timeline import RankTimeline
from tracekit.analysis.result import BaseAnalysis, Tables
from tracekit.analysis.tables import Measures, RankTables
from tracekit.compare import WhatIf
from tracekit.documents.analysis import AnalysisDocument, Figures, Peak, RankFigures, Schedule
from tracekit.documents.coding import decode, encode, read_document, to_plain, to_plain_rows
from tracekit.documents.saved_analysis import FORMAT, TablesDocument
from tracekit.errors import InputError, Notice
from tracekit.intervals import Intervals
from tracekit.metrics.bubbles import Bubble
from tracekit.metrics.budget import Budget
from tracekit.metrics.chunk_memory import ChunkMemory
from tracekit.metrics.lateness import RankLateness
from tracekit.metrics.memory import RankMemory
from tracekit.metrics.rates import Rates
from tracekit.reconstruct import RankPipeline
from tracekit.schema import ProcessGroup, Source

# ---- a whole analysis, as JSON

_JSON_TABLES = ("stragglers", "kernels", "copies", "lanes", "critical_path")
"""Keys of the JSON object whose values are rows of a table."""
ANALYZE_AGAIN = "write it again with analyze -o FILE.json"


class SavedSchedule(msgspec.Struct, frozen=True, eq=False):
    """The comparison of a run with its ideal, as read from JSON. Drawing it needs the traces.

    >>> gap, orders = {"imbalance": 2, "unexplained": 1}, (("0F0", "0B0"),)
    >>> saved = SavedSchedule("1f1b", 1, 1, 1, True, orders, measured_ns=33, ideal_ns=30, gap_ns=gap, what_if=())
    >>> saved.measured_ns - saved.ideal_ns == sum(saved.gap_ns.values())
    True
    """

    name: str
    pp: int
    microbatches: int
    virtual: int
    exact: bool
    orders: tuple[tuple[str, ...], ...]
    """Operations of each rank of the pipeline in the order they ran, such as ``0F3``."""
    measured_ns: int
    ideal_ns: int
    gap_ns: Mapping[str, int] | None
    """Parts of measured − ideal; None if the causes are not known."""
    what_if: tuple[WhatIf, ...]


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
    schedule: SavedSchedule | None
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
            schedule=None if document.schedule is None else _saved_schedule(document.schedule),
            notices=tuple(document.warnings),
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


def _saved_schedule(schedule: Schedule) -> SavedSchedule:
    return SavedSchedule(
        name=schedule.name,
        pp=schedule.pp,
        microbatches=schedule.microbatches,
        virtual=schedule.virtual,
        exact=schedule.exact,
        orders=tuple(map(tuple, schedule.ranks)),
        measured_ns=schedule.measured.makespan_ns,
        ideal_ns=schedule.ideal.makespan_ns,
        gap_ns=schedule.gap_ns,
        what_if=msgspec.convert(schedule.what_if, tuple[WhatIf, ...], from_attributes=True),
    )


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
        phases=tuple(to_plain_rows(rank.phases)),
        idle_causes=rank.idle_causes_ns or {},
        instead=(*to_plain_rows(rank.idle_host), *rest_rows),
        inside_launch_ns=rank.inside_launch_ns,
    )


def _measured(figures: Figures) -> Measured:
    """Return the figures of a rank or a step."""
    budget, bubble, span_ns = figures.budget_ns, figures.bubble, figures.span_ns
    label_ns = {**figures.label_ns, **figures.set_ns}
    # If the whole wait is unknown, its lower bound follows from the fraction: (idle + bound) / span.
    bound_ns = 0
    if bubble.wait_ns is None and bubble.fraction is not None:
        bound_ns = round(bubble.fraction * span_ns) - (budget.idle or 0)
    return Measured(
        budget=Budget(span_ns, budget.compute, budget.exposed, budget.idle or 0, budget.not_recorded or 0),
        label_ns=label_ns,
        label_count=figures.label_count,
        hidden_ns={name: round((share or 0) * label_ns.get(name, 0)) for name, share in figures.overlap.items()},
        hidden_by_ns=figures.hidden_ns,
        wait_ns=figures.wait_ns,
        bubble=Bubble(span_ns, budget.idle or 0, bubble.wait_ns, bound_ns),
        because_ns=figures.exposed_because_ns,
        blocking_ns=figures.blocking_ns,
        weak_ns=figures.weak_ns,
        idle_known=budget.idle is not None,
        lower_bound=bubble.lower_bound,
        pipeline=bubble.fraction is not None or budget.idle is None or not span_ns,
    )


# ---- a rank's tables: the zip file and its tables

FILE = "tables.zip"
_JSON_MEMBER = "tables.json"
_TABLE_SUFFIX = ".arrows"
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, struct.error, zipfile.BadZipFile, pl.exceptions.PolarsError)
"""Errors that reading a damaged file of tables may raise."""


class TableFile:
    """The tables in a zip file, read one at a time.

    The positions of the tables are kept, so that reading one opens and seeks instead of parsing the zip's directory
    again: a run of a thousand ranks reads forty thousand tables.
    """

    _LOCAL_HEADER = struct.Struct("<4s22xHH")
    """Start of a zip member: signature, 22 bytes of other fields, lengths of the name and of the extra field."""
    _SIGNATURE = b"PK\x03\x04"

    def __init__(self, file: Path, archive: zipfile.ZipFile) -> None:
        self.file = file.absolute()
        self._positions = {info.filename: (info.header_offset, info.file_size) for info in archive.infolist()}
        self._stamp = _file_stamp(file)

    def table(self, name: str, columns: list[str] | None = None) -> pl.DataFrame:
        """Read one table, or some of its columns; raise if the file has changed since it was opened."""
        try:
            if _file_stamp(self.file) != self._stamp:
                raise OSError("it was written again since")
            return pl.read_ipc_stream(self._member_bytes(f"{name}{_TABLE_SUFFIX}"), columns=columns)
        except _UNREADABLE as error:
            raise InputError(f"{self.file}: cannot be read: {error}", hint="analyze the store again") from error

    def _member_bytes(self, name: str) -> bytes:
        """Return the bytes of a member, which is stored without compression."""
        offset, size = self._positions[name]
        with self.file.open("rb", buffering=0) as opened:
            opened.seek(offset)
            signature, name_length, extra_length = self._LOCAL_HEADER.unpack(opened.read(self._LOCAL_HEADER.size))
            if signature != self._SIGNATURE:
                raise ValueError("its members are not where they were")
            opened.seek(name_length + extra_length, 1)
            return opened.read(size)


def _file_stamp(file: Path) -> tuple[int, int, int]:
    status = file.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


# ---- a rank's tables: classes whose tables stay in the file


class TableRef(NamedTuple):
    """A table in a file of tables."""

    name: str
    is_intervals: bool
    """Whether the table is a set of intervals."""
    rows: int | None


class Stored:
    """Mixin of classes whose tables stay in a file: a field in ``table_refs`` is read each time it is used."""

    table_file: TableFile
    table_refs: Mapping[str, TableRef]
    reopen: Callable[..., Any] | None
    """Reads the object again from its folder, in another process; None if it belongs to another stored object."""

    @classmethod
    def of(cls, fields: Mapping[str, Any], **attributes: Any) -> Any:
        """Return an object with these fields; *attributes* are those of this class."""
        stored = cls.__new__(cls)
        stored.__dict__.update(fields, **attributes)
        return stored

    def __getattr__(self, name: str) -> Any:
        ref = self.__dict__.get("table_refs", {}).get(name)
        if ref is None:
            raise AttributeError(name)
        table = self.table_file.table(ref.name)
        return _to_intervals(table) if ref.is_intervals else table

    def __reduce__(self) -> Any:
        """Pickle the folder of the file, not its content: the other process reads the tables that it needs."""
        if self.__dict__.get("reopen") is None:  # made by replace(): all fields are in memory
            return object.__reduce_ex__(self, 2)
        return self.reopen, (self.table_file.file.parent,)


class StoredMeasures(Stored, Measures):
    """Measures whose tables stay in the file."""


class StoredPipeline(Stored, RankPipeline):
    """A rank's part of the pipeline whose tables stay in the file."""

    @property
    def has_work(self) -> bool:
        """Whether it has any forward or backward."""
        rows = self.table_refs["chunks"].rows if "table_refs" in self.__dict__ else None
        return super().has_work if rows is None else rows > 0

    def loaded(self) -> RankPipeline:
        """Return it with the tables in memory that a comparison uses several times."""
        tables = {name: getattr(self, name) for name in ("chunks", "messages", "stalls")}
        pipeline: RankPipeline = StoredPipeline.of(self.__dict__, **tables)
        return pipeline

    @property
    def peers(self) -> tuple[int | None, ...]:
        """Ranks that it exchanged messages with."""
        if "table_refs" not in self.__dict__:
            return super().peers
        return tuple(self.table_file.table(self.table_refs["messages"].name, ["peer"])["peer"].unique().to_list())


class StoredTables(Stored, RankTables):
    """A rank's tables that stay in the file."""

    def without_pipeline(self) -> StoredTables:
        """Return the tables for an analysis without a schedule."""
        reopen = None if self.reopen is None else partial(self.reopen, pipeline=False)
        tables: StoredTables = StoredTables.of(self.__dict__ | {"pipeline": None, "reopen": reopen})
        return tables

    def with_events(self, events: RankTimeline, graph_events: pl.DataFrame | None) -> StoredTables:
        """Return the tables with the rank's single events, and with what each waited for."""
        tables: StoredTables = StoredTables.of(self.__dict__ | {"events": events, "graph_events": graph_events})
        return tables

    def __reduce__(self) -> Any:
        """Pickle the folder of the file, and the events, which are not in it."""
        reduced = super().__reduce__()
        if self.__dict__.get("reopen") is None:
            return reduced
        return *reduced, {name: self.__dict__.get(name) for name in ("events", "graph_events")}

    def whole(self) -> RankTables:
        """Return the tables in memory, independent of the file."""
        tables: RankTables = _in_memory(self)
        return tables


_PLAIN_CLASSES: dict[type, type[Any]] = {
    StoredTables: RankTables,
    StoredMeasures: Measures,
    StoredPipeline: RankPipeline,
}


def _in_memory(value: Any) -> Any:
    """Return a stored object, and all stored objects in its fields, as their plain classes."""
    plain_class = _PLAIN_CLASSES.get(type(value))
    if plain_class is None:
        return value
    converted: dict[int, Any] = {}  # by id: two fields may hold the same object, and must do so afterwards
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(plain_class)}
    return plain_class(**{name: converted.setdefault(id(item), _in_memory(item)) for name, item in fields.items()})


# ---- a rank's tables: writing and reading

_KIND = "$"
"""Key that marks a JSON object as something other than a mapping; no field of ours begins with it."""
_TABLE, _INTERVALS, _TUPLE, _SAME = "table", "Intervals", "tuple", "same"
"""Values of ``_KIND`` beside the names of classes."""
_CLASSES: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        RankTables,
        Measures,
        Budget,
        Rates,
        RankLateness,
        RankMemory,
        Peak,
        ChunkMemory,
        Source,
        ProcessGroup,
        Notice,
        RankPipeline,
    )
}
"""All classes that a file of tables may hold."""


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
    encoder = _Encoder()
    document = TablesDocument(FORMAT, __version__, encoder.encode(tables, ""))
    # ZipInfo without a time: equal tables are equal bytes, and a clock before 1980 does no harm.
    with zipfile.ZipFile(folder / FILE, "w") as archive:
        archive.writestr(zipfile.ZipInfo(_JSON_MEMBER), encode(document, indent=None))
        for name, frame in encoder.frames.items():
            buffer = io.BytesIO()
            frame.write_ipc_stream(buffer, compression="zstd")
            archive.writestr(zipfile.ZipInfo(f"{name}{_TABLE_SUFFIX}"), buffer.getvalue())
    return folder / FILE


class _Encoder:
    """Turns objects into JSON data and collects their tables, each under the path of fields that leads to it."""

    def __init__(self) -> None:
        self.frames: dict[str, pl.DataFrame] = {}
        self._paths: dict[int, str] = {}  # path of each object that was encoded, by id

    def encode(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, pl.DataFrame):
            self.frames[path] = value
            return {_KIND: _TABLE, "at": path, "rows": len(value)}
        if isinstance(value, Intervals):
            self.frames[path] = value.to_frame()
            return {_KIND: _INTERVALS, "at": path, "rows": len(self.frames[path])}
        if isinstance(value, tuple):
            return {_KIND: _TUPLE, "of": [self.encode(item, f"{path}.{i}") for i, item in enumerate(value)]}
        if isinstance(value, Mapping):
            return {str(key): self.encode(item, f"{path}.{key}") for key, item in value.items()}
        return self._encode_object(value, path)

    def _encode_object(self, value: Any, path: str) -> Any:
        if id(value) in self._paths:  # in a run of one step, the measures of the window and of the step are one object
            return {_KIND: _SAME, "as": self._paths[id(value)]}
        cls = type(value)
        assert cls.__name__ in _CLASSES, f"{path}: {cls.__name__} cannot be written"
        self._paths[id(value)] = path
        fields = {name: self.encode(getattr(value, name), f"{path}.{name}".lstrip(".")) for name in _field_names(cls)}
        return {_KIND: cls.__name__, "at": path, "of": fields}


def _field_names(cls: type[Any]) -> tuple[str, ...]:
    if issubclass(cls, msgspec.Struct):
        return cls.__struct_fields__
    return tuple(field.name for field in dataclasses.fields(cls))


def read_tables(folder: Path) -> StoredTables | None:
    """Return a rank's tables; None if there are none, they are damaged, or another version measured them.

    In these cases the rank must be measured again, from the labelled events in the same folder.
    """
    file = folder / FILE
    try:
        with zipfile.ZipFile(file) as archive:
            document = decode(archive.read(_JSON_MEMBER), TablesDocument, file, hint="analyze the store again")
            if document.tracekit != __version__ or document.tables[_KIND] != RankTables.__name__:
                return None
            tables: StoredTables = _Decoder(TableFile(file, archive)).decode(document.tables)
    except (*_UNREADABLE, InputError):
        return None
    return tables


def _reopen_tables(folder: Path, *, pipeline: bool = True) -> StoredTables:
    """Read the tables of a folder in another process than the one that read them first."""
    tables = read_tables(folder)
    if tables is None:
        raise InputError(f"{folder / FILE}: cannot be read", hint="analyze the store again, where workers can reach it")
    return tables if pipeline else tables.without_pipeline()


def _reopen_pipeline(folder: Path) -> Any:
    return _reopen_tables(folder).pipeline


_STORED_CLASSES: dict[str, tuple[type[Stored], Callable[..., Any] | None]] = {
    RankTables.__name__: (StoredTables, _reopen_tables),
    Measures.__name__: (StoredMeasures, None),
    RankPipeline.__name__: (StoredPipeline, _reopen_pipeline),
}
"""Classes with many tables: the class whose tables stay in the file, and its ``Stored.reopen``."""
_READ_AT_ONCE = "steps"
"""Table that is small and used often: it is read with the object."""


class _Decoder:
    """Turns the JSON data of an ``_Encoder`` back into objects."""

    def __init__(self, table_file: TableFile) -> None:
        self._table_file = table_file
        self._objects: dict[str, Any] = {}  # objects decoded so far, by path

    def decode(self, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kind = data.get(_KIND)
        if kind is None:
            return {key: self.decode(item) for key, item in data.items()}
        if kind == _TUPLE:
            return tuple(self.decode(item) for item in data["of"])
        if kind in (_TABLE, _INTERVALS):
            table = self._table_file.table(data["at"])
            return table if kind == _TABLE else _to_intervals(table)
        if kind == _SAME:
            return self._objects[data["as"]]
        self._objects[data["at"]] = decoded = self._decode_object(kind, data["of"])
        return decoded

    def _decode_object(self, kind: str, fields: Mapping[str, Any]) -> Any:
        cls = _CLASSES[kind]
        if cls is ProcessGroup:
            return _process_group(fields["name"], fields["description"], tuple(fields["ranks"]["of"]))
        if kind not in _STORED_CLASSES:
            return cls(**{name: self.decode(item) for name, item in fields.items()})
        table_refs = {
            name: TableRef(item["at"], item[_KIND] == _INTERVALS, item.get("rows"))
            for name, item in fields.items()
            if isinstance(item, dict) and item.get(_KIND) in (_TABLE, _INTERVALS) and name != _READ_AT_ONCE
        }
        others = {name: self.decode(item) for name, item in fields.items() if name not in table_refs}
        stored_class, reopen = _STORED_CLASSES[kind]
        # Fields that were added after the file was written have their defaults.
        return stored_class.of(
            {**_default_fields(cls, fields), **others},
            table_file=self._table_file,
            table_refs=table_refs,
            reopen=reopen,
        )


@lru_cache(maxsize=4096)
def _process_group(name: str, description: str | None, ranks: tuple[int, ...]) -> ProcessGroup:
    """Return a process group, one object for all ranks of a run that list it: each lists as many ranks."""
    return ProcessGroup(name, description, ranks)


def _default_fields(cls: type[Any], present: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of the fields of *cls* that are not *present*."""
    return {
        field.name: field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        for field in dataclasses.fields(cls)
        if field.name not in present
    }


def _to_intervals(frame: pl.DataFrame) -> Intervals:
    return Intervals(frame["group"].to_numpy(), frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy())
