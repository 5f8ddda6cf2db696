"""NCCL Inspector logs: a JSON object per operation."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.recorders import EPOCH_NS, MS, log_line, write_log
from tracekit.errors import InputError
from tracekit.late import nccl_inspector
from tracekit.report.notices import notice_sentence
from tracekit.schema import COLLECTIVES

US = 1_000


def read(folder, *lines):
    return nccl_inspector.read(write_log(folder / "host-pid7.log", lines))


def test_a_verbose_line_becomes_a_row(tmp_path):
    recording = read(tmp_path, log_line(4, at_ms=2, waits_ms=1, took_ms=3, size=4096))
    assert recording.collectives.schema == COLLECTIVES
    (row,) = recording.collectives.rows(named=True)
    assert row["op"] == "all_reduce"
    assert (row["group"], row["sequence"], row["bytes"], row["state"]) == (
        "0xabc",
        4,
        4096,
        "completed",
    )
    assert row["enqueued_ns"] == EPOCH_NS + 2 * MS
    assert row["started_ns"] == EPOCH_NS + 3 * MS
    assert row["completed_ns"] == EPOCH_NS + 6 * MS
    assert row["completed_by_ns"] == EPOCH_NS + 6 * MS + 400 * US
    assert row["duration_ns"] == 3 * MS
    assert recording.source.group_ranks == {"0xabc": 0}
    assert (recording.source.host, recording.source.pid) == ("node0", 100)


def test_without_verbose_only_durations_are_known(tmp_path):
    (row,) = read(tmp_path, log_line(4, verbose=False)).collectives.rows(named=True)
    assert row["enqueued_ns"] is None
    assert row["started_ns"] is None
    assert row["duration_ns"] == MS


def test_the_kernel_runs_from_its_first_channel_to_its_last(tmp_path):
    line = log_line(1)
    start = EPOCH_NS // 1_000
    line["coll_perf"]["event_trace_ts"]["kernel_events"] = [
        {"channel_id": 0, "kernel_start_ts": start + 5, "kernel_stop_ts": start + 50},
        {"channel_id": 1, "kernel_start_ts": start + 3, "kernel_stop_ts": start + 70},
        {"channel_id": 2, "kernel_start_ts": 0, "kernel_stop_ts": 0},
    ]
    (row,) = read(tmp_path, line).collectives.rows(named=True)
    assert (row["started_ns"], row["completed_ns"]) == (EPOCH_NS + 3 * US, EPOCH_NS + 70 * US)


def test_a_wrapped_size_is_unknown(tmp_path):
    recording = read(tmp_path, log_line(1, "Send", peer=1, size=18446744073709551502))
    assert recording.collectives.select("op", "is_message", "peer", "bytes").rows() == [
        ("send", True, 1, None)
    ]


def test_the_time_of_the_call_is_no_duration_on_the_gpu(tmp_path):
    assert read(tmp_path, log_line(1, timing="collective_cpu")).collectives[
        "duration_ns"
    ].to_list() == [None]


def test_a_file_may_have_several_communicators(tmp_path):
    recording = read(
        tmp_path,
        log_line(1, rank=3, ranks=8, pid=7),
        log_line(1, group="0xdef", rank=1, ranks=2, pid=7),
    )
    assert recording.source.group_ranks == {"0xabc": 3, "0xdef": 1}
    assert recording.source.group_sizes == {"0xabc": 8, "0xdef": 2}


@pytest.mark.parametrize(
    ("version", "noted"), [("v4.0", False), ("v5.1", False), ("v6.0", True), (None, True)]
)
def test_versions_4_and_5_are_known(tmp_path, version, noted):
    assert bool(read(tmp_path, log_line(1, version=version)).source.notices) is noted


def test_lines_that_cannot_be_read_are_counted(tmp_path):
    path = write_log(tmp_path / "a.log", [log_line(1)])
    whole = json.dumps(log_line(2))
    path.write_text(path.read_text() + '{"header": {}}\n\n' + whole[:80])
    recording = nccl_inspector.read(path)
    assert recording.collectives.height == 1
    assert sorted(
        notice_sentence(notice).rpartition(": ")[2] for notice in recording.source.notices
    ) == [
        "1 line is cut off",
        "1 line is damaged",
    ]


def test_a_compressed_log_is_read(tmp_path):
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(json.dumps(log_line(1)).encode()))
    assert nccl_inspector.read(path).collectives.height == 1
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(InputError, match="damaged gzip"):
        nccl_inspector.read(path)


def test_a_log_without_a_line_is_refused(tmp_path):
    with pytest.raises(InputError, match="no line"):
        read(tmp_path)


def test_lines_of_two_processes_are_refused(tmp_path):
    with pytest.raises(InputError, match="2 processes"):
        read(tmp_path, log_line(1, pid=1), log_line(2, pid=2))


@pytest.mark.parametrize(("size", "is_read"), [(900_000, True), (1_200_000, False)])
def test_lines_are_at_most_a_megabyte(tmp_path, size, is_read):
    line = log_line(1)
    line["header"]["comm_name"] = "x" * size
    path = write_log(tmp_path / "a.log", [log_line(0), line])
    assert (nccl_inspector.read(path).collectives.height == 2) is is_read
