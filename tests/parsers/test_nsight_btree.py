"""Rows straight from the pages of an sqlite file: what sqlite says, or left to sqlite."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from tests.parsers.nsight_files import Report
from tracekit.parsers import nsight
from tracekit.parsers.nsight import btree, sqlite
from tracekit.parsers.nsight.btree import BLOB, NUMBER, TEXT, UnusualError, find_stored, read_columns
from tracekit.parsers.nsight.btree.pages import PageFile
from tracekit.parsers.nsight.sqlite import SqliteExport
from tracekit.parsers.nsight.tables import read_table

CHECK = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
EDGES = [0, 1, -1, 2, 127, 128, -128, -129, 32767, 32768, 1 << 23, -(1 << 23) - 1, 1 << 31, -(1 << 31), 1 << 47]
EDGES += [-(1 << 47) - 1, (1 << 63) - 1, -(1 << 63), 1_700_000_000_000_000_000]
ROUNDS = 300
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


@pytest.fixture(params=[1, 1 << 22], ids=["page by page", "in blocks"])
def block(request, monkeypatch):
    """Blocks of a page or of many, and so many parts in two threads or one."""
    monkeypatch.setattr(btree, "BLOCK_BYTES", request.param)


# --- what is read ---

whole = st.none() | st.sampled_from(EDGES) | st.integers(-(1 << 63), (1 << 63) - 1)
page_sizes = st.sampled_from([512, 1024, 4096, 65536])


@st.composite
def tables(draw, values=whole):
    """Columns, rows with rowids in any order, and which columns to read in which order."""
    width = draw(st.integers(1, 40))
    columns = {f"c{i}": draw(st.sampled_from(["INTEGER", "INT", "BIGINT NOT NULL DEFAULT 0"])) for i in range(width)}
    rng = random.Random(draw(st.integers(0, 1 << 30)))
    pool = draw(st.lists(values, min_size=1, max_size=30))
    count = draw(st.sampled_from([0, 1, 7, 200]))
    rowid = [rng.choice([rng.randrange(1000), rng.choice(EDGES)]) for _ in range(count)]
    rows = [
        [rowid[r], *(rng.choice(pool) if kind[0] == "I" else rng.choice(EDGES) for kind in columns.values())]
        for r in range(count)
    ]
    wanted = draw(st.lists(st.sampled_from(list(columns)), min_size=1, unique=True))
    return columns, rows, wanted


def test_integers_and_nulls_are_what_sqlite_says(tmp_path, block):
    @CHECK
    @given(tables(), page_sizes, st.sampled_from([0, 2, 3]))
    def check(table, page_size, every):
        columns, rows, wanted = table
        gone = [f"DELETE FROM {TABLE} WHERE rowid % {every} = 0"] if every else []
        path = write(tmp_path / "t.sqlite", columns, rows, page_size=page_size, after=gone)
        expected = asked(path, wanted)
        assert direct(path, wanted) == expected

    check()


def test_texts_bytes_and_keys_are_what_sqlite_says(tmp_path, block):
    short = st.text(max_size=20) | st.none() | st.sampled_from(["", "x" * 80, "nul\0inside", "kernel<é>"])
    columns = {"n": "INTEGER", "t": "TEXT", "k": "INTEGER PRIMARY KEY", "b": "BLOB", "u": "TEXT NOT NULL DEFAULT ''"}

    @CHECK
    @given(st.lists(st.tuples(whole, short, st.none() | st.binary(max_size=60)), max_size=60), page_sizes)
    def check(cells, page_size):
        rows = [[5 * i, n, t, 5 * i, b, "" if t is None else t[::-1]] for i, (n, t, b) in enumerate(cells)]
        path = write(tmp_path / "t.sqlite", columns, rows, page_size=page_size)
        expected = [
            (b or b"", k, (t or "").encode(), n, u.encode()) for b, k, t, n, u in asked(path, ["b", "k", "t", "n", "u"])
        ]
        assert direct(path, ["b", "k", "t", "n", "u"], texts=["t", "u"], blobs=["b"]) == expected

    check()


@pytest.mark.parametrize(("forms", "value"), [("t", "7"), ("t", "x'00'"), ("b", "'text'"), ("b", "1.5"), ("t", "2.5")])
def test_a_value_that_is_not_the_text_or_bytes_it_should_be(tmp_path, forms, value):
    path = write(tmp_path / "t.sqlite", {"a": "ANY"}, [[i, "x" if forms == "t" else b"x"] for i in range(90)])
    wanted = {"texts": ["a"]} if forms == "t" else {"blobs": ["a"]}
    assert direct(path, ["a"], **wanted) == [(b"x",)] * 90
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE {TABLE} SET a = {value} WHERE rowid = 70")
    with pytest.raises(UnusualError):
        direct(path, ["a"], **wanted)


def test_text_that_is_not_utf_8_keeps_what_can_be_read_of_it(tmp_path):
    path = write(tmp_path / "t.sqlite", {"name": "TEXT"}, [[1, "tea"], [2, "x"]])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE {TABLE} SET name = CAST(x'636166e9' AS TEXT) WHERE rowid = 2")
    assert direct(path, ["name"], texts=["name"]) == [(b"tea",), (b"caf\xe9",)]
    assert SqliteExport(path).fetch(TABLE, ["name"])["name"].to_list() == ["tea", "caf\ufffd"]


def test_what_else_a_column_may_hold_is_left_to_sqlite(tmp_path):
    anything = whole | st.floats(allow_nan=False) | st.text(max_size=9) | st.binary(max_size=9)
    outcomes = set()

    @CHECK
    @given(tables(anything), page_sizes)
    def check(table, page_size):
        columns, rows, wanted = table
        path = write(tmp_path / "t.sqlite", columns, rows, page_size=page_size)
        expected = asked(path, wanted)
        try:
            got = direct(path, wanted)
        except UnusualError:
            outcomes.add("left")
            return
        outcomes.add("read")
        assert got == expected
        assert all(isinstance(value, int | None) for row in got for value in row)

    check()
    assert outcomes == {"left", "read"}


@pytest.mark.parametrize("long", [470, 3000, 100_000])
@pytest.mark.parametrize("page_size", [512, 4096, 65536])
def test_rows_that_overflow_their_page_are_read_as_far_as_they_are_on_it(tmp_path, page_size, long):
    columns = {"a": "INTEGER", "b": "INTEGER", "text": "TEXT", "c": "INTEGER"}
    rows = [[i, i * i, None, "x" * (long + i), -i] for i in range(40)]
    path = write(tmp_path / "t.sqlite", columns, rows, page_size=page_size)
    assert direct(path, ["b", "a"]) == asked(path, ["b", "a"]) == [(None, i * i) for i in range(40)]
    try:
        assert direct(path, ["c"]) == [(-i,) for i in range(40)]
        assert long + 60 < page_size
    except UnusualError:
        assert long + 60 > page_size


def test_a_wide_row_whose_header_overflows(tmp_path):
    columns = {f"c{i}": "INTEGER" for i in range(600)}
    path = write(tmp_path / "t.sqlite", columns, [[1, *range(600)]])
    with pytest.raises(UnusualError):
        direct(path, ["c0"])


def test_trees_of_several_levels_and_free_pages(tmp_path, block):
    rows = [[7 * i - 5000, i, None if i % 5 else -i] for i in range(5000)]
    after = [f"DELETE FROM {TABLE} WHERE rowid BETWEEN 100 AND 9000"]
    path = write(tmp_path / "t.sqlite", {"a": "INTEGER", "b": "INTEGER"}, rows, after=after)
    with PageFile(path) as pages:
        assert pages.count > 100
    assert direct(path, ["b", "a"]) == asked(path, ["b", "a"])
    assert len(direct(path, ["a"])) == 5000 - len(range(1 + 5100 // 7, 1 + 14000 // 7))


def test_tables_whose_pages_lie_among_each_other(tmp_path):
    path = write(tmp_path / "t.sqlite", {"a": "INTEGER"}, [])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE other (b)")
        for i in range(3000):
            connection.execute(f"INSERT INTO {TABLE} VALUES (?)", [i])
            connection.execute("INSERT INTO other VALUES (?)", [-i])
    assert direct(path, ["a"]) == [(i,) for i in range(3000)]


# --- what is left to sqlite ---


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


# --- exports ---


def test_every_table_of_a_real_export_is_read_directly(samples):
    path = samples / "nsys-1f1b" / "rank0.sqlite"
    rows = 0
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        connection.text_factory = bytes
        tables = [
            name.decode() for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        connection.text_factory = str
        stored = {table: find_stored(connection, table) for table in tables}
        connection.text_factory = bytes
        for table, where in stored.items():
            forms = {name: NUMBER if name in where.numbers or name == where.key else TEXT for name in where.places}
            forms = {name: form for name, form in forms.items() if not name.endswith(("double", "Value", "float"))}
            query = ", ".join(
                f'"{name}"' if form == NUMBER else f"coalesce(\"{name}\", x'')" for name, form in forms.items()
            )
            expected = connection.execute(f'SELECT {query} FROM "{table}"').fetchall()
            assert read_columns(path, where, forms).rows() == expected, table
            rows += len(expected)
    assert rows > 5000


def test_a_usual_export_needs_no_driver(samples):
    """Importing it takes a third of a small command."""
    code = (
        "import sys; from tracekit.parsers import nsight; "
        f"nsight.read({str(samples / 'nsys-1f1b' / 'rank0.sqlite')!r}); "
        "print([name for name in ('adbc_driver_sqlite', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_export_gives_one_table_either_way(tmp_path, monkeypatch):
    report = Report()
    for i in range(500):
        report.kernel(f"gemm{i % 7}", 10 * i, 10 * i + 6, corr=i, graphNodeId=i if i % 9 == 0 else None)
        report.call("cudaLaunchKernel", 10 * i - 5, 10 * i - 4, corr=i).copy(10 * i, 10 * i + 1, kind=1, corr=i)
    path = report.range("step", 0, 5000).save(tmp_path / "rank0.sqlite")
    (fast,) = nsight.read(path)

    def left(*_):
        raise UnusualError

    monkeypatch.setattr(sqlite, "read_columns", left)
    (slow,) = nsight.read(path)
    assert_frame_equal(fast.events, slow.events)
    assert fast.source == slow.source
