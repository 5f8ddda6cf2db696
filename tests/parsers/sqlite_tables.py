"""A table in an sqlite file: written, asked of sqlite, and read straight from its pages."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import polars as pl

from tracekit.parsers.nsight.btree import BLOB, NUMBER, TEXT, UnusualError, find_stored, read_columns

EDGES = [0, 1, -1, 2, 127, 128, -128, -129, 32767, 32768, 1 << 23, -(1 << 23) - 1, 1 << 31, -(1 << 31), 1 << 47]
EDGES += [-(1 << 47) - 1, (1 << 63) - 1, -(1 << 63), 1_700_000_000_000_000_000]
TABLE = "NVTX_T"  # a name by which it is looked at


def write(path, columns, rows, *, page_size=512, after=()):
    """Write a table of *columns*, a dict of name and type; a row's first item is its rowid."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA page_size = {page_size}")
        connection.execute(f"CREATE TABLE {TABLE} ({', '.join(f'{name} {kind}' for name, kind in columns.items())})")
        marks = ", ".join("?" * (len(columns) + 1))
        names = ", ".join(["rowid", *columns])
        connection.executemany(f"INSERT OR IGNORE INTO {TABLE} ({names}) VALUES ({marks})", rows)
        for statement in after:
            connection.execute(statement)
    return path


def asked(path, columns, text_factory=str):
    """What sqlite says, without an index to go by."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        connection.text_factory = text_factory
        query = f'SELECT {", ".join(columns)} FROM "{TABLE}" NOT INDEXED'
        return connection.execute(query).fetchall()


def direct(path, columns, texts=(), blobs=()):
    """What is read from the pages; text and bytes have nothing where sqlite has null."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        stored = find_stored(connection, TABLE)
    if stored is None:
        raise UnusualError(TABLE)
    forms = {name: TEXT if name in texts else BLOB if name in blobs else NUMBER for name in columns}
    frame = read_columns(path, stored, forms)
    assert frame.schema == {name: pl.Int64 if form == NUMBER else pl.Binary for name, form in forms.items()}
    return frame.rows()
