"""Arrow and Parquet exports: a folder with one file per table, or many Arrow streams in one file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from tracekit.errors import InputError, Notice


class FolderExport:
    """A ``parquetdir`` or ``arrowdir``: one file per table, named after the table."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notices: list[Notice] = []
        self._files = {
            file.stem: file
            for file in sorted(path.iterdir())
            if file.suffix in (".parquet", ".arrow") and file.is_file()
        }
        self.tables = frozenset(self._files)

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns of *table* in this file; none if the file is damaged."""
        import pyarrow as pa
        from pyarrow import parquet

        file = self._files[table]
        try:
            if file.suffix == ".parquet":
                return frozenset(parquet.read_schema(file).names)
            with pa.OSFile(str(file)) as source:
                return frozenset(_open_arrow(source).schema.names)
        except (pa.ArrowException, OSError, UnicodeDecodeError):
            self.notices.append(_damaged_table(self.path, table))
            return frozenset()

    def fetch(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read columns that exist; a damaged table has no rows."""
        import pyarrow as pa
        from pyarrow import parquet

        if not columns:
            return pl.DataFrame()
        file = self._files[table]
        try:
            if file.suffix == ".parquet":
                return to_polars(parquet.read_table(file, columns=list(columns)))
            with pa.memory_map(str(file)) as source:
                return to_polars(_open_arrow(source).read_all().select(list(columns)))
        except (pa.ArrowException, OSError):
            self.notices.append(_damaged_table(self.path, table))
            return pl.DataFrame()

    def close(self) -> None:
        """Do nothing: no file is open between reads."""


class StreamExport:
    """A ``.arrow`` file: one Arrow stream per table, one after the other, each with its table's name as metadata."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        from pyarrow import ipc

        self.path = path
        self.notices: list[Notice] = []
        self._source = pa.memory_map(str(path))
        self._offsets: dict[str, int] = {}
        self._columns: dict[str, frozenset[str]] = {}
        size = self._source.size()
        try:
            while self._source.tell() < size:
                offset = self._source.tell()
                reader = ipc.open_stream(self._source)
                name = (reader.schema.metadata or {}).get(b"table_name", b"").decode("utf-8", "replace")
                for _ in reader:  # skips to the end of the stream; of a mapped file only the batches' headers are read
                    pass
                self._offsets[name] = offset
                self._columns[name] = frozenset(reader.schema.names)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if not self._offsets:
                self._source.close()
                raise InputError(
                    f"{path}: is not an Arrow export", hint="give the file that `nsys export --type arrow` wrote"
                ) from error
            self.notices.append(Notice("truncated", f"{path.name}: the file ends early; the tables before were read"))
        self.tables = frozenset(self._offsets)

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns of *table* in this file."""
        return self._columns[table]

    def fetch(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read columns that exist; a damaged table has no rows."""
        import pyarrow as pa
        from pyarrow import ipc

        if not columns:
            return pl.DataFrame()
        try:
            self._source.seek(self._offsets[table])
            return to_polars(ipc.open_stream(self._source).read_all().select(list(columns)))
        except (pa.ArrowException, OSError):
            self.notices.append(_damaged_table(self.path, table))
            return pl.DataFrame()

    def close(self) -> None:
        """Unmap the file."""
        self._source.close()


def _damaged_table(path: Path, table: str) -> Notice:
    return Notice("damaged-table", f"{path.name}: {table} is damaged and was left out")


def _open_arrow(source: Any) -> Any:
    """Open an Arrow file or an Arrow stream; versions of the exporter differ in which they write."""
    import pyarrow as pa
    from pyarrow import ipc

    try:
        return ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        return ipc.open_stream(source)


def to_polars(table: Any, *, trusted: bool = False) -> pl.DataFrame:
    r"""Convert an Arrow table without copying its numbers; bytes in text that are not UTF-8 are replaced.

    The lengths and offsets of a table that is not *trusted* are checked first: Arrow files can be damaged.

    >>> import pyarrow as pa
    >>> text = pa.array([b"caf\xe9", b"tea"], pa.binary()).view(pa.string())
    >>> to_polars(pa.table({"text": text}))["text"].to_list()
    ['caf�', 'tea']
    """
    import pyarrow as pa

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
