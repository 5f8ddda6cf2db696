"""Clocks of different ranks, set to one."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest

from tracekit.align.clocks import align


def clocked(offset, drift=0.0, noise=200, count=40):
    """Members of collectives over four ranks whose clocks are known to be off."""
    rng = np.random.default_rng(3)
    truth = np.sort(rng.integers(0, 2_000_000_000, count)) + 1_700_000_000_000_000_000
    rows = []
    for n, end in enumerate(truth):
        for rank in range(4):
            own = end + rng.integers(-noise, noise + 1)
            shown = own + offset[rank] + round((own - truth[0]) * drift * rank)
            rows.append((n, n, rank, None, shown - 50_000, shown))
    schema = {
        "match": pl.Int64,
        "row": pl.Int64,
        "rank": pl.Int32,
        "sends": pl.Boolean,
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def test_offsets_come_back():
    offset = [0, 300_000, -5_000_000, 70_000]
    clocks = align(clocked(offset), range(4))
    for got, wanted in zip(clocks.table["offset_ns"], offset, strict=True):
        assert got == pytest.approx(wanted, abs=200)
    assert clocks.residual_ns <= 200


def test_drift_comes_back():
    clocks = align(clocked([0, 100_000, 0, 0], drift=20e-6), range(4))
    assert clocks.table["drift_ppm"].to_list() == pytest.approx([0, 20, 40, 60], abs=0.5)
    assert clocks.residual_ns <= 300


def test_equal_clocks_are_left_alone():
    assert align(clocked([0, 0, 0, 0], noise=3_000), range(4)).table["offset_ns"].to_list() == [0, 0, 0, 0]


def test_scattered_ends_move_no_clock():
    clocks = align(clocked([0, 100_000, 0, 0], noise=2_000_000), range(4))
    assert clocks.table["offset_ns"].to_list() == [0, 0, 0, 0]
    assert clocks.residual_ns > 100_000


def test_ranks_that_never_meet_are_not_aligned():
    clocks = align(clocked([0, 0, 0, 0]), range(6))
    assert clocks.table["offset_ns"].to_list()[4:] == [None, None]


def test_a_chain_of_messages_aligns_its_far_end():
    """Rank 0 talks to 1, 1 to 2: both directions, receivers 20 µs late, rank 2's clock 3 ms ahead of 1's."""
    offset = {0: 0, 1: 1_000_000, 2: 4_000_000}
    rows = []
    for n, (a, b) in enumerate(itertools.chain.from_iterable([[(0, 1), (1, 0), (1, 2), (2, 1)]] * 12)):
        end = 10_000_000 * n
        for rank, sends, late in ((a, True, 0), (b, False, 20_000)):
            rows.append((n, n, rank, sends, end - 30_000 + offset[rank], end + late + offset[rank]))
    schema = ["match", "row", "rank", "sends", "start_ns", "end_ns"]
    clocks = align(pl.DataFrame(rows, schema=schema, orient="row").cast({"rank": pl.Int32}), range(3))
    assert clocks.table["offset_ns"].to_list() == [0, 1_000_000, 4_000_000]


def test_one_way_messages_move_no_clock():
    rows = [(n, n, rank, rank == 0, 10_000 * n, 10_000 * n + 5_000 + 900 * rank) for n in range(9) for rank in (0, 1)]
    schema = ["match", "row", "rank", "sends", "start_ns", "end_ns"]
    clocks = align(pl.DataFrame(rows, schema=schema, orient="row").cast({"rank": pl.Int32}), range(2))
    assert clocks.table["offset_ns"].to_list() == [0, 0]
