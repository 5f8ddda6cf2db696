"""Bounds of clocks from messages, the likeliest offset between them, and the keys of an operation's sides."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from tracekit.align.clock_bounds import bounds_of_messages, offset_of_messages, one_way_offset
from tracekit.align.sequences import Sequences
from tracekit.align.sides import side_keys

NO_BOUND = 2**62


@pytest.mark.parametrize(
    ("forward", "backward", "bounds"),
    [
        # The other end may acknowledge within 20 µs.
        (5_000, 7_000, (-27_000, 25_000)),
        (None, 7_000, (-27_000, NO_BOUND)),
        (5_000, None, (-NO_BOUND, 25_000)),
        (None, None, (-NO_BOUND, NO_BOUND)),
    ],
)
def test_the_fastest_messages_bound_the_offset_of_a_clock(forward, backward, bounds):
    row = {"fastest_forward_ns": forward, "fastest_backward_ns": backward}
    assert bounds_of_messages(row) == bounds


@pytest.mark.parametrize(
    ("row", "offset"),
    [
        ((True, 5_000, 7_000), -1_000),
        ((True, None, 7_000), 15),
        ((True, 5_000, None), 15),
        ((False, 5_000, 7_000), None),
    ],
)
def test_messages_of_both_directions_take_equally_long(row, offset):
    """Else the offset is in the middle of its bounds, 10 and 20."""
    names = ("two_way", "fastest_forward_ns", "fastest_backward_ns")
    assert offset_of_messages(dict(zip(names, row, strict=True)), 10, 20) == offset


@pytest.mark.parametrize(
    ("meetings", "least", "most", "offset"),
    [(1, 3, None, 20), (0, 3, 4, 20), (0, None, None, 20), (0, None, 4, 10), (0, 3, None, 30)],
)
def test_of_one_direction_the_extreme_is_likeliest(meetings, least, most, offset):
    row = {
        "meetings": meetings, "least_ns": least, "most_ns": most, "earliest_ns": 10, "middle_ns": 20,
        "latest_ns": 30,
    }  # fmt: skip
    assert one_way_offset(row) == offset


def keys_of(*rows):
    """Keys of sides: bucket, rank, peer, and 1 for a send, 0 for a receive, -1 for a collective."""
    sides = pl.DataFrame(rows, schema=["bucket", "rank", "peer", "sends"], orient="row")
    return side_keys(sides).tolist()


def test_a_send_and_its_receive_have_one_key_and_the_other_direction_has_another():
    send, receive, back, elsewhere = keys_of((0, 0, 1, 1), (0, 1, 0, 0), (0, 1, 0, 1), (1, 0, 1, 1))
    assert send == receive
    assert len({send, back, elsewhere}) == 3


def test_sides_of_a_collective_have_the_key_of_their_bucket():
    first, second, other = keys_of((0, 0, 5, -1), (0, 3, -1, -1), (1, 0, 5, -1))
    assert first == second != other


@pytest.mark.parametrize(
    ("sizes", "reference", "is_other"),
    [
        ([8, 8, 8], [8, 8, 8], False),
        ([8, 8, 9], [8, 8, 8], True),
        ([8, 9, 9], [8, 8, 8], False),  # every rank sends another amount
        ([8, 9, 8, 9], [8, 8, 8, 8], False),  # half of them
        ([8, 8, -1], [8, 8, 8], False),  # unknown
        ([8, 8, 8], [8, 8, -1], False),
    ],
)
def test_a_sequence_of_which_less_than_half_has_another_size_is_uneven(sizes, reference, is_other):
    count = len(sizes)
    sequences = SimpleNamespace(
        size=np.array([*reference, *sizes]),
        first=np.array([0, count]),
        length=np.array([count, count]),
    )
    sequences.count_sides = lambda sequence, mask: Sequences.count_sides(sequences, sequence, mask)
    counterpart = np.array([*range(count), *range(count)])
    sequence = np.repeat([0, 1], count)
    found = Sequences.find_other_sizes(sequences, sequence, counterpart)
    assert found.tolist() == [False, is_other]
