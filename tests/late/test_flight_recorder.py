"""Flight-recorder dumps: pickle or JSON, one table."""

from __future__ import annotations

import gzip
import json
import pickle
import random

import msgspec
import pytest

from tests.recorders import EPOCH_NS, MS, batch_end, dump, entry, message
from tracekit.errors import InputError
from tracekit.late import flight_recorder
from tracekit.schema import COLLECTIVES, GroupProgress


def read(folder, content, name="fr_rank0", **options):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content))
    return flight_recorder.read(path, **options)


def test_an_entry_becomes_a_row(tmp_path):
    made = entry(7, at_ms=5, took_ms=1.5, sizes=(10, 100))
    recording = read(tmp_path, dump([made]), rank=3)
    assert recording.collectives.schema == COLLECTIVES
    (row,) = recording.collectives.rows(named=True)
    assert row == {
        "rank": 3,
        "source": "flight_recorder",
        "id": 6,
        "group": "0 [0,1]",
        "sequence": 7,
        "op": "all_reduce",
        "is_message": False,
        "peer": None,
        "bytes": 4_000,
        "dtype": "Float",
        "enqueued_ns": EPOCH_NS + 5 * MS,
        "started_ns": None,
        "completed_ns": None,
        "completed_by_ns": EPOCH_NS + 205 * MS,
        "duration_ns": 1_500_000,
        "state": "completed",
        "step": None,
    }
    assert recording.source.progress == {"0 [0,1]": GroupProgress(7, 7, 7)}


def test_json_and_pickle_give_the_same(tmp_path):
    content = dump([entry(1, took_ms=2.5), message(2, "send 1->0"), batch_end(3)])
    tables = [
        read(tmp_path, raw).collectives
        for raw in (
            pickle.dumps(content),
            json.dumps(content).encode(),
            gzip.compress(pickle.dumps(content)),
        )
    ]
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("gloo:broadcast", "broadcast"),
    ],
)
def test_operations_have_one_name(tmp_path, name, op):
    assert read(tmp_path, dump([entry(1, profiling_name=name)])).collectives["op"].to_list() == [op]


def test_the_size_is_that_of_the_smaller_side(tmp_path):
    gather = entry(1, "_all_gather_base", sizes=(8,), output_sizes=[[32]])
    scatter = entry(2, "_reduce_scatter_base", sizes=(32,), output_sizes=[[8]])
    assert read(tmp_path, dump([gather, scatter])).collectives["bytes"].to_list() == [32, 32]


def test_sizes_of_unknown_types_are_unknown(tmp_path):
    made = entry(1, input_dtypes=["Unheard"], output_dtypes=["Unheard"])
    assert read(tmp_path, dump([made])).collectives["bytes"].to_list() == [None]


def test_messages_tell_the_rank_and_their_peer_by_the_ranks_of_the_group(tmp_path):
    recording = read(tmp_path, dump([message(1, "recv 1<-0"), batch_end(2)], ranks=(4, 6)), rank=0)
    assert recording.source.rank == 6
    assert recording.source.rank_from == "content"
    assert recording.collectives["peer"].to_list() == [4, None]


def test_messages_have_the_state_of_their_batch(tmp_path):
    entries = [
        message(1, "send 0->1", batch=1),
        message(2, "recv 0<-1", batch=1),
        batch_end(3, batch=1, state="completed"),
        message(4, "send 0->1", batch=2),
        batch_end(5, batch=2, state="started"),
    ]
    table = read(tmp_path, dump(entries)).collectives
    assert table["state"].to_list() == ["completed", "completed", "completed", "started", "started"]
    assert table["is_message"].all()
    assert table["sequence"].to_list() == [1, 1, 1, 2, 2]


def test_a_batch_of_collectives_is_no_message(tmp_path):
    entries = [entry(1, "_all_gather_base", state="scheduled"), entry(1, "coalesced", record_id=1)]
    table = read(tmp_path, dump(entries)).collectives
    assert not table["is_message"].any()
    assert table["state"].to_list() == ["completed", "completed"]


def test_an_operation_given_up_before_it_completed_has_timed_out(tmp_path):
    made = entry(1, state="started", retired=True)
    assert read(tmp_path, dump([made])).collectives["state"].to_list() == ["timed_out"]


@pytest.mark.parametrize("minor", range(11))
def test_versions_2_0_to_2_10_are_read_without_a_notice(tmp_path, minor):
    recording = read(tmp_path, dump([entry(1)], version=f"2.{minor}"))
    assert not recording.source.notices


def test_a_newer_minor_version_is_read_with_a_notice(tmp_path):
    recording = read(tmp_path, dump([entry(1, new_field=[1])], version="2.11"))
    assert [notice.code for notice in recording.source.notices] == ["recorder-version"]
    assert recording.collectives.height == 1


def test_fields_that_old_versions_lack_are_unknown(tmp_path):
    """Version 2.0 has the group's name alone and no mark of messages."""
    old = {
        "pg_name": "0",
        "collective_seq_id": 0,
        "p2p_seq_id": 4,
        "profiling_name": "nccl:send 1->0",
        "state": "started",
    }
    table = read(tmp_path, {"version": "2.0", "entries": [old]}).collectives
    assert table.select("rank", "group", "sequence", "is_message", "peer").rows() == [
        (1, "0", 4, True, 0)
    ]


def test_another_major_version_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"version 1\.5"):
        read(tmp_path, dump([entry(1)], version="1.5"))


def test_impossible_numbers_are_unknown(tmp_path):
    made = entry(
        1,
        time_created_ns=2**70,
        duration_ms=float("nan"),
        time_discovered_completed_ns=0,
        input_sizes=[[-4]],
    )
    (row,) = read(tmp_path, dump([made])).collectives.rows(named=True)
    assert (row["enqueued_ns"], row["duration_ns"], row["completed_by_ns"]) == (None, None, None)


@pytest.mark.parametrize(("milliseconds", "believed"), [(0.9e12, True), (1.1e12, False)])
def test_durations_beyond_30_years_are_damage(tmp_path, milliseconds, believed):
    table = read(tmp_path, dump([entry(1, took_ms=milliseconds)])).collectives
    assert (table["duration_ns"].null_count() == 0) is believed


def test_entries_that_cannot_be_read_are_counted(tmp_path):
    recording = read(tmp_path, dump([entry(1), entry(2, record_id="seven"), entry(3)]))
    assert recording.collectives["sequence"].to_list() == [1, 3]
    (notice,) = recording.source.notices
    assert notice.code == "bad-events"


def test_the_last_stack_is_kept(tmp_path):
    frames = [{"name": f"f{n}", "filename": "train.py", "line": n} for n in range(100)]
    recording = read(tmp_path, dump([entry(1), entry(2, frames=frames)]))
    assert recording.source.last_stack[0] == "f0 (train.py:0)"
    assert len(recording.source.last_stack) == 32


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[1]",
        b"{",
        b'{"entries": 5}',
        pickle.dumps([1]),
        pickle.dumps({"entries": "x"}),
        b"\x1f\x8bxx",
    ],
)
def test_other_content_is_refused_in_one_line(tmp_path, content):
    with pytest.raises(InputError) as error:
        read(tmp_path, content)
    assert "\n" not in error.value.message


def test_damaged_dumps_are_refused_or_read(tmp_path):
    """What a dump holds can be of any type."""
    choose = random.Random(3)
    values = [None, -1, 2**80, 0.5, float("inf"), "", "x", [], [[]], [["a"]], {}, True, {"name": 5}]
    for _ in range(300):
        content = dump([entry(1), message(2, "send 0->1"), batch_end(3)])
        target = choose.choice(
            [content, *content["entries"], content["pg_config"]["0"], content["pg_status"]]
        )
        target[choose.choice(list(target))] = choose.choice(values)
        try:
            recording = read(tmp_path, content)
        except InputError:
            continue
        msgspec.json.encode(recording.source)
