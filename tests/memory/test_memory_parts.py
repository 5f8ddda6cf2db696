"""What would have made memory for a request, stretches of free memory, and phases of a process without marks."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from tracekit.memory.measures import free_memory, out_of_memory
from tracekit.metrics.process_phases import fill_neutral_phases

NOTHING = {
    "missing_bytes": 1_000,
    "needed_bytes": 5_000,
    "requested_bytes": 0,
    "origin": None,
    "by_category": {},
    "leaked_bytes": 0,
    "outside_bytes": None,
    "repeated": (),
    "fragmented_bytes": 0,
    "other_streams_bytes": 0,
    "private_pools_bytes": 0,
    "limit_bytes": None,
}
CONTENTS = pl.DataFrame(
    schema={"category": pl.String, "module": pl.String, "stack": pl.Int64, "bytes": pl.Int64}
)


def remedies_of(monkeypatch, *, cause="model", bucket_bytes=0, expandable=False, **failure):
    monkeypatch.setattr(out_of_memory, "find_bucket_bytes", lambda contents, stacks: bucket_bytes)
    failure = SimpleNamespace(**{**NOTHING, **failure})
    snapshot = SimpleNamespace(expandable=expandable, stacks=())
    found = out_of_memory.find_remedies(failure, cause, CONTENTS, snapshot)
    return [(each.code, each.bytes, each.is_enough, each.name) for each in found]


@pytest.mark.parametrize(
    ("failure", "remedies"),
    [
        # A tenth of the 1,000 missing bytes is worth a line, all of them are enough.
        ({"leaked_bytes": 100}, []),
        ({"leaked_bytes": 101}, [("stop_leak", 101, False, None)]),
        ({"leaked_bytes": 999}, [("stop_leak", 999, False, None)]),
        ({"leaked_bytes": 1_000}, [("stop_leak", 1_000, True, None)]),
        ({"leaked_bytes": 501, "missing_bytes": None}, [("stop_leak", 501, None, None)]),
        ({"leaked_bytes": 500, "missing_bytes": None}, []),
        ({"outside_bytes": 300}, [("end_other_processes", 300, False, None)]),
        (
            {"by_category": {"activations": 400}},
            [("smaller_microbatch", 200, False, None), ("offload_activations", 400, False, None)],
        ),
        ({"requested_bytes": 400, "origin": "forward"}, [("smaller_microbatch", 200, False, None)]),
        ({"requested_bytes": 400, "origin": "optimizer"}, []),
        ({"by_category": {"optimizer_state": 300}}, [("offload_optimizer", 300, False, None)]),
        ({"by_category": {"gradients": 300}, "bucket_bytes": 200}, [("share_gradient_buckets", 200, False, None)]),
        ({"by_category": {"gradients": 150}, "bucket_bytes": 200}, [("share_gradient_buckets", 150, False, None)]),
        ({"by_category": {"gradients": 150}, "origin": "forward"}, [("free_gradients", 150, False, None)]),
        ({"fragmented_bytes": 300}, [("expandable_segments", 300, False, None)]),
        ({"fragmented_bytes": 300, "expandable": True}, []),
        ({"other_streams_bytes": 60, "private_pools_bytes": 60}, [("fewer_pools", 120, False, None)]),
        (
            {"repeated": [SimpleNamespace(function=name, bytes=400, calls=4) for name in "abc"]},
            [("recompute", 300, False, "a"), ("recompute", 300, False, "b")],
        ),
        (
            {"limit_bytes": 1_000, "leaked_bytes": 900},
            [("raise_limit", None, None, None), ("stop_leak", 900, False, None)],
        ),
        ({"cause": "request", "leaked_bytes": 900}, [("smaller_request", 1_000, True, None)]),
    ],
)  # fmt: skip
def test_what_frees_a_tenth_of_what_was_missing_is_a_remedy(monkeypatch, failure, remedies):
    assert remedies_of(monkeypatch, **failure) == remedies


@pytest.mark.parametrize(
    ("owner", "is_expandable", "joined"),
    [
        ([0, 0, 0], False, [[0, 30, 0]]),
        ([0, -1, 0], False, [[0, 10, 0], [20, 30, 0]]),
        ([0, 1, 1], False, [[0, 10, 0], [10, 30, 1]]),
        ([0, 1, 1], True, [[0, 30, 0]]),  # one segment that grew
        ([0, 2, 2], True, [[0, 10, 0], [10, 30, 2]]),  # of another stream
        ([0, 3, 3], True, [[0, 10, 0], [10, 30, 3]]),  # of another pool
        ([0, -1, 1], True, [[0, 10, 0], [20, 30, 1]]),
        ([-1, -1, -1], True, []),
    ],
)
def test_stretches_of_one_segment_are_one(monkeypatch, owner, is_expandable, joined):
    monkeypatch.setattr(free_memory, "ranges_table", lambda rows, ranges: rows)
    ranges = pl.DataFrame({"stream": [5, 5, 6, 5], "pool": [0, 0, 0, 1]})
    borders = np.array([0, 10, 20, 30])
    rows = free_memory.joined_ranges(borders, np.array(owner), ranges, is_expandable=is_expandable)
    assert rows == joined


def phases_of(*rows, trains=True):
    """Phase, start and end of events; those that end in ``!`` are agreements."""
    events = pl.DataFrame(
        [
            {
                "phase": None if phase in ("", "!") else phase.rstrip("!"),
                "agreement": phase.endswith("!"),
                "start_ns": start,
                "end_ns": end,
            }
            for phase, start, end in rows
        ],
        schema={
            "phase": pl.String,
            "agreement": pl.Boolean,
            "start_ns": pl.Int64,
            "end_ns": pl.Int64,
        },
    )
    return fill_neutral_phases(events, trains=trains).to_list()


SYNC = "weight_sync"


@pytest.mark.parametrize(
    ("rows", "phases"),
    [
        ([("a", 0, 1), ("", 1, 2), ("a", 2, 3)], ["a", "a", "a"]),
        ([("a", 0, 1), ("", 1, 2)], ["a", "a"]),
        ([("", 0, 1), ("a", 1, 2)], [None, "a"]),
        # The longest pause divides: it is behind the second event, before it, or at either end.
        ([("a", 0, 1), ("", 1, 2), ("", 9, 10), ("b", 11, 12)], ["a", "a", "b", "b"]),
        ([("a", 0, 1), ("", 9, 10), ("", 10, 11), ("b", 11, 12)], ["a", "b", "b", "b"]),
        ([("a", 0, 1), ("", 1, 2), ("", 3, 4), ("b", 9, 12)], ["a", "a", "a", "b"]),
        # Two changes of phase, each with its own pause.
        (
            [("a", 0, 1), ("", 5, 6), ("b", 6, 7), ("", 7, 8), ("c", 12, 13)],
            ["a", "b", "b", "b", "c"],
        ),
        # After training everything prepares the synchronisation of weights, whatever the pauses.
        ([("a", 0, 1), ("", 1, 2), ("", 9, 10), (SYNC, 11, 12)], ["a", SYNC, SYNC, SYNC]),
        # After that, agreements still belong to it.
        ([(SYNC, 0, 1), ("!", 5, 6), ("", 6, 7), ("b", 7, 8)], [SYNC, SYNC, "b", "b"]),
        ([(SYNC, 0, 1), ("", 1, 2), ("", 9, 10), ("b", 11, 12)], [SYNC, SYNC, "b", "b"]),
    ],
)
def test_events_between_two_phases_are_divided_at_the_longest_pause(rows, phases):
    assert phases_of(*rows) == phases


def test_without_training_the_pause_divides_before_a_synchronisation_too():
    rows = [("a", 0, 1), ("", 1, 2), ("", 9, 10), (SYNC, 11, 12)]
    assert phases_of(*rows, trains=False) == ["a", "a", SYNC, SYNC]


USED_UP = {
    "device_free_bytes": 0,
    "needed_bytes": 100,
    "missing_bytes": 100,
    "capacity_bytes": 10_000,
    "reserved_bytes": 1_000,
    "leaked_bytes": 0,
    "fragmented_bytes": 0,
    "other_streams_bytes": 0,
    "private_pools_bytes": 0,
    "outside_bytes": None,
    "by_category": {"weights": 600, "activations": 300},
    "limit_bytes": None,
    "copied": None,
}


@pytest.mark.parametrize(
    ("failure", "cause"),
    [
        ({}, "weights"),
        ({"by_category": {}}, "other"),
        ({"device_free_bytes": 100, "limit_bytes": 1_000}, "weights"),
        ({"device_free_bytes": 100, "limit_bytes": 1_000, "by_category": {}}, "limit"),
        ({"device_free_bytes": 99}, "weights"),
        ({"device_free_bytes": None}, "weights"),
        ({"needed_bytes": 10_001}, "request"),
        ({"needed_bytes": 10_000}, "weights"),
        # Without its size the GPU holds what is reserved and free.
        ({"needed_bytes": 1_051, "device_free_bytes": 50, "capacity_bytes": None}, "request"),
        ({"needed_bytes": 1_050, "device_free_bytes": 50, "capacity_bytes": None}, "weights"),
        ({"needed_bytes": 9_999, "device_free_bytes": None, "capacity_bytes": None}, "weights"),
        # What would have been enough, and is a tenth of what was reserved.
        ({"leaked_bytes": 100}, "leak"),
        ({"leaked_bytes": 99}, "weights"),
        ({"leaked_bytes": 99, "missing_bytes": 50}, "weights"),
        ({"leaked_bytes": 100, "missing_bytes": 101}, "weights"),
        ({"leaked_bytes": 100, "missing_bytes": None}, "leak"),
        ({"fragmented_bytes": 100}, "fragmentation"),
        ({"leaked_bytes": 100, "fragmented_bytes": 101}, "fragmentation"),
        ({"other_streams_bytes": 50, "private_pools_bytes": 50}, "other_pools"),
        ({"outside_bytes": 1_000}, "other_processes"),  # a tenth of the GPU
        ({"outside_bytes": 999}, "weights"),
    ],
)
def test_what_would_have_been_enough_is_the_cause(failure, cause):
    assert out_of_memory.find_cause(SimpleNamespace(**{**USED_UP, **failure})) == cause


def allocation(address, size, *, made=0, done=None):
    return {"address": address, "bytes": size, "alloc_row": made, "done_row": done}


@pytest.mark.parametrize(
    ("allocations", "pieces"),
    [
        # Two ranges, from 100 to 200 and from 300 to 400; what is free of each, and whether it is used.
        ([], [(100, 100, False), (300, 100, False)]),
        ([allocation(100, 100)], [(300, 100, False)]),
        ([allocation(120, 30)], [(100, 20, True), (100, 50, True), (300, 100, False)]),
        (
            [allocation(100, 10), allocation(150, 10), allocation(390, 10)],
            [(100, 40, True), (100, 40, True), (300, 90, True)],
        ),
        ([allocation(100, 100, made=6)], [(100, 100, False), (300, 100, False)]),  # later
        ([allocation(100, 100, made=5)], [(300, 100, False)]),
        ([allocation(100, 100, made=None)], [(300, 100, False)]),  # before the history
        ([allocation(100, 100, done=5)], [(100, 100, False), (300, 100, False)]),
        ([allocation(100, 100, done=6)], [(300, 100, False)]),
        ([allocation(250, 10)], [(100, 100, False), (300, 100, False)]),  # between the ranges
        ([allocation(50, 10)], [(100, 100, False), (300, 100, False)]),
        ([allocation(None, 10)], [(100, 100, False), (300, 100, False)]),
    ],
)
def test_what_lies_between_the_blocks_of_a_range_is_free(allocations, pieces):
    """After the event in row 5."""
    schema = dict.fromkeys(("address", "bytes", "alloc_row", "done_row"), pl.Int64)
    replay = SimpleNamespace(allocations=pl.DataFrame(allocations, schema=schema))
    segments = pl.DataFrame({"start": [100, 300], "end": [200, 400]})
    found = free_memory.free_pieces(replay, segments, 5)
    assert sorted(found.select("start", "bytes", "is_used").rows()) == sorted(pieces)
