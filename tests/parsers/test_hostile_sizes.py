"""Inputs made to take long or to grow: each ends within seconds, where it took minutes or gigabytes.

There is no clock in these tests. What took quadratic time is so large here that it would not end.
"""

from __future__ import annotations

import gzip
import pickle
import shutil

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from tests.memory_snapshots import event, write
from tests.sqlite_pages import write_repeated_index, write_repeated_page, write_shared_text
from tracekit import load
from tracekit._loops.json_scanner import NULL
from tracekit._loops.packet_scanner import PacketScanner
from tracekit._util.arrow_sizes import unpacked_bytes
from tracekit._util.inflation import MIN_INFLATED_LIMIT
from tracekit.classify.model_position import frame_depths
from tracekit.errors import InputError, MachineError
from tracekit.late import flight_recorder, nccl_inspector
from tracekit.memory.snapshot_file import read_memory_snapshot, read_memory_snapshots
from tracekit.metrics.host.idle_activity import MAX_LAUNCHING_THREADS, launching_threads
from tracekit.parsers.file_type import detect_file_type
from tracekit.parsers.kineto.captures import holds_capture
from tracekit.parsers.kineto.recording_window import recording_window
from tracekit.parsers.nsight import exports
from tracekit.parsers.nsight.reader import open_export
from tracekit.parsers.perfetto.state import TraceState, Track
from tracekit.parsers.perfetto.table import values_by_key
from tracekit.redact import redact
from tracekit.report.perfetto.serve import moment_parameters
from tracekit.store import source_workers


@pytest.mark.parametrize("packed", [False, True])
def test_many_lists_of_entries_are_not_tried_against_all_that_follows(packed):
    text = b"{" + b'"entries":[' * 500_000
    assert detect_file_type(gzip.compress(text) if packed else text).reader is None


def test_a_dump_is_still_known_by_its_keys():
    assert (
        detect_file_type(b'{"entries" : [ {"x": 1}], "pg_status" : {').reader == "flight_recorder"
    )
    assert detect_file_type(b'{"pg_status": 1, "entries": []}').reader is None


def test_long_names_are_not_tried_in_all_the_ways_to_divide_them(tmp_path):
    file = tmp_path / "a.json"
    name = "Launch" * 200_000
    file.write_text(f'{{"traceEvents": [{{"name": "{name}"}}, {{"name": "{"x" * 10**6}"}}]}}')
    assert not holds_capture(str(file))


@pytest.mark.parametrize(
    "launch",
    [
        "cudaLaunchKernel",
        "cuLaunchKernelEx",
        "hipExtModuleLaunchKernel",
        "hipModuleLaunchCooperativeKernel",
        "cudaLaunchCooperativeKernelMultiDevice",
    ],
)
def test_every_launch_of_a_capture_is_known(tmp_path, launch):
    file = tmp_path / "a.json"
    names = ["cudaStreamBeginCapture_v2", launch, launch]
    events = ",".join(f'{{"name": "{name}"}}' for name in names)
    file.write_text(f'{{"traceEvents": [{events}, {{"cat": "kernel"}}]}}')
    assert holds_capture(str(file))


def test_chained_parents_are_each_looked_at_once():
    state = TraceState()
    count = 50_000
    state.tracks = {
        f"{number}": Track(parent=number - 1, name=f"{number}") for number in range(count)
    }
    state.tracks["0"] = Track(pid=7, tid=9, name="top")
    for number in reversed(range(count)):
        assert state.find_thread(number) == Track(None, 7, 9, "top")


def test_parents_in_a_circle_end():
    state = TraceState()
    state.tracks = {
        "1": Track(parent=2, pid=5),
        "2": Track(parent=1, tid=6),
        "3": Track(parent=3),
    }
    assert state.find_thread(1).pid == 5
    assert state.find_thread(3) == Track()
    assert state.find_thread(99) == Track()


def test_defaults_of_many_writers_are_looked_up_at_once():
    defaults = {f"{writer}": writer + 1 for writer in range(0, 400_000, 2)}
    keys = np.arange(400_000)
    values = values_by_key(defaults, keys)
    assert values[:4].tolist() == [1, NULL, 3, NULL]
    assert values_by_key({}, keys[:2]).tolist() == [NULL, NULL]
    assert values_by_key({f"{2**64}": 5}, keys[:1]).tolist() == [NULL]


def bomb(head, unit):
    """Return a gzip file of a few kilobytes that inflates to more than is read."""
    count = (MIN_INFLATED_LIMIT + (1 << 20)) // len(unit)
    return gzip.compress(head + unit * count)


@pytest.mark.parametrize(("gpus", "is_read"), [(128, True), (129, False)])
def test_a_snapshot_of_more_gpus_than_a_process_has_is_one_line(tmp_path, gpus, is_read):
    content = {"segments": [], "device_traces": [[event("alloc", 0, 512, 1)]] * gpus}
    file = write(tmp_path / "a.pickle", content)
    if is_read:
        assert len(read_memory_snapshots(file)) == gpus
    else:
        with pytest.raises(InputError, match="names 129 GPUs"):
            read_memory_snapshots(file)


ENTRIES = pickle.dumps({"entries": [], "pg_config": {}})


@pytest.mark.parametrize(
    ("read", "head", "unit"),
    [
        (flight_recorder.read, ENTRIES, b"\0"),
        (flight_recorder.read, b'{"entries": [', b"{},"),
        (nccl_inspector.read, b"", b"\n"),
        (nccl_inspector.read, b"", b'{"x": "' + b"x" * 1000 + b'"}\n'),
        (read_memory_snapshot, pickle.dumps({"segments": []}), b"\0"),
    ],
    ids=["pickle", "json", "blank lines", "lines", "snapshot"],
)
def test_kilobytes_do_not_become_gigabytes(tmp_path, read, head, unit):
    content = bomb(head, unit * (1000 // len(unit) + 1))
    file = tmp_path / "fr_rank0.gz"
    file.write_bytes(content)
    assert len(content) < 100_000
    with pytest.raises(InputError, match="inflates to more than 33,554,432 bytes"):
        read(file)


def test_a_genuine_dump_that_compresses_well_is_read(tmp_path):
    entry = {"record_id": 0, "profiling_name": "nccl:all_reduce", "state": "completed"}
    entries = [
        {**entry, "record_id": number, "time_created_ns": number} for number in range(20_000)
    ]
    content = {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": entries}
    data = pickle.dumps(content)
    packed = gzip.compress(data)
    file = tmp_path / "fr_rank0.pickle.gz"
    file.write_bytes(packed)
    assert len(data) > 5 * len(packed)
    flight_recorder.read(file)


@pytest.fixture
def parquet_export(tmp_path):
    """An export with a table of a million equal rows, in a few kilobytes."""
    rows = pl.DataFrame({"start": pl.repeat(0, 1_000_000, eager=True)}).with_columns(end=0)
    rows.write_parquet(tmp_path / "KERNELS.parquet")
    assert (tmp_path / "KERNELS.parquet").stat().st_size < 50_000
    return exports.ArrowExport(tmp_path)


def test_a_parquet_file_of_more_rows_than_fit_into_memory_is_one_line(parquet_export, monkeypatch):
    # Two columns of a million rows, of at least 4 bytes each.
    monkeypatch.setattr(exports, "available_memory", lambda: 8_000_000 - 1)
    with pytest.raises(MachineError, match="1,000,000 rows take"):
        parquet_export.fetch("KERNELS", ["start", "end"])
    assert len(parquet_export.fetch("KERNELS", ["start"])) == 1_000_000


def test_a_parquet_file_whose_rows_fit_into_memory_is_read(parquet_export, monkeypatch):
    monkeypatch.setattr(exports, "available_memory", lambda: 8_000_000)
    assert len(parquet_export.fetch("KERNELS", ["start", "end"])) == 1_000_000


def test_an_export_of_more_rows_than_fit_into_memory_is_one_line(tmp_path, samples, monkeypatch):
    folder = tmp_path / "rank0.parquetdir"
    shutil.copytree(samples / "nsys-1f1b/rank0.parquetdir", folder)
    monkeypatch.setattr(exports, "available_memory", lambda: 1000)
    # Whatever this machine has free: a process of its own would know nothing of the line above.
    monkeypatch.setattr(source_workers, "may_exceed_memory", lambda ref: False)
    with pytest.raises(MachineError, match="rows take"):
        load(folder, workers=1)


def arrow_export(file, rows, *, compression, is_stream):
    """Write a table of equal rows as ``nsys export`` writes its tables."""
    table = pa.table({"start": np.zeros(rows, np.int64), "end": np.zeros(rows, np.int64)})
    named = table.replace_schema_metadata({"table_name": "KERNELS"})
    options = ipc.IpcWriteOptions(compression=compression)
    open_writer = ipc.new_stream if is_stream else ipc.new_file
    with open_writer(str(file), named.schema, options=options) as writer:
        writer.write_table(named)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "file"])
def test_a_compressed_arrow_table_of_gigabytes_is_one_line(tmp_path, compression, is_stream):
    folder = tmp_path / "rank0.arrowdir"
    folder.mkdir()
    file = folder / "KERNELS.arrow"
    arrow_export(file, 5_000_000, compression=compression, is_stream=is_stream)
    limit = max(MIN_INFLATED_LIMIT, 200 * file.stat().st_size)
    export = exports.ArrowExport(folder)
    if limit < 80_000_000:
        with pytest.raises(InputError, match="inflates to more than"):
            export.fetch("KERNELS", ["start"])
    else:  # lz4 packs at most 255 times
        assert len(export.fetch("KERNELS", ["start"])) == 5_000_000


def test_a_stream_of_gigabytes_is_found_without_unpacking_it(tmp_path):
    file = tmp_path / "rank0.arrow"
    arrow_export(file, 5_000_000, compression="zstd", is_stream=True)
    before = pa.total_allocated_bytes()
    export = exports.ArrowExport(file)
    assert export.tables == {"KERNELS"}
    with pytest.raises(InputError, match="inflates to more than 33,554,432 bytes"):
        export.fetch("KERNELS", ["start"])
    assert pa.total_allocated_bytes() - before < 1 << 20


@pytest.mark.parametrize("rows", [1_000_000, 10_000_000])
def test_a_column_without_bytes_counts_by_its_rows(tmp_path, rows):
    folder = tmp_path / "rank0.arrowdir"
    folder.mkdir()
    table = pa.table({"start": pa.nulls(rows)})
    with ipc.new_stream(str(folder / "KERNELS.arrow"), table.schema) as writer:
        writer.write_table(table)
    export = exports.ArrowExport(folder)
    if rows * 4 <= MIN_INFLATED_LIMIT:
        assert len(export.fetch("KERNELS", ["start"])) == rows
    else:
        with pytest.raises(InputError, match="inflates to more than"):
            export.fetch("KERNELS", ["start"])


def test_columns_of_types_that_no_export_has_are_damage(tmp_path):
    folder = tmp_path / "rank0.arrowdir"
    folder.mkdir()
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1000], pa.int32()), pa.array([5]))
    lists = pa.array([[0] * 1000])
    for name, column in (("RUNS", runs), ("LISTS", lists)):
        table = pa.table({"start": column})
        with ipc.new_stream(str(folder / f"{name}.arrow"), table.schema) as writer:
            writer.write_table(table)
    parquet.write_table(pa.table({"start": lists}), folder / "PACKED.parquet")
    export = exports.ArrowExport(folder)
    for name in ("RUNS", "LISTS", "PACKED"):
        assert export.fetch(name, ["start"]).is_empty()
    assert [notice.values["table"] for notice in export.notices] == ["RUNS", "LISTS", "PACKED"]


@pytest.mark.parametrize("rows", [1000, 60_000])
def test_texts_that_many_rows_repeat_are_added_up_before_they_are_written_out(tmp_path, rows):
    folder = tmp_path / "rank0.parquetdir"
    folder.mkdir()
    text = "x" * 16_000
    file = folder / "StringIds.parquet"
    parquet.write_table(pa.table({"value": [text] * (rows - 1) + [None]}), file, compression="zstd")
    assert file.stat().st_size < 10_000
    export = exports.ArrowExport(folder)
    before = pa.total_allocated_bytes()
    if rows == 1000:
        assert export.fetch("StringIds", ["value"])["value"].to_list() == [text] * 999 + [None]
    else:
        with pytest.raises(InputError, match="inflates to more than"):
            export.fetch("StringIds", ["value"])
        assert pa.total_allocated_bytes() - before < 1 << 20


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_sizes_of_arrow_tables_are_known_before_they_are_unpacked(compression):
    content = pa.table({"ns": [7] * 1000, "name": ["a"] * 999 + [None]})
    dictionary = content.set_column(1, "name", content["name"].dictionary_encode())
    for table, least in ((content, 8000 + 999 + 4004), (dictionary, 8000 + 4000 + 1)):
        sink = pa.BufferOutputStream()
        options = ipc.IpcWriteOptions(compression=compression)
        with ipc.new_stream(sink, table.schema, options=options) as writer:
            writer.write_table(table)
        assert least <= unpacked_bytes(sink.getvalue()) < least + 1000
        with pytest.raises(ValueError, match="damaged"):
            unpacked_bytes(sink.getvalue().slice(0, 600))


@pytest.mark.parametrize(
    "text",
    [
        '"ts": 1.2.3',
        '"ts": ' + "9" * 5000,
        '"ts": ..',
    ],
)
def test_odd_times_of_a_recording_are_no_window(tmp_path, text):
    file = tmp_path / "a.json"
    marks = [
        f'{{"name": "{name}", {text}}}'
        for name in ("Iteration Start: PyTorch Profiler", "Record Window End")
    ]
    file.write_text(f'{{"baseTimeNanoseconds": {"9" * 5000}, "traceEvents": [{", ".join(marks)}]}}')
    assert recording_window(file) is None


def test_an_export_with_a_base_of_thousands_of_digits_begins_at_zero(tmp_path):
    file = tmp_path / "a.json"
    file.write_text(
        '{"baseTimeNanoseconds":' + "9" * 5000 + ',"otherData":{"tracekit":"1"},"traceEvents":[]}'
    )
    assert moment_parameters(file, 10**6, 10**6) == "&visStart=995000&visEnd=1005000"


def test_launches_of_many_threads_are_explained_by_the_ranges_of_a_few():
    count = 50_000
    launches = pl.DataFrame({"launch_tid": [*np.repeat(np.arange(count), 2).tolist(), 7, None]})
    threads = launching_threads(launches)
    assert len(threads) == MAX_LAUNCHING_THREADS
    assert 7 in threads
    assert launching_threads(launches.tail(4)) == [7, count - 1]


def test_calls_inside_calls_are_each_looked_at_a_few_times():
    count = 500_000
    assert frame_depths(np.arange(-1, count - 1, dtype=np.int32)).tolist() == list(range(count))


@pytest.mark.parametrize("table", ["CUPTI_ACTIVITY_KIND_KERNEL", "StringIds"])
def test_a_table_of_pages_that_repeat_without_end_is_one_line(tmp_path, table):
    # 40 ** 12 times a row: no machine reads them, and none holds them.
    file = write_repeated_page(tmp_path / "rank0.sqlite", depth=12, table=table)
    assert file.stat().st_size < 16_000
    with pytest.raises(InputError, match="a table holds more than the file has bytes for"):
        open_export(file).fetch(table, ["start"] if table != "StringIds" else ["id", "value"])
    with pytest.raises(InputError, match="a table holds more than the file has bytes for"):
        redact(file, tmp_path / "redacted.sqlite")


def test_a_list_of_tables_without_end_is_one_line(tmp_path):
    file = write_repeated_index(tmp_path / "rank0.sqlite", depth=12)
    assert file.stat().st_size < 16_000
    with pytest.raises(InputError, match="the sqlite file is damaged"):
        open_export(file)


@pytest.mark.parametrize("rows", [1, 300])
def test_a_text_that_rows_of_an_export_share_is_added_up_before_it_is_read(tmp_path, rows):
    file = write_shared_text(tmp_path / "rank0.sqlite", rows=rows, chain_pages=400)
    export = open_export(file)
    before = pa.total_allocated_bytes()
    if rows == 1:
        assert export.fetch("NVTX_EVENTS", ["text"])["text"].str.len_bytes().sum() > 200_000
    else:
        with pytest.raises(InputError, match="a table holds more than the file has bytes for"):
            export.fetch("NVTX_EVENTS", ["text"])
        assert pa.total_allocated_bytes() - before < 1 << 20


def test_names_of_a_perfetto_trace_cannot_be_chosen_for_one_place():
    mix = 0x9E3779B97F4A7C15
    # Texts of eight bytes whose hashes had the same upper half when the hash had no seed.
    hashes = (np.uint64(0x12345678) << np.uint64(32)) + np.arange(10_000, dtype=np.uint64)
    with np.errstate(over="ignore"):
        words = (hashes * np.uint64(pow(mix, -1, 2**64))) ^ np.uint64(8 * mix % 2**64)
    scanner = PacketScanner(
        *(np.zeros((1, 1), dtype) for dtype in (np.int32, np.int64, np.int64, np.int64)),
        np.zeros(1, np.int64),
    )
    slots = np.zeros(1 << 15, np.uint64)
    heap = np.zeros(8 * len(words), np.uint8)
    starts = np.zeros(len(words) + 2, np.int64)
    scanner.set_dictionary(slots, starts, heap, np.zeros(len(words) + 1, np.uint8))
    codes = [scanner.add_text(memoryview(word.tobytes())) for word in words]
    assert codes == list(range(len(words)))
    assert len(np.unique(slots >> np.uint64(32))) > 0.99 * len(words)
