"""Numbers of a file that are chosen for one place of a dict: no dict that grows with the file has them as keys.

``count_probes`` counts the slots that a dict looks at: chosen integers make it quadratic, other keys do not.
"""

from __future__ import annotations

import io
import pickle

import pytest

from tests.chosen_integers import chosen_integers, count_probes
from tests.memory_snapshots import write
from tracekit.errors import InputError
from tracekit.late.flight_recorder import read as read_dump
from tracekit.memory.snapshot_file import StackNumbers, read_memory_snapshot
from tracekit.parsers.kineto.stream import Stream
from tracekit.parsers.perfetto.messages import numbers_and_texts
from tracekit.parsers.perfetto.packets import scan_packets
from tracekit.parsers.perfetto.state import decode_state
from tracekit.parsers.plain_pickle import load_plain_pickle

COUNT = 2700
CHOSEN = chosen_integers(COUNT)
MODULUS = 2**61 - 1
"""Integers that are apart by a multiple of it have one hash."""


def test_the_integers_are_chosen_well():
    assert len(set(CHOSEN)) == COUNT
    assert count_probes(CHOSEN) > 100 * COUNT
    assert count_probes(range(COUNT)) == COUNT


def assert_keys_are_spread(keys):
    assert len(keys) >= COUNT
    assert count_probes(keys) < 4 * len(keys)


def varint(value):
    value &= 2**64 - 1
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def number(field, value):
    return varint(field << 3) + varint(value)


def message(field, content):
    return varint(field << 3 | 2) + varint(len(content)) + content


def state_of(*packets):
    data = b"".join(message(1, packet) for packet in packets)
    with Stream(io.BytesIO(data)) as stream:
        return decode_state(scan_packets(stream).state)


def test_numbers_of_perfetto_tracks():
    parents = [*CHOSEN[1:], 7]
    tracks = [
        message(60, number(1, track) + number(5, parent) + message(4, number(1, 3) + number(2, 4)))
        for track, parent in zip(CHOSEN, parents, strict=True)
    ]
    state = state_of(*tracks)
    assert state.find_thread(CHOSEN[0]).tid == 4
    assert_keys_are_spread(state.tracks)
    assert_keys_are_spread(state.threads_by_number)


def test_numbers_of_perfetto_writers():
    defaults = message(59, number(58, 6) + message(11, number(11, 9)))
    state = state_of(*(number(10, writer) + number(13, 1) + defaults for writer in CHOSEN))
    assert_keys_are_spread(state.default_clock)
    assert_keys_are_spread(state.default_track)
    assert_keys_are_spread(state.forgotten)


def test_numbers_of_perfetto_clocks():
    clocks = b"".join(message(1, number(1, clock) + number(2, 5)) for clock in [*CHOSEN, 1, 6])
    state = state_of(message(6, clocks))
    assert_keys_are_spread(state.clocks)
    assert state.clock_offset(CHOSEN[9]) == 0
    assert state.real_time_offset() == 0


def test_numbers_of_fields_of_a_message():
    fields = b"".join(number(field, 7) for field in [*CHOSEN, 10])
    assert max(numbers_and_texts(fields)) < COUNT
    assert numbers_and_texts(fields)[10] == 7


@pytest.mark.parametrize("count", [10_000, 10_001])
def test_numbers_as_keys_in_a_pickle(count):
    content = {"numbers": dict.fromkeys(range(count))}
    data = pickle.dumps(content)
    if count == 10_000:
        assert load_plain_pickle(data, name="a.pickle") == content
    else:
        with pytest.raises(InputError, match="too many that are numbers"):
            load_plain_pickle(data, name="a.pickle")


def test_keys_that_a_pickle_repeats_are_counted_each_time():
    data = b"\x80\x02}K\x07q\x00N" + b"s" + b"(" + b"h\x00N" * 20_000 + b"u."
    with pytest.raises(InputError, match="too many that are numbers"):
        load_plain_pickle(data, name="a.pickle")


def test_lines_of_stacks_with_one_hash():
    stacks = StackNumbers("a.pickle")
    recorded = [[{"name": "f", "filename": "", "line": i * MODULUS}] for i in range(COUNT)]
    assert [stacks.number(frames) for frames in recorded] == list(range(COUNT))
    assert stacks.number([dict(recorded[9][0])]) == 9
    assert len({hash(stack) for stack in stacks.stacks}) == 1
    assert len({hash(key) for key in stacks.number_of_stack}) == COUNT


def test_gpus_of_a_snapshot_with_one_hash(tmp_path):
    segment = {"address": 512, "total_size": 512, "allocated_size": 0, "active_size": 0}
    segments = [{**segment, "device": i * MODULUS} for i in range(1, 50_000)]
    content = {"segments": segments, "device_traces": [[]]}
    assert read_memory_snapshot(write(tmp_path / "a.pickle", content)).device == MODULUS


def test_sizes_of_a_dump_with_one_hash(tmp_path):
    entries = [
        {
            "record_id": i,
            "profiling_name": "nccl:all_reduce",
            "input_sizes": [[i * MODULUS]],
            "input_dtypes": ["Float"],
            "output_sizes": [[i * MODULUS]],
            "output_dtypes": ["Float"],
            "time_created_ns": i,
        }
        for i in range(20_000)
    ]
    file = tmp_path / "nccl_trace_rank_0"
    file.write_bytes(pickle.dumps({"version": "2.10", "entries": entries}))
    assert len(read_dump(file).collectives) == 20_000
