"""Exports in SQLite, and in Arrow or Parquet: a folder with one file per table, or many Arrow streams in one file."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from pyarrow import compute, ipc, parquet

from tracekit._util.arrow_sizes import MIN_BYTES_OF_A_VALUE, unpacked_bytes
from tracekit._util.inflation import inflated_limit
from tracekit._util.machine import available_memory
from tracekit.errors import InputError, MachineError, Notice, NoticeValues
from tracekit.parsers.nsight.tables import EXPORT_TEXT_COLUMNS, READ_TABLES
from tracekit.parsers.sqlite_tables import SqliteFormat, SqliteTables, to_polars

_ARROW_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError, pl.exceptions.PolarsError)
"""Errors of ``pyarrow`` on a damaged file, and of ``polars`` on types that it does not know."""

NSIGHT_SQLITE = SqliteFormat(
    is_read=READ_TABLES.__contains__,
    texts=EXPORT_TEXT_COLUMNS,
    write_again="export the report again with `nsys export`",
    finish="wait until `nsys export` has finished, or read a copy",
)


class SqliteExport(SqliteTables):
    """An SQLite export."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, NSIGHT_SQLITE)


class ArrowExport:
    """A ``parquetdir`` or ``arrowdir`` with files named after their tables, or a ``.arrow`` file with all tables."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notices: list[Notice] = []
        # File of each table, and where in the file the table begins.
        self._positions = self._find_files() if path.is_dir() else self._find_streams()
        self.tables = frozenset(self._positions)

    def _find_files(self) -> dict[str, tuple[Path, int]]:
        return {
            file.stem: (file, 0)
            for file in sorted(self.path.iterdir())
            if file.suffix in (".parquet", ".arrow") and file.is_file()
        }

    def _find_streams(self) -> dict[str, tuple[Path, int]]:
        """Find the streams, which follow each other, each with its table's name as metadata."""
        positions: dict[str, tuple[Path, int]] = {}
        with pa.memory_map(str(self.path)) as source:
            try:
                while source.tell() < source.size():
                    offset = source.tell()
                    # Messages alone: their batches may be compressed, and stay packed.
                    messages = ipc.MessageReader.open_stream(source)
                    metadata = ipc.read_schema(messages.read_next_message()).metadata or {}
                    name = metadata.get(b"table_name", b"").decode("utf-8", "replace")
                    for _ in messages:  # skips to the end of the stream
                        pass
                    positions[name] = self.path, offset
            except _ARROW_ERRORS as error:
                if not positions:
                    hint = "give the file that `nsys export --type arrow` wrote"
                    raise InputError("is not an Arrow export", path=self.path, hint=hint) from error
                self.notices.append(
                    Notice(
                        "truncated",
                        (f"{self.path.name}: the file ends early; the tables before were read"),
                        values={"case": "arrow", "file": self.path.name},
                    )
                )
        return positions

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns of *table* in this file; none if the table is damaged."""
        try:
            return frozenset(self._open(table)[0].names)
        except _ARROW_ERRORS:
            self._report_damage(table)
            return frozenset()

    def fetch(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read columns that exist; a damaged table has no rows."""
        if not columns:
            return pl.DataFrame()
        try:
            schema, read = self._open(table)
            if any(pa.types.is_nested(schema.field(name).type) for name in columns):
                raise pa.ArrowInvalid("a value is a list")  # of any number of values
            return to_polars(read(list(columns)))
        except _ARROW_ERRORS:
            self._report_damage(table)
            return pl.DataFrame()

    def _open(self, table: str) -> tuple[Any, Callable[[list[str]], Any]]:
        """Return the schema of a table, and a function that reads some of its columns as an Arrow table."""
        file, offset = self._positions[table]
        if file.suffix == ".parquet":
            schema = parquet.read_schema(file)
            return schema, lambda columns: _read_parquet(file, schema, columns)
        source = pa.memory_map(str(file))
        source.seek(offset)
        try:
            size = unpacked_bytes(source.read_buffer())
        except ValueError as error:
            raise pa.ArrowInvalid(str(error)) from error
        _check_unpacked(file, size)
        source.seek(0)
        try:  # versions of the exporter differ in whether they write an Arrow file or an Arrow stream
            reader = ipc.open_file(source)
        except pa.ArrowInvalid:
            source.seek(offset)
            reader = ipc.open_stream(source)
        return reader.schema, lambda columns: reader.read_all().select(columns)

    def _report_damage(self, table: str) -> None:
        values: NoticeValues = {"case": "left_out", "file": self.path.name, "table": table}
        self.notices.append(
            Notice(
                "bad-events",
                (f"{self.path.name}: {table} is damaged and was left out"),
                values=values,
            )
        )


def _check_unpacked(file: Path, size: int) -> None:
    """Raise InputError if a table takes so many bytes once it is unpacked that its file was made for it."""
    limit = inflated_limit(file.stat().st_size)
    if size > limit:
        problem = f"inflates to more than {limit:,} bytes"
        raise InputError(problem, path=file, hint="if it is genuine, export it without compression")


def _read_parquet(file: Path, schema: Any, columns: list[str]) -> Any:
    """Read columns of a Parquet file.

    A file of a kilobyte may hold billions of equal rows, and texts of megabytes that each of many
    rows repeats: texts are read as numbers into a list of different ones, and added up before they
    are written out.
    """
    texts = [
        name
        for name in columns
        if pa.types.is_string(schema.field(name).type)
        or pa.types.is_binary(schema.field(name).type)
    ]
    parquet_file = parquet.ParquetFile(file, read_dictionary=texts)
    rows = parquet_file.metadata.num_rows
    _check_rows(file, rows, columns)
    _check_unpacked(file, rows * len(columns) * MIN_BYTES_OF_A_VALUE)
    table = parquet_file.read(columns)
    text_bytes = 0
    for name in texts:
        for chunk in table[name].chunks:
            if pa.types.is_dictionary(chunk.type):
                lengths = compute.binary_length(chunk.dictionary)
                text_bytes += compute.sum(lengths.take(chunk.indices)).as_py() or 0
    _check_unpacked(file, text_bytes)
    return table.cast(pa.schema([schema.field(name) for name in table.column_names]))


def _check_rows(file: Path, rows: int, columns: Sequence[str]) -> None:
    """Raise MachineError if columns cannot fit into memory."""
    needed = rows * len(columns) * MIN_BYTES_OF_A_VALUE
    available = available_memory()
    if needed > available:
        sizes = f"take {needed / 1e9:,.1f} GB, and {available / 1e9:,.1f} GB are free"
        problem = f"{rows:,} rows {sizes}"
        raise MachineError(problem, path=file, hint="use a machine with more memory")
