"""Saving and loading of analyses: a whole analysis as JSON, and the tables of one rank as a file of a store.

A saved analysis (``read_analysis``) holds every figure and none of the events behind them.

A rank's tables (``write_tables``, ``read_tables``) are all that ``combine`` needs of a rank. Their file is a zip with
one Arrow stream per table (as small as Parquet for small tables, and read in a fifth of the time) and ``tables.json``
for everything else. Reading runs no code from the file: only the classes listed here are built, from their own fields.
Tables stay in the file and are read each time they are used, because the tables of a thousand ranks do not fit in
memory.
"""

from __future__ import annotations

import copy
import dataclasses
import gzip
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import polars as pl

from tracekit._version import __version__
from tracekit.analysis.measured import RankResult
from tracekit.analysis.rank_timeline import RankTimeline
from tracekit.analysis.result import FORMAT as ANALYSIS_FORMAT
from tracekit.analysis.result import BaseAnalysis, Tables
from tracekit.analysis.tables import Measures, RankTables
from tracekit.compare import WhatIf
from tracekit.errors import InputError, Notice
from tracekit.intervals import Intervals
from tracekit.metrics.budget import Budget
from tracekit.metrics.chunk_memory import ChunkMemory
from tracekit.metrics.memory import Peak, RankMemory
from tracekit.metrics.rates import Rates
from tracekit.reconstruct import RankPipeline
from tracekit.schema import ProcessGroup, Source

# ---- a whole analysis, as JSON

_JSON_TABLES = ("stragglers", "kernels", "copies", "lanes", "critical_path")
"""Keys of the JSON object whose values are rows of a table."""


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

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SavedSchedule:
        """Return the schedule of the ``schedule`` object of an analysis."""
        return cls(
            **{key: data[key] for key in ("name", "pp", "microbatches", "virtual", "exact", "gap_ns")},
            orders=tuple(tuple(order) for order in data["ranks"]),
            measured_ns=data["measured"]["makespan_ns"],
            ideal_ns=data["ideal"]["makespan_ns"],
            what_if=tuple(_what_if(line) for line in data["what_if"]),
        )


def _what_if(line: Mapping[str, Any]) -> WhatIf:
    """Return one prediction; keys that only a later version has are left out."""
    fields: dict[str, Any] = {name: line[name] for name in WhatIf.__struct_fields__ if name in line}
    fields |= {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return WhatIf(**fields)


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

    document: Mapping[str, Any]
    rank_results: tuple[RankResult, ...]
    tables: Mapping[str, pl.DataFrame]
    schedule: SavedSchedule | None
    notices: tuple[Notice, ...]
    paths: tuple[str, ...]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SavedAnalysis:
        """Return the analysis whose ``to_dict`` gave *data*; a missing key raises ``KeyError``."""
        rows = {name: data[name] for name in _JSON_TABLES if name in data} | {"clocks": data["clocks"]["ranks"]}
        tables = {name: pl.DataFrame(table_rows, infer_schema_length=None) for name, table_rows in rows.items()}
        return cls(
            document=data,
            rank_results=tuple(RankResult.from_dict(rank) for rank in data["ranks"]),
            tables=Tables.of(tables),
            schedule=None if data["schedule"] is None else SavedSchedule.from_dict(data["schedule"]),
            notices=tuple(Notice(note["code"], note["message"]) for note in data["warnings"]),
            paths=tuple(data["source"]["paths"]),
        )

    @property
    def world_size(self) -> int | None:
        """Number of ranks in the run, as far as the files showed."""
        size: int | None = self.document["source"]["world_size"]
        return size

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object as it was read, with any keys that only a later version knows."""
        return copy.deepcopy(dict(self.document))


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
    document = read_document(path)
    file_format, version = document.get("format"), document.get("tracekit")
    if file_format != ANALYSIS_FORMAT:
        problem = f"its format is {file_format!r}, not {ANALYSIS_FORMAT}" if file_format else "holds no analysis"
        raise InputError(f"{path}: {problem}", hint="write it with analyze -o FILE.json")
    try:
        return SavedAnalysis.from_dict(document)
    except (KeyError, TypeError, ValueError, AttributeError, pl.exceptions.PolarsError) as error:
        problem = f"lacks {error}" if isinstance(error, KeyError) else "is not as tracekit writes it"
        raise InputError(
            f"{path}: this analysis (tracekit {version}) {problem}", hint="analyze the traces again"
        ) from error


def read_document(path: str | PathLike[str]) -> dict[str, Any]:
    """Return the object in a JSON file, gzipped or not."""
    try:
        raw = Path(path).read_bytes()
        document = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file", hint="write it with analyze -o FILE.json") from error
    except (OSError, ValueError, EOFError, RecursionError, zlib.error) as error:
        raise InputError(f"{path}: is not complete JSON: {error}", hint="write it again") from error
    if not isinstance(document, dict):
        raise InputError(f"{path}: holds no analysis", hint="write it with analyze -o FILE.json")
    return document


# ---- a rank's tables: the zip file and its tables

FILE = "tables.zip"
TABLES_FORMAT = "tracekit.tables/2"
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

    def with_events(self, events: RankTimeline) -> StoredTables:
        """Return the tables with the rank's single events."""
        tables: StoredTables = StoredTables.of(self.__dict__ | {"events": events})
        return tables

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
    document = {"format": TABLES_FORMAT, "tracekit": __version__, "tables": encoder.encode(tables, "")}
    # ZipInfo without a time: equal tables are equal bytes, and a clock before 1980 does no harm.
    with zipfile.ZipFile(folder / FILE, "w") as archive:
        archive.writestr(zipfile.ZipInfo(_JSON_MEMBER), json.dumps(document))
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
            document = json.loads(archive.read(_JSON_MEMBER))
            if document["format"] != TABLES_FORMAT or document["tracekit"] != __version__:
                return None
            if document["tables"][_KIND] != RankTables.__name__:
                return None
            tables: StoredTables = _Decoder(TableFile(file, archive)).decode(document["tables"])
    except _UNREADABLE:
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
