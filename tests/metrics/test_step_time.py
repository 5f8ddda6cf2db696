"""Step time: hand-countable steps, and recorded loops that measured their own steps."""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import median

import polars as pl
import pytest

from tracekit import analyze
from tracekit.align.steps import STEPS, add_step_intervals, assign_parts, host_ranges
from tracekit.documents.analysis import Budget, Step, StepNotCommon, StepTime, TimedStep
from tracekit.metrics.host.events import NamedRows
from tracekit.metrics.label_intervals import Lanes
from tracekit.metrics.step_time import (
    find_start_up_steps,
    find_times_in_turn,
    find_unusual,
    step_budgets,
    summarize_steps,
    timed_steps,
)

MS = 1_000_000


def bounds(*rows, rank=0):
    """Steps of one rank as (step, GPU start, GPU end, host start, host end), in ms."""
    names = ("step", "start_ns", "end_ns", "host_start_ns", "host_end_ns")
    columns = {
        name: [None if row[i] is None else row[i] * (MS if i else 1) for row in rows]
        for i, name in enumerate(names)
    }
    return pl.DataFrame(columns, schema=dict.fromkeys(names, pl.Int64)).with_columns(
        rank=pl.lit(rank)
    )


def times_ms(steps):
    return [
        None if ns is None else ns / MS for ns in add_step_intervals(steps)["time_ns"].to_list()
    ]


def test_time_between_two_steps_belongs_to_the_first():
    """A loader sleeps for 48 ms before each step's 18 ms of GPU work: the log says 66."""
    steps = bounds((4, 48, 66, 0, 66), (5, 114, 132, 66, 132), (6, 180, 198, 132, 198))
    assert times_ms(steps) == [66, 66, 66]


def test_the_last_step_runs_from_the_end_of_the_work_before_it_to_the_end_of_its_own():
    """An optimizer on the host goes on for 90 ms after the GPU's last work."""
    assert times_ms(bounds((4, 1, 10, 0, 100), (5, 101, 110, 100, 200))) == [100, 100]


def test_a_host_that_runs_ahead_does_not_shorten_the_last_step():
    """The host is through with step 5 before the GPU has begun it."""
    assert times_ms(bounds((4, 10, 26, 0, 4), (5, 26, 42, 4, 8))) == [16, 16]


def test_a_single_step_begins_where_its_host_range_does():
    assert times_ms(bounds((2, 5, 20, 1, 22))) == [21]
    assert times_ms(bounds((2, 5, 20, None, None))) == [15]


def test_a_step_that_was_not_recorded_belongs_to_no_other():
    """Steps 4 and 5, then 9 and 10: step 5 ends with its own work, not with the start of step 9."""
    steps = bounds(
        (4, 0, 9, 0, 9), (5, 10, 19, 10, 19), (9, 500, 509, 500, 509), (10, 510, 519, 510, 519)
    )
    assert times_ms(steps) == [10, 9, 10, 9]


def test_waiting_for_a_batch_counts_once_and_in_the_step_that_waits():
    """The loader takes 48 ms of each step, before its 18 ms of GPU work; the recording takes 201."""
    steps = bounds((4, 48, 66, 0, 67), (5, 115, 134, 67, 134), (6, 182, 201, 134, 201))
    assert times_ms(steps) == [67, 67, 67]


def test_a_batch_that_is_waited_for_while_the_gpu_still_works_costs_what_is_left_of_it():
    """The host asks for the batch of step 5 at 90, and the GPU works for step 4 until 100."""
    assert times_ms(bounds((4, 20, 100, 0, 90), (5, 150, 200, 90, 200))) == [100, 100]


def test_the_first_step_of_a_gpu_that_catches_up_takes_as_long_as_on_the_host():
    """Its first kernel waits until 15 behind work launched before; the host needs 50 ms a step."""
    steps = bounds((4, 15, 49, 0, 50), (5, 51, 99, 50, 100), (6, 101, 149, 100, 150))
    assert times_ms(steps) == [50, 50, 50]


@pytest.mark.parametrize(("over_ms", "first_ms"), [(1, 51), (2, 37)])
def test_a_gpu_that_runs_over_the_mark_for_a_fiftieth_of_the_step_has_caught_up(over_ms, first_ms):
    """The host needs 50 ms a step; the first kernel of step 4 waits until 15 behind work launched before."""
    steps = bounds(
        *((4 + i, 15 if i == 0 else 50 * i + over_ms, 50 * (i + 1) + over_ms, 50 * i, 50 * (i + 1))
          for i in range(4))
    )  # fmt: skip
    assert times_ms(steps)[0] == first_ms


def test_the_first_step_of_a_gpu_that_stays_behind_takes_as_long_as_on_the_gpu():
    steps = bounds((4, 15, 45, 0, 10), (5, 45, 75, 10, 20), (6, 75, 105, 20, 106))
    assert times_ms(steps) == [30, 30, 31]


def test_a_gpu_that_catches_up_once_does_not_make_the_host_the_limit():
    """Before step 5 the GPU is idle for 1 ms, before the others it still works: step 4 is not its host's 44."""
    steps = bounds(
        (4, 8, 44, 0, 44), (5, 45, 91, 44, 87), (6, 91, 134, 87, 123), (7, 134, 176, 123, 164)
    )
    assert times_ms(steps) == [36, 47, 43, 42]


@pytest.mark.parametrize(("until", "time_ms"), [(40, 40), (5, 70), (60, 30)])
def test_a_single_step_begins_when_the_gpu_has_ended_earlier_work(until, time_ms):
    """The host is in the step from 10 to 80; its GPU work runs from 50 to 80, and other work *until* then."""
    events = pl.DataFrame(
        {
            "step": [None, 3],
            "start_ns": [0, 50],
            "end_ns": [until, 80],
            "launch_ns": [None, 45],
        }
    )
    host = pl.DataFrame({"step": [3], "host_start_ns": [10], "host_end_ns": [80]})
    _, table, _ = assign_parts(events, host=host)
    assert table["time_ns"].to_list() == [time_ms]


def test_steps_never_overlap_whatever_their_marks_say():
    """Step 5 begins on the GPU before step 4 has, and step 6 while step 5 still runs on another stream."""
    steps = add_step_intervals(bounds((4, 10, 20, 0, 30), (5, 5, 45, 1, 29), (6, 30, 40, 29, 41)))
    timed = steps.drop_nulls("time_ns").sort("interval_start_ns")
    ends, starts = timed["interval_end_ns"].to_list(), timed["interval_start_ns"].to_list()
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    assert sum(timed["time_ns"]) <= 45 * MS


def test_a_step_that_begins_after_the_next_has_no_time():
    assert times_ms(bounds((4, 10, 20, 0, 30), (5, 5, 25, 1, 29), (6, 30, 40, 29, 41)))[0] is None


def test_only_the_steps_of_one_rank_follow_each_other():
    steps = pl.concat([bounds((2, 5, 20, 1, 20)), bounds((3, 40, 60, 38, 60), rank=1)])
    assert times_ms(steps) == [19, 22]


def test_host_ranges_leave_out_the_gpu_and_end_before_the_next_begins():
    events = pl.DataFrame(
        {
            "kind": ["annotation", "cpu_op", "kernel", "annotation", "cpu_op"],
            "step": [4, 4, 4, 5, None],
            "start_ns": [0, 8, 2, 10, 90],
            "end_ns": [10, 15, 99, 20, 95],
        }
    )
    assert host_ranges(events).rows() == [(4, 0, 10), (5, 10, 20)]


def test_a_step_that_was_asked_for_ends_where_the_next_recorded_one_begins():
    events = pl.DataFrame(
        {"step": [1, 2], "start_ns": [0, 50], "end_ns": [10, 60], "launch_ns": [0, 1]}
    )
    kept, table, _ = assign_parts(events, "1")
    assert kept.height == 1
    assert table.schema == STEPS
    assert table["time_ns"].to_list() == [50]


def test_the_budget_of_a_step_sums_to_its_time_whatever_runs_over_its_edges():
    events = pl.DataFrame(
        {"label": ["forward", "dp_comm", "forward"], "start_ns": [0, 5, 20], "end_ns": [10, 23, 26]}
    )
    steps = pl.DataFrame(
        {"interval_start_ns": [0, 20], "interval_end_ns": [20, 40], "time_ns": [20, 20]}
    )
    first, second = step_budgets(steps, Lanes.of(events))
    assert first == Budget(span_ns=20, compute_ns=10, exposed_ns={"dp_comm": 10}, idle=0)
    assert second == Budget(span_ns=20, compute_ns=6, exposed_ns={"dp_comm": 0}, idle=14)


def timed(*times, partial=()):
    return [
        TimedStep(
            n, ns, Budget(span_ns=ns or 0, compute_ns=ns or 0, exposed_ns={}, idle=0), n in partial
        )
        for n, ns in enumerate(times)
    ]


def test_the_step_time_is_the_median_over_steps_of_the_median_over_ranks():
    summary = summarize_steps(
        {0: timed(100, 110, 120), 1: timed(104, 112, 130), 2: timed(90, 111, 140)}
    )
    assert [step.time_ns for step in summary.per_step] == [100, 111, 130]
    assert summary.time_ns == 111
    assert summary.time_ns_by_rank == {0: 110, 1: 112, 2: 111}


def test_ranks_that_enter_a_step_early_do_not_lengthen_it():
    """Four ranks take 100 each, one of them 60 before the others: no rank ever sees 160."""
    assert summarize_steps({rank: timed(100) for rank in range(4)}).time_ns == 100


def test_steps_that_one_rank_lacks_are_left_out_and_named():
    summary = summarize_steps({0: timed(10, 10, 10), 1: timed(10, 10)})
    assert [step.step for step in summary.per_step] == [0, 1]
    assert summary.not_common == [StepNotCommon(2, [1])]


def test_a_cut_step_is_not_in_the_median():
    assert summarize_steps({0: timed(2, 10, 12, partial=(0,))}).time_ns == 11


def test_no_step_has_a_time():
    assert summarize_steps({0: timed(None)}).time_ns is None
    assert summarize_steps({}).time_ns is None


def test_the_budget_of_the_run_leaves_out_what_stands_out():
    usual = [
        TimedStep(n, 100, Budget(span_ns=100, compute_ns=80, exposed_ns={"dp_comm": 15}, idle=5))
        for n in (4, 6, 7)
    ]
    slow = TimedStep(
        5, 1000, Budget(span_ns=1000, compute_ns=80, exposed_ns={"dp_comm": 15}, idle=905)
    )
    summary = summarize_steps({0: [*usual, slow]})
    assert summary.budget_ns == Budget(
        span_ns=100, compute_ns=80, exposed_ns={"dp_comm": 15}, idle=5
    )
    assert summary.unusual == [StepTime(5, 1000)]


@pytest.mark.parametrize(
    ("times", "unusual"),
    [
        ((16, 177, 18, 17), [1]),
        ((96, 87, 80, 66), []),  # they vary by as much
        ((100, 100, 100, 124), []),  # below a quarter
        ((100, 100, 100, 127), [3]),
        ((100, 100, 100, 70), [3]),  # shorter stands out as well
        ((100, 200), []),  # nobody knows which of two is usual
        ((100, 92, 108, 131), []),  # less than four times what steps vary by (8)
        ((100, 92, 108, 140), [3]),
    ],
)
def test_a_step_stands_out_by_a_quarter_and_by_four_times_what_steps_vary(times, unusual):
    assert [
        step.step for step in find_unusual([StepTime(n, ns) for n, ns in enumerate(times)])
    ] == unusual


EVERYDAY = Path(os.environ.get("TRACEKIT_CORPUS", "nowhere")) / "everyday"
GPU_CADENCE_MS = {"good": 15.85, "accum": 335.8, "accum-nosync": 188.7}
"""Median step of the GPU where the loop runs ahead of it, counted in the file itself."""


@pytest.mark.slow
@pytest.mark.skipif(
    not (EVERYDAY / "truth.json").is_file(),
    reason="TRACEKIT_CORPUS is not set: the recordings are not in this repository",
)
@pytest.mark.parametrize(
    "name",
    [
        "loader",
        "pageable",
        "alloc",
        "tiny",
        "recompile",
        "fsdp-offload",
        "items",
        "good",
        "accum",
        "accum-nosync",
        "save",
    ],
)
def test_the_step_time_is_what_the_loop_measured(name):
    truth = json.loads((EVERYDAY / "truth.json").read_text())["runs"][name]
    step = analyze(EVERYDAY / name).step
    if name == "save":
        assert [unusual.step for unusual in step.unusual] == [5]
        return
    assert not step.unusual
    assert step.time_ns is not None
    if name in GPU_CADENCE_MS:
        assert step.time_ns / MS == pytest.approx(GPU_CADENCE_MS[name], rel=0.03)
        return
    times = [each.time_ns / MS for each in step.per_step]
    loop = truth["loop_ms"]
    if name == "items":  # the host runs ahead into the first recorded step
        times, loop = times[1:], loop[1:]
    if name == "fsdp-offload":
        assert step.time_ns_by_rank[0] / MS == pytest.approx(median(loop), rel=0.03)
        return
    assert median(times) == pytest.approx(median(loop), rel=0.03)


def loading(*ns_of_step):
    """Return steps of 100 ns in which code is loaded for so long."""
    rows = []
    for step, ns in enumerate(ns_of_step):
        rows.append(("cuLibraryLoadData", step, 100 * step, 100 * step + ns))
    calls = pl.DataFrame(rows, schema=["name", "step", "start_ns", "end_ns"], orient="row")
    steps = pl.DataFrame({"step": range(len(ns_of_step)), "time_ns": 100, "partial": False})
    budgets = [Budget(compute_ns=100, exposed_ns={}, idle=0)] * len(ns_of_step)
    return timed_steps(steps, budgets, find_start_up_steps(NamedRows(calls), steps))


def test_a_step_that_loads_code_for_a_twentieth_of_its_time_is_start_up_and_left_out():
    assert [step.start_up for step in loading(60, 5, 4, 0)] == [True, True, False, False]
    summary = summarize_steps({0: loading(60, 5, 4, 0)})
    assert [step.step for step in summary.per_step] == [2, 3]
    assert summary.start_up == [0, 1]
    assert not summary.is_start_up_alone


def test_where_every_step_is_start_up_they_count_and_that_is_known():
    summary = summarize_steps({0: loading(60, 50)})
    assert [step.step for step in summary.per_step] == [0, 1]
    assert summary.is_start_up_alone
    assert not summarize_steps({0: loading(0, 0)}).is_start_up_alone


@pytest.mark.parametrize(
    ("time_ns", "added_ns", "stated_ns"),
    [(1_060, 60, 1_000), (1_050, 0, 1_050), (990, 0, 990), (None, 0, None)],
)
def test_the_step_without_the_profiler_is_shown_if_that_added_more_than_a_twentieth(
    time_ns, added_ns, stated_ns
):
    recorded = Budget(compute_ns=1, exposed_ns={}, idle=0)
    modelled = Budget(compute_ns=2, exposed_ns={}, idle=0)
    summary = Step.of(time_ns, budget_ns=recorded, free_ns=1_000, free_budget_ns=modelled)
    assert (summary.profiler_ns, summary.stated_ns) == (added_ns, stated_ns)
    assert summary.stated_budget is (modelled if added_ns else recorded)


def test_a_step_without_the_profiler_that_has_no_parts_shows_the_recorded_ones():
    recorded = Budget(compute_ns=1, exposed_ns={}, idle=0)
    timed = Step.of(1_060, budget_ns=recorded, free_ns=1_000, free_from="timed")
    assert (timed.stated_ns, timed.stated_budget) == (1_000, recorded)
    unknown = Step.of(1_060, budget_ns=recorded)
    assert (unknown.profiler_ns, unknown.stated_ns, unknown.stated_budget) == (0, 1_060, recorded)


@pytest.mark.parametrize(
    ("by_rank", "spread"),
    [({0: 75, 1: 100}, 0.25), ({0: 100}, 0.0), ({}, 0.0), ({0: 0, 1: 0}, 0.0)],
)
def test_ranks_differ_by_a_share_of_the_slowest(by_rank, spread):
    assert Step.of(100, by_rank=by_rank).spread == spread


class CountedTimes(list):
    """Times of steps that count how many of them are looked at in slices."""

    looked_at = 0

    def __getitem__(self, key):
        times = super().__getitem__(key)
        if isinstance(key, slice):
            self.looked_at += len(times)
        return times


@pytest.mark.parametrize("of_one_step", [100, 500])
def test_a_period_is_looked_for_in_time_linear_in_steps(of_one_step):
    times = CountedTimes([100] * 20_000)
    times[-1] = of_one_step
    assert find_times_in_turn(times) == []
    assert times.looked_at <= 200 * len(times)
