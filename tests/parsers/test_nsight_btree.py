"""Rows straight from the pages of an sqlite file are what sqlite says."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from tests.parsers.nsight_files import Report
from tests.parsers.sqlite_tables import EDGES, TABLE, asked, direct, write
from tracekit.parsers import nsight
from tracekit.parsers.nsight import btree, sqlite
from tracekit.parsers.nsight.btree import NUMBER, TEXT, UnusualError, find_stored, read_columns
from tracekit.parsers.nsight.btree.pages import PageFile
from tracekit.parsers.nsight.sqlite import SqliteExport

CHECK = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.fixture(params=[1, 1 << 22], ids=["page by page", "in blocks"])
def block(request, monkeypatch):
    """Blocks of a page or of many, and so many parts in two threads or one."""
    monkeypatch.setattr(btree, "BLOCK_BYTES", request.param)


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
