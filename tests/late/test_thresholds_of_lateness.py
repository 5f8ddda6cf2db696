"""Thresholds of lateness, transfers and pipelines of a whole run, each on both sides: slightly less, slightly more."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from msgspec.structs import replace

from tests.late.test_pipeline_order import pipeline_dumps
from tests.recorders import ddp_dumps, write_dumps
from tracekit.documents.late import LateRanks, OperationPlace
from tracekit.late import arrivals as arriving
from tracekit.late import late, late_ranks, transfers

FACT = LateRanks(
    ranks=(1,),
    hosts=(),
    kind="periodic",
    period=3,
    steps=tuple(range(10)),
    since_step=0,
    since_ns=None,
    until_step=None,
    from_beginning=True,
    late_ns=1,
    late_range_ns=(1, 1),
    at=OperationPlace(0, "all_reduce", 8, "0"),
    caused_wait_ns=0,
    cost_ns=1_000,
    share=0.0,
    cause="host",
    uncertain=False,
    growth_ns=None,
)


def late_in(steps, count):
    is_late = np.zeros(count, bool)
    is_late[list(steps)] = True
    return is_late


@pytest.mark.parametrize(("duration_ns", "is_reported"), [(1_000_000, True), (1_010_000, False)])
def test_lateness_that_repeats_is_reported_from_a_thousandth_of_the_record_on(
    duration_ns, is_reported
):
    assert late_ranks.is_worth_reporting(FACT, duration_ns, 1_000.0) is is_reported


@pytest.mark.parametrize(("duration_ns", "is_reported"), [(100_000, True), (101_000, False)])
def test_lateness_that_does_not_repeat_is_reported_from_a_hundredth_of_the_record_on(
    duration_ns, is_reported
):
    occasional = replace(FACT, kind="occasional")
    assert late_ranks.is_worth_reporting(occasional, duration_ns, 1_000.0) is is_reported


@pytest.mark.parametrize(
    ("steps", "kind"), [(range(3, 6), "occasional"), (range(3, 7), "constant")]
)
def test_four_late_steps_make_a_pattern(steps, kind):
    assert late_ranks.find_recurrence(late_in(steps, 40))[0] == kind


@pytest.mark.parametrize(
    ("dense", "single", "kind"),
    [(7, (20, 31, 47), "constant"), (6, (20, 31, 47, 54), "occasional")],
)
def test_a_span_must_hold_seven_tenths_of_the_late_steps(dense, single, kind):
    assert late_ranks.find_recurrence(late_in([*range(dense), *single], 60))[0] == kind


@pytest.mark.parametrize(("runs_of_late", "hits"), [(4, 8), (2, 2)])
def test_one_step_on_time_weighs_three_late_ones(runs_of_late, hits):
    """Two runs of late steps with one step on time between them: 4 − 3 + 4 > 4, but 2 − 3 + 2 < 2."""
    steps = [*range(runs_of_late), *range(runs_of_late + 1, 2 * runs_of_late + 1)]
    assert late_ranks.densest_span(late_in(steps, 30))[2] == hits


@pytest.mark.parametrize(
    ("last_third", "drifts"), [((151, 152, 153), True), ((149, 150, 151), False)]
)
def test_lateness_drifts_from_half_as_much_again_on(last_third, drifts):
    amount = np.array([100, 101, 102, 120, 121, 122, *last_third], float)
    assert late_ranks.is_growing(amount) is drifts


@pytest.mark.parametrize(
    ("middle", "drifts"),
    [((9, 8, 7, 6, 5, 4), True), ((11.5, 9, 8, 7, 6, 2), False)],
)
def test_lateness_that_drifts_grows_in_three_of_four_pairs(middle, drifts):
    """Growing pairs minus shrinking ones, over all: just above one half with the first, just below with the other."""
    amount = np.array([2.5, 3.0, 3.5, *middle, 10.0, 10.5, 11.0])
    later_minus_earlier = [np.sign(b - a) for i, a in enumerate(amount) for b in amount[i + 1 :]]
    share = float(np.mean(later_minus_earlier))
    assert (0.5 <= share < 0.6) if drifts else (0.25 < share < 0.5)
    assert late_ranks.is_growing(amount) is drifts


@pytest.mark.parametrize(("common", "together"), [(8, True), (7, False)])
def test_ranks_are_late_together_if_four_fifths_of_their_late_steps_are_the_same(common, together):
    other = replace(FACT, ranks=(2,), steps=(*range(common), *range(100, 110 - common)))
    assert late_ranks.are_late_together(FACT, other) is together


@pytest.mark.parametrize(
    ("count", "period", "kind"), [(4_096, 1_024, "periodic"), (8_192, 2_048, "occasional")]
)
def test_a_period_is_looked_for_in_the_last_4096_steps(count, period, kind):
    assert late_ranks.find_recurrence(late_in(range(0, count, period), count))[0] == kind


def member_rows(rows):
    names = ("step", "op_id", "rank", "group", "late_ns", "wait_ns", "call_late_ns")
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.Int64), orient="row")


@pytest.mark.parametrize(("first_late", "chosen"), [(91, 1), (89, 2)])
def test_a_late_host_is_late_first_where_it_has_nine_tenths_of_its_lateness(first_late, chosen):
    members = member_rows([(0, 1, 0, 0, first_late, 0, 0), (0, 2, 0, 0, 100, 0, 0)])
    arrived = arriving.Arrivals(members, "calls")
    worst = late_ranks.latest_operations(arrived, 0, np.array([0]))
    assert worst["op_id"].to_list() == [chosen]


@pytest.mark.parametrize(("call_late", "cause"), [(51, "host"), (49, "gpu")])
def test_the_host_is_the_cause_if_its_calls_have_half_of_the_lateness(call_late, cause):
    members = member_rows([(0, 1, 0, 0, 100, 0, call_late)])
    arrived = arriving.Arrivals(members, "durations")
    assert late_ranks.find_cause(members, arrived, 0, 0) == cause


@pytest.mark.parametrize(("waited", "cause"), [(51, "waited_itself"), (49, "host")])
def test_a_rank_waited_itself_if_it_had_waited_half_of_its_lateness(waited, cause):
    late_row = (0, 2, 0, 7, 100, 0, 100)
    waiting_row = (0, 1, 0, 8, 0, waited, 0)
    arrived = arriving.Arrivals(member_rows([waiting_row, late_row]), "durations")
    assert late_ranks.find_cause(member_rows([late_row]), arrived, 0, 0) == cause


@pytest.mark.parametrize(("timed", "basis"), [(10, "durations"), (9, "calls")])
def test_durations_count_if_half_of_the_operations_have_them(tmp_path, timed, basis):
    dumps = ddp_dumps(2, 10, warm_up=False)
    for content in dumps:
        assert len(content["entries"]) == 20
        for made in content["entries"][timed:]:
            del made["duration_ms"]
    assert late(write_dumps(tmp_path, dumps)).document.basis == basis


@pytest.mark.parametrize(("on_time", "found"), [(3, True), (2, False)])
def test_a_tenth_of_the_calls_on_time_tells_a_late_rank_from_its_clock(on_time, found):
    """Twenty calls; the tenth percentile is the third smallest difference."""
    rows = []
    for op in range(20):
        for rank in range(3):
            late_ns = 100 if rank == 2 and op >= on_time else 0
            rows.append((op, rank, 0, 1_000 * op + late_ns))
    schema = {"op_id": pl.Int64, "rank": pl.Int32, "group": pl.Int64, "enqueued_ns": pl.Int64}
    called = pl.DataFrame(rows, schema=schema, orient="row")
    compared = arriving.compare_calls(called, {}).filter(pl.col("rank") == 2)
    assert (compared["arrival_ns"].max() == 100) is found


@pytest.mark.parametrize(("slow", "found"), [(161.0, True), (159.0, False)])
def test_a_slow_link_stands_out_from_its_noise_by_six_deviations(slow, found):
    times = np.array([90.0, 110.0] * 12 + [slow] * 24)
    assert (transfers.find_slower_for_good(times) is not None) is found


@pytest.mark.parametrize(("slow", "found"), [(5, True), (4, False)])
def test_a_change_has_a_sixth_of_the_transfers_on_either_side(slow, found):
    """Of 48 transfers the last 8 are one side at least: 5 slow ones are most of them, 4 are not."""
    times = np.array([100.0] * (48 - slow) + [300.0] * slow)
    assert (transfers.find_slower_for_good(times) is not None) is found


@pytest.mark.parametrize(("groups", "found"), [(2, False), (3, True)])
def test_a_group_is_compared_with_two_others(groups, found):
    rows = []
    for group in range(groups):
        for i in range(12):
            rows.append(
                (
                    str(group),
                    "all_reduce",
                    1 << 20,
                    100 * group + i,
                    i,
                    2,
                    300 if group == 0 else 100,
                    i,
                )
            )
    table = pl.DataFrame(rows, schema=transfers.TRANSFERS, orient="row")
    assert bool(transfers.find_slow_links(table, {})) is found


@pytest.mark.parametrize(("microbatches", "found"), [(2, True), (1, False)])
def test_four_messages_make_a_stage(tmp_path, microbatches, found):
    dumps = pipeline_dumps("gpipe", stages=2, microbatches=microbatches, steps=1)
    assert bool(late(write_dumps(tmp_path, dumps)).document.pipelines) is found
