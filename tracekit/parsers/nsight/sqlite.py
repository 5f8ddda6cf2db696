"""sqlite exports: from the pages of the file, or through sqlite in rowid ranges; never written to, never locked.

What an export consists of is read past sqlite (``btree``). sqlite reads what is unusual or damaged: it knows best.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl

from tracekit.errors import InputError, Notice
from tracekit.parsers.nsight import btree
from tracekit.parsers.nsight.btree import UnusualError, find_stored, read_columns
from tracekit.parsers.nsight.columnar import decoded, to_polars
from tracekit.parsers.nsight.tables import KNOWN, TEXT

THREADS = 2
BATCH_ROWS = 65536
SALVAGE_ROWS = 32
SMALL = 100_000
"""Below this many rows a second thread costs more than it gains."""

_FORMS = dict.fromkeys(TEXT, btree.TEXT) | {"binaryData": btree.BLOB}
_BROKEN = (sqlite3.DatabaseError, UnicodeDecodeError)
"""What sqlite raises on a damaged file; its own message may quote the damage."""


class SqliteExport:
    """An sqlite export. The file is opened immutable: no lock is taken, no byte written, no file left beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notices: list[Notice] = []
        refuse_unfinished(path)
        self._uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        try:
            with closing(sqlite3.connect(self._uri, uri=True)) as connection:
                connection.text_factory = lambda data: data.decode("utf-8", "replace")
                names = [
                    row[0]
                    for row in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
                ]
                self._columns = {name: _column_names(connection, name) for name in names}
                self._stored = {name: find_stored(connection, name) for name in names if self._columns[name]}
        except _BROKEN as error:
            raise InputError(
                f"{path}: the sqlite file is damaged", hint="export the report again with `nsys export`"
            ) from error
        self.tables = frozenset(names)
        if lost := _missing_bytes(path):
            self.notices.append(
                Notice("truncated", f"{path.name}: the file ends {lost:,} bytes early; what is left was read")
            )

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns *table* has in this file."""
        return self._columns[table]

    def fetch(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read columns; of a damaged table, the rows around the damage."""
        if not columns:
            return pl.DataFrame()
        with contextlib.suppress(UnusualError):
            return self._from_pages(table, columns)
        query = f'SELECT {", ".join(_select(name) for name in columns)} FROM "{table}"'
        ranges = self._ranges(table)
        try:
            with ThreadPoolExecutor(THREADS) as pool:
                halves = list(pool.map(self._query, [query + where for where in ranges]))
            if any(half.schema != halves[0].schema for half in halves):
                raise _DamageError(pl.DataFrame())  # one has what the other has not, such as a number with a fraction
            return pl.concat(halves)
        except _DamageError:
            return self._checked(table, query, columns)

    def _from_pages(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read columns past sqlite, where table and file are as usual."""
        stored = self._stored[table]
        if stored is None:
            raise UnusualError("another kind of table")
        frame = read_columns(self.path, stored, {name: _FORMS.get(name, btree.NUMBER) for name in columns})
        return frame.with_columns(decoded(frame[name]) for name in columns if _FORMS.get(name) == btree.TEXT)

    def _checked(self, table: str, query: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read a table in which a number may be text, which sqlite allows, as null there; else one that is damaged."""
        numbers = f'SELECT {", ".join(_select_number(name) for name in columns)} FROM "{table}"'
        try:
            return self._query(numbers)
        except _DamageError:
            return self._salvage(table, query, columns)

    def _salvage(self, table: str, query: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read a damaged table from both ends towards the damage, a few rows at a time."""
        self.notices.append(
            Notice("damaged-table", f"{self.path.name}: {table} is damaged; the rows before and after were read")
        )
        parts = [pl.DataFrame(schema={name: pl.String() if name in TEXT else pl.Int64() for name in columns})]
        for order in (" ORDER BY rowid", " ORDER BY rowid DESC"):
            try:
                parts.append(self._query(query + order, batch_rows=SALVAGE_ROWS))
                break  # sound from this end
            except _DamageError as damage:
                if damage.before.height:
                    parts.append(damage.before)
        return pl.concat(parts, how="vertical_relaxed")

    def _ranges(self, table: str) -> list[str]:
        """WHERE clauses that cut *table* in equal stretches of rowids."""
        try:
            with closing(sqlite3.connect(self._uri, uri=True)) as connection:
                # One by one: sqlite looks up a min or a max, but scans the table for both at once.
                ends = (f'SELECT {end}(rowid) FROM "{table}"' for end in ("min", "max"))
                first, last = (connection.execute(query).fetchone()[0] for query in ends)
        except _BROKEN:  # damaged, or a table without rowids
            return [""]
        if first is None or last - first < SMALL:
            return [""]
        middle = (first + last) // 2
        return [f" WHERE rowid <= {middle}", f" WHERE rowid > {middle}"]

    def _query(self, query: str, batch_rows: int = BATCH_ROWS) -> pl.DataFrame:
        import adbc_driver_manager
        import pyarrow as pa
        from adbc_driver_sqlite import dbapi

        batches: list[Any] = []
        with dbapi.connect(self._uri) as connection, connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(batch_rows)})
            try:
                cursor.execute(query)
                reader = cursor.fetch_record_batch()
                for batch in reader:
                    batches.append(batch)
            except (adbc_driver_manager.Error, pa.ArrowException, OSError) as error:
                raise _DamageError(_frame(batches, None)) from error
            return _frame(batches, reader.schema)

    def close(self) -> None:
        """Do nothing: no file is open between reads."""


def _select(name: str) -> str:
    """How a column is asked for so that its type is known from the first row on, null or not."""
    if name == "binaryData":
        return f'CASE typeof("{name}") WHEN \'blob\' THEN hex("{name}") ELSE coalesce("{name}", \'\') END AS "{name}"'
    return f'coalesce("{name}", \'\') AS "{name}"' if name in TEXT else f'"{name}"'


def _select_number(name: str) -> str:
    """How a column is asked for where what should be a number may be something else: that is null."""
    if name in TEXT:
        return _select(name)
    return f'CASE WHEN typeof("{name}") IN (\'integer\', \'real\') THEN CAST("{name}" AS INTEGER) END AS "{name}"'


def _frame(batches: list[Any], schema: Any) -> pl.DataFrame:
    import pyarrow as pa

    if not batches and schema is None:
        return pl.DataFrame()
    return to_polars(pa.Table.from_batches(batches, schema), trusted=True)


class _DamageError(Exception):
    """A table broke off; ``before`` is what was read until then."""

    def __init__(self, before: pl.DataFrame) -> None:
        super().__init__()
        self.before = before


def _column_names(connection: sqlite3.Connection, table: str) -> frozenset[str]:
    if table not in KNOWN and not table.startswith(("NVTX_", "TARGET_INFO_", "META_", "EXPORT_", "DIAG", "PROF")):
        return frozenset()
    return frozenset(row[1] for row in connection.execute(f'PRAGMA table_info("{table}")'))


def refuse_unfinished(path: Path) -> None:
    """Refuse a file that is being written: an immutable read would not see its locks and journals."""
    busy = InputError(
        f"{path}: another program is writing to it", hint="wait until `nsys export` has finished, or read a copy"
    )
    for ending in ("-wal", "-journal"):
        beside = path.with_name(path.name + ending)
        if beside.exists() and beside.stat().st_size:
            raise busy
    with path.open("rb") as file:
        head = file.read(20)
    if len(head) == 20 and 2 in head[18:20]:
        return  # write-ahead logging with an empty log: a normal open would create files beside it
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1)) as connection:
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise busy from error
    except _BROKEN:
        pass  # damage is reported by the read itself


def _missing_bytes(path: Path) -> int:
    """How much shorter the file is than its header says."""
    with path.open("rb") as file:
        head = file.read(32)
    page = int.from_bytes(head[16:18], "big")
    pages = int.from_bytes(head[28:32], "big")
    return max(0, (65536 if page == 1 else page) * pages - path.stat().st_size)
