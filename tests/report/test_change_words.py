"""The wording of diffs and verdicts, each on one row that can be read at a glance."""

from __future__ import annotations

from datetime import date

import pytest
from msgspec.structs import replace

from tests.changes import check, difference, finding, metric, side, time_of, unusable, verdict
from tracekit.documents.diff import (
    CellChange,
    FreeStepChange,
    KernelChange,
    ModuleChange,
    PartChange,
    RankChange,
    Waterfall,
)
from tracekit.documents.gate import WaiverStatus
from tracekit.report.ci import words
from tracekit.report.ci.finding_words import changed_findings
from tracekit.report.ci.write import github_annotations, render_metrics
from tracekit.report.html.page import diff_waterfall

WAIVER = WaiverStatus("step_ms", "new kernel", date(2026, 1, 31), "active")


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (metric(before=10.0, change=0.5), "+5.0 %"),
        (metric(before=10.0, change=1500.0), "+1,500 ms"),
        (metric(unit="ratio", before=0.24, change=-0.12), "−12.0 points"),
        (metric(), "–"),
    ],
)
def test_a_change_is_relative_for_times_and_in_points_for_shares(row, text):
    assert words.change(row) == text


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (check(interval=[0.5, 1.0], before=10.0, change=0.7), "+5.0 … +10.0 %"),
        (check(interval=[0.125, 0.25], unit="ratio", limit_on="level"), "12.5 % … 25.0 %"),
        (check(), ""),
    ],
)
def test_a_likely_range_is_of_what_is_limited(row, text):
    assert words.likely_range(row) == text


def test_a_limit_on_a_change_has_the_unit_of_the_change():
    row = check(limit=-0.02, unit="ratio", before=0.5, change=0.1)
    assert words.limit(row) == "−2.0 points"


def test_changes_of_times_have_their_share_unless_it_is_tenfold():
    assert words.milliseconds(time_of(ModuleChange, module="m", label="l")) == "+1.500 ms"
    row = time_of(ModuleChange, module="m", label="l", change_relative=0.1)
    assert words.milliseconds(row) == "+1.500 ms (+10.0 %)"


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (verdict(checks=[check()]), "pass: 1 metric checked, none regressed"),
        (
            verdict(checks=[check(verdict="regressed", waiver=WAIVER)]),
            "pass: 1 metric checked, none regressed (1 waived)",
        ),
        (unusable("a: no such file"), "unusable input: a: no such file"),
        (
            verdict(verdict="regressed", checks=[check(verdict="regressed")]),
            "regressed: step_ms",
        ),
        (
            verdict(verdict="inconclusive", checks=[check(verdict="inconclusive", reason="few")]),
            "inconclusive: few",
        ),
        (verdict(verdict="inconclusive"), "inconclusive: nothing could be checked"),
        (
            verdict(verdict="inconclusive", obstacles=["other GPUs"]),
            "inconclusive: not comparable: other GPUs",
        ),
    ],
)
def test_a_verdict_in_one_sentence(result, text):
    assert words.headline(result) == text


def test_a_story_begins_with_capitals_and_says_if_the_step_proves_nothing():
    undecided = [metric(verdict="inconclusive")]
    result = difference(story=["rank 1's mlp forward grew by 9.1 ms"], metrics=undecided)
    assert words.story(result) == ["Rank 1's mlp forward grew by 9.1 ms"]
    assert words.story_lead(result) == "What differs:"
    assert words.story_lead(difference(story=["idle time grew"], metrics=[metric()])) == ""


def test_the_runs_of_both_sides_are_named_with_their_steps():
    result = difference(before=side(8), after=side(1, 2, 3, 4))
    assert words.compared_runs(result) == (
        "before: a (8 steps) · after: a (1 step), b (2 steps), c (3 steps) …"
    )
    assert words.compared_runs(verdict(after=side(1))) == "after: a (1 step)"
    assert words.has_typical_steps(result)
    assert not words.has_typical_steps(verdict(after=side(1)))


def test_without_a_step_time_nothing_is_said_of_it():
    assert words.step_sentence(difference()) == "Step time cannot be compared"


def test_means_are_noted_where_there_are_several_ranks():
    ranks = [time_of(RankChange, rank=rank, most="idle_ms", most_ms=1.5) for rank in (0, 1)]
    note = "labels, modules and kernels: means over ranks; ranks: their own"
    assert words.means_note(difference(ranks=ranks)) == note
    assert words.means_note(difference(ranks=ranks[:1])) == ""


def test_changes_that_round_to_zero_are_hidden():
    large = time_of(RankChange, rank=0, most=None, most_ms=None, change_ms=0.2)
    small = time_of(RankChange, rank=1, most=None, most_ms=None, change_ms=-0.0001)
    assert words.visible_changes([large, small]) == [large]
    assert words.visible_changes([small]) == [small]


def test_a_check_in_one_line():
    row = check(before=10.0, after=11.0, change=1.0, reason="breaks step_ms < +3%")
    assert words.explain(row) == "step_ms 10.00 ms → 11.00 ms (+10.0 %): breaks step_ms < +3%"
    assert words.explain(check(after=11.0)) == "step_ms 11.00 ms"
    assert words.reason(check(waiver=WAIVER)) == "waived until 2026-01-31: new kernel"


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (time_of(CellChange, rank=1, op="F", stage=0, microbatch=3), "rank 1, 0F3"),
        (
            time_of(CellChange, rank=1, op="FB", stage=0, microbatch=3, b_stage=7, b_microbatch=2),
            "rank 1, (0F3;7B2)",
        ),
        (time_of(ModuleChange, module="mlp", label="wgrad"), "mlp, wgrad"),
        (time_of(KernelChange, name="gemm", label="forward"), "gemm, forward"),
        (time_of(RankChange, rank=1, most="idle_ms", most_ms=1.5), "rank 1 (idle)"),
        (time_of(RankChange, rank=1, most=None, most_ms=None), "rank 1"),
    ],
)
def test_rows_of_what_moved_have_names(row, name):
    assert words.row_name(row) == name


def test_reasons_stand_beside_the_checks_or_once_below_them():
    checks = [
        check(metric="a", reason="noise"),
        check(metric="b"),
        check(metric="c", reason="noise"),
    ]
    below = words.check_table(checks, reasons_below=True)
    assert below.notes == ("a, c: noise",)
    beside = words.check_table([checks[0], checks[2], checks[1]])
    assert [row[-1] for row in beside.rows] == ["noise", "as above", ""]


@pytest.mark.parametrize(
    ("row", "cost"),
    [
        (finding(), "5.00 ms (25 % of the step)"),
        (finding(kind="worse", cost_before_ns=2_000_000), "2.00 ms → 5.00 ms"),
        (finding(cost_after_bytes=5_000_000), "5.0 MB"),
    ],
)
def test_the_cost_of_a_finding_before_and_after(row, cost):
    (line,) = changed_findings(difference(findings=[row]))
    assert line.cost == cost


def test_metrics_for_prometheus_are_those_with_a_level():
    checks = [check(metric="exposed_ms.pp_comm", after=1.5), check()]
    assert render_metrics(verdict(checks=checks)) == "tracekit_exposed_ms_pp_comm 1.5\n"


def test_unusable_input_is_one_annotation():
    line = "::error title=tracekit gate::unusable input: a: no such file"
    assert github_annotations(unusable("a: no such file")) == [line]


def test_a_waterfall_has_no_bar_for_what_did_not_change():
    changes = [PartChange("x", 4), PartChange("y", -1), PartChange("z", 0)]
    bars = diff_waterfall(Waterfall(0, 10, 13, changes))
    assert [(bar.name, bar.ns) for bar in bars] == [
        ("before", 10_000_000),
        ("x", 4_000_000),
        ("y", -1_000_000),
        ("after", 13_000_000),
    ]


@pytest.mark.parametrize(
    ("every_step", "said"),
    [
        ((2.8, 3.6), "every step is slower (28 to 36 %), inconclusive (few steps)"),
        ((-3.6, -2.8), "every step is faster (28 to 36 %), inconclusive (few steps)"),
        ((2.81, 2.84), "every step is slower (28.1 to 28.4 %), inconclusive (few steps)"),
        (None, "inconclusive (few steps)"),
    ],
)
def test_what_every_step_did_stands_beside_inconclusive(every_step, said):
    step = metric(before=10.0, after=13.2, change=3.2, verdict="inconclusive", reason="few steps")
    row = replace(step, every_step=every_step)
    assert words.step_sentence(difference(metrics=[row])).endswith(f": {said}")


@pytest.mark.parametrize(
    ("after_range_ms", "outcome"),
    [((9.5, 11.5), "within their ranges"), ((10.6, 11.5), "slower")],
)
def test_a_diff_begins_with_the_step_without_the_profiler(after_range_ms, outcome):
    free = FreeStepChange(
        before_ms=10.0, after_ms=11.0, before_range_ms=(9.5, 10.5), after_range_ms=after_range_ms
    )
    step = metric(before=20.0, after=20.0, change=0.0)
    result = difference(free_step=free, metrics=[step])
    assert words.step_sentence(result) == (
        f"Step without the profiler 10.00 ms → 11.00 ms (+10.0 %): {outcome}; "
        "typical recorded step 20.00 ms → 20.00 ms (0.0 %): no clear change"
    )
