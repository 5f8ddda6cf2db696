"""Replay of allocator events, held against a slow replay and against the snapshots' own segments."""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path

import polars as pl
import pytest

from tests.memory_snapshots import block, event, segment, snapshot
from tracekit.memory.measures.replay import replay_snapshot, replay_trace
from tracekit.memory.snapshot_file import parse_memory_snapshot, read_memory_snapshot
from tracekit.schema import MEMORY, conform

RECORDED = Path(os.environ.get("TRACEKIT_CORPUS", "nowhere")) / "always-on/1f1b-memory"


def replayed(content):
    return replay_snapshot(parse_memory_snapshot(content, name="a"))


K = 512
"""Blocks are multiples of this size."""


def test_allocated_falls_at_the_request_and_active_at_the_completion():
    events = [
        event("segment_alloc", 0, 100 * K, 0),
        event("alloc", 0, 10 * K, 1),
        event("alloc", 10 * K, 20 * K, 2),
        event("free_requested", 0, 10 * K, 3),
        event("free_completed", 0, 10 * K, 4),
    ]
    replay = replayed(snapshot(events, [segment(0, [block(10 * K, 20 * K)], total=100 * K)]))
    assert (replay.levels["allocated"] // K).to_list() == [0, 10, 30, 20, 20]
    assert (replay.levels["active"] // K).to_list() == [0, 10, 30, 30, 20]
    assert (replay.levels["reserved"] // K).to_list() == [100] * 5
    assert (replay.end_allocated, replay.end_active, replay.difference_bytes) == (20 * K, 20 * K, 0)


def test_an_address_that_is_used_again_is_another_allocation():
    events = [
        event("alloc", 0, 10 * K, 1),
        event("free_requested", 0, 10 * K, 2),
        event("free_completed", 0, 10 * K, 2),
        event("alloc", 0, 30 * K, 3),
    ]
    replay = replayed(snapshot(events, [segment(0, [block(0, 30 * K)])]))
    assert replay.allocations.select("bytes", "alloc_row", "free_row").rows() == [
        (10 * K, 0, 1),
        (30 * K, 3, None),
    ]


def test_what_was_allocated_before_the_history_is_known_from_its_free_or_its_block():
    events = [event("free_requested", 0, 10 * K, 1), event("free_completed", 0, 10 * K, 2)]
    blocks = [block(10 * K, 20 * K), block(30 * K, 5 * K, "inactive")]
    replay = replayed(snapshot(events, [segment(0, blocks)]))
    assert replay.first_allocated == 30 * K
    assert replay.levels["allocated"].to_list() == [20 * K, 20 * K]
    assert replay.allocations["alloc_row"].to_list() == [None, None]
    assert replay.difference_bytes == 0


def test_what_was_freed_before_the_history_and_is_still_in_use_is_active_only():
    events = [event("free_completed", 0, 10 * K, 1)]
    pending = block(10 * K, 20 * K, "active_pending_free")
    replay = replayed(snapshot(events, [segment(0, [pending])]))
    assert replay.first_allocated == 0
    assert replay.levels.select("allocated", "active").rows() == [(0, 20 * K)]
    assert (replay.end_allocated, replay.end_active, replay.difference_bytes) == (0, 20 * K, 0)


def test_a_replay_that_misses_memory_says_how_much():
    replay = replayed(snapshot([event("alloc", 0, 10 * K, 1)], [segment(0, [])]))
    assert replay.difference_bytes == 10 * K


def test_the_peak_is_looked_for_within_the_time_asked_for():
    rows = [(0, 1, 10), (1, 2, 90), (2, 2, -90), (3, 3, 30)]
    events = []
    for us, address, size in rows:
        action = "alloc" if size > 0 else "free_requested"
        events.append(event(action, address * 100 * K, abs(size) * K, us))
    replay = replayed(snapshot(events, [segment(0, [])]))
    late_ns = int(replay.levels["at_ns"][2])
    assert (
        replay.peak_row(),
        replay.peak_row(start_ns=late_ns),
        replay.peak_row(start_ns=late_ns * 2),
    ) == (1, 3, None)


def test_random_histories_cut_anywhere_have_the_level_of_the_whole():
    """Whatever beginning of a history is lost, the rest of it has the levels it had in the whole."""
    rng = random.Random(5)
    for _ in range(30):
        living: dict[int, int] = {}
        pending: dict[int, int] = {}
        events, levels = [], []
        for us in range(60):
            action = rng.choice(["alloc", "alloc", "free_requested", "free_completed"])
            if action == "alloc":
                places = [slot * 10 * K for slot in range(40)]
                free = [
                    address
                    for address in places
                    if address not in living and address not in pending
                ]
                address, size = rng.choice(free), rng.randint(1, 9) * K
                living[address] = size
            elif action == "free_requested" and living:
                address = rng.choice(list(living))
                size = pending[address] = living.pop(address)
            elif action == "free_completed" and pending:
                address = rng.choice(list(pending))
                size = pending.pop(address)
            else:
                continue
            events.append(event(action, address, size, us))
            levels.append((sum(living.values()), sum(living.values()) + sum(pending.values())))
        blocks = [block(address, size) for address, size in living.items()]
        blocks += [block(address, size, "active_pending_free") for address, size in pending.items()]
        for cut in (0, len(events) // 3, len(events)):
            replay = replayed(snapshot(events[cut:], [segment(0, blocks)]))
            assert replay.levels.select("allocated", "active").rows() == levels[cut:]
            assert replay.difference_bytes == 0


def test_events_of_a_trace_are_allocations_too():
    rows = [(1, 5, 15, 1), (2, -10, 5, 2), (3, -5, 0, 1)]
    table = [
        {
            "at_ns": time_ns,
            "device_type": 1,
            "device": 0,
            "bytes": size,
            "allocated": level,
            "reserved": 20,
            "address": address,
        }
        for time_ns, size, level, address in rows
    ]
    replay = replay_trace(conform(pl.DataFrame(table), MEMORY))
    assert replay.allocations.select("bytes", "alloc_ns", "free_ns").rows() == [
        (5, 1, 3),
        (10, None, 2),
    ]
    assert (replay.first_allocated, replay.end_allocated) == (10, 0)


def test_memory_that_no_event_of_a_trace_touches_is_one_allocation():
    table = [
        {
            "at_ns": 1,
            "device_type": 1,
            "device": 0,
            "bytes": 5,
            "allocated": 105,
            "reserved": 200,
            "address": 7,
        }
    ]
    replay = replay_trace(conform(pl.DataFrame(table), MEMORY))
    assert replay.allocations.select("bytes", "alloc_ns").rows() == [(100, None), (5, 1)]


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recording is not here")
@pytest.mark.parametrize("rank", range(4))
def test_the_recorded_history_ends_in_the_snapshots_own_segments(rank):
    """Counted here without tracekit: adding up the events gives the segments' allocated and active sizes.

    The events say what was asked for, and blocks are multiples of 512 bytes.
    """
    content = pickle.loads((RECORDED / f"memory_rank{rank}.pickle").read_bytes())
    allocated = active = requested = peak = block_peak = 0
    for row in content["device_traces"][0]:
        size = -(-row["size"] // 512) * 512
        if row["action"] == "alloc":
            requested += row["size"]
            allocated += size
            active += size
        elif row["action"] == "free_requested":
            requested -= row["size"]
            allocated -= size
        elif row["action"] == "free_completed":
            active -= size
        peak = max(peak, requested)
        block_peak = max(block_peak, allocated)
    assert allocated == sum(row["allocated_size"] for row in content["segments"])
    assert active == sum(row["active_size"] for row in content["segments"])
    replay = replay_snapshot(read_memory_snapshot(RECORDED / f"memory_rank{rank}.pickle"))
    assert (replay.end_allocated, replay.end_active, replay.difference_bytes) == (
        allocated,
        active,
        0,
    )
    assert (replay.levels["requested"].max(), replay.levels["allocated"].max()) == (
        peak,
        block_peak,
    )
