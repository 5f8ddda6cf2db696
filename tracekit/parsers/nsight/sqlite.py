"""sqlite exports: read in rowid ranges on two threads, from a file that is never written to or locked."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl

from tracekit.errors import InputError, Notice
from tracekit.parsers.nsight.tables import KNOWN, TEXT

THREADS = 2
BATCH_ROWS = 65536
SMALL = 100_000
"""Below this many rows a second thread costs more than it gains."""


class SqliteExport:
    """An sqlite export. The file is opened immutable: no lock is taken, no byte written, no file left beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notices: list[Notice] = []
        _refuse_unfinished(path)
        self._uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        try:
            with closing(sqlite3.connect(self._uri, uri=True)) as connection:
                names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
                self._columns = {name: _column_names(connection, name) for name in names}
        except sqlite3.DatabaseError as error:
            raise InputError(
                f"{path}: the sqlite file is damaged ({error})", hint="export the report again with `nsys export`"
            ) from error
        self.tables = frozenset(names)
        if lost := _missing_bytes(path):
            self.notices.append(
                Notice("truncated", f"{path.name}: the file ends {lost:,} bytes early; what is left was read")
            )

    def columns(self, table: str) -> frozenset[str]:
        """Name the columns *table* has in this file."""
        return self._columns[table]

    def fetch(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read columns; of a damaged table, the rows before the damage."""
        if not columns:
            return pl.DataFrame()
        ranges = self._ranges(table)
        what = ", ".join(_select(name) for name in columns)
        queries = [f'SELECT {what} FROM "{table}"{where}' for where in ranges]
        if len(queries) == 1:
            parts = [self._query(queries[0])]
        else:
            with ThreadPoolExecutor(THREADS) as pool:
                parts = list(pool.map(self._query, queries))
        if any(damaged for _, damaged in parts):
            self.notices.append(
                Notice("damaged-table", f"{self.path.name}: {table} could be read only in part; times there are short")
            )
        return pl.concat([frame for frame, _ in parts], rechunk=False)

    def _ranges(self, table: str) -> list[str]:
        """WHERE clauses that cut *table* in equal stretches of rowids."""
        try:
            with closing(sqlite3.connect(self._uri, uri=True)) as connection:
                first, last = connection.execute(f'SELECT min(rowid), max(rowid) FROM "{table}"').fetchone()
        except sqlite3.DatabaseError:  # damaged, or a table without rowids
            return [""]
        if first is None or last - first < SMALL:
            return [""]
        middle = (first + last) // 2
        return [f" WHERE rowid <= {middle}", f" WHERE rowid > {middle}"]

    def _query(self, query: str) -> tuple[pl.DataFrame, bool]:
        import adbc_driver_manager
        import pyarrow as pa
        from adbc_driver_sqlite import dbapi

        with dbapi.connect(self._uri) as connection, connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
            batches: list[Any] = []
            damaged = False
            try:
                cursor.execute(query)
                reader = cursor.fetch_record_batch()
                schema = reader.schema
                for batch in reader:
                    batches.append(batch)
            except (adbc_driver_manager.Error, pa.ArrowException, OSError):
                damaged = True
                if not batches:
                    return _no_rows(query), True
                schema = batches[0].schema
            table = pa.Table.from_batches(batches, schema)
        frame = pl.from_arrow(table, rechunk=False)
        assert isinstance(frame, pl.DataFrame)
        return frame, damaged

    def close(self) -> None:
        """Nothing is held between reads."""


def _select(name: str) -> str:
    """How a column is asked for so that its type is known from the first row on, null or not."""
    if name == "binaryData":
        return f'hex("{name}") AS "{name}"'
    return f'coalesce("{name}", \'\') AS "{name}"' if name in TEXT else f'"{name}"'


def _no_rows(query: str) -> pl.DataFrame:
    names = [part.split('"')[-2] for part in query[7 : query.index(" FROM ")].split(", ") if '"' in part]
    return pl.DataFrame(schema={name: pl.String() if name in TEXT else pl.Int64() for name in names})


def _column_names(connection: sqlite3.Connection, table: str) -> frozenset[str]:
    if table not in KNOWN and not table.startswith(("NVTX_", "TARGET_INFO_", "META_", "EXPORT_", "DIAG", "PROF")):
        return frozenset()
    return frozenset(row[1] for row in connection.execute(f'PRAGMA table_info("{table}")'))


def _refuse_unfinished(path: Path) -> None:
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
    except sqlite3.DatabaseError:
        pass  # damage is reported by the read itself


def _missing_bytes(path: Path) -> int:
    """How much shorter the file is than its header says."""
    with path.open("rb") as file:
        head = file.read(32)
    page = int.from_bytes(head[16:18], "big")
    pages = int.from_bytes(head[28:32], "big")
    return max(0, (65536 if page == 1 else page) * pages - path.stat().st_size)
