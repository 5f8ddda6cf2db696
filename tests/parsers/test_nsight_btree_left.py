"""Tables, files and pages that are left to sqlite: of another kind than usual, or damaged."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.parsers.sqlite_tables import EDGES, TABLE, asked, direct, write
from tracekit.parsers.nsight import sqlite
from tracekit.parsers.nsight.btree import UnusualError
from tracekit.parsers.nsight.btree.pages import PageFile
from tracekit.parsers.nsight.sqlite import SqliteExport
from tracekit.parsers.nsight.tables import read_table

ROUNDS = 300


@pytest.fixture
def plain(tmp_path):
    return write(tmp_path / "t.sqlite", {"a": "INTEGER", "b": "INTEGER"}, [[i, i, -i] for i in range(200)])


def same_by_sqlite(path, columns=("a",)):
    """The table is not read directly, and sqlite's answer is the one that is given."""
    with pytest.raises(UnusualError):
        direct(path, list(columns))
    got = SqliteExport(path).fetch(TABLE, columns)
    assert got.rows() == asked(path, columns)
    return got


@pytest.mark.parametrize(
    "statements",
    [
        [f"ALTER TABLE {TABLE} RENAME TO k", f"CREATE VIEW {TABLE} AS SELECT * FROM k"],
        ["CREATE TABLE k (a INTEGER PRIMARY KEY DESC, b INTEGER)"],
        ["CREATE TABLE k (a INT PRIMARY KEY, b INTEGER)"],
        ["CREATE TABLE k (a INTEGER, b INTEGER, PRIMARY KEY (a, b))"],
        ["CREATE TABLE k (b INTEGER PRIMARY KEY, a INTEGER) WITHOUT ROWID"],
        ["CREATE TABLE k (a INTEGER AS (b + 1), b INTEGER)"],
        ["CREATE TABLE k (a REAL, b INTEGER)"],
        ["CREATE TABLE k (a, b INTEGER)"],
        ["CREATE TABLE k (b INTEGER)", "INSERT INTO k VALUES (3)", "ALTER TABLE k ADD COLUMN a INTEGER DEFAULT 41"],
        ["CREATE TABLE k (b INTEGER)", "INSERT INTO k VALUES (3)", "ALTER TABLE k ADD COLUMN a INTEGER"],
        ["PRAGMA journal_mode = WAL"],
    ],
    ids=[
        "view",
        "key down",
        "key of no rowid",
        "two keys",
        "without rowid",
        "computed",
        "real",
        "untyped",
        "added with default",
        "added",
        "write-ahead",
    ],
)
def test_tables_and_files_of_another_kind(plain, statements):
    with closing(sqlite3.connect(plain)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
        if any("TABLE k" in statement and "CREATE" in statement for statement in statements):
            connection.execute(f"INSERT INTO k (b) SELECT b FROM {TABLE}")
            connection.execute(f"DROP TABLE {TABLE}")
            connection.execute(f"ALTER TABLE k RENAME TO {TABLE}")
    assert same_by_sqlite(plain).height >= 200


@pytest.mark.parametrize(("value", "read_as"), [("1.5", 1), ("'text'", None), ("1e300", None)])
def test_one_value_of_another_kind(plain, value, read_as):
    with closing(sqlite3.connect(plain)) as connection, connection:
        connection.execute(f"UPDATE {TABLE} SET a = {value} WHERE rowid = 150")
    with pytest.raises(UnusualError):
        direct(plain, ["a"])
    assert direct(plain, ["b"]) == asked(plain, ["b"])
    got = read_table(SqliteExport(plain), TABLE, ["a"]).to_series().to_list()
    assert got == [read_as if i == 150 else i for i in range(200)]


def test_a_fraction_in_one_half_of_a_large_table(plain, monkeypatch):
    monkeypatch.setattr(sqlite, "SMALL", 10)
    with closing(sqlite3.connect(plain)) as connection, connection:
        connection.execute(f"UPDATE {TABLE} SET a = a + 0.5 WHERE rowid >= 100")
    assert SqliteExport(plain).fetch(TABLE, ["a"]).to_series().to_list() == list(range(200))


@pytest.mark.parametrize(
    ("at", "new"),
    [(18, b"\2"), (19, b"\2"), (20, b"\1"), (21, b"\x41"), (16, b"\0\1"), (16, b"\3\0"), (24, b"\xff"), (59, b"\2")],
)
def test_headers_that_say_something_else(plain, at, new):
    data = bytearray(plain.read_bytes())
    data[at : at + len(new)] = new
    plain.write_bytes(data)
    with pytest.raises(UnusualError):
        PageFile(plain)


@pytest.mark.parametrize("change", [-1, -512, 1, 512])
def test_files_of_another_size_than_their_header_says(plain, change):
    data = plain.read_bytes()
    plain.write_bytes(data[:change] if change < 0 else data + bytes(change))
    with pytest.raises(UnusualError):
        PageFile(plain)


def test_a_file_that_becomes_shorter_while_it_is_read(plain):
    with PageFile(plain) as pages:
        leaves = pages.leaves(2)
        plain.write_bytes(plain.read_bytes()[:1024])
        with pytest.raises(UnusualError):
            pages.read(leaves, np.empty(len(leaves) * pages.size, np.uint8))


# --- damage ---


def test_damaged_pages_give_what_sqlite_gives_or_are_left_to_it(tmp_path):
    columns = {"a": "INTEGER", "b": "INTEGER", "c": "TEXT", "d": "INTEGER"}
    rows = [[3 * i, EDGES[i % len(EDGES)], i, "x" * (i % 23), None if i % 3 else i * i] for i in range(300)]
    sound = {}
    for size in (512, 1024):
        sound[size] = write(tmp_path / f"{size}.sqlite", columns, rows, page_size=size).read_bytes()
    path = tmp_path / "t.sqlite"
    outcomes = {"same": 0, "left": 0}
    rng = random.Random(5)
    for _ in range(ROUNDS):
        size = rng.choice([512, 1024])
        data = bytearray(sound[size])
        for _ in range(rng.choice([1, 1, 2, 4])):
            page = rng.randrange(1, len(data) // size) * size
            # The start of a page and of its cells decide most; single bits, small steps and any byte.
            at = page + rng.choice([rng.randrange(14), rng.randrange(8, 100), rng.randrange(size)])
            data[at] = rng.choice(
                [data[at] ^ 1 << rng.randrange(8), (data[at] + rng.choice([-1, 1])) % 256, rng.randrange(256)]
            )
        path.write_bytes(data)
        wanted = rng.choice([["a", "b"], ["d"], ["b", "c", "d", "a"], ["c"]])
        try:
            got = direct(path, wanted, texts=["c"])
        except (UnusualError, sqlite3.DatabaseError):
            outcomes["left"] += 1
            continue
        assert got == asked(path, wanted, text_factory=bytes)
        outcomes["same"] += 1
    assert outcomes["same"] > ROUNDS // 10
    assert outcomes["left"] > ROUNDS // 10


def test_pages_in_a_circle_end(plain):
    with closing(sqlite3.connect(plain)) as connection, connection:
        root = connection.execute(f"SELECT rootpage FROM sqlite_master WHERE name = '{TABLE}'").fetchone()[0]
    data = bytearray(plain.read_bytes())
    start = (root - 1) * 512
    assert data[start] == 5
    data[start + 8 : start + 12] = root.to_bytes(4, "big")
    plain.write_bytes(data)
    with pytest.raises(UnusualError):
        direct(plain, ["a"])


def test_nothing_outside_the_pages_is_touched():
    done = subprocess.run(
        [sys.executable, "-m", "tests.parsers.guarded_pages", "1500"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
