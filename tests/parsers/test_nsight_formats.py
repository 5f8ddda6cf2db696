"""Nsight exports in every format: sqlite, Parquet and Arrow give the same table, and are known by how they begin."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal
from pyarrow import ipc

from tests.parsers.nsight_files import EPOCH, NONE, Report, packed
from tests.parsers.nsight_reading import frames
from tracekit.errors import InputError
from tracekit.parsers import nsight
from tracekit.parsers.discovery import discover

pytestmark = pytest.mark.slow


def arrowdir(source, target, *, stream):
    """The same tables as an arrowdir: a file a table, in the Arrow file or the Arrow stream format."""
    target.mkdir()
    for name, frame in frames(source).items():
        table = frame.to_arrow()
        new = ipc.new_stream if stream else ipc.new_file
        with (
            pa.OSFile(str(target / f"{name}.arrow"), "wb") as sink,
            new(sink, table.schema) as writer,
        ):
            writer.write_table(table)
    return target


def test_every_export_of_a_report_gives_the_same_table(sample, arrow_file):
    (expected,) = nsight.read(sample / "rank0.sqlite")
    for path in (sample / "rank0.parquetdir", arrow_file):
        (rank_events,) = nsight.read(path)
        assert_frame_equal(rank_events.events, expected.events)
        assert rank_events.source.counts == expected.source.counts
        assert rank_events.source.devices == expected.source.devices == ("NVIDIA H200",)


def test_the_exporters_own_arrow_file(corpus):
    folder = corpus.parent / "h200" / "nsys-1f1b"
    (expected,) = nsight.read(folder / "rank0.sqlite")
    (rank_events,) = nsight.read(folder / "rank0.arrow")
    assert_frame_equal(rank_events.events, expected.events)


@pytest.mark.parametrize("stream", [False, True])
def test_an_arrowdir_too(sample, tmp_path, stream):
    (expected,) = nsight.read(sample / "rank0.sqlite")
    (rank_events,) = nsight.read(
        arrowdir(sample / "rank0.parquetdir", tmp_path / "rank0.arrowdir", stream=stream)
    )
    assert_frame_equal(rank_events.events, expected.events)


def test_unsigned_ids_are_the_same_ids(tmp_path):
    (expected,) = nsight.read(
        Report().kernel("k", 5, 9, pid=77, machine=200).save(tmp_path / "a.sqlite")
    )
    folder = tmp_path / "a.parquetdir"
    folder.mkdir()
    unsigned = pl.Series([packed(77, machine=200)]).reinterpret(signed=False)
    assert unsigned[0] > 1 << 63
    kernel = {
        "start": [5],
        "end": [9],
        "deviceId": [0],
        "streamId": [7],
        "correlationId": [None],
        "demangledName": [10],
    }
    pl.DataFrame({**kernel, "globalPid": unsigned}).write_parquet(
        folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    )
    pl.DataFrame({"id": [10], "value": ["k"]}).write_parquet(folder / "StringIds.parquet")
    pl.DataFrame({"utcEpochNs": [EPOCH]}).write_parquet(
        folder / "TARGET_INFO_SESSION_START_TIME.parquet"
    )
    (rank_events,) = nsight.read(folder)
    assert_frame_equal(rank_events.events, expected.events)


def test_large_tables_are_read_in_two_ranges(tmp_path, monkeypatch):
    report = Report()
    for i in range(999):
        row = {
            "corr": None if i % 5 == 0 else 2**32 - 2 - i,
            "stream": NONE if i % 9 == 0 else i,
            "device": i % 3,
        }
        report.kernel(f"k{i % 7}", 10 * i, 10 * i + 5, pid=100 + i % 2, machine=200, **row)
    whole = nsight.read(report.save(tmp_path / "a.sqlite"))
    monkeypatch.setattr("tracekit.parsers.sqlite_tables.MIN_ROWS_FOR_TWO_THREADS", 10)
    halves = nsight.read(tmp_path / "a.sqlite")
    assert len(whole) == len(halves) == 6
    for one, other in zip(whole, halves, strict=True):
        assert_frame_equal(one.events, other.events)
    assert sum(rank.events.height for rank in halves) == 999


def test_the_benchmarks_export_is_one(tmp_path):
    """The benchmark measures the reader on a file it makes itself, which must be what it says."""
    spec = importlib.util.spec_from_file_location(
        "benchmark", Path(__file__).parents[2] / "benchmarks" / "nsight.py"
    )
    assert spec is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    benchmark.make(tmp_path / "a.sqlite", 500, True)
    (rank,) = nsight.read(tmp_path / "a.sqlite")
    assert rank.source.counts == {"kernel": 500, "runtime": 500}
    read = benchmark.with_pandas(str(tmp_path / "a.sqlite"))
    assert read["rows"] == 1000


def test_discovery_knows_reports_and_exports_by_how_they_begin(sample, arrow_file, tmp_path):
    bare = shutil.copy(sample / "rank0.sqlite", tmp_path / "no-ending")
    report = tmp_path / "report.nsys-rep"
    report.write_bytes(b"x")
    for path in (sample / "rank0.sqlite", sample / "rank0.parquetdir", arrow_file, bare, report):
        assert [ref.reader for ref in discover(path).refs] == ["nsight"]
    (tmp_path / "trace.json").write_text("{}")
    for other in (tmp_path / "trace.json", tmp_path / "nothing.sqlite"):
        with pytest.raises(InputError):
            discover(other)
