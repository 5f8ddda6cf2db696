"""Free memory of the allocator: pieces and ranges."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from tracekit.memory.measures import free_memory


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
