"""Arrow and Parquet exports: a folder with one file per table, or many Arrow streams in one file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from tracekit.errors import InputError, Notice


class FolderExport:
    """``parquetdir`` or ``arrowdir``: one file per table, named after it."""

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
        """Return the columns *table* has in this file; of a damaged file, none."""
        import pyarrow as pa
        from pyarrow import parquet

        file = self._files[table]
        try:
            if file.suffix == ".parquet":
                return frozenset(parquet.read_schema(file).names)
            with pa.OSFile(str(file)) as source:
                return frozenset(_open_arrow(source).schema.names)
        except (pa.ArrowException, OSError, UnicodeDecodeError):
            self._damaged(table)
            return frozenset()

    def fetch(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read columns that are there; a damaged table has no rows."""
        import pyarrow as pa
        from pyarrow import parquet

        if not columns:
            return pl.DataFrame()
        file = self._files[table]
        try:
            if file.suffix == ".parquet":
                return to_polars(parquet.read_table(file, columns=list(columns)))
            with pa.memory_map(str(file)) as source:
                return to_polars(_read_all(_open_arrow(source), columns))
        except (pa.ArrowException, OSError):
            self._damaged(table)
            return pl.DataFrame()

    def _damaged(self, table: str) -> None:
        self.notices.append(Notice("damaged-table", f"{self.path.name}: {table} is damaged and was left out"))

    def close(self) -> None:
        """Do nothing: no file is open between reads."""


class StreamExport:
    """``.arrow``: one Arrow stream per table, one after another; each names its table in the schema's metadata."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        from pyarrow import ipc

        self.path = path
        self.notices: list[Notice] = []
        self._source = pa.memory_map(str(path))
        self._at: dict[str, int] = {}
        self._columns: dict[str, frozenset[str]] = {}
        size = self._source.size()
        try:
            while self._source.tell() < size:
                at = self._source.tell()
                reader = ipc.open_stream(self._source)
                name = (reader.schema.metadata or {}).get(b"table_name", b"").decode("utf-8", "replace")
                for _ in reader:  # memory-mapped: this reads the batches' headers, not their columns
                    pass
                self._at[name] = at
                self._columns[name] = frozenset(reader.schema.names)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if not self._at:
                self._source.close()
                raise InputError(
                    f"{path}: is not an Arrow export", hint="give the file that `nsys export --type arrow` wrote"
                ) from error
            self.notices.append(Notice("truncated", f"{path.name}: the file ends early; the tables before were read"))
        self.tables = frozenset(self._at)

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns *table* has in this file."""
        return self._columns[table]

    def fetch(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read columns that are there."""
        import pyarrow as pa
        from pyarrow import ipc

        if not columns:
            return pl.DataFrame()
        try:
            self._source.seek(self._at[table])
            return to_polars(_read_all(ipc.open_stream(self._source), columns))
        except (pa.ArrowException, OSError):
            self.notices.append(Notice("damaged-table", f"{self.path.name}: {table} is damaged and was left out"))
            return pl.DataFrame()

    def close(self) -> None:
        """Unmap the file."""
        self._source.close()


def _open_arrow(source: Any) -> Any:
    """Open an Arrow file or an Arrow stream: exporters have written both."""
    import pyarrow as pa
    from pyarrow import ipc

    try:
        return ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        return ipc.open_stream(source)


def _read_all(reader: Any, columns: Sequence[str]) -> Any:
    return reader.read_all().select(list(columns))


def to_polars(table: Any, *, trusted: bool = False) -> pl.DataFrame:
    r"""Take over an Arrow table; text that is not UTF-8, which programs do write, keeps what can be read of it.

    Of a table that is not *trusted* the lengths and offsets are checked too: Arrow files can be damaged.

    >>> import pyarrow as pa
    >>> text = pa.array([b"caf\xe9", b"tea"], pa.binary()).view(pa.string())
    >>> to_polars(pa.table({"text": text}))["text"].to_list()
    ['caf�', 'tea']
    """
    import pyarrow as pa

    plain = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    wanted = pa.schema([pa.field(field.name, plain.get(field.type, field.type)) for field in table.schema])
    raw = pa.table([column.cast(field.type) for column, field in zip(table.columns, wanted, strict=True)], wanted)
    if not trusted:
        raw.validate(full=True)
    frame = pl.from_arrow(raw, rechunk=False)
    assert isinstance(frame, pl.DataFrame)
    return frame.with_columns(decoded(frame[f.name]) for f in table.schema if f.type in plain)


def decoded(column: pl.Series) -> pl.Series:
    """Return bytes as text; what is not UTF-8 keeps what can be read of it."""
    try:
        return column.cast(pl.String)
    except pl.exceptions.ComputeError:
        kept = [None if item is None else item.decode("utf-8", "replace") for item in column]
        return pl.Series(column.name, kept, dtype=pl.String)
