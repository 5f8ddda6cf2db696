"""Tables of an sqlite export, with values and schemas that a profiler never writes but SQLite accepts."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from tracekit.parsers import sqlite_tables
from tracekit.parsers.nsight.exports import SqliteExport
from tracekit.parsers.nsight.tables import read_table

TABLE = "NVTX_EVENTS"


def write(path, *statements, values=(), declared="INTEGER", column="start"):
    """Write a table with one column; statements are executed afterwards."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f'CREATE TABLE {TABLE} ("{column}" {declared})')
        connection.executemany(f"INSERT INTO {TABLE} VALUES (?)", [[value] for value in values])
        for statement in statements:
            connection.execute(statement)
    return path


def read(path, column="start"):
    return read_table(SqliteExport(path), TABLE, [column])[column].to_list()


ODD_VALUES = [
    (None, None),
    (7.5, 7),
    (1e300, None),
    ("7", 7),
    ("text", None),
    ("9" * 40, None),
    (b"bytes", None),
    (-(2**63), -(2**63)),
]
"""Values as they stand in the file, and as they are read from a column of integers."""


def read_as(value, expected, declared):
    """Return what is read of *value*.

    In a column of text SQLite stores the text 7.5, which is no integer.
    """
    return None if declared == "TEXT" and isinstance(value, float) else expected


@pytest.mark.parametrize("declared", ["", "INTEGER", "TEXT"])
@pytest.mark.parametrize(("value", "expected"), ODD_VALUES)
def test_a_value_of_another_type_costs_its_row_alone(path, declared, value, expected):
    assert read(write(path, values=[value, 2**53 + 1], declared=declared)) == [
        read_as(value, expected, declared),
        2**53 + 1,
    ]


@pytest.mark.parametrize("declared", ["", "INTEGER", "TEXT"])
def test_values_of_other_types_cost_their_rows_alone_after_the_first_batch(path, declared):
    """The first batch decides on the column's type."""
    first_batch = range(70_000)
    values = [*first_batch, *(number for value, _ in ODD_VALUES for number in (value, 2**53 + 1))]
    read_back = [number for pair in ODD_VALUES for number in (read_as(*pair, declared), 2**53 + 1)]
    assert read(write(path, values=values, declared=declared)) == [*first_batch, *read_back]


@pytest.mark.parametrize("column", ["text", "value", "jsonText"])
def test_text_is_text_whatever_its_type(path, column):
    values = [None, "", "a", "nul\0inside", "é", 7, 7.5, b"abc"]
    assert read(write(path, values=values, declared="", column=column), column) == [
        *("", "", "a", "nul\0inside", "é", "7", "7.5", "abc")
    ]


def test_text_that_is_not_utf_8_keeps_what_can_be_read_of_it(path):
    change = f"UPDATE {TABLE} SET text = CAST(x'636166e9' AS TEXT) WHERE rowid = 2"
    assert read(
        write(path, change, values=["tea", "x"], declared="TEXT", column="text"), "text"
    ) == [
        "tea",
        "caf\ufffd",
    ]


def test_bytes_are_hex(path):
    values = [None, b"\x01\xff", "0A", b""]
    assert read(write(path, values=values, declared="BLOB", column="binaryData"), "binaryData") == [
        "",
        "01FF",
        "0A",
        "",
    ]


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE k (start INTEGER PRIMARY KEY DESC)"],
        ["CREATE TABLE k (start INT PRIMARY KEY)"],
        ["CREATE TABLE k (start INTEGER PRIMARY KEY) WITHOUT ROWID"],
        ["CREATE TABLE k (start INTEGER, rowid TEXT DEFAULT 'a column of this name')"],
        ["CREATE TABLE k (start INTEGER, computed AS (start + 1))"],
    ],
    ids=["key down", "key of no rowid", "without rowid", "column rowid", "computed"],
)
def test_tables_of_another_kind(path, monkeypatch, statements):
    monkeypatch.setattr(sqlite_tables, "MIN_ROWS_FOR_TWO_THREADS", 10)
    rename = [f"INSERT INTO k (start) SELECT start FROM {TABLE}", f"DROP TABLE {TABLE}"]
    write(path, *statements, *rename, f"ALTER TABLE k RENAME TO {TABLE}", values=range(200))
    assert sorted(read(path)) == list(range(200))


def test_a_column_that_is_computed_is_not_read(path):
    write(path, f"ALTER TABLE {TABLE} ADD COLUMN end AS (start + 1)", values=range(5))
    assert SqliteExport(path).columns(TABLE) == {"start"}


def test_a_column_that_was_added_later_has_its_default(path):
    write(path, f"ALTER TABLE {TABLE} ADD COLUMN end INTEGER DEFAULT 41", values=range(5))
    assert read(path, "end") == [41] * 5


@pytest.mark.parametrize(
    ("value", "second_half"), [("start + 0.5", [*range(100, 200)]), ("'text'", [None] * 100)]
)
def test_odd_values_in_one_half_of_a_large_table(path, monkeypatch, value, second_half):
    monkeypatch.setattr(sqlite_tables, "MIN_ROWS_FOR_TWO_THREADS", 10)
    write(path, f"UPDATE {TABLE} SET start = {value} WHERE rowid > 100", values=range(200))
    assert read(path) == [*range(100), *second_half]


def test_a_large_table_with_gaps_between_its_rowids_is_read_whole(path, monkeypatch):
    monkeypatch.setattr(sqlite_tables, "MIN_ROWS_FOR_TWO_THREADS", 10)
    write(
        path,
        f"UPDATE {TABLE} SET rowid = rowid - 9000000000000000000 WHERE rowid < 5",
        values=range(200),
    )
    assert sorted(read(path)) == list(range(200))
