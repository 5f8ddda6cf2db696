"""The tables of one rank as a file of a store.

They (``write_tables``, ``read_tables``) are all that ``combine`` needs of a rank. Their
file is a zip of Arrow streams (as small as Parquet for small tables, and read in a fifth of the
time) and ``tables.json`` for everything else. The small tables are one stream of one row, with the
rows of a table as the list in its column: a run of a thousand ranks has forty thousand of them.
Reading runs no code from the file: each field is built as the type that it is declared with, and
the tables are checked, those of many ranks together (``table_checks``). The largest tables, those
of the graph of events, have streams of their own, which stay in the file until they are loaded.
"""

from __future__ import annotations

import dataclasses
import io
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import polars as pl

from tracekit._util.arrow_sizes import unpacked_bytes
from tracekit._util.inflation import inflated_limit
from tracekit._version import __version__
from tracekit.analysis.measure.room_measures import RoomMeasure
from tracekit.analysis.measure.tables import Measures, RankTables
from tracekit.analysis.table_checks import (
    StoredTables,
    check_graph_events,
    check_host_work,
    check_rank_tables,
)
from tracekit.documents.coding import (
    decode,
    encode,
)
from tracekit.documents.store_manifest import TABLES_FORMAT, TablesDocument
from tracekit.errors import InputError
from tracekit.graph.loadable import LoadableTable
from tracekit.graph.packed_events import pack_events, unpack_events
from tracekit.intervals import Intervals

Rooms = tuple[RoomMeasure[Any], ...]
"""What side rooms measure of each rank."""
FILE = "tables.zip"
_JSON_MEMBER = "tables.json"
_TABLE_SUFFIX = ".arrows"
_SMALL_TABLES = "tables"
"""Name of the stream of all tables but the largest."""
_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    zipfile.BadZipFile,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,  # of some damaged streams, whatever their headers say
)
"""Errors that reading a damaged file of tables may raise."""


def _as_it_is(table: pl.DataFrame) -> pl.DataFrame:
    return table


class _LargeTable(NamedTuple):
    """How a table that is loaded when it is needed is stored, and what it must be."""

    check: Callable[..., None]
    """Raises ``ValueError`` if it is not one that tracekit wrote."""
    pack: Callable[[pl.DataFrame], pl.DataFrame] = _as_it_is
    unpack: Callable[[pl.DataFrame], pl.DataFrame] = _as_it_is


_LARGE_TABLES: Mapping[str, _LargeTable] = {
    "graph_events": _LargeTable(check_graph_events, pack_events, unpack_events),
    "graph_host_work": _LargeTable(check_host_work),
}
"""The tables that are loaded when they are needed, by their field of ``RankTables``."""


@dataclass(frozen=True, eq=False)
class TableInFile(LoadableTable):
    """A table that stays in the zip file of a rank.

    Pickled, it takes its position along, not its content.
    """

    file: Path
    name: str
    """Its field of ``RankTables``, and the number of the table in the file."""
    written_ns: int
    """Time at which the file was last written when the other tables of the rank were read."""
    parts: int
    """Number of steps, which its rows point to."""

    def load(self) -> pl.DataFrame:
        """Read the table; raise InputError if the file is unreadable or was written again since."""
        try:
            if self.file.stat().st_mtime_ns != self.written_ns:
                raise OSError("it was written again since")
            large_table = _LARGE_TABLES[self.name.partition(".")[0]]
            with zipfile.ZipFile(self.file) as archive:
                stream = read_stream(archive, self.name)
            table = large_table.unpack(pl.read_ipc_stream(stream))
            large_table.check(table, parts=self.parts)
            return table
        except _UNREADABLE as error:
            raise InputError(
                f"cannot be read: {error}", path=self.file, hint="analyze the store again"
            ) from error


@dataclass(frozen=True, eq=False)
class CompressedTable(LoadableTable):
    """A table in memory as it would be in a file of a store: for runs of many ranks."""

    name: str
    """Its field of ``RankTables``."""
    data: bytes

    @classmethod
    def of(cls, name: str, table: LoadableTable) -> CompressedTable:
        """Compress the table of a field of ``RankTables``."""
        return cls(name, _ipc_stream(_LARGE_TABLES[name].pack(table.load())))

    def load(self) -> pl.DataFrame:
        """Return the table."""
        return _LARGE_TABLES[self.name].unpack(pl.read_ipc_stream(self.data))


def _ipc_stream(table: pl.DataFrame) -> bytes:
    """Return a table as a compressed Arrow stream.

    Text is one buffer with offsets: as views, text in lists comes with all of the buffers that it
    was cut from, which takes twice the memory when it is read.
    """
    buffer = io.BytesIO()
    table.write_ipc_stream(buffer, compression="zstd", compat_level=pl.CompatLevel.oldest())
    return buffer.getvalue()


def write_tables(tables: RankTables, folder: Path) -> Path:
    """Write a rank's tables into its folder of a store; return the file.

    >>> import tempfile
    >>> from tracekit.analysis.measure.tables import label_rank, measure_rank
    >>> from tracekit.run.load import load
    >>> measured = measure_rank(label_rank(load("sample_traces/reload", ranks=[0]).rank(0)))
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = write_tables(measured, folder)
    >>> read_tables(folder, rooms=()).operations.equals(measured.operations)
    True
    """
    frames: dict[str, pl.DataFrame] = {}
    # Then one object stands for both, which is written once.
    has_one_step = tables.by_step is tables.window
    fields = _encode(tables, "", frames, without="by_step" if has_one_step else None)
    document = TablesDocument(TABLES_FORMAT, __version__, fields)
    small = {name: frame for name, frame in frames.items() if not _is_large(name)}
    large = {name: frame for name, frame in frames.items() if _is_large(name)}
    streams = {_SMALL_TABLES: as_one_row(small), **large}
    # ZipInfo without a time: equal tables are equal bytes, and a clock before 1980 does no harm.
    with zipfile.ZipFile(folder / FILE, "w") as archive:
        archive.writestr(zipfile.ZipInfo(_JSON_MEMBER), encode(document, indent=None))
        for name, frame in streams.items():
            archive.writestr(zipfile.ZipInfo(f"{name}{_TABLE_SUFFIX}"), _ipc_stream(frame))
    return folder / FILE


def _is_large(name: str) -> bool:
    """Return whether a table, by its name in the file, has a stream of its own."""
    return name.partition(".")[0] in _LARGE_TABLES


def as_one_row(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return tables as one row with a column for each, which holds the table's rows as a list.

    >>> row = as_one_row({"steps": pl.DataFrame({"step": [3, 4]})})
    >>> table_of_row(row, "steps")["step"].to_list()
    [3, 4]
    """
    return pl.DataFrame([pl.Series(name, [table.to_struct()]) for name, table in tables.items()])


def table_of_row(row: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return a table that ``as_one_row`` put into a row."""
    column = row.get_column(name)
    rows = column[0] if len(column) == 1 else None
    if not isinstance(rows, pl.Series):
        raise ValueError(f"{name} is no table")
    return rows.struct.unnest()


def _encode(
    value: Any, name: str, frames: dict[str, pl.DataFrame], *, without: str | None = None
) -> Any:
    """Return a value as plain data.

    Its tables are put into *frames*, and their names stand in their place.

    Args:
        value: A field of ``RankTables``, or the whole.
        name: Names of the fields that lead to it, joined by dots.
        frames: Tables by name, filled here.
        without: Field to leave out.
    """
    if isinstance(value, LoadableTable):
        value = _LARGE_TABLES[name].pack(value.load())
    if isinstance(value, Intervals):
        value = value.to_frame()
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.name != without]
        encoded = {}
        for field in names:
            encoded[field] = _encode(getattr(value, field), f"{name}.{field}".lstrip("."), frames)
        return encoded

    def put_table(table: pl.DataFrame) -> str:
        table_name = f"{name}.{len(frames)}"
        frames[table_name] = table
        return table_name

    return msgspec.to_builtins(value, str_keys=True, enc_hook=put_table)


def read_tables(folder: Path, *, rooms: Rooms) -> RankTables | None:
    """Return a rank's tables (``read_tables_of_ranks``); None if it must be measured again."""
    return read_tables_of_ranks([folder], rooms=rooms)[0]


def read_tables_of_ranks(folders: Sequence[Path], *, rooms: Rooms) -> list[RankTables | None]:
    """Return the tables of some ranks, in the order of their folders, with what all *rooms* measured of them.

    None for a rank if there are none, they are damaged, or another version measured them. Such a
    rank must be measured again, from the labelled events in the same folder. All tables are read but
    the largest, which stay in the file until they are loaded.
    """
    files = _in_shared_buffers([_read_file((folder / FILE).absolute()) for folder in folders])
    stored = [None if file is None else _decode_unchecked(file, rooms) for file in files]
    is_sound = iter(_are_sound([each for each in stored if each is not None], rooms))
    return [each.tables if each is not None and next(is_sound) else None for each in stored]


def _are_sound(stored: Sequence[StoredTables], rooms: Rooms) -> list[bool]:
    """Return for each rank whether tracekit wrote its tables.

    All are checked together, and each half of them if that fails.
    """
    if not stored:
        return []
    try:
        check_rank_tables(stored, rooms=rooms)
    except _UNREADABLE:
        if len(stored) == 1:
            return [False]
        middle = len(stored) // 2
        return _are_sound(stored[:middle], rooms) + _are_sound(stored[middle:], rooms)
    return [True] * len(stored)


class _TablesFile(NamedTuple):
    """What the file of a rank holds."""

    path: Path
    written_ns: int
    """Time at which it was last written."""
    fields: Mapping[str, Any]
    """Everything but the tables."""
    row: pl.DataFrame
    """The small tables (``as_one_row``)."""
    schema: bytes
    """Columns and types of the small tables: those of ranks with equal bytes are equal."""


def _read_file(path: Path) -> _TablesFile | None:
    """Return what a file holds; None if it cannot be read, or another version wrote it."""
    try:
        with zipfile.ZipFile(path) as archive:
            written_ns = path.stat().st_mtime_ns
            document = decode(
                _read_member(archive, _JSON_MEMBER),
                TablesDocument,
                path,
                hint="analyze the store again",
            )
            if document.tracekit != __version__:
                return None
            stream = read_stream(archive, _SMALL_TABLES)
        # A stream begins with a mark, the size of its schema, and the schema.
        (schema_bytes,) = struct.unpack_from("<i", stream, 4)
        row = pl.read_ipc_stream(stream)
        return _TablesFile(path, written_ns, document.tables, row, stream[: 8 + schema_bytes])
    except (*_UNREADABLE, InputError):
        return None


def _in_shared_buffers(files: Sequence[_TablesFile | None]) -> list[_TablesFile | None]:
    """Return the files with the small tables of ranks in the same buffers, if their columns are equal.

    Of a rank alone they are six hundred buffers, which take half as much memory again as they hold.
    """
    files_by_schema: dict[bytes, list[tuple[int, _TablesFile]]] = {}
    for index, file in enumerate(files):
        if file is not None:
            files_by_schema.setdefault(file.schema, []).append((index, file))
    shared = list(files)
    for of_schema in files_by_schema.values():
        try:
            rows = pl.concat([file.row for _, file in of_schema], rechunk=True)
        except _UNREADABLE:  # some are damaged, which is found when each is decoded
            continue
        for number, (index, file) in enumerate(of_schema):
            shared[index] = file._replace(row=rows.slice(number, 1))
    return shared


def _decode_unchecked(file: _TablesFile, rooms: Rooms) -> StoredTables | None:
    """Return the tables of a file as they are there; None if they cannot be ones that tracekit wrote."""
    try:
        return _decode(file, rooms)
    except _UNREADABLE:
        return None


def _decode(file: _TablesFile, rooms: Rooms) -> StoredTables:
    """Return the tables that ``write_tables`` turned into fields and Arrow streams."""
    fields = file.fields
    row = file.row
    parts = table_of_row(row, fields["steps"]).height

    def get_table(table_type: type[Any], name: Any) -> Any:
        if not isinstance(name, str):
            raise ValueError(f"{name} is no name of a table")
        if table_type is LoadableTable:
            return TableInFile(file.path, name, file.written_ns, parts)
        return table_of_row(row, name)

    measures: dict[str, Measures] = {}
    for name in ("window", "by_step"):
        if name in fields:
            covered = table_of_row(row, fields[name]["covered"])
            intervals = Intervals(
                group=covered["group"].to_numpy(),
                start_ns=covered["start_ns"].to_numpy(),
                end_ns=covered["end_ns"].to_numpy(),
            )
            with_intervals = {**fields[name], "covered": intervals}
            measures[name] = msgspec.convert(
                with_intervals, Measures, str_keys=True, dec_hook=get_table
            )
    measures.setdefault("by_step", measures["window"])
    if fields["of_rooms"].keys() != {room.name for room in rooms}:
        raise ValueError("other side rooms measured it")
    of_rooms = {}
    for room in rooms:
        measured_type = room.measured_type | None
        value = fields["of_rooms"][room.name]
        of_rooms[room.name] = msgspec.convert(
            value, measured_type, str_keys=True, dec_hook=get_table
        )
    tables: RankTables = msgspec.convert(
        {**fields, **measures, "of_rooms": of_rooms}, RankTables, str_keys=True, dec_hook=get_table
    )
    for field in _LARGE_TABLES:
        table = getattr(tables, field)
        if isinstance(table, TableInFile) and table.name.partition(".")[0] != field:
            raise ValueError(f"{field} is another table")
    return StoredTables(tables, fields, file.schema)


def read_stream(archive: zipfile.ZipFile, name: str) -> bytes:
    """Read one Arrow stream of the zip, unless it unpacks to more than a table of ours would."""
    packed = _read_member(archive, f"{name}{_TABLE_SUFFIX}")
    size = unpacked_bytes(packed)
    if size > inflated_limit(len(packed)):
        raise ValueError(f"{name} unpacks to {size:,} bytes")
    return packed


def _read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Read a member, which ``write_tables`` never compresses: a kilobyte of zip holds no gigabyte."""
    if archive.getinfo(name).compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name} is compressed")
    return archive.read(name)
