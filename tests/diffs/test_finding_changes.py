"""Findings of two runs against each other, and predicted savings against the measured step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kept import analysis_of
from tracekit.diffs import Run, Side, diff, make_samples
from tracekit.diffs.baseline import write_baseline
from tracekit.diffs.finding_changes import check_savings, compare_findings
from tracekit.documents.diff import Facts
from tracekit.documents.findings import Finding
from tracekit.errors import OptionError
from tracekit.report.ci.finding_words import changed_findings, savings_sentence

MS = 1_000_000
CHANGES = {"data_loading": "no data loading", "host_sync": "no synchronisation"}
STEADY = (0.0, 0.02, -0.02, 0.01, -0.01, 0.0)
"""Deviations of six steps, in milliseconds."""


def finding(code="data_loading", cost_ms=10.0, saves_ms=None, **fields):
    """Return a finding; its predicted saving is *saves_ms*, if there is one."""
    saves_ns = None if saves_ms is None else round(saves_ms * MS)
    given = {
        "code": code,
        "case": "",
        "cost_ns": round(cost_ms * MS),
        "share": cost_ms / 100,
        "ranks": [],
        "steps": [],
        "where": [],
        "evidence": {},
        "text": f"{code} costs time",
        "advice": "do something",
        "change": CHANGES.get(code),
        "saves_ns": saves_ns,
        "saves_range_ns": None if saves_ns is None else (saves_ns, saves_ns),
        "certain": "measured",
    }
    return Finding(**{**given, **fields})


def side(step_ms, *findings, spread=STEADY, **facts):
    """Return one run of steps around *step_ms* milliseconds with these findings."""
    steps = tuple(step_ms + deviation for deviation in spread)
    samples = make_samples({"step_ms": steps, "mean_step_ms": steps})
    return Side((Run("run", samples, Facts(**facts), findings=findings),), {})


def kinds(before, after):
    return [(change.code, change.kind) for change in compare_findings(before, after)]


def check(before, after, change="no data loading"):
    return check_savings(change, compare_findings(before, after), before, after)


def test_a_finding_is_new_gone_worse_or_better():
    before = side(100.0, finding("gone", 5), finding("worse", 5), finding("better", 9))
    after = side(90.0, finding("new", 5), finding("worse", 9), finding("better", 5))
    assert kinds(before, after) == [
        ("new", "new"),
        ("worse", "worse"),
        ("gone", "gone"),
        ("better", "better"),
    ]


@pytest.mark.parametrize(
    ("before_ms", "after_ms", "kind"),
    [
        (0.0, 1.1, "new"),  # 1.1 % of the step
        (0.0, 0.7, None),
        (1.1, 0.0, "gone"),
        (0.7, 0.0, None),
        (0.9, 1.2, None),  # past one per cent of the step, by less than one per cent
        (10.0, 13.0, "worse"),  # by 23 % of 13
        (10.0, 11.5, None),  # by 13 % of 11.5
        (10.0, 7.5, "better"),
        (10.0, 8.7, None),
    ],
)
def test_small_changes_of_a_cost_are_not_named(before_ms, after_ms, kind):
    before, after = (
        side(100.0, *([finding(cost_ms=ms)] if ms else [])) for ms in (before_ms, after_ms)
    )
    assert kinds(before, after) == ([("data_loading", kind)] if kind else [])


def test_what_is_too_small_in_both_steps_is_not_named_though_the_step_grew():
    assert kinds(side(100.0), side(200.0, finding(cost_ms=1.5))) == []
    assert kinds(side(100.0), side(200.0, finding(cost_ms=2.5))) == [("data_loading", "new")]


def test_findings_are_matched_by_label_ranks_and_part_of_the_gap():
    def findings(*, moved):
        label = {"evidence": {"label": "pp_comm" if moved else "dp_comm"}}
        return (
            finding("exposed_comm", **label),
            finding("slow_rank", ranks=[1 if moved else 0]),
            finding("schedule_gap", evidence={"gap_part": "p2p" if moved else "host"}),
            finding("host_sync", case="other" if moved else "one"),
        )

    before, after = side(100.0, *findings(moved=False)), side(100.0, *findings(moved=True))
    assert sorted(kinds(before, after)) == [
        (code, kind)
        for code in ("exposed_comm", "schedule_gap", "slow_rank")
        for kind in ("gone", "new")
    ]
    assert kinds(before, before) == []


def test_a_part_of_the_gap_is_the_same_whatever_is_advised_about_it():
    part = {"gap_part": "p2p"}
    before = side(100.0, finding("schedule_gap", 10, case="p2p", evidence=part))
    after = side(110.0, finding("schedule_gap", 20, case="p2p_and_host", evidence=part))
    assert kinds(before, after) == [("schedule_gap", "worse")]


def test_costs_are_means_over_the_runs_of_a_side():
    one, other = side(100.0, finding(cost_ms=10)).runs[0], side(100.0).runs[0]
    (change,) = compare_findings(Side((one, other), {}), side(100.0))
    assert change.cost_before_ns == 5 * MS


def test_what_is_not_recorded_costs_nothing():
    assert kinds(side(100.0), side(100.0, finding("recording"))) == []


def test_memory_is_compared_in_bytes():
    leak = {"cost_ms": 0, "cost_bytes": 1000}
    before = side(100.0, finding("leak", **leak))
    grown = side(100.0, finding("leak", **{**leak, "cost_bytes": 1300}))
    (change,) = compare_findings(before, grown)
    assert (change.kind, change.cost_before_bytes, change.cost_after_bytes) == ("worse", 1000, 1300)
    assert change.step_agrees  # a step takes as long with more memory
    assert kinds(before, side(100.0)) == [("leak", "gone")]


def test_three_steps_that_are_all_faster_tell_that_the_step_did():
    """A confidence interval of three steps that vary by a tenth holds 0."""
    spread = (0.0, 10.0, -10.0)
    (change,) = compare_findings(side(100.0, finding(), spread=spread), side(75.0, spread=spread))
    assert change.step_agrees
    (change,) = compare_findings(side(100.0, finding(), spread=spread), side(85.0, spread=spread))
    assert not change.step_agrees


def test_what_a_finding_that_shrank_said_before_is_kept():
    before = side(100.0, finding(cost_ms=12, text="the CPU is late: 2,490 kernels a step"))
    after = side(90.0, finding(cost_ms=2, text="the CPU is late: 93 kernels a step"))
    (change,) = compare_findings(before, after)
    assert change.text_before == "the CPU is late: 2,490 kernels a step"
    (line,) = changed_findings(diff(before, after).document)
    assert line.text == "the CPU is late: 93 kernels a step (before: 2,490 kernels a step)"


def test_a_side_without_a_record_of_findings_is_not_compared():
    old = Side((Run("old", make_samples({"step_ms": (100.0,) * 6})),), {})
    assert compare_findings(old, side(100.0, finding())) is None
    assert diff(old, side(100.0, finding())).document.findings is None


@pytest.mark.parametrize(("after_ms", "agrees"), [(88.0, True), (99.0, False), (112.0, False)])
def test_a_finding_that_went_counts_if_the_step_became_faster(after_ms, agrees):
    (change,) = compare_findings(side(100.0, finding()), side(after_ms))
    assert (change.kind, change.step_agrees) == ("gone", agrees)


@pytest.mark.parametrize(
    ("after_ms", "outcome"),
    [
        (90.0, "as_predicted"),
        (92.0, "as_predicted"),  # runs differ by 2.85 % of the step
        (94.0, "less"),
        (84.0, "more"),
        (99.0, "undecided"),
        (105.0, "opposite"),
    ],
)
def test_a_predicted_saving_of_10_ms_against_the_measured_one(after_ms, outcome):
    saving = check(side(100.0, finding(saves_ms=10)), side(after_ms))
    assert saving.outcome == outcome
    assert saving.predicted_saving_ns == 10 * MS
    assert saving.measured_saving_ns == round((100 - after_ms) * MS)
    low, high = saving.measured_range_ns
    assert high - low >= 2 * 0.0285 * 100 * MS * 0.99


def test_of_several_changes_only_the_sum_is_compared():
    before = side(
        100.0,
        finding("data_loading", 10, 10, saves_range_ns=(8 * MS, 12 * MS)),
        finding("host_sync", 6, 5, saves_range_ns=(0, 6 * MS)),
    )
    saving = check(before, side(86.0), "no data loading, no synchronisation")
    assert saving.codes == ["data_loading", "host_sync"]
    assert saving.predicted_saving_ns == 15 * MS
    assert saving.predicted_range_ns == (8 * MS, 18 * MS)
    assert saving.outcome == "as_predicted"


def test_only_the_change_that_was_named_is_compared():
    before = side(100.0, finding("host_sync", 5, 5), finding("data_loading", 10, 10))
    assert check(before, side(90.0)).codes == ["data_loading"]
    assert diff(before, side(90.0)).document.savings is None
    named = diff(before, side(90.0), change="no data loading").document.savings
    assert named == check(before, side(90.0))


def test_a_change_that_nothing_was_predicted_for_is_one_line():
    before = side(100.0, finding("host_sync", 5, 5))
    with pytest.raises(OptionError, match="nothing was predicted for it"):
        diff(before, side(90.0), change="no data loading")
    with pytest.raises(OptionError, match="is not a change that is known"):
        diff(before, side(90.0), change="no coffee")


def test_steps_without_the_profiler_are_compared_where_both_sides_know_them():
    before = side(100.0, finding(saves_ms=10), free_ms=50.0, free_range_ms=(49.0, 51.0))
    after = side(60.0, free_ms=41.0, free_range_ms=(40.0, 42.0))
    saving = check(before, after)
    assert (saving.step, saving.measured_saving_ns, saving.outcome) == (
        "free",
        9 * MS,
        "as_predicted",
    )
    assert saving.measured_range_ns == (7 * MS, 11 * MS)


def test_steps_that_vary_by_more_than_the_change_decide_nothing():
    noisy = (0.0, 25.0, -25.0, 15.0, -15.0, 5.0)
    saving = check(side(100.0, finding(saves_ms=10), spread=noisy), side(90.0, spread=noisy))
    assert saving.outcome == "undecided"
    assert saving.measured_range_ns[0] < 0 < saving.measured_range_ns[1]


@pytest.mark.parametrize(("steps", "known"), [(2, False), (3, True)])
def test_fewer_than_three_steps_show_no_noise(steps, known):
    before = side(100.0, finding(saves_ms=10), spread=STEADY[:steps])
    saving = check(before, side(90.0, spread=STEADY[:steps]))
    assert (saving.measured_range_ns is not None) == known
    assert saving.outcome == ("as_predicted" if known else "undecided")


def test_steps_of_different_work_are_not_compared():
    before = side(100.0, finding(saves_ms=10), tokens=1000)
    assert check(before, side(90.0, tokens=500)).outcome == "not_comparable"
    assert check(before, side(90.0, tokens=1000)).outcome == "as_predicted"


def test_what_is_new_is_in_the_measured_time_too():
    before = side(100.0, finding("data_loading", 10, 10), finding("host_sync", 2))
    after = side(95.0, finding("compile", 3), finding("host_sync", 4))
    assert check(before, after).added_cost_ns == 5 * MS


def test_the_straggler_of_the_sample_is_new_work_and_its_end_is_seen(samples):
    before, after = (analysis_of(samples / "steps" / name) for name in ("a", "straggler"))
    changes = diff(before, after).document
    assert [(row.kind, row.case) for row in changes.findings if row.step_agrees] == [
        ("new", "imbalance"),
        ("worse", "own_bubble"),
    ]
    assert changes.savings is None
    mended = diff(after, before, change="balance").document
    assert [(row.kind, row.case) for row in mended.findings] == [
        ("gone", "imbalance"),
        ("better", "own_bubble"),
    ]
    # The stage runs its products a twelfth as often: what the step gained is not what was predicted.
    assert mended.savings.outcome == "not_comparable"


def test_of_two_equal_runs_no_finding_changed_with_the_step(samples):
    before, after = (analysis_of(samples / "steps" / name) for name in ("a", "b"))
    assert not [row.code for row in diff(before, after).document.findings if row.step_agrees]


EVERYDAY = Path(os.environ.get("TRACEKIT_CORPUS", "nowhere")) / "everyday"


@pytest.mark.slow
@pytest.mark.skipif(not EVERYDAY.is_dir(), reason="needs the recordings of everyday runs")
@pytest.mark.parametrize(
    ("faulty", "change"), [("loader", "no data loading"), ("pageable", "no pageable copies")]
)
def test_savings_predicted_for_everyday_faults_come_true(faulty, change):
    before, after = (analysis_of(EVERYDAY / name) for name in (faulty, "good"))
    changes = diff(before, after, change=change).document
    assert changes.savings.outcome == "as_predicted"
    assert "measured −" in savings_sentence(changes)


def test_a_baseline_file_keeps_predicted_savings(tmp_path):
    places = [{"rank": 0, "step": 1, "start_ns": 0, "end_ns": 1, "name": "x", "source": None}]
    before = side(
        100.0,
        finding("data_loading", 10, 10, evidence={"label": "dp_comm", "cause": "x"}, where=places),
    )
    path = tmp_path / "baseline.json"
    write_baseline(path, before.runs)
    assert '"cause"' not in path.read_text()
    assert '"start_ns"' not in path.read_text()
    after = side(90.0)
    kept = diff(path, after, change="no data loading").document
    assert kept.savings == check(before, after)
    assert kept.findings == compare_findings(before, after)
