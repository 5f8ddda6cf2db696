"""Arrow and Parquet exports: a folder with one file per table, or many Arrow streams in one file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from pyarrow import ipc, parquet

from tracekit.errors import InputError, Notice

_ARROW_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError)
"""Errors of ``pyarrow`` on a damaged file."""


class ArrowExport:
    """A ``parquetdir`` or ``arrowdir`` with files named after their tables, or a ``.arrow`` file with all tables."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notices: list[Notice] = []
        # File of each table, and where in the file the table begins.
        self._positions = self._find_files() if path.is_dir() else self._find_streams()
        self.tables = frozenset(self._positions)

    def _find_files(self) -> dict[str, tuple[Path, int]]:
        files = [file for file in sorted(self.path.iterdir()) if file.suffix in (".parquet", ".arrow")]
        return {file.stem: (file, 0) for file in files if file.is_file()}

    def _find_streams(self) -> dict[str, tuple[Path, int]]:
        """Find the streams, which follow each other, each with its table's name as metadata."""
        positions: dict[str, tuple[Path, int]] = {}
        with pa.memory_map(str(self.path)) as source:
            try:
                while source.tell() < source.size():
                    offset = source.tell()
                    reader = ipc.open_stream(source)
                    name = (reader.schema.metadata or {}).get(b"table_name", b"").decode("utf-8", "replace")
                    for _ in reader:  # skips to the end of the stream; only the headers of batches are read
                        pass
                    positions[name] = self.path, offset
            except _ARROW_ERRORS as error:
                if not positions:
                    raise InputError(
                        f"{self.path}: is not an Arrow export",
                        hint="give the file that `nsys export --type arrow` wrote",
                    ) from error
                text = f"{self.path.name}: the file ends early; the tables before were read"
                self.notices.append(Notice("truncated", text))
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
        try:
            return to_polars(self._open(table)[1](list(columns))) if columns else pl.DataFrame()
        except _ARROW_ERRORS:
            self._report_damage(table)
            return pl.DataFrame()

    def _open(self, table: str) -> tuple[Any, Callable[[list[str]], Any]]:
        """Return the schema of a table, and a function that reads some of its columns as an Arrow table."""
        file, offset = self._positions[table]
        if file.suffix == ".parquet":
            parquet_file = parquet.ParquetFile(file)
            return parquet_file.schema_arrow, parquet_file.read
        source = pa.memory_map(str(file))
        try:  # versions of the exporter differ in whether they write an Arrow file or an Arrow stream
            reader = ipc.open_file(source)
        except pa.ArrowInvalid:
            source.seek(offset)
            reader = ipc.open_stream(source)
        return reader.schema, lambda columns: reader.read_all().select(columns)

    def _report_damage(self, table: str) -> None:
        self.notices.append(Notice("damaged-table", f"{self.path.name}: {table} is damaged and was left out"))


def to_polars(table: Any, *, trusted: bool = False) -> pl.DataFrame:
    r"""Convert an Arrow table without copying its numbers; bytes in text that are not UTF-8 are replaced.

    The lengths and offsets of a table that is not *trusted* are checked first: Arrow files can be damaged.

    >>> text = pa.array([b"caf\xe9", b"tea"], pa.binary()).view(pa.string())
    >>> to_polars(pa.table({"text": text}))["text"].to_list()
    ['caf�', 'tea']
    """
    # polars takes over Arrow strings without checking that they are UTF-8; a cast from bytes checks it.
    as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    schema = pa.schema([pa.field(field.name, as_bytes.get(field.type, field.type)) for field in table.schema])
    raw = pa.table([column.cast(field.type) for column, field in zip(table.columns, schema, strict=True)], schema)
    if not trusted:
        raw.validate(full=True)
    frame = pl.from_arrow(raw, rechunk=False)
    assert isinstance(frame, pl.DataFrame)
    return frame.with_columns(_decode(frame[field.name]) for field in table.schema if field.type in as_bytes)


def _decode(column: pl.Series) -> pl.Series:
    try:
        return column.cast(pl.String)
    except pl.exceptions.ComputeError:
        texts = [None if item is None else item.decode("utf-8", "replace") for item in column]
        return pl.Series(column.name, texts, dtype=pl.String)
