"""Nsight files: every export format, reports through nsys, and files that are broken, locked or something else."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal
from pyarrow import ipc

from tests.parsers.nsight_files import EPOCH, NONE, Report, packed
from tracekit.errors import InputError, OptionError
from tracekit.parsers import nsight
from tracekit.parsers.discovery import discover
from tracekit.schema import EVENTS


@pytest.fixture
def sample(samples):
    return samples / "nsys-1f1b"


def frames(folder):
    return {file.stem: pl.read_parquet(file) for file in sorted(folder.glob("*.parquet"))}


def arrowdir(source, target, *, stream):
    """The same tables as an arrowdir: a file a table, in the Arrow file or the Arrow stream format."""
    target.mkdir()
    for name, frame in frames(source).items():
        table = frame.to_arrow()
        new = ipc.new_stream if stream else ipc.new_file
        with pa.OSFile(str(target / f"{name}.arrow"), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table)
    return target


@pytest.fixture(scope="session")
def arrow_file(samples, tmp_path_factory):
    """The same tables as one .arrow file: a stream a table, one after another, named in the schema's metadata."""
    path = tmp_path_factory.mktemp("arrow") / "rank0.arrow"
    with path.open("wb") as file:
        for name, frame in frames(samples / "nsys-1f1b" / "rank0.parquetdir").items():
            table = frame.to_arrow().replace_schema_metadata({"table_name": name})
            with ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table)
    return path


# --- formats ---


def test_every_export_of_a_report_gives_the_same_table(sample, arrow_file):
    (expected,) = nsight.read(sample / "rank0.sqlite")
    for path in (sample / "rank0.parquetdir", arrow_file):
        (found,) = nsight.read(path)
        assert_frame_equal(found.events, expected.events)
        assert found.source.counts == expected.source.counts
        assert found.source.devices == expected.source.devices == ("NVIDIA H200",)


def test_the_exporters_own_arrow_file(corpus):
    folder = corpus.parent / "h200" / "nsys-1f1b"
    (expected,) = nsight.read(folder / "rank0.sqlite")
    (found,) = nsight.read(folder / "rank0.arrow")
    assert_frame_equal(found.events, expected.events)


@pytest.mark.parametrize("stream", [False, True])
def test_an_arrowdir_too(sample, tmp_path, stream):
    (expected,) = nsight.read(sample / "rank0.sqlite")
    (found,) = nsight.read(arrowdir(sample / "rank0.parquetdir", tmp_path / "rank0.arrowdir", stream=stream))
    assert_frame_equal(found.events, expected.events)


def test_unsigned_ids_are_the_same_ids(tmp_path):
    (expected,) = nsight.read(Report().kernel("k", 5, 9, pid=77, machine=200).save(tmp_path / "a.sqlite"))
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
    pl.DataFrame({**kernel, "globalPid": unsigned}).write_parquet(folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet")
    pl.DataFrame({"id": [10], "value": ["k"]}).write_parquet(folder / "StringIds.parquet")
    pl.DataFrame({"utcEpochNs": [EPOCH]}).write_parquet(folder / "TARGET_INFO_SESSION_START_TIME.parquet")
    (found,) = nsight.read(folder)
    assert_frame_equal(found.events, expected.events)


def test_large_tables_are_read_in_two_ranges(tmp_path, monkeypatch):
    report = Report()
    for i in range(999):
        row = {"corr": None if i % 5 == 0 else 2**32 - 2 - i, "stream": NONE if i % 9 == 0 else i, "device": i % 3}
        report.kernel(f"k{i % 7}", 10 * i, 10 * i + 5, pid=100 + i % 2, machine=200, **row)
    whole = nsight.read(report.save(tmp_path / "a.sqlite"))
    monkeypatch.setattr("tracekit.parsers.nsight.sqlite.SMALL", 10)
    halves = nsight.read(tmp_path / "a.sqlite")
    assert len(whole) == len(halves) == 6
    for one, other in zip(whole, halves, strict=True):
        assert_frame_equal(one.events, other.events)
    assert sum(rank.events.height for rank in halves) == 999


def test_the_benchmarks_export_is_one(tmp_path):
    """The benchmark measures the reader on a file it makes itself, which must be what it says."""
    spec = importlib.util.spec_from_file_location("benchmark", Path(__file__).parents[2] / "benchmarks" / "nsight.py")
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


# --- the user's file stays as it is ---


def test_the_file_is_left_byte_identical_with_nothing_beside_it(sample, tmp_path):
    path = Path(shutil.copy(sample / "rank0.sqlite", tmp_path / "rank0.sqlite"))
    path.chmod(0o644)
    before = hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns
    nsight.read(path)
    assert (hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns) == before
    assert [file.name for file in tmp_path.iterdir()] == ["rank0.sqlite"]


def test_a_file_in_wal_mode_leaves_nothing_beside_it_either(tmp_path):
    path = Report().kernel("k", 1, 2).save(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    before = path.read_bytes()
    assert nsight.read(path)[0].events.height == 1
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.sqlite"]


def test_a_read_only_file_in_a_read_only_folder(tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir()
    path = Report().kernel("k", 1, 2).save(folder / "odd name #1?.sqlite")
    path.chmod(stat.S_IRUSR)
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert nsight.read(path)[0].events.height == 1
    finally:
        folder.chmod(stat.S_IRWXU)


# --- broken and foreign files ---


def refused(path, **options):
    with pytest.raises(InputError) as caught:
        nsight.read(path, **options)
    error = caught.value
    assert "\n" not in error.message
    assert error.hint
    return error


def test_no_such_file(tmp_path):
    assert "no such file" in refused(tmp_path / "gone.sqlite").message


def test_an_empty_file(tmp_path):
    (tmp_path / "a.sqlite").touch()
    assert "is empty" in refused(tmp_path / "a.sqlite").message


def test_an_sqlite_file_that_is_no_export(tmp_path):
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE albums (name)")
    assert "no Nsight Systems tables" in refused(tmp_path / "a.sqlite").message


def test_an_sqlite_file_without_tables(tmp_path):
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as connection:
        connection.execute("PRAGMA user_version = 1")
    assert "no Nsight Systems tables" in refused(tmp_path / "a.sqlite").message


def test_an_export_without_events(tmp_path):
    report = Report()
    assert "no GPU events" in refused(report.save(tmp_path / "a.sqlite")).message


@pytest.mark.parametrize("name", ["a.sqlite", "a.arrow"])
def test_text_under_a_false_name(tmp_path, name):
    (tmp_path / name).write_text("these are not the tables you are looking for\n" * 9)
    assert refused(tmp_path / name).message.startswith(str(tmp_path / name))


def test_a_folder_of_other_parquet_files(tmp_path):
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "a.parquet")
    assert "no Nsight Systems tables" in refused(tmp_path).message


def test_cpu_events_alone_are_read_with_a_notice(tmp_path):
    (rank,) = nsight.read(Report().range("work", 1, 9).save(tmp_path / "a.sqlite"))
    assert rank.source.counts == {"annotation": 1}
    assert "no-gpu-events" in {notice.code for notice in rank.source.notices}


LOCKER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
connection.execute("CREATE TABLE more (x)")
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_file_that_is_being_written_is_refused_and_read_afterwards(tmp_path):
    path = Report().kernel("k", 1, 2).save(tmp_path / "a.sqlite")
    with subprocess.Popen(
        [sys.executable, "-c", LOCKER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as locker:
        assert locker.stdout is not None
        assert locker.stdout.readline() == "locked\n"
        assert "another program is writing" in refused(path).message
        locker.communicate()
    assert nsight.read(path)[0].events.height == 1


def test_a_log_that_was_not_written_back_is_refused(tmp_path):
    path = Report().kernel("k", 1, 2).save(tmp_path / "a.sqlite")
    (tmp_path / "a.sqlite-wal").write_bytes(b"x" * 100)
    assert "another program is writing" in refused(path).message


def readable(path, table="CUPTI_ACTIVITY_KIND_KERNEL"):
    """What sqlite itself can still read of a table, from both ends."""
    found = set()
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        for order in ("ASC", "DESC"):
            with contextlib.suppress(sqlite3.DatabaseError):
                for row in connection.execute(f"SELECT start, end FROM {table} ORDER BY rowid {order}"):
                    found.add(row)
    return found


@pytest.mark.parametrize("share", [0.999, 0.9, 0.7, 0.5, 0.3, 0.1, 0.01])
def test_a_truncated_file_gives_what_is_left_or_one_clear_line(sample, tmp_path, share):
    whole = (sample / "rank0.sqlite").read_bytes()
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(whole[: int(len(whole) * share)])
    left = readable(path)
    if not left and not readable(path, "NVTX_EVENTS") and not readable(path, "CUPTI_ACTIVITY_KIND_RUNTIME"):
        assert "damaged" in refused(path).message
        return
    (rank,) = nsight.read(path)
    assert "truncated" in {notice.code for notice in rank.source.notices}
    (complete,) = nsight.read(sample / "rank0.sqlite")
    kept = rank.events.filter(pl.col("kind") == "kernel").select("start_ns", "end_ns")
    assert len(left) - 64 <= kept.height <= len(left)  # it stops at most a batch short of the damage, at either end
    if "no-clock" not in {notice.code for notice in rank.source.notices}:
        assert kept.join(complete.events, on=["start_ns", "end_ns"], how="anti").is_empty()
    refused(path, lenient=False)


def test_a_table_damaged_in_the_middle_keeps_its_sound_rows(tmp_path):
    report = Report()
    for i in range(20000):
        report.kernel("k", 10 * i, 10 * i + 5, corr=i)
    path = report.save(tmp_path / "a.sqlite")
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(bytes(data))
    (rank,) = nsight.read(path)
    assert 0 < rank.events.height < 20000
    assert "damaged-table" in {notice.code for notice in rank.source.notices}


@pytest.mark.parametrize("name", ["rank0.sqlite", "rank0.arrow"])
@pytest.mark.parametrize("seed", range(8))
def test_random_damage_never_ends_in_anything_but_a_table_or_one_line(sample, arrow_file, tmp_path, name, seed):
    rng = random.Random(f"{name}{seed}")
    data = bytearray((arrow_file if name.endswith("arrow") else sample / name).read_bytes())
    for _ in range(rng.choice([1, 10, 100])):
        at = rng.randrange(len(data) - 50)
        data[at : at + 50] = rng.randbytes(50)
    (tmp_path / name).write_bytes(bytes(data))
    with contextlib.suppress(InputError):
        for rank in nsight.read(tmp_path / name):
            assert rank.events.schema == EVENTS


def test_a_truncated_arrow_file_keeps_the_tables_before(arrow_file, tmp_path):
    whole = arrow_file.read_bytes()
    path = tmp_path / "rank0.arrow"
    path.write_bytes(whole[: whole.index(b"NVTX_EVENTS") + 5000])
    (rank,) = nsight.read(path)
    assert rank.source.counts["kernel"] == 643
    assert "annotation" not in rank.source.counts
    assert "truncated" in {notice.code for notice in rank.source.notices}
    refused(path, lenient=False)


@pytest.mark.parametrize("size", [200, 10, 1])
def test_an_arrow_file_with_no_table_left(arrow_file, tmp_path, size):
    path = tmp_path / "rank0.arrow"
    path.write_bytes(arrow_file.read_bytes()[:size])
    assert "not an Arrow export" in refused(path).message


def test_a_damaged_parquet_table_is_left_out_and_said(sample, tmp_path):
    folder = Path(shutil.copytree(sample / "rank0.parquetdir", tmp_path / "rank0.parquetdir"))
    (folder / "NVTX_EVENTS.parquet").write_bytes(b"PAR1 no more")
    (rank,) = nsight.read(folder)
    assert rank.source.counts["kernel"] == 643
    assert "damaged-table" in {notice.code for notice in rank.source.notices}
    refused(folder, lenient=False)


# --- reports ---

FAKE = """#!/bin/sh
# Stands in for nsys: exports by copying, and understands what the real one does.
case "$*" in *--help*) echo "  --include-json=<true|false>"; exit 0;; esac
echo "$*" >> "{log}"
for word in "$@"; do
  case "$word" in --output=*) target="${{word#--output=}}";; esac
done
{action}
"""


def fake_nsys(folder, action):
    program = folder / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(FAKE.format(log=folder / "log", action=action))
    program.chmod(0o755)
    return program


@pytest.fixture
def report_file(tmp_path):
    path = tmp_path / "rank3.nsys-rep"
    path.write_bytes(b"a report")
    return path


def test_a_report_is_exported_by_nsys_on_the_path(sample, tmp_path, report_file, monkeypatch):
    program = fake_nsys(tmp_path, f'cp "{sample}/rank1.sqlite" "$target"')
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    (rank,) = nsight.read(report_file)
    assert (rank.source.rank, rank.source.path) == (3, str(report_file))
    assert rank.source.counts["kernel"] == 669
    said = (tmp_path / "log").read_text()
    assert "--type=sqlite" in said
    assert "--include-json=true" in said
    assert "--include-blobs" not in said  # this exporter does not know it
    exported = said.split("--output=")[1].split()[0]
    assert not Path(exported).exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bin", "log", "rank3.nsys-rep"]


def test_or_by_the_one_that_was_named(sample, tmp_path, report_file):
    program = fake_nsys(tmp_path, f'cp "{sample}/rank1.sqlite" "$target"')
    assert nsight.read(report_file, nsys=str(program))[0].source.rank == 3


def test_without_nsys_the_command_to_type_is_said(report_file, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    error = refused(report_file)
    assert "nsys is not on the PATH" in error.message
    assert "nsys export --type sqlite rank3.nsys-rep" in error.hint


def test_an_exporter_that_fails_is_said(tmp_path, report_file):
    program = fake_nsys(tmp_path, "exit 7")
    error = refused(report_file, nsys=str(program))
    assert "exit code 7" in error.message
    assert "at least as new" in error.hint


def test_an_exporter_that_is_none(report_file):
    with pytest.raises(OptionError, match="not a program"):
        nsight.read(report_file, nsys="/nowhere/nsys")
