"""Dumps and logs of a run put together: one table per rank and recorder."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from tests.recorders import batch_end, dump, entry, log_line, message, write_dumps, write_log
from tracekit.errors import InputError
from tracekit.late.recordings import read_recordings
from tracekit.parsers.discovery import discover
from tracekit.report.notices import notice_sentence

SAMPLES = Path(__file__).parents[2] / "sample_traces/always-on"


def read(folder):
    return read_recordings(discover(folder, need_traces=False).recordings)


def ranks_of(recordings):
    return [(source.recorder, source.rank) for source in recordings.sources]


def test_a_run_has_one_table_per_rank_and_recorder():
    recordings = read(SAMPLES / "late")
    recorders = ("flight_recorder", "nccl_inspector")
    assert ranks_of(recordings) == [(recorder, rank) for recorder in recorders for rank in range(4)]
    counts = recordings.collectives.group_by("source", "rank").len()["len"].to_list()
    assert sorted(counts) == [106] * 4 + [136] * 4


def test_a_dump_that_is_there_twice_counts_once(tmp_path):
    content = dump([entry(1), entry(2)])
    write_dumps(tmp_path, [content])
    write_dumps(tmp_path, [content], as_json=True)
    assert read(tmp_path).collectives["sequence"].to_list() == [1, 2]


def test_dumps_of_one_rank_at_two_times_are_put_together_in_the_latest_state(tmp_path):
    first = dump([entry(1, at_ms=1), entry(2, at_ms=2, state="started")])
    second = dump([entry(2, at_ms=2), entry(3, at_ms=3)])
    (tmp_path / "a_rank0").write_bytes(pickle.dumps(first))
    (tmp_path / "b_rank0").write_bytes(pickle.dumps(second))
    table = read(tmp_path).collectives
    assert table.select("sequence", "state").rows() == [(n, "completed") for n in (1, 2, 3)]


def test_dumps_of_two_starts_of_a_rank_are_named(tmp_path):
    for name, start in (("a_rank0", 1), ("b_rank0", 9_000)):
        (tmp_path / name).write_bytes(pickle.dumps(dump([entry(1, at_ms=start)])))
    with pytest.raises(InputError, match=r"rank 0 has dumps of several runs.*a_rank0, b_rank0"):
        read(tmp_path)


def test_dumps_of_runs_of_different_size_are_named(tmp_path):
    write_dumps(tmp_path, [dump([entry(1)], ranks=(0, 1)), dump([entry(1)], ranks=(0, 1, 2))])
    with pytest.raises(InputError, match=r"different runs: 2 ranks in .*, 3 in"):
        read(tmp_path)


def test_a_dump_without_a_rank_is_named(tmp_path):
    (tmp_path / "dump.pickle").write_bytes(pickle.dumps(dump([entry(1)])))
    with pytest.raises(InputError, match=r"1 dump does not say the rank.*dump\.pickle"):
        read(tmp_path)


def test_the_rank_is_the_last_number_of_a_name_with_a_host(tmp_path):
    names = ("nccl_trace_rank_node02_5", "nccl_trace_rank_gpu-17.cluster_0", "comm_lib_12.json")
    for number, name in enumerate(names):
        content = dump([entry(1, at_ms=number)], ranks=range(16))
        data = json.dumps(content).encode() if name.endswith("json") else pickle.dumps(content)
        (tmp_path / name).write_bytes(data)
    found = read(tmp_path)
    assert [(source.rank, source.rank_from) for source in found.sources] == [
        (0, "name"),
        (5, "name"),
        (12, "name"),
    ]


def test_two_hosts_that_each_count_from_0_are_told(tmp_path):
    for number, host in enumerate(("node01", "node02")):
        for rank in (0, 1):
            content = dump([entry(1, at_ms=2 * number + rank)], ranks=range(4))
            (tmp_path / f"nccl_trace_rank_{host}_{rank}").write_bytes(pickle.dumps(content))
    with pytest.raises(InputError, match=r"rank 0 .* hosts that each count.*node01_0, .*node02_0"):
        read(tmp_path)


def test_what_messages_tell_is_believed_more_than_the_number_in_a_name(tmp_path):
    content = dump([message(1, "send 1->0"), batch_end(2)])
    (tmp_path / "dump_host7").write_bytes(pickle.dumps(content))
    (source,) = read(tmp_path).sources
    assert (source.rank, source.rank_from) == (1, "content")


def test_a_message_tells_the_rank_of_a_dump_without_a_name(tmp_path):
    (tmp_path / "dump.pickle").write_bytes(pickle.dumps(dump([message(1, "send 1->0")])))
    assert ranks_of(read(tmp_path)) == [("flight_recorder", 1)]


def test_a_damaged_dump_is_left_out_with_its_reason(tmp_path):
    write_dumps(tmp_path, [dump([entry(1)]), dump([entry(1)])])
    broken = tmp_path / "nccl_trace_rank_1"
    broken.write_bytes(broken.read_bytes()[:-20])
    recordings = read(tmp_path)
    assert ranks_of(recordings) == [("flight_recorder", 0)]
    (notice,) = recordings.notices
    assert notice_sentence(notice).startswith("rank 1 is left out: ")
    assert "cut off" in notice_sentence(notice)


def test_the_communicator_of_all_processes_tells_the_rank(tmp_path):
    """Four processes in two communicators of two, and in one of four, in another order than their process ids."""
    for pid, (rank, small, small_rank) in enumerate(
        [(2, "0xa", 0), (3, "0xa", 1), (0, "0xb", 0), (1, "0xb", 1)]
    ):
        lines = [
            log_line(1, rank=small_rank, ranks=2, group=small, pid=pid),
            log_line(1, rank=rank, ranks=4, group="0xw", pid=pid),
            log_line(
                2, "Send", peer=1 - small_rank, rank=small_rank, ranks=2, group=small, pid=pid
            ),
        ]
        write_log(tmp_path / f"node0-pid{pid}.log", lines)
    recordings = read(tmp_path)
    assert ranks_of(recordings) == [("nccl_inspector", rank) for rank in range(4)]
    messages = recordings.collectives.filter(recordings.collectives["is_message"])
    assert messages.select("rank", "peer").rows() == [(0, 1), (1, 0), (2, 3), (3, 2)]
    groups = {group.name: group.ranks for group in recordings.sources[0].groups}
    assert groups == {"0xb": (0, 1), "0xw": (0, 1, 2, 3)}


def test_without_such_a_communicator_processes_are_numbered_and_a_notice_says_so(tmp_path):
    for host in ("b", "a"):
        for rank in range(2):
            line = log_line(1, rank=rank, group=f"0x{host}", host=host, pid=9 - rank)
            write_log(tmp_path / f"{host}-pid{9 - rank}.log", [line])
    recordings = read(tmp_path)
    assert [(source.host, source.pid) for source in recordings.sources] == [
        ("a", 8),
        ("a", 9),
        ("b", 8),
        ("b", 9),
    ]
    assert [notice.code for notice in recordings.notices] == ["ranks-by-order"]


def test_two_starts_of_a_process_are_named(tmp_path):
    for pid in (1, 2):
        write_log(
            tmp_path / f"node0-pid{pid}.log",
            [log_line(1, rank=0, pid=pid), log_line(1, group="0xs", pid=pid)],
        )
    write_log(tmp_path / "node0-pid3.log", [log_line(1, rank=1, pid=3)])
    with pytest.raises(
        InputError, match=r"two logs are of rank 0 of one communicator.*pid1\.log, node0-pid2\.log"
    ):
        read(tmp_path)


def test_a_communicator_may_claim_any_number_of_members(tmp_path):
    """Time and memory follow what was recorded, not what a line claims."""
    write_log(tmp_path / "a.log", [log_line(1, ranks=2**31)])
    (source,) = read(tmp_path).sources
    assert [group.ranks for group in source.groups] == [(0,)]
