"""Sides of operations: which of them can be of one operation."""

from __future__ import annotations

import polars as pl

from tracekit.align.sides import side_keys


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
