"""The store's Parquet: bytes counted by hand, and files that polars, Arrow and DuckDB read back as they were."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracekit
from tracekit.classify import classify
from tracekit.errors import OutputError
from tracekit.schema import EVENTS, LABELLED, MEMORY, conform
from tracekit.store.parquet import fields, pages, write
from tracekit.store.parquet.buffers import columns
from tracekit.store.parquet.encodings import DISTINCT, Encoder, run, varint
from tracekit.store.parquet.thrift import Long, structure
from tracekit.store.parquet.write import write_parquet

EXTREMES = (-(2**63), 2**63 - 1, 0, -1, 1)


NOISE = np.random.default_rng(5).bytes(10_000)


def words(*values):
    return np.array(values, np.int64).view(np.uint64)


def bits(text):
    """Bits as they are read, the first row first."""
    return np.packbits(np.array([sign == "1" for sign in text]), bitorder="little")


def indices(values, width, ends=None):
    made = Encoder(len(values)).indices(words(*values), np.array(ends or [len(values)]), width)
    return [page.hex() for page in made]


# Encodings. The numbers packed and the differences are the examples of the format's own specification.


def test_eight_values_are_packed_from_the_lowest_bit_on():
    assert indices(range(8), 3) == ["03" + "88c6fa"]  # one group of eight, and 10001000 11000110 11111010


def test_what_is_missing_of_the_last_eight_is_filled_up():
    assert indices([1, 2, 3], 3) == ["03" + "d10000"]


@pytest.mark.parametrize(
    ("count", "width", "expected"),
    [
        (64, 1, "8001" + "01"),  # a run of 64
        (63, 1, "11" + "ffffffffffffff7f"),  # one less does not pay: eight groups of eight
        (8, 8, "10" + "01"),
        (7, 8, "03" + "0101010101010100"),
        (100, 12, "c801" + "0100"),  # the value takes whole bytes
    ],
)
def test_a_run_of_one_value_is_told_apart_where_that_pays(count, width, expected):
    assert indices([1] * count, width) == [expected]


def test_runs_begin_where_eights_are_full():
    # 3 others and 5 of the run make eight; the run of 95 that is left ends with the page, and so does the next page
    assert indices([1, 2, 3] + [5] * 100 + [1] * 8, 8, [103, 111]) == [
        "03" + "0102030505050505" + "be01" + "05",
        "10" + "01",
    ]


@pytest.mark.parametrize(
    ("valid", "expected"),
    [
        ("101", "03" + "05"),
        ("1" * 64, "8001" + "01"),
        ("1" * 56, "0f" + "ff" * 7),
        ("01010101" + "0" * 64 + "1", "03" + "aa" + "8001" + "00" + "03" + "01"),
    ],
)
def test_levels_are_the_bits_themselves_or_runs_of_them(valid, expected):
    assert [page.hex() for page in Encoder(80).levels(bits(valid), len(valid), 80)] == [expected]


def test_levels_do_not_show_what_stands_behind_the_last_row():
    assert Encoder(8).levels(np.array([0b11111101], np.uint8), 3, 8) == Encoder(8).levels(bits("101"), 3, 8)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1, 2, 3, 4, 5), "80010405" + "02" + "02" + "00000000"),
        ((7, 5, 3, 1, 2, 3, 4, 5), "80010408" + "0e" + "03" + "02000000" + "c03f000000000000"),
        ((-1,), "80010401" + "01"),
        ((), "80010400" + "00"),
    ],
)
def test_numbers_are_their_differences(values, expected):
    """Block of 128, four miniblocks, count, first value; of each block its least difference and four widths."""
    made = Encoder(max(1, len(values))).delta(words(*values), np.array([len(values)]))
    assert [page.hex() for page in made] == [expected]


def test_a_dictionary_is_given_up_where_its_values_are_too_many():
    assert Encoder(9).dictionary(np.arange(9, dtype=np.uint64), 8) is None
    distinct, codes = Encoder(9).dictionary(np.arange(9, dtype=np.uint64)[::-1].copy(), 9)
    assert distinct.tolist() == [8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert codes.tolist() == list(range(9))


@pytest.mark.parametrize("count", [DISTINCT[0], DISTINCT[0] + 1, DISTINCT[1], DISTINCT[1] + 1])
def test_every_size_of_dictionary_holds_as_many_as_it_says(count):
    values = np.arange(count, dtype=np.uint64) << np.uint64(40)  # numbers that differ in their upper bits
    distinct, codes = Encoder(count).dictionary(values, count)
    assert (distinct[codes] == values).all()


def test_runs_and_numbers_in_bytes():
    assert [varint(n).hex() for n in (0, 127, 128, 16384)] == ["00", "7f", "8001", "808001"]
    assert run(1, 262144).hex() == "80802001"


# Thrift.


def test_structures_in_bytes():
    assert structure({}).hex() == "00"
    assert structure({1: 1, 2: None, 4: Long(-1)}).hex() == "15023601" + "00"  # 32 bits, and three fields on 64
    assert structure({1: True, 2: False, 3: "é"}).hex() == "11" + "12" + "1802c3a9" + "00"
    assert structure({5: {1: 0}}).hex() == "5c" + "150000" + "00"
    assert structure({1: [1] * 14}).hex() == "19" + "e5" + "02" * 14 + "00"
    assert structure({1: [1] * 15}).hex() == "19" + "f50f" + "02" * 15 + "00"
    assert structure({1: []}).hex() == "19" + "0c" + "00"
    assert structure({2: structure({1: 0})}) == structure({2: {1: 0}})


# Columns in memory.


@pytest.mark.parametrize("skipped", [0, 1, 8, 13])
def test_a_part_of_a_table_is_found_where_it_begins(skipped):
    whole = pl.DataFrame({"a": [None if i % 3 else i for i in range(40)], "b": pl.Series(range(40), dtype=pl.Int32)})
    part = whole.slice(skipped, 20)
    with columns(part) as (a, b):
        there = np.unpackbits(a.valid, bitorder="little")[:20].astype(bool)
        assert there.tolist() == part["a"].is_not_null().to_list()
        assert a.values[there].tolist() == part["a"].drop_nulls().to_list()
        assert (b.values.tolist(), b.valid, b.nulls) == (part["b"].to_list(), None, 0)


class Pieces:
    """A table that comes in pieces, as polars may give one."""

    height, dtypes = 2, (pl.Int64(),)

    def __arrow_c_stream__(self, _schema):
        piece = pa.table({"a": [1]})
        return pa.concat_tables([piece, piece]).__arrow_c_stream__()


def test_a_table_in_pieces_is_not_read_in_part():
    with pytest.raises(RuntimeError, match="in one piece"), columns(Pieces()):
        pass


# Files.


def written(frame, folder, *, group=write.GROUP_ROWS, page=fields.PAGE_ROWS, worth=pages.WORTH):
    path = Path(folder) / "table.parquet"
    with ExitStack() as stack:
        stack.enter_context(patch.object(write, "GROUP_ROWS", group))
        stack.enter_context(patch.object(fields, "PAGE_ROWS", page))
        stack.enter_context(patch.object(pages, "WORTH", worth))
        write_parquet(frame, path, {"key": "välue"})
    return path


def read_back(frame, path):
    """Hold what polars and Arrow read against the table that was written."""
    again = pl.read_parquet(path)
    assert again.schema == frame.schema
    assert again.equals(frame)
    assert pl.DataFrame(pq.read_table(path)).cast(frame.schema).equals(frame)
    assert pq.read_metadata(path).metadata[b"key"] == "välue".encode()


def runs(values):
    """Values repeated, any of them missing, so that what is written has runs of values and of nulls."""
    return st.lists(st.tuples(st.none() | values, st.integers(1, 70)), max_size=12).map(
        lambda parts: [value for value, count in parts for _ in range(count)]
    )


NUMBERS = {
    pl.Int64(): st.sampled_from(EXTREMES) | st.integers(-(2**63), 2**63 - 1),
    pl.Int32(): st.sampled_from((-(2**31), 2**31 - 1, 0, -1)) | st.integers(0, 9),
    pl.Float32(): st.floats(width=32),
    pl.Categorical(): st.text(max_size=5) | st.sampled_from("ab"),
    pl.Enum(["x", "é", "\N{SNOWMAN}"]): st.sampled_from(["x", "é", "\N{SNOWMAN}"]),
    pl.Enum([str(n) for n in range(300)]): st.integers(0, 299).map(str),
}


@settings(max_examples=40)
@given(st.data())
@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda dtype: str(dtype)[:20])
def test_any_column_is_read_back_as_it_was_written(dtype, data):
    values = data.draw(runs(NUMBERS[dtype]))
    names = ("start_ns", "step", "value") if dtype == pl.Int64() else ("value",)  # as differences, with limits, neither
    frame = pl.DataFrame({name: pl.Series(values, dtype=dtype) for name in names})
    frame = frame.slice(data.draw(st.integers(0, min(9, len(values)))))
    group, page = data.draw(st.sampled_from([(1 << 18, 1 << 15), (64, 16), (200, 8)]))
    worth = data.draw(st.sampled_from([-1.0, pages.WORTH, 9.0]))
    with TemporaryDirectory() as folder:
        read_back(frame, written(frame, folder, group=group, page=page, worth=worth))


@settings(max_examples=40)
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.sampled_from(EXTREMES), min_size=1, max_size=300))
def test_differences_wrap_around(values):
    frame = pl.DataFrame({"id": pl.Series(values, dtype=pl.Int64)})
    with TemporaryDirectory() as folder:
        read_back(frame, written(frame, folder, page=128))


@pytest.mark.parametrize("schema", [EVENTS, LABELLED, MEMORY], ids=["events", "labelled", "memory"])
@pytest.mark.parametrize("rows", [0, 1, 7, 100])
def test_tables_without_a_value(tmp_path, schema, rows):
    frame = conform(pl.DataFrame({"rank": pl.Series([None] * rows, dtype=pl.Int32)}), schema)
    read_back(frame, written(frame, tmp_path))


@pytest.mark.parametrize("dtype", [pl.Int64, pl.Int32, pl.Float32, pl.Categorical], ids=str)
@pytest.mark.parametrize("times", [1, 3])
def test_more_distinct_values_than_sixteen_bits_can_number(tmp_path, dtype, times):
    numbers = np.tile(np.random.default_rng(7).permutation(70_000), times)
    values = pl.Series("value", numbers).cast(pl.String if dtype == pl.Categorical else dtype).cast(dtype)
    frame = values.set(pl.Series(np.arange(len(numbers)) % 1000 == 5), None).to_frame()
    read_back(frame, written(frame, tmp_path))
    as_they_are = dtype in (pl.Int32, pl.Float32) or (dtype == pl.Categorical and times == 1)
    assert (chunk_of(frame, tmp_path, "value").encodings == ("RLE", "PLAIN")) == as_they_are


def test_what_no_page_holds_is_refused_with_its_size(tmp_path, monkeypatch):
    frame = pl.DataFrame({"name": ["a" * 500, "b" * 500]}, {"name": pl.Categorical})
    write_parquet(frame, tmp_path / "fits.parquet")
    monkeypatch.setattr(pages, "MOST_BYTES", 1000)  # two texts of 500, each behind four bytes of its length
    with pytest.raises(OutputError, match=r"take 0\.0 GB, and a page of Parquet holds 2"):
        write_parquet(frame, tmp_path / "large.parquet")


def test_duckdb_reads_the_same(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    rng = np.random.default_rng(3)
    rows = 3 * fields.PAGE_ROWS
    frame = pl.DataFrame(
        {
            "start_ns": np.cumsum(rng.integers(0, 1000, rows)),
            "stream": pl.Series(rng.integers(0, 5, rows)).set(pl.Series(rng.random(rows) < 0.4), None),
            "name": pl.Series([f"k{n}" for n in rng.integers(0, 40, rows)], dtype=pl.Categorical),
        }
    )
    path = written(frame, tmp_path)
    query = (
        "select name::varchar as name, count(stream) as n, sum(start_ns)::bigint as t from '{}' group by 1 order by 1"
    )
    with duckdb.connect(":memory:") as connection:
        found = connection.execute(query.format(path)).fetchall()
    columns = frame.group_by(pl.col("name").cast(pl.String)).agg(pl.col("stream").count(), pl.col("start_ns").sum())
    assert found == columns.sort("name").rows()


def test_limits_are_those_of_each_group(tmp_path):
    start = pl.Series([5, None, -3, 8, 9, 7, None, None], dtype=pl.Int64)
    frame = pl.DataFrame({"start_ns": start, "stream": start})
    found = pq.ParquetFile(written(frame, tmp_path, group=3)).metadata
    limits = [found.row_group(k).column(0).statistics for k in range(3)]
    assert [(one.min, one.max, one.null_count) for one in limits[:2]] == [(-3, 5, 1), (7, 9, 0)]
    assert (limits[2].has_min_max, limits[2].null_count) == (False, 2)
    assert found.row_group(0).column(1).statistics is None
    lazy = pl.scan_parquet(written(frame, tmp_path, group=3)).filter(pl.col("start_ns") > 6)
    assert lazy.collect()["stream"].to_list() == [8, 9, 7]


def chunk_of(frame, folder, name):
    found = pq.ParquetFile(written(frame, folder)).metadata.row_group(0)
    return next(one for k in range(found.num_columns) if (one := found.column(k)).path_in_schema == name)


def test_what_is_the_same_on_all_rows_takes_a_handful_of_bytes(tmp_path):
    frame = conform(pl.DataFrame({"rank": pl.Series([3] * 200_000, dtype=pl.Int32)}), EVENTS)
    for name in EVENTS:
        assert chunk_of(frame, tmp_path, name).total_compressed_size < 60


def test_only_what_becomes_smaller_is_compressed(tmp_path):
    rng = np.random.default_rng(1)
    noise, again = rng.integers(0, 2**40, 5000), np.tile(rng.integers(0, 200, 50), 100)
    frame = pl.DataFrame({"start_ns": noise, "bytes": again})
    assert chunk_of(frame, tmp_path, "start_ns").compression == "UNCOMPRESSED"
    assert chunk_of(frame, tmp_path, "bytes").compression == "GZIP"


@pytest.mark.parametrize(
    ("body", "codec"),
    [
        (bytes(pages.LEAST_BYTES), pages.GZIP),
        (bytes(pages.LEAST_BYTES - 1), pages.UNCOMPRESSED),
        (NOISE[:6100] + bytes(2092), pages.GZIP),  # three quarters of the probe are left
        (NOISE[:7000] + bytes(1192), pages.UNCOMPRESSED),  # 85 %
        (NOISE[: pages.PROBE_BYTES] + bytes(90_000), pages.UNCOMPRESSED),  # nobody looks further
    ],
)
def test_what_a_probe_gives_decides(body, codec):
    made = pages.pages(pages.PLAIN, [pages.Rows(1, b"", body[4:])])  # behind the length of its levels
    assert made.codec == codec


def test_large_texts_are_compressed_even_if_their_rows_are_not():
    rows = [pages.Rows(1, b"", NOISE[:1000])]
    assert pages.pages(pages.PLAIN, rows, (1, bytes(999))).codec == pages.UNCOMPRESSED
    assert pages.pages(pages.PLAIN, rows, (1, bytes(2000))).codec == pages.GZIP


@pytest.mark.parametrize(
    ("distinct", "encoding"), [(DISTINCT[-1], "RLE_DICTIONARY"), (DISTINCT[-1] + 1, "DELTA_BINARY_PACKED")]
)
def test_few_distinct_numbers_are_looked_up_and_many_are_not(tmp_path, distinct, encoding):
    frame = pl.DataFrame({"bytes": np.arange(2 * distinct) % distinct})
    assert encoding in chunk_of(frame, tmp_path, "bytes").encodings


@pytest.mark.parametrize(
    ("there", "distinct", "expected"),
    [
        (fields.PAGE_ROWS, 2, [fields.PAGE_ROWS + 9]),
        (fields.PAGE_ROWS + 1, 2, [fields.PAGE_ROWS, 10]),
        (fields.PAGE_ROWS + 1, 1, [fields.PAGE_ROWS + 10]),
    ],
)
def test_many_values_are_cut_into_pages(there, distinct, expected):
    column = pl.Series([n % distinct for n in range(there)] + [None] * 9, dtype=pl.Int64)
    with patch.object(fields, "pages", wraps=pages.pages) as made, columns(column.to_frame()) as (found,):
        fields.Field("bytes", pl.Int64()).chunk(found, Encoder(len(column)), 0)
    assert [page.size for page in made.call_args.args[1]] == expected


def test_the_same_table_makes_the_same_bytes(tmp_path):
    """However it lies in memory: in pieces, behind other rows, and with anything under its nulls."""
    values = [None if n % 5 else n // 10 for n in range(1003)]
    table = pl.DataFrame({"a": values, "b": pl.Series(map(str, range(1003)), dtype=pl.Categorical)})
    noise = pl.DataFrame({"a": [1, 2, 3], "b": pl.Series(["x", "y", "z"], dtype=pl.Categorical)})
    first = written(table, tmp_path).read_bytes()
    assert written(pl.concat([noise, table]).rechunk().slice(3), tmp_path).read_bytes() == first
    assert written(pl.concat([table[:500], table[500:]], rechunk=False), tmp_path).read_bytes() == first


def test_a_column_the_store_does_not_know_is_named(tmp_path):
    with pytest.raises(TypeError, match="when: a store has no columns of type Datetime"):
        write_parquet(pl.DataFrame({"when": pl.Series([], dtype=pl.Datetime)}), tmp_path / "x.parquet")


@pytest.mark.parametrize("sample", ["1f1b", "memory", "reload", "nsys-1f1b"])
def test_samples_are_read_back_by_polars_and_arrow(samples, tmp_path, sample):
    part = tracekit.load(samples / sample).parts[0]
    for frame in (part.events, part.memory, classify(part.events)):
        read_back(frame, written(frame, tmp_path, page=1 << 12))


def test_a_store_is_made_without_arrow(samples, tmp_path):
    """Importing it takes as long as writing half a million events."""
    code = "import sys, tracekit; tracekit.ingest(sys.argv[1], sys.argv[2], ranks=[0]); print('pyarrow' in sys.modules)"
    words = [sys.executable, "-c", code, str(samples / "reload"), str(tmp_path / "store")]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "False\n"
