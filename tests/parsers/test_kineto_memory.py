"""The allocator's events: read beside the events table, and held against the independent reader."""

from __future__ import annotations

import io
import json

import pytest

from tests import reference
from tracekit.parsers.kineto import read, worker
from tracekit.schema import MEMORY

pytestmark = pytest.mark.slow


def event(time_us, size, total, **args):
    return {
        "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": 8, "ts": time_us,
        "args": {"Device Type": 1, "Device Id": 0, "Addr": 4096, "Bytes": size, "Total Allocated": total,
                 "Total Reserved": 4 * total, "Ev Idx": 3, **args},
    }  # fmt: skip


def op(time_us):
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "pid": 7,
        "tid": 8,
        "ts": time_us,
        "dur": 1,
        "args": {"Bytes": 9},
    }


def read_events(*events, **keys):
    return read(io.BytesIO(json.dumps({**keys, "traceEvents": list(events)}).encode()), rank=3)


def test_allocations_stand_in_a_table_of_their_own_by_time():
    got = read_events(event(2.5, -64, 100), op(1), event(1.25, 64, 164), baseTimeNanoseconds=1000)
    assert got.events["name"].to_list() == ["aten::mm"]
    assert got.memory.schema == MEMORY
    assert got.memory.rows() == [
        (3, 2250, 7, 8, 1, 0, 64, 164, 656, 4096),
        (3, 3500, 7, 8, 1, 0, -64, 100, 400, 4096),
    ]
    assert got.source.skipped == {}


def test_their_arguments_are_theirs_alone():
    """A complete event may have an argument of the same name; it moves nothing for that."""
    got = read_events(op(1), event(2, 1, 1))
    assert got.events["bytes"].to_list() == [None]
    assert got.events["external_id"].to_list() == [None]


@pytest.mark.parametrize(
    "change",
    [
        {"ts": None},
        {"ts": "soon"},
        {"args": {}},
        {"args": {"Bytes": "many"}},
        {"name": "[memory] "},
        {"name": "memory"},
    ],
)
def test_what_has_no_time_or_size_is_counted_with_the_other_instants(change):
    got = read_events(op(1), {**event(2, 64, 64), **change})
    assert got.memory.is_empty()
    assert got.source.skipped == {"i": 1}


def test_a_time_that_no_clock_shows_is_left_out_and_counted():
    got = read_events(op(1), event(9e15, 64, 64))
    assert (got.memory.height, got.source.skipped) == (0, {"i": 1})


def test_files_of_2021_have_sizes_and_no_totals():
    old = event(1, 64, 0)
    old["args"] = {"Device Type": 0, "Device Id": -1, "Bytes": 4}
    row = read_events(op(1), old).memory.row(0, named=True)
    assert (row["bytes"], row["allocated"], row["reserved"], row["device"]) == (4, None, None, -1)


def test_more_than_the_scanner_has_rows_for(monkeypatch):
    monkeypatch.setattr(worker, "ROWS_PER_CHUNK", 3)
    got = read_events(*(one for k in range(20) for one in (event(k, 1, k), op(k))))
    assert got.memory["allocated"].to_list() == list(range(20))
    assert got.events.height == 20


def test_the_memory_of_the_gpu_is_known_where_all_listed_are_alike():
    alike = read_events(op(1), deviceProperties=[{"totalGlobalMem": 80}, {"totalGlobalMem": 80}])
    apart = read_events(op(1), deviceProperties=[{"totalGlobalMem": 80}, {"totalGlobalMem": 81}])
    assert (alike.source.memory_bytes, apart.source.memory_bytes) == (80, None)


@pytest.mark.parametrize(
    "name",
    [
        "hta/df_index_resolver.json.gz",
        "kineto/resnet50_num_workers_0.worker0.1623143089861.pt.trace.json.gz",
    ],
)
def test_real_files_as_the_independent_reader_reads_them(corpus, name):
    path = corpus / name
    if not path.exists():
        pytest.skip("not in this corpus")
    got = read(path)
    assert got.memory.height > 10_000
    assert got.memory.equals(reference.read_memory(path, rank=got.source.rank))
