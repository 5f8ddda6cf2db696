"""The reader of memory snapshots: what it reads, and that bad ones end in one clear line."""

from __future__ import annotations

import gc
import gzip
import os
import pickle
import random

import pytest

from tests.memory_snapshots import (
    BASE_US,
    FRAMES,
    annotation,
    block,
    event,
    segment,
    snapshot,
    write,
)
from tracekit import memory
from tracekit.errors import InputError
from tracekit.memory.snapshot_file import MAX_BYTES, parse_memory_snapshot, read_memory_snapshot


def test_every_event_and_block_is_a_row(tmp_path):
    events = [event("segment_alloc", 4096, 1 << 20, 1, frames=[]), event("alloc", 4096, 512, 2)]
    content = snapshot(
        events, [segment(4096, [block(4096, 512, frames=FRAMES), block(4608, 99, "inactive")])]
    )
    read = read_memory_snapshot(write(tmp_path / "a.pickle", content))
    assert read.events["action"].to_list() == ["segment_alloc", "alloc"]
    assert read.events["at_ns"].to_list() == [(BASE_US + 1) * 1000, (BASE_US + 2) * 1000]
    assert read.events["stack"].to_list() == [None, 0]
    assert read.stacks == (
        (("forward", "site-packages/torch/nn/modules/linear.py", 134), ("forward", "model.py", 25)),
    )
    assert read.blocks["state"].to_list() == ["active_allocated", "inactive"]
    assert read.blocks["stack"].to_list() == [0, None]
    assert read.segments.select("bytes", "allocated", "active").row(0) == (1 << 20, 512, 512)
    assert read.notices == ()


def test_a_compressed_snapshot_is_the_same(tmp_path):
    content = snapshot([event("alloc", 4096, 512, 2)], [segment(4096, [block(4096, 512)])])
    plain = read_memory_snapshot(write(tmp_path / "a.pickle", content))
    (tmp_path / "a.pickle.gz").write_bytes(gzip.compress(pickle.dumps(content)))
    assert read_memory_snapshot(tmp_path / "a.pickle.gz").events.equals(plain.events)


def test_annotations_are_begins_and_ends():
    read = parse_memory_snapshot(snapshot(annotations=annotation("ProfilerStep#2", 5, 9)), name="a")
    assert read.annotations.rows() == [
        ((BASE_US + 5) * 1000, "ProfilerStep#2", True),
        ((BASE_US + 9) * 1000, "ProfilerStep#2", False),
    ]


def test_of_several_gpus_the_busiest_is_read():
    traces = [[event("alloc", 1, 1, 1)], [event("alloc", 1, 7, 1), event("alloc", 2, 7, 2)], []]
    segments = [segment(1, [block(1, 1)]), segment(1, [block(1, 7), block(2, 7)], device=1)]
    read = parse_memory_snapshot(snapshot(segments=segments, traces=traces), name="a")
    assert (read.device, read.events["bytes"].to_list(), read.segments["allocated"].to_list()) == (
        1,
        [7, 7],
        [14],
    )
    assert [notice.code for notice in read.notices] == ["memory-several-devices"]


def test_without_history_the_fullest_gpu_is_read():
    segments = [segment(1, [block(1, 1)], total=10), segment(1, [block(1, 7)], total=20, device=1)]
    read = parse_memory_snapshot(snapshot(segments=segments, traces=[[], []]), name="a")
    assert (read.device, [notice.code for notice in read.notices]) == (1, ["memory-history-short"])


def test_missing_stacks_are_said():
    read = parse_memory_snapshot(snapshot([event("alloc", 1, 1, 1, frames=[])]), name="a")
    assert [notice.code for notice in read.notices] == ["memory-no-stacks"]


def test_events_of_kinds_of_the_future_are_counted():
    read = parse_memory_snapshot(
        snapshot([event("alloc", 1, 1, 1), event("teleport", 1, 1, 1)]), name="a"
    )
    assert (len(read.events), [notice.code for notice in read.notices]) == (
        1,
        ["bad-events"],
    )


class Hostile:
    def __reduce__(self):
        return os.system, ("touch /tmp/tracekit-was-here",)


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"segments": []},
        {"segments": {}, "device_traces": []},
        snapshot(["no dict"]),
        snapshot(traces=[7]),
        snapshot([event("alloc", 1, None, 1)]),
        snapshot([event("alloc", "0x10", 1, 1)]),
        snapshot([event("alloc", 1, -5, 1)]),
        snapshot([event("alloc", 1, 2 * MAX_BYTES, 1)]),
        snapshot([event("alloc", 1, 1, 1 << 60)]),
        snapshot([event("alloc", 1 << 70, 1, 1)]),
        snapshot([event("alloc", 1, 1, 1, frames=[{"name": "f"}])]),
        snapshot([event("alloc", 1, 1, 1, frames=[{"name": 1, "filename": [], "line": {}}])]),
        snapshot([event("alloc", 1, 1, 1, frames=7)]),
        snapshot(segments=[{"address": 1}]),
        snapshot(segments=[7]),
        snapshot(annotations=[7]),
        {"segments": [], "device_traces": [], "hostile": Hostile()},
    ],
)
def test_what_is_no_snapshot_ends_in_one_line(tmp_path, content):
    with pytest.raises(InputError) as caught:
        read_memory_snapshot(write(tmp_path / "bad.pickle", content))
    assert "bad.pickle" in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_a_cut_file_ends_in_one_line(tmp_path):
    path = write(tmp_path / "cut.pickle", snapshot([event("alloc", 1, 1, 1)]))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"cut\.pickle"):
        read_memory_snapshot(path)


def test_a_missing_file_ends_in_one_line(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_memory_snapshot(tmp_path / "none.pickle")


@pytest.mark.parametrize(("size", "is_read"), [(1 << 50, True), ((1 << 50) + 1, False)])
def test_a_size_beyond_a_pebibyte_is_damage(size, is_read):
    content = snapshot([event("alloc", 0, size, 1)])
    if is_read:
        assert parse_memory_snapshot(content, name="a").events["bytes"].to_list() == [size]
    else:
        with pytest.raises(InputError, match="impossible size"):
            parse_memory_snapshot(content, name="a")


@pytest.mark.parametrize(("time_us", "is_read"), [(1 << 53, True), ((1 << 53) + 1, False)])
def test_a_time_beyond_the_year_2255_is_damage(time_us, is_read):
    content = snapshot([{**event("alloc", 0, 8, 1), "time_us": time_us}])
    if is_read:
        assert parse_memory_snapshot(content, name="a").events["at_ns"].to_list() == [
            time_us * 1_000
        ]
    else:
        with pytest.raises(InputError, match="impossible time"):
            parse_memory_snapshot(content, name="a")


def change_events(content, change):
    (history,) = [events for events in content["device_traces"] if events]
    changed = change(history)
    content["device_traces"] = [changed if events else [] for events in content["device_traces"]]


def shuffle_events(content):
    change_events(content, lambda events: random.Random(3).sample(events, len(events)))


def shuffle_without_times(content):
    """Shuffle what happened, and leave the times in order."""

    def shuffled(events):
        mixed = random.Random(3).sample(events, len(events))
        times = [event["time_us"] for event in events]
        return [{**row, "time_us": time} for row, time in zip(mixed, times, strict=True)]

    change_events(content, shuffled)


def shrink_allocations(content):
    change_events(
        content,
        lambda rows: [
            {**row, "size": row["size"] // 3} if row["action"] == "alloc" else row for row in rows
        ],
    )


CONTRADICTIONS = {
    "allocations of other sizes": (shrink_allocations, "sizes"),
    "shuffled": (shuffle_events, "times"),
    "shuffled under the old times": (shuffle_without_times, None),
    "one after the other": (lambda c: change_events(c, lambda rows: rows + rows), "times"),
    "each event twice": (
        lambda c: change_events(c, lambda rows: [row for row in rows for _ in range(2)]),
        "twice",
    ),
    "end cut off": (lambda c: change_events(c, lambda rows: rows[: len(rows) // 2]), None),
    "middle cut out": (
        lambda c: change_events(c, lambda rows: rows[: len(rows) // 4] + rows[len(rows) // 2 :]),
        None,
    ),
    "segments missing": (lambda c: c.update(segments=c["segments"][::2]), "end"),
    "no segments": (lambda c: c.update(segments=[]), "end"),
    "segments twice reserved": (
        lambda c: change_events(
            c, lambda rows: [r for r in rows for _ in range(2 if r["action"][:3] == "seg" else 1)]
        ),
        "reserved",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_history_that_contradicts_itself_is_not_used(samples, tmp_path, name):
    change, problem = CONTRADICTIONS[name]
    original = gzip.decompress((samples / "memory-snapshot/memory_rank0.pickle.gz").read_bytes())
    content = pickle.loads(original)
    change(content)
    read = read_memory_snapshot(write(tmp_path / "a.pickle", content))
    (notice,) = [notice for notice in read.notices if notice.code == "memory-snapshot-failed"]
    assert problem in (None, notice.values["problem"])
    assert read.events.is_empty()
    assert read.blocks["bytes"].sum() <= read.segments["bytes"].sum()


def test_what_a_contradicting_snapshot_holds_is_at_most_what_is_reserved(samples, tmp_path):
    original = gzip.decompress((samples / "memory-snapshot/memory_rank0.pickle.gz").read_bytes())
    content = pickle.loads(original)
    content["segments"] = content["segments"][::2]
    result = memory(write(tmp_path / "a.pickle", content))
    (measured,) = result.to_dict()["snapshots"]
    reserved = sum(row["total_size"] for row in content["segments"])
    assert measured["contents"]["end_allocated_bytes"] <= reserved
    assert not measured["contents"]["leaks"]
    assert "memory-snapshot-failed" in [notice.code for notice in result.notices]


@pytest.mark.parametrize("kept", [slice(1, None), slice(None, -1), slice(0), slice(None, None, 2)])
def test_blocks_missing_from_a_segment_are_one_line(samples, tmp_path, kept):
    original = gzip.decompress((samples / "memory-snapshot/memory_rank0.pickle.gz").read_bytes())
    content = pickle.loads(original)
    largest = max(content["segments"], key=lambda row: (row["allocated_size"], len(row["blocks"])))
    held = [block for block in largest["blocks"] if block["state"] == "active_allocated"]
    largest["blocks"] = held[kept] if len(held) > 1 else []
    path = write(tmp_path / "a.pickle", content)
    with pytest.raises(InputError, match="do not add up to what segments hold"):
        read_memory_snapshot(path)


@pytest.mark.parametrize("state", ["active_allocated", "active_pending_free"])
def test_a_block_counts_as_its_state_says(tmp_path, state):
    content = snapshot(segments=[segment(0, [block(0, 99, state), block(99, 7, "inactive")])])
    path = write(tmp_path / "a.pickle", content)
    assert len(read_memory_snapshot(path).blocks) == 2
    content["segments"][0]["active_size"] += 1
    with pytest.raises(InputError, match="do not add up"):
        read_memory_snapshot(write(path, content))


@pytest.mark.parametrize(
    ("segments", "problem"),
    [
        ([segment(0, []), segment(1000, [])], "segments that overlap"),
        ([segment(0, []), segment(0, [])], "segments that overlap"),
        ([segment(0, [block(0, 99)], total=50)], "holds more than it has"),
        ([segment(4096, [block(0, 99)])], "blocks outside of their segment"),
        ([segment(0, [block(0, 99), block(0, 1 << 20, "inactive")])], "outside of their segment"),
    ],
)
def test_segments_that_cannot_be_are_one_line(tmp_path, segments, problem):
    with pytest.raises(InputError, match=problem):
        read_memory_snapshot(write(tmp_path / "a.pickle", snapshot(segments=segments)))


def test_the_search_for_cycles_does_not_go_over_a_history_while_it_is_read(tmp_path):
    count = 20_000
    history = [
        event("alloc", 4096 + i * 512, 512, i, frames=[{**FRAMES[0], "line": i}])
        for i in range(count)
    ]
    file = write(tmp_path / "a.pickle", {"segments": [], "device_traces": [history]})
    searches = []

    def count_search(phase, facts):
        searches.append(facts["generation"])

    thresholds = gc.get_threshold()
    gc.set_threshold(700, 10, 10)  # as Python starts
    gc.callbacks.append(count_search)
    try:
        snapshot = read_memory_snapshot(file)
    finally:
        gc.callbacks.remove(count_search)
        gc.set_threshold(*thresholds)
    assert len(snapshot.stacks) == count
    assert len(searches) < 20
    assert gc.isenabled()
