"""Clock alignment across ranks."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest

from tracekit.align.clock_bounds import (
    ClockBounds,
    find_clock_bounds,
)
from tracekit.align.clocks import CLOCKS, Clocks, align
from tracekit.align.matching import MEMBERS
from tracekit.schema import conform

MS = 1_000_000


def members(rows, **common):
    """Members from (match, rank, sends, start, end)."""
    made = [
        dict(zip(("match", "rank", "sends", "start_ns", "end_ns"), row, strict=True))
        for row in rows
    ]
    return conform(
        pl.DataFrame(made, infer_schema_length=None).with_columns(**common), MEMBERS
    ).sort("match", "rank", maintain_order=True)


def collectives(rows):
    return members(
        [(match, rank, None, start, end) for match, rank, start, end in rows],
        what=pl.lit("all_reduce"),
    )


def messages(rows):
    """Messages from (from, to, start of the send, its end, start of the receive, its end)."""
    parts = [
        side
        for match, (a, b, sent, gone, began, came) in enumerate(rows)
        for side in ((match, a, True, sent, gone), (match, b, False, began, came))
    ]
    return members(parts, what=pl.lit("p2p"), messages=pl.lit(1))


def shifted(table, rank, ns):
    return table.with_columns(
        pl.when(pl.col("rank") == rank).then(pl.col(c) + ns).otherwise(pl.col(c)).alias(c)
        for c in ("start_ns", "end_ns")
    )


def clocked(offset, drift=0.0, noise=200, count=40):
    """Collectives over four ranks whose clocks are known to be off."""
    rng = np.random.default_rng(3)
    truth = np.sort(rng.integers(0, 2_000_000_000, count)) + 1_700_000_000_000_000_000
    rows = []
    for n, end in enumerate(truth):
        for rank in range(4):
            own = end + rng.integers(-noise, noise + 1)
            shown = own + offset[rank] + round((own - truth[0]) * drift * rank)
            rows.append((n, rank, shown - 50_000, shown))
    return collectives(rows)


def test_offsets_come_back():
    offset = [0, 300_000, -5_000_000, 70_000]
    clocks = align(clocked(offset), range(4))
    for got, wanted in zip(clocks.table["offset_ns"], offset, strict=True):
        assert got == pytest.approx(wanted, abs=200)
    assert clocks.residual_ns <= 600


def test_drift_comes_back():
    clocks = align(clocked([0, 100_000, 0, 0], drift=20e-6), range(4))
    assert clocks.table["drift_ppm"].to_list() == pytest.approx([0, 20, 40, 60], abs=0.5)
    assert clocks.residual_ns <= 900


def test_equal_clocks_are_left_alone():
    assert align(clocked([0, 0, 0, 0], noise=3_000), range(4)).table["offset_ns"].to_list() == [
        0,
        0,
        0,
        0,
    ]


def test_scattered_ends_move_no_clock():
    clocks = align(clocked([0, 100_000, 0, 0], noise=2_000_000), range(4))
    assert clocks.table["offset_ns"].to_list() == [0, 0, 0, 0]
    assert clocks.residual_ns > 100_000


def test_ranks_that_never_meet_are_not_aligned():
    clocks = align(clocked([0, 0, 0, 0]), range(6))
    assert clocks.table["offset_ns"].to_list()[4:] == [None, None]
    assert clocks.offset_ns[4] == 0


def test_a_chain_of_messages_aligns_its_far_end():
    """Rank 0 talks to 1, 1 to 2: both directions, receivers 20 µs late, rank 2's clock 3 ms ahead of 1's."""
    offset = {0: 0, 1: 1_000_000, 2: 4_000_000}
    rows = []
    for n, (a, b) in enumerate(
        itertools.chain.from_iterable([[(0, 1), (1, 0), (1, 2), (2, 1)]] * 12)
    ):
        end = 10 * MS * n
        rows.append(
            (
                a,
                b,
                end - 30_000 + offset[a],
                end + offset[a],
                end - 30_000 + offset[b],
                end + 20_000 + offset[b],
            )
        )
    assert align(messages(rows), range(3)).table["offset_ns"].to_list() == [0, 1_000_000, 4_000_000]


# ---- bounds, counted by hand ----


def test_the_fastest_message_of_each_direction_gives_the_offset():
    """Forward 30 at best, backward 10: the clocks differ by 10 (and by 20 µs more where the send began)."""
    rows = [
        (0, 1, 0, 5, 100, 135),
        (0, 1, 200, 205, 300, 390),
        (1, 0, 400, 405, 300, 315),
        (1, 0, 600, 605, 400, 690),
    ]
    pair = find_clock_bounds(shifted(messages(rows), 1, 100_000))
    assert pair == [ClockBounds(0, 1, 5, (100_130 - -100_090) // 2, 400 + 100_000 - 315, 100_135)]
    assert align(shifted(messages(rows), 1, 100_000), [0, 1]).offset_ns == {0: 0, 1: 100_110}


def test_clocks_that_break_no_bound_stay():
    rows = [(0, 1, 0, 10 * MS, 0, 60 * MS), (1, 0, 70 * MS, 71 * MS, 0, 90 * MS)]
    assert align(messages(rows), [0, 1]).offset_ns == {0: 0, 1: 0}
    early = shifted(messages(rows), 1, -1_000 * MS)  # received before it was sent
    assert align(early, [0, 1]).offset_ns[1] == pytest.approx(-1_000 * MS, rel=0.1)


ROUND_TRIP = [(0, 1, 0, 10, 0, 60), (1, 0, 80, 90, 0, 120)]


@pytest.mark.parametrize(("shift", "stays"), [(-60, True), (-61, False), (40, True), (41, False)])
def test_a_clock_is_moved_from_the_first_nanosecond_that_breaks_a_bound(shift, stays):
    """Sent from 0, received till 60; sent back from 80, received till 120.

    Other messages share their kernels.
    """
    table = shifted(messages(ROUND_TRIP).with_columns(messages=pl.lit(2, pl.Int64)), 1, shift)
    assert (align(table, [0, 1]).offset_ns[1] == 0) is stays


@pytest.mark.parametrize(("late", "stays"), [(20_000, True), (20_001, False)])
def test_a_receive_ends_no_earlier_than_its_send_but_for_the_acknowledgement(late, stays):
    rows = [(0, 1, 0, 90_000, 0, 90_000 - late), (1, 0, 100_000, 190_000, 0, 190_000 + late)]
    assert (align(messages(rows), [0, 1]).offset_ns[1] == 0) is stays


def test_messages_of_one_direction_move_a_clock_only_where_they_must():
    rows = [
        (0, 1, 10_000 * n, 10_000 * n + 5_000, 10_000 * n, 10_000 * n + 5_900) for n in range(9)
    ]
    assert align(messages(rows), [0, 1]).offset_ns == {0: 0, 1: 0}
    # Or the receiver was late.
    assert align(shifted(messages(rows), 1, 8 * MS), [0, 1]).offset_ns == {
        0: 0,
        1: 0,
    }
    back = align(shifted(messages(rows), 1, -8 * MS), [0, 1])
    assert back.offset_ns[1] == pytest.approx(-8 * MS, abs=5_900)
    assert back.table["uncertainty_ns"].to_list() == [0, None]


def test_a_collective_bounds_both_ways_and_its_ends_give_the_offset():
    rows = [
        (0, 0, 0, 100),
        (0, 1, 5_000_070, 5_000_100),
        (1, 0, 180, 200),
        (1, 1, 5_000_110, 5_000_202),
    ]
    (pair,) = find_clock_bounds(collectives(rows))
    assert (pair.least_ns, pair.offset_ns, pair.most_ns) == (4_999_970, 5_000_001, 5_000_022)


def test_a_broadcast_may_be_over_on_its_root_before_another_begins():
    rows = [
        (0, 0, None, 0, 10),
        (0, 1, None, 50, 60),
        (1, 0, None, 100, 110),
        (1, 1, None, 170, 180),
    ]
    table = members(rows, what=pl.lit("broadcast"))
    assert align(table, [0, 1]).offset_ns == {0: 0, 1: 0}
    assert align(table.head(2), [0, 1]).offset_ns == {0: 0, 1: 0}


@pytest.mark.parametrize(("shift", "stays"), [(60, True), (61, False)])
def test_a_rank_does_not_lag_a_whole_round_of_broadcasts_behind(shift, stays):
    """Rounds of 100.

    Rank 1 begins 40 after rank 0 has ended: up to 100 that may be so, more is its clock.
    """
    rows = [
        (n, rank, None, 100 * n + 50 * rank, 100 * n + 10 + 50 * rank)
        for n in range(3)
        for rank in (0, 1)
    ]
    table = shifted(members(rows, what=pl.lit("broadcast")), 1, shift)
    assert (align(table, [0, 1]).offset_ns[1] == 0) is stays


def test_bounds_that_contradict_each_other_say_only_that_it_was_at_about_one_time():
    rows = [(0, 0, 0, 10), (0, 1, 50, 60), (1, 0, 150, 160), (1, 1, 100, 110)]
    (pair,) = find_clock_bounds(collectives(rows))
    assert (pair.least_ns, pair.most_ns, pair.one_clock) == (-60 - 150, 60 + 150, True)


def test_ranks_of_one_host_share_its_clock():
    """Ranks 2 and 3 stand 7 ms ahead: both by the same, though their own messages alone would say 7.1 and 6.9."""
    rows = []
    for n in range(12):
        start_ns = 10 * MS * n
        for a, b in ((0, 1), (1, 0), (2, 3), (3, 2), (1, 2), (2, 1), (0, 3), (3, 0)):
            slow = 200_000 if (a, b) in ((1, 2), (3, 0)) else 0
            rows.append((a, b, start_ns, start_ns + 50_000, start_ns, start_ns + 300_000 + slow))
    ahead = shifted(shifted(messages(rows), 2, 7 * MS), 3, 7 * MS)
    offset = align(ahead, range(4)).offset_ns
    assert (offset[0], offset[1]) == (0, 0)
    assert offset[2] == offset[3] == pytest.approx(7 * MS, abs=150_000)


def test_the_residual_lies_among_those_of_its_table():
    rng = np.random.default_rng(5)
    rows = [
        (n, rank, 100 * MS * n, 100 * MS * n + MS + int(rng.integers(0, 900_000)))
        for n in range(50)
        for rank in range(4)
    ]
    table = collectives(rows)
    clocks = align(table, range(4))
    spread = table.group_by("match").agg(ns=pl.col("end_ns").max() - pl.col("end_ns").min())["ns"]
    assert clocks.residual_ns == round(spread.median())
    assert clocks.worst_ns == spread.max()
    assert (
        clocks.table["residual_ns"].min() <= clocks.residual_ns <= clocks.table["residual_ns"].max()
    )


def test_the_uncertainty_holds_the_truth():
    rng = np.random.default_rng(11)
    for _ in range(30):
        rows = []
        for n in range(20):
            a, b = ((0, 1), (1, 0), (1, 2), (2, 1))[n % 4]
            sent = 10 * MS * n
            gone, began = (
                sent + int(rng.integers(1_000, 500_000)),
                sent + int(rng.integers(-200_000, 900_000)),
            )
            rows.append(
                (a, b, sent, gone, began, max(gone, began) + int(rng.integers(1_000, 300_000)))
            )
        truth = {0: 0, 1: int(rng.integers(-3 * MS, 3 * MS)), 2: int(rng.integers(-3 * MS, 3 * MS))}
        table = messages(rows)
        for rank, ns in truth.items():
            table = shifted(table, rank, ns)
        for row in align(table, range(3)).table.iter_rows(named=True):
            assert abs(row["offset_ns"] - truth[row["rank"]]) <= row["uncertainty_ns"]


# ---- drift: each threshold, on both sides ----


def drifting(rate, *, windows=16, wobble=0, length=16_000_000_000):
    """One collective a window, of a millisecond; rank 1's clock runs faster by *rate*."""
    rows = []
    for n in range(windows):
        start_ns = length * n // 16
        shown = start_ns + round(start_ns * rate) + (wobble if n % 2 else -wobble)
        rows += [(n, 0, start_ns, start_ns + MS), (n, 1, shown, shown + MS)]
    return collectives(rows)


def drift_of(table):
    return align(table, [0, 1]).table["drift_ppm"][1]


def test_drift_needs_enough_windows():
    assert drift_of(drifting(1e-4, windows=8)) == pytest.approx(100, rel=0.01)
    assert drift_of(drifting(1e-4, windows=7)) == 0


@pytest.mark.parametrize(("share", "is_drift"), [(0.95, False), (1.05, True)])
def test_drift_that_is_negligible_is_left(share, is_drift):
    assert (drift_of(drifting(share * 2_000 / 15e9)) != 0) is is_drift


@pytest.mark.parametrize(("share", "is_drift"), [(0.8, False), (1.3, True)])
def test_drift_must_stand_out_from_the_scatter(share, is_drift):
    grown = 150_000  # ns, over the recording
    assert (drift_of(drifting(grown / 15e9, wobble=round(grown / 6.0 / share))) != 0) is is_drift


@pytest.mark.parametrize(("share", "is_drift"), [(0.98, True), (1.02, False)])
def test_what_is_faster_than_any_clock_is_no_drift(share, is_drift):
    assert (drift_of(drifting(share * 0.0005)) != 0) is is_drift


def test_times_go_to_the_common_clock_and_back():
    table = conform(
        pl.DataFrame({"rank": [0, 1], "offset_ns": [0, 3_000 * MS], "drift_ppm": [0.0, 40.0]}),
        CLOCKS,
    )
    clocks = Clocks(table, origin_ns=10**18)
    common = np.array([10**18, 10**18 + 10**12], np.int64)
    own = clocks.to_recorded_each(np.array([1, 1]), common)
    assert (own - common).tolist() == [3_000 * MS, 3_000 * MS + 40 * MS]
    assert np.abs(clocks.to_common(1, own) - common).max() <= 1
    frame = pl.DataFrame({"rank": [1, 1], "t": own}, schema={"rank": pl.Int32, "t": pl.Int64})
    assert np.abs(clocks.align(frame, "t")["t"].to_numpy() - common).max() <= 1
    assert np.abs(frame.with_columns(clocks.moved(1, "t"))["t"].to_numpy() - common).max() <= 1
    # A rank nobody knows keeps its times.
    assert clocks.to_common(7, common).tolist() == common.tolist()


@pytest.mark.parametrize("drift", [0.0, 40.0])
def test_times_of_many_ranks_at_once_are_those_of_each(drift):
    table = pl.DataFrame(
        {"rank": [0, 1, 2], "offset_ns": [0, 3_000 * MS, None], "drift_ppm": [0.0, drift, None]}
    )
    clocks = Clocks(conform(table, CLOCKS), origin_ns=10**18)
    ranks = np.array([1, 0, 7, 1, 2])  # 7: a rank nobody knows
    times = np.arange(5) * 10**9 + 10**18 + 7
    for each in (clocks.to_common_each, clocks.to_recorded_each):
        alone = [int(each(ranks[i : i + 1], times[i : i + 1])[0]) for i in range(len(ranks))]
        assert each(ranks, times).tolist() == alone


# ---- spread of ends ----


@pytest.mark.parametrize("shift", [0.3, 1, 5, 3_000, -0.3, -1, -5, -3_000])
@pytest.mark.parametrize("scatter_ms", [0.02, 0.5])
def test_a_shifted_clock_is_found_or_within_the_uncertainty(shift, scatter_ms):
    """Long collectives (16 ms), as gradients have: their bounds alone would allow any of the smaller shifts."""
    rng = np.random.default_rng(7)
    rows = []
    for n in range(60):
        for rank in (0, 1):
            end = (
                100 * MS * n
                + 16 * MS
                + round(rng.normal(0, scatter_ms * MS))
                + (round(shift * MS) if rank else 0)
            )
            rows.append((n, rank, end - 16 * MS, end))
    clocks = align(collectives(rows), [0, 1])
    offset, uncertainty = clocks.offset_ns[1], clocks.table["uncertainty_ns"][1]
    assert abs(offset - shift * MS) <= uncertainty <= 4 * scatter_ms * MS + 0.4 * MS
    if abs(shift) > 2 * scatter_ms:
        assert offset == pytest.approx(shift * MS, abs=scatter_ms * MS)


@pytest.mark.parametrize(("count", "moved"), [(7, False), (8, True)])
def test_the_spread_of_ends_needs_enough_operations(count, moved):
    rows = [
        (n, rank, 100 * MS * n + MS * rank, 100 * MS * n + 16 * MS + n + MS * rank)
        for n in range(count)
        for rank in (0, 1)
    ]
    assert (align(collectives(rows), [0, 1]).offset_ns[1] != 0) is moved


@pytest.mark.parametrize(("apart_ns", "moved"), [(100_000, False), (100_001, True)])
def test_ends_that_lie_apart_by_little_move_no_clock(apart_ns, moved):
    rows = [
        (n, rank, 100 * MS * n, 100 * MS * n + 16 * MS + n + apart_ns * rank)
        for n in range(20)
        for rank in (0, 1)
    ]
    assert (align(collectives(rows), [0, 1]).offset_ns[1] != 0) is moved


@pytest.mark.parametrize("shift_ms", [0, 5, -5])
def test_a_rank_that_mostly_ends_first_is_no_clock_that_is_behind(shift_ms):
    """Rank 1's part of 24 operations is done 0 to 0.55 ms before rank 0's, 0.05 ms more with each of twelve."""
    shift, rows = shift_ms * MS, []
    for n in range(24):
        end = 100 * MS * n + 5 * MS
        rows += [
            (n, 0, end - 4 * MS, end),
            (n, 1, end - 4 * MS + shift, end - (n % 12) * MS // 20 + shift),
        ]
    clocks = align(collectives(rows), [0, 1])
    offset, uncertainty = clocks.offset_ns[1], clocks.table["uncertainty_ns"][1]
    assert abs(offset - shift) <= uncertainty < MS
    assert (offset == 0) is (shift == 0)


def test_ranks_that_share_a_gpu_keep_their_clocks():
    """Rank 2 leaves every collective 2.2 ms after rank 1, but ranks 0 and 3 leave them now before and now after.

    The collectives last 20 ms, and no rank ends one before another has begun it.
    """
    turns = ((0, 9), (5, 0), (9, 4), (2, 6))
    rows = []
    for n in range(32):
        first, last = turns[n % 4]
        ends_ms = {0: first, 1: 3.0, 2: 5.2, 3: last}
        for rank, late_ms in ends_ms.items():
            end = 100 * MS * n + 20 * MS + round(late_ms * MS)
            rows.append((n, rank, 100 * MS * n, end))
    clocks = align(collectives(rows), [0, 1, 2, 3])
    assert set(clocks.offset_ns.values()) == {0}
    (pair,) = (
        bounds
        for bounds in find_clock_bounds(collectives(rows))
        if (bounds.low, bounds.high) == (1, 2)
    )
    assert pair.least_ns <= 0 <= 2.2 * MS <= pair.most_ns


def test_two_ranks_alone_whose_ends_always_lie_apart_have_different_clocks():
    """The same two ranks without the others: nothing speaks against a clock that is ahead."""
    rows = [
        (n, rank, 100 * MS * n, 100 * MS * n + 20 * MS + rank * 22 * MS // 10)
        for n in range(32)
        for rank in (0, 1)
    ]
    assert align(collectives(rows), [0, 1]).offset_ns[1] == 22 * MS // 10


def pairs_with(count):
    """Two groups of two ranks: of one so many collectives, of the other eight.

    They last 14 ms and end together.
    """
    groups = (((0, 1), count), ((2, 3), 8))
    rows, match = [], 0
    for ranks, collective_count in groups:
        for n in range(collective_count):
            for rank in ranks:
                end = 100 * MS * n + 14 * MS + (n % 3) * MS // 10 * (rank % 2)
                rows.append((match, rank, 100 * MS * n, end))
            match += 1
    return collectives(rows)


@pytest.mark.parametrize(("count", "is_tight"), [(3, False), (4, True), (7, True)])
def test_few_collectives_bound_clocks_by_their_ends_if_others_show_how_well_these_agree(
    count, is_tight
):
    first, _ = find_clock_bounds(pairs_with(count))
    assert (first.width_ns < MS) is is_tight
    assert first.least_ns <= 0 <= first.most_ns


def test_few_collectives_of_a_whole_run_say_nothing_about_how_well_ends_agree():
    rows = [row for n in range(6) for row in ((n, 0, 100 * MS * n, (100 * n + 14) * MS),
                                              (n, 1, 100 * MS * n, (100 * n + 14) * MS))]  # fmt: skip
    (pair,) = find_clock_bounds(collectives(rows))
    assert pair.width_ns == 28 * MS


@pytest.mark.parametrize("messages_too", [True, False])
def test_collectives_of_unnamed_groups_move_no_clock_if_others_are_named(messages_too):
    """Ranks 0 and 1 reduce in different groups, 6 ms apart: without names they look like one.

    Messages allow 0 too.
    """
    unnamed = [
        (100 + n, rank, None, 100 * MS * n + rank * 6 * MS, (100 * n + 20) * MS + rank * 6 * MS)
        for n in range(20)
        for rank in (0, 1)
    ]
    sent = [(0, True, 0, 1), (1, False, 5, 10)], [(0, False, 15, 20), (1, True, 11, 12)]
    named = [
        (n, rank, sends, a * MS, b * MS)
        for n, sides in enumerate(sent)
        for rank, sends, a, b in sides
    ]
    rows = members([*(named if messages_too else []), *unnamed])
    what = pl.when(pl.col("sends").is_null()).then(pl.lit("all_reduce")).otherwise(pl.lit("p2p"))
    clocks = align(
        rows.with_columns(what=what, messages=pl.when(pl.col("sends").is_not_null()).then(1)),
        [0, 1],
    )
    assert clocks.offset_ns[1] == (0 if messages_too else 6 * MS)


def test_the_only_pair_of_ranks_that_was_compared_counts():
    """By way of rank 0 the two would be 50 + 80 apart."""
    table = pl.DataFrame({"rank": [0, 1, 2], "offset_ns": 0, "uncertainty_ns": [0, 50, 80]})
    clocks = Clocks(conform(table, CLOCKS), pair_uncertainty_ns={(1, 2): 30})
    assert clocks.uncertainty_between(np.array([2]), np.array([1])).tolist() == [30]
