"""Tables of SQLite files that profilers write, read in bulk, also of damaged files.

SQLite is read through ADBC as Arrow record batches. The file is opened immutable: no lock is taken,
nothing is written and no file is left beside it.

SQLite lets any value stand in any column. The driver takes a column's type from its first batch and
fails on a later value of another type, so a table is read by the first of these that succeeds:

1. The columns as they are, on two threads that read half of the table each.
2. The columns with the type of every value checked, null where a number is not one. It takes 1.6
   times as long.
3. The rows before and after the damage, of a table that SQLite itself cannot read.

SQLite does not check that a page of a file is used once: twelve kilobytes can hold a table of rows
without end, or a text that a million rows share. No table has more rows or text than its file has
bytes for; one that does is refused.
"""

import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import adbc_driver_sqlite
import msgspec
import polars as pl
import pyarrow as pa
from adbc_driver_manager import AdbcConnection, AdbcStatement
from adbc_driver_manager import Error as AdbcError
from pyarrow import compute

from tracekit.errors import InputError, Notice, NoticeValues


def to_polars(table: Any, *, trusted: bool = False) -> pl.DataFrame:
    r"""Convert an Arrow table without copying its numbers.

    Bytes in text that are not UTF-8 are replaced.

    The lengths and offsets of a table that is not *trusted* are checked first: Arrow files can be
    damaged.

    >>> text = pa.array([b"caf\xe9", b"tea"], pa.binary()).view(pa.string())
    >>> to_polars(pa.table({"text": text}))["text"].to_list()
    ['caf�', 'tea']
    """
    # polars takes over Arrow strings without checking that they are UTF-8; a cast from bytes checks
    # it.
    as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    schema = pa.schema(
        [pa.field(field.name, as_bytes.get(field.type, field.type)) for field in table.schema]
    )
    raw = pa.table(
        [column.cast(field.type) for column, field in zip(table.columns, schema, strict=True)],
        schema,
    )
    if not trusted:
        raw.validate(full=True)
    frame = pl.from_arrow(raw, rechunk=False)
    assert isinstance(frame, pl.DataFrame)
    return frame.with_columns(
        _decode(frame[field.name]) for field in table.schema if field.type in as_bytes
    )


def _are_integers(table: pl.DataFrame) -> bool:
    """Return whether all columns are 64-bit integers."""
    return all(dtype == pl.Int64 for dtype in table.dtypes)


def _decode(column: pl.Series) -> pl.Series:
    try:
        return column.cast(pl.String)
    except pl.exceptions.ComputeError:
        texts = [None if item is None else item.decode("utf-8", "replace") for item in column]
        return pl.Series(column.name, texts, dtype=pl.String)


BATCH_ROWS = 65_536
MIN_BYTES_OF_A_ROW = 6
"""Bytes of its file that a row takes at least: a pointer of two and a cell of four."""
MAX_CHARS_PER_BYTE = 4
"""Characters that a byte of the file can become: a small number as text, or bytes as hexadecimal
digits."""
SALVAGE_BATCH_ROWS = 32
"""Batch size in a damaged table: up to this many sound rows before the damage are lost."""

MIN_ROWS_FOR_TWO_THREADS = 100_000
PROGRESS_STEPS = 100_000
"""Instructions of SQLite between two looks at how many it has run."""
STEPS_PER_BYTE = 8
"""Instructions of SQLite that reading the list of tables takes at most for each byte of the file."""

_SQLITE_ERRORS = (sqlite3.DatabaseError, UnicodeDecodeError)
"""Errors of the ``sqlite3`` module on a damaged file. Their messages can quote the damage and are
not shown."""


class SqliteFormat(msgspec.Struct, frozen=True):
    """What differs between the SQLite files of profilers."""

    is_read: Callable[[str], bool]
    """Whether a table of this name is read."""
    texts: frozenset[str]
    """Columns that hold text; all others that are read hold integers."""
    write_again: str
    """What to do about a damaged file."""
    finish: str
    """What to do about a file that is being written."""


class SqliteTables:
    """An SQLite file, open for reading."""

    def __init__(self, path: Path, format: SqliteFormat) -> None:
        self.path = path
        self._format = format
        self.notices: list[Notice] = []
        self._file_bytes = path.stat().st_size
        self._max_rows = self._file_bytes // MIN_BYTES_OF_A_ROW
        refuse_unreadable(path, format)
        self._uri = _immutable_uri(path)
        try:
            with closing(_connect(self._uri, path)) as connection:
                names = [name for name, is_stored in _list_tables(connection) if is_stored]
                self._columns = {
                    name: _column_names(connection, name) for name in names if format.is_read(name)
                }
        except _SQLITE_ERRORS as error:
            raise InputError(
                "the sqlite file is damaged", path=path, hint=format.write_again
            ) from error
        self.tables = frozenset(names)
        if missing_bytes := _missing_bytes(path):
            values: NoticeValues = {
                "case": "sqlite",
                "file": path.name,
                "missing_bytes": missing_bytes,
            }
            self.notices.append(
                Notice(
                    "truncated",
                    (
                        f"{path.name}: the file ends {missing_bytes:,} bytes "
                        "early; what is left was read"
                    ),
                    values=values,
                )
            )

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns of *table* in this file."""
        return self._columns[table]

    def fetch(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read columns; of a damaged table, the rows around the damage."""
        if not columns:
            return pl.DataFrame()
        checked_query = f'SELECT {", ".join(map(self._checked_value, columns))} FROM "{table}"'
        try:
            self._check_texts(table, [name for name in columns if name in self._format.texts])
        except _QueryError:
            return self._salvage(table, checked_query, columns)
        query = f'SELECT {", ".join(map(self._value, columns))} FROM "{table}"'
        try:
            with ThreadPoolExecutor(2) as pool:
                queries = [query + where for where in self._rowid_ranges(table)]
                halves = list(pool.map(self._query, queries))
            numbers = [name for name in columns if name not in self._format.texts]
            if all(_are_integers(half.select(numbers)) for half in halves):
                return pl.concat(halves)
        except _QueryError:
            pass
        try:
            return self._query(checked_query)
        except _QueryError:
            return self._salvage(table, checked_query, columns)

    def read(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read columns of a table; one that the file lacks is all null, and a missing table has no rows."""
        schema = {
            name: pl.String() if name in self._format.texts else pl.Int64() for name in columns
        }
        frame = pl.DataFrame()
        if table in self.tables and table in self._columns:
            frame = self.fetch(table, [name for name in columns if name in self._columns[table]])
        if not frame.width:
            return pl.DataFrame(schema=schema)
        lacking = [name for name in columns if name not in frame.columns]
        nulls = [pl.lit(None, schema[name]).alias(name) for name in lacking]
        return frame.with_columns(nulls).select(columns)

    def check_size(self, table: str) -> None:
        """Raise InputError if *table* has more rows, or more text, than the file has bytes for."""
        try:
            self._query(f'SELECT 1 AS row FROM "{table}"')
            self._check_texts(table, sorted(self._columns.get(table, ())))
        except _QueryError as error:
            raise InputError(
                "the sqlite file is damaged", path=self.path, hint=self._format.write_again
            ) from error

    def _check_texts(self, table: str, columns: Sequence[str]) -> None:
        """Raise InputError if the texts of some columns together are longer than the file.

        Their lengths stand in the rows themselves: no text is read for it.
        """
        if not columns:
            return
        lengths = []
        for name in columns:
            is_text = f"typeof(\"{name}\") IN ('text', 'blob')"
            lengths.append(f'CASE WHEN {is_text} THEN octet_length("{name}") ELSE 0 END')
        rows = f'SELECT {" + ".join(lengths)} AS bytes FROM "{table}" LIMIT {self._max_rows + 1}'
        totals = self._query(f"SELECT count(*), coalesce(sum(bytes), 0) FROM ({rows})")
        row_count, text_bytes = totals.row(0)
        self._refuse_more_than(self._max_rows, row_count)
        self._refuse_more_than(self._file_bytes, text_bytes)

    def _refuse_more_than(self, limit: int, count: int) -> None:
        if count > limit:
            problem = "a table holds more than the file has bytes for"
            raise InputError(problem, path=self.path, hint=self._format.write_again)

    def _rowid_ranges(self, table: str) -> list[str]:
        """Return WHERE clauses that cut a large table into two ranges of rowids.

        For a small one, no condition.
        """
        if "rowid" in map(str.lower, self._columns[table]):
            return [""]
        try:
            with closing(_connect(self._uri, self.path)) as connection:
                # Two queries: SQLite looks up a single min or max, but scans the whole table for
                # both at once.
                (first,) = connection.execute(f'SELECT min(rowid) FROM "{table}"').fetchone()
                (last,) = connection.execute(f'SELECT max(rowid) FROM "{table}"').fetchone()
        except _SQLITE_ERRORS:  # a damaged table, or one WITHOUT ROWID
            return [""]
        if first is None or last - first < MIN_ROWS_FOR_TWO_THREADS:
            return [""]
        middle = (first + last) // 2
        return [f" WHERE rowid <= {middle}", f" WHERE rowid > {middle}"]

    def _salvage(self, table: str, query: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read a damaged table from both ends up to the damage, in small batches."""
        values: NoticeValues = {"case": "in_part", "file": self.path.name, "table": table}
        self.notices.append(
            Notice(
                "bad-events",
                (f"{self.path.name}: {table} is damaged; the rows before and after were read"),
                values=values,
            )
        )
        schema = {
            name: pl.String() if name in self._format.texts else pl.Int64() for name in columns
        }
        parts = [pl.DataFrame(schema=schema)]
        for order in (" ORDER BY rowid", " ORDER BY rowid DESC"):
            try:
                parts.append(self._query(query + order, SALVAGE_BATCH_ROWS))
                break  # the table is sound when read from this end
            except _QueryError as error:
                if error.rows_before.height:
                    parts.append(error.rows_before)
        return pl.concat(parts, how="vertical_relaxed")

    def _query(self, query: str, batch_rows: int = BATCH_ROWS) -> pl.DataFrame:
        batches = []
        rows = text_bytes = 0
        with (
            adbc_driver_sqlite.connect(self._uri) as database,
            AdbcConnection(database) as connection,
            AdbcStatement(connection) as statement,
        ):
            batch_option = adbc_driver_sqlite.StatementOptions.BATCH_ROWS.value
            statement.set_options(**{batch_option: str(batch_rows)})
            statement.set_sql_query(query)
            try:
                stream, _ = statement.execute_query()
                reader = pa.RecordBatchReader.from_stream(stream)
                for batch in reader:
                    batches.append(batch)
                    rows += batch.num_rows
                    self._refuse_more_than(self._max_rows, rows)
                    text_bytes += _text_bytes(batch)
                    self._refuse_more_than(MAX_CHARS_PER_BYTE * self._file_bytes, text_bytes)
            except (AdbcError, pa.ArrowException, OSError) as error:
                rows_before = (
                    to_polars(pa.Table.from_batches(batches), trusted=True)
                    if batches
                    else pl.DataFrame()
                )
                raise _QueryError(rows_before) from error
            return to_polars(pa.Table.from_batches(batches, reader.schema), trusted=True)

    def _value(self, name: str) -> str:
        """Return the SQL for a column.

        Text is never null, so that the driver sees its type from the first row on.
        """
        if name not in self._format.texts:
            return f'"{name}"'
        text = f"coalesce(CAST(\"{name}\" AS TEXT), '')"
        if name == "binaryData":
            text = f'CASE typeof("{name}") WHEN \'blob\' THEN hex("{name}") ELSE {text} END'
        return f'{text} AS "{name}"'

    def _checked_value(self, name: str) -> str:
        """Return the SQL for a column in which a number can be a fraction, which is cut off, text, or bytes."""
        if name in self._format.texts:
            return self._value(name)
        integer = f'CAST("{name}" AS INTEGER)'
        return (
            f"CASE WHEN typeof(\"{name}\") = 'integer'"
            f' OR typeof("{name}") = \'real\' AND abs("{name}") < 9.2e18'
            f' OR typeof("{name}") = \'text\' AND CAST({integer} AS TEXT) = "{name}"'
            f' THEN {integer} END AS "{name}"'
        )


class _QueryError(InputError):
    """A query failed; ``rows_before`` are the rows read until then."""

    def __init__(self, rows_before: pl.DataFrame) -> None:
        super().__init__("a query failed")
        self.rows_before = rows_before


def _text_bytes(batch: Any) -> int:
    """Return how long the texts of a batch are together."""
    texts = [column for column in batch.columns if pa.types.is_string(column.type)]
    return sum(compute.sum(compute.binary_length(column)).as_py() or 0 for column in texts)


def _connect(uri: str, path: Path) -> sqlite3.Connection:
    """Open a file; a list of tables without end ends in an ``OperationalError``."""
    connection = sqlite3.connect(uri, uri=True, timeout=1)
    left = 1_000_000 + STEPS_PER_BYTE * path.stat().st_size

    def is_too_long() -> bool:
        nonlocal left
        left -= PROGRESS_STEPS
        return left < 0

    connection.set_progress_handler(is_too_long, PROGRESS_STEPS)
    return connection


def refuse_unreadable(path: Path, format: SqliteFormat) -> None:
    """Raise ``InputError`` if *path* is still being written, or has a view in place of a table that is read."""
    being_written = InputError("another program is writing to it", path=path, hint=format.finish)
    for suffix in ("-wal", "-journal"):
        log = path.with_name(path.name + suffix)
        if log.exists() and log.stat().st_size:
            raise being_written
    with path.open("rb") as file:
        header = file.read(20)
    # A file in write-ahead mode with an empty log is not locked, and a normal open would create
    # files beside it.
    in_wal_mode = len(header) == 20 and 2 in header[18:20]
    uri = _immutable_uri(path) if in_wal_mode else f"{path.absolute().as_uri()}?mode=ro"
    try:
        with closing(_connect(uri, path)) as connection:
            computed = [
                name
                for name, is_stored in _list_tables(connection)
                if not is_stored and format.is_read(name)
            ]
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode in (sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_BUSY):
            raise being_written from error
        return  # damage is reported by the read itself
    except _SQLITE_ERRORS:
        return
    if computed:
        # Rows of a view come from a query in the file, which can run without end.
        raise InputError(
            f"{computed[0]} is a view or a virtual table, not a table with rows",
            path=path,
            hint=format.write_again,
        )


def _list_tables(connection: sqlite3.Connection) -> list[tuple[str, bool]]:
    """Return the name of each table and view, and whether its rows are stored in the file."""
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    rows = connection.execute(
        "SELECT name, type, sql FROM sqlite_master WHERE type IN ('table', 'view')"
    ).fetchall()
    return [
        (name, kind == "table" and not str(sql).upper().startswith("CREATE VIRTUAL"))
        for name, kind, sql in rows
    ]


def _column_names(connection: sqlite3.Connection, table: str) -> frozenset[str]:
    return frozenset(row[1] for row in connection.execute(f'PRAGMA table_info("{table}")'))


def _immutable_uri(path: Path) -> str:
    return f"{path.absolute().as_uri()}?mode=ro&immutable=1"


def _missing_bytes(path: Path) -> int:
    """Return how many bytes the file is shorter than its header says."""
    with path.open("rb") as file:
        header = file.read(32)
    page_bytes = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    return max(0, (65536 if page_bytes == 1 else page_bytes) * pages - path.stat().st_size)
