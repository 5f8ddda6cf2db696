"""Ranks that are late together: how waits are divided among them, and who is named."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction
from pathlib import Path

import polars as pl
import pytest

from tests.kept import analysis_of, measured_tables
from tests.operations import collective, message, table
from tests.perturbations import read_run, repeat_rank
from tracekit.align.clocks import CLOCKS, Clocks
from tracekit.align.matching import match
from tracekit.align.waits import find_stragglers, with_waits
from tracekit.analysis.combine.combine_ranks import combine
from tracekit.metrics.operations import add_waits, divide_waits
from tracekit.results import AnalysisResult
from tracekit.schema import conform

MS = 1_000_000
SAMPLES = Path(__file__).parents[2] / "sample_traces"


def all_reduce(*starts_ms, what="allreduce", step_ms=0, end_ms=100):
    """One collective: rank r starts at the r-th time and all end together."""
    ranks = str(list(range(len(starts_ms)))).replace(" ", "")
    return [
        collective(
            rank,
            round((step_ms + start) * MS),
            (step_ms + end_ms) * MS,
            what=what,
            group_ranks=ranks,
        )
        for rank, start in enumerate(starts_ms)
    ]


def members_of(rows, clocks=None):
    ranks = sorted({row["rank"] for row in rows})
    clocks = clocks or Clocks.recorded(ranks)
    return with_waits(match(table(*rows)).members, clocks), clocks


def caused_ms(rows, clocks=None):
    stragglers = find_stragglers(*members_of(rows, clocks))
    return {rank: ns / MS for rank, ns in stragglers.select("rank", "caused_ns").iter_rows()}


def named(rows, clocks=None):
    stragglers = find_stragglers(*members_of(rows, clocks))
    columns = ("rank", "caused_ns", "alone_ns", "late_with", "uncertain")
    return {row["rank"]: row for row in stragglers.select(columns).iter_rows(named=True)}


def test_two_equally_late_ranks_share_the_waiting_of_the_others():
    """Ranks 0 and 2 wait 50 ms each for ranks 1 and 3."""
    named_ranks = named(all_reduce(0, 50, 0, 50))
    assert {rank: row["caused_ns"] / MS for rank, row in named_ranks.items()} == {1: 50, 3: 50}
    assert [row["late_with"] for row in (named_ranks[1], named_ranks[3])] == [[3], [1]]
    assert [row["alone_ns"] for row in named_ranks.values()] == [0, 0]


def test_the_last_one_is_charged_alone_after_the_other_arrived():
    """Ranks 0 and 2 wait 40 ms for both, 10 ms more for rank 3, and so does rank 1."""
    named_ranks = named(all_reduce(0, 40, 0, 50))
    assert named_ranks[1]["caused_ns"] == (20 + 20) * MS
    assert named_ranks[3]["caused_ns"] == (20 + 10 + 20 + 10 + 10) * MS
    assert (named_ranks[1]["alone_ns"], named_ranks[3]["alone_ns"]) == (0, 30 * MS)


@pytest.mark.parametrize(
    ("second_ms", "charged"),
    [(20, {3: 130}), (24.9, {3: 125.1}), (25, {1: 25, 3: 100})],
    ids=["early", "just early", "late together"],
)
def test_ranks_are_late_together_from_half_of_the_latest_ones_lateness(second_ms, charged):
    assert caused_ms(all_reduce(0, second_ms, 0, 50)) == charged


def test_where_most_ranks_arrive_at_the_end_the_others_are_early():
    """Of five ranks two early ones wait for the last one; of six, three may be late together."""
    assert caused_ms(all_reduce(0, 0, 50, 50, 50)) == {4: 100}
    together = caused_ms(all_reduce(0, 0, 0, 48, 48, 48))
    assert together == {3: 48, 4: 48, 5: 48}


@pytest.mark.parametrize("late", [4, 8, 9])
def test_more_ranks_than_one_can_name_are_not_late_together(late):
    starts = [0] * 20 + [40] * late
    charged = caused_ms(all_reduce(*starts))
    together = dict.fromkeys(range(20, 20 + late), 20 * 40 / late)
    assert charged == pytest.approx(together if late <= 8 else {20 + late - 1: 800})


def test_a_rank_that_is_late_itself_does_not_make_the_other_less_late():
    """Rank 1 waits 2 ms for rank 3: how late rank 3 is, the ranks in time tell."""
    rows = all_reduce(0, 48, 0, 50)
    members, _ = members_of(rows)
    waits = divide_waits(add_waits(table(*rows), members))
    pairs = {(row["last_rank"], row["rank"]): row for row in waits.iter_rows(named=True)}
    assert {pair: row["wait_ns"] // MS for pair, row in pairs.items()} == {
        (1, 0): 24, (3, 0): 26, (1, 2): 24, (3, 2): 26, (3, 1): 2
    }  # fmt: skip
    assert {pair: row["until_ns"] for pair, row in pairs.items()} == {
        (1, 0): 48 * MS, (3, 0): 50 * MS, (1, 2): 48 * MS, (3, 2): 50 * MS, (3, 1): None
    }  # fmt: skip


def test_a_rank_that_is_late_with_another_in_a_few_operations_only_is_late_by_itself():
    rows = all_reduce(0, 0, 0, 50) + all_reduce(0, 50, 0, 50, step_ms=200)
    named_ranks = named(rows)
    assert named_ranks[3]["late_with"] == []  # 50 of its 200 ms
    assert named_ranks[1]["late_with"] == [3]
    assert named_ranks[3]["alone_ns"] == 150 * MS


def test_ranks_are_late_together_if_they_are_in_more_than_half_of_the_waiting():
    """Rank 1 causes 110 ms: 50 of them with rank 3, less than half, and 60 with rank 2."""
    named_ranks = named(all_reduce(0, 50, 0, 50) + all_reduce(0, 60, 60, 0, step_ms=200))
    assert named_ranks[1]["caused_ns"] == 110 * MS
    assert {rank: row["late_with"] for rank, row in named_ranks.items()} == {1: [2], 2: [1], 3: [1]}


def test_a_rank_that_saves_half_of_the_waiting_by_itself_is_late_by_itself():
    """Rank 3 comes 60 ms after the first and 30 after rank 1: it causes 120 ms, 90 of them alone."""
    named_ranks = named(all_reduce(0, 30, 0, 60))
    assert (named_ranks[3]["caused_ns"], named_ranks[3]["alone_ns"]) == (120 * MS, 90 * MS)
    assert (named_ranks[3]["late_with"], named_ranks[1]["late_with"]) == ([], [3])


def test_nothing_is_shared_in_a_broadcast():
    """Who waits for whom in it depends on the root: the last one is charged."""
    assert caused_ms(all_reduce(0, 50, 0, 51, what="broadcast")) == {3: 103}


def test_nothing_is_shared_in_messages():
    rows = [message(0, "send:1", 0, 60 * MS), message(1, "recv:0", 50 * MS, 60 * MS)]
    assert named(rows)[1]["late_with"] == []
    assert named(rows)[1]["alone_ns"] == 50 * MS


def clocks_known_to(ns):
    ranks = [0, 1, 2, 3]
    table = pl.DataFrame({"rank": ranks, "offset_ns": 0, "uncertainty_ns": [0, ns, ns, ns]})
    pairs = {(low, high): ns for low in ranks for high in ranks if low < high}
    return Clocks(conform(table, CLOCKS), pair_uncertainty_ns=pairs)


def test_both_are_named_with_certainty_where_clocks_leave_open_which_was_last():
    """Clocks may be off by 2 ms; ranks 1 and 3 come 50 ms late, half a millisecond apart."""
    named_ranks = named(all_reduce(0, 50, 0, 50.5), clocks_known_to(2 * MS))
    assert {rank: row["uncertain"] for rank, row in named_ranks.items()} == {1: False, 3: False}


def test_a_rank_whose_lateness_clocks_may_make_up_is_not_late_together():
    """Rank 1 comes 30 ms after the first and clocks may be off by 35: it may not be late at all."""
    named_ranks = named(all_reduce(0, 30, 0, 50), clocks_known_to(35 * MS))
    assert list(named_ranks) == [3]
    assert named_ranks[3]["uncertain"]


def charged_by_hand(starts):
    """What each rank is charged with, moment by moment: an oracle in fractions.

    Between two arrivals every rank that is there waits for those that are not. If several ranks
    arrive in the second half, and at most half of all, those of them that are missing share it.
    """
    first, last = min(starts), max(starts)
    late = [rank for rank, start in enumerate(starts) if 2 * (start - first) >= last - first]
    if last == first:
        return {}
    if len(late) < 2 or len(late) > 8 or 2 * len(late) > len(starts):
        late = [max(range(len(starts)), key=lambda rank: (starts[rank], rank))]
    charged = dict.fromkeys(late, Fraction(0))
    moments = sorted(set(starts))
    for begin, end in itertools.pairwise(moments):
        waiting = sum(start <= begin for start in starts)
        missing = [rank for rank in late if starts[rank] > begin]
        for rank in missing:
            charged[rank] += Fraction((end - begin) * waiting, len(missing))
    return {rank: float(ns) for rank, ns in charged.items() if ns}


@pytest.mark.parametrize("seed", range(40))
def test_charges_agree_with_a_count_moment_by_moment_and_sum_to_the_waits(seed):
    chance = random.Random(seed)
    count = chance.randint(2, 20)
    usual = [chance.randint(0, 10) for _ in range(count)]
    starts = [start + chance.choice([0, 0, 0, 40]) for start in usual]
    caused = caused_ms(all_reduce(*starts))
    assert caused == pytest.approx(charged_by_hand(starts), abs=1e-4)
    assert sum(caused.values()) == pytest.approx(sum(max(starts) - start for start in starts))


@pytest.fixture(scope="module")
def slow_pair():
    """A recording whose rank 2 is slow, and in which rank 3 does the same as rank 2."""
    ranks = repeat_rank(read_run(SAMPLES / "slow-ddp"), 2, as_rank=3)
    return combine(
        [measured_tables(rank) for rank in ranks], what_if=True, result_type=AnalysisResult
    )


def test_a_slow_pair_of_a_recording_is_named_and_not_one_of_the_two(slow_pair):
    late = [row for row in slow_pair.stragglers if row.steps]
    assert [row.rank for row in late] == [3, 2]
    assert [row.late_with for row in late] == [[2], [3]]
    assert late[0].caused_ns == pytest.approx(late[1].caused_ns, rel=0.01)
    assert late[0].alone_ns == late[1].alone_ns == 0


def test_a_pair_is_as_late_as_the_one_alone(slow_pair):
    """Ranks 0 and 1 wait for the pair as long as they waited for rank 2 by itself."""
    alone = analysis_of(SAMPLES / "slow-ddp").stragglers[0]
    assert (alone.rank, alone.late_with) == (2, [])
    for row in slow_pair.stragglers[:2]:
        assert row.late_ns == pytest.approx(alone.late_ns, rel=0.1)


def test_the_advice_about_a_slow_pair_is_to_mend_both(slow_pair):
    [finding] = [row for row in slow_pair.findings if row.code == "slow_rank"]
    assert finding.ranks == (2, 3)
    assert "one alone saves little" in finding.advice
    assert finding.change == "ranks 2, 3 like others"
    assert finding.saves_ns > 10 * MS
    for rank in (2, 3):
        saved_ns = slow_pair.what_if(f"rank {rank} like others").saves_ns
        assert saved_ns < finding.saves_ns / 4


def test_the_ratio_of_a_slow_pair_is_that_to_the_ranks_that_wait(slow_pair):
    """Both run kernels that no other rank has, because their GPUs have fewer multiprocessors."""
    alone = analysis_of(SAMPLES / "slow-ddp").stragglers[0]
    for row in slow_pair.stragglers[:2]:
        assert row.why[0].cause == "slow_gpu"
        assert row.why[0].evidence.ratio == pytest.approx(alone.why[0].evidence.ratio, rel=0.05)
