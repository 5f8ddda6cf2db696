"""Changes that a typical step hides: time between steps, a few slow steps, other work, steps that a rank lacks."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import msgspec
import polars as pl
import pytest
from msgspec import structs

from tests.diffs.gates.conftest import one_step
from tests.mutate import answer, each
from tests.perturbations import read_run
from tracekit.diffs import diff, gate
from tracekit.diffs.load_runs import side_of
from tracekit.diffs.run_samples import from_analysis
from tracekit.diffs.runs import Run
from tracekit.diffs.samples import make_samples, per_step_samples, slow_step_samples
from tracekit.diffs.verdict import judge
from tracekit.documents.analysis import Kernel, StepFigures
from tracekit.documents.diff import Facts
from tracekit.report.notices import notice_sentence

STALL_MS = 50
BASE_MS = (100.1, 100.6, 99.4, 100.2, 99.8, 100.4, 99.6, 99.9)


@pytest.fixture(scope="module")
def ranks(samples):
    return read_run(samples / "steps" / "a")


@pytest.fixture(scope="module")
def before(ranks):
    return side_of(answer(ranks), what="before")


def stall_between_steps(events):
    """Every step begins 50 ms later than the one before it did: nothing inside a step changes."""
    marks = events.filter(
        pl.col("name").cast(pl.String).str.starts_with("ProfilerStep")
        & (pl.col("kind") != "kernel")
    )
    starts = (
        marks.group_by("step").agg(pl.col("start_ns").min()).sort("start_ns")["start_ns"].to_list()
    )
    # Work belongs to the step that launched it; what no step launched moves with the time around
    # it.
    number = {step: i for i, step in enumerate(events["step"].drop_nulls().unique().sort())}
    of_step = pl.col("step").replace_strict(number, default=None, return_dtype=pl.Int64)
    by_time = (
        pl.sum_horizontal((pl.col("start_ns") >= start).cast(pl.Int64) for start in starts) - 1
    )
    moved_ns = pl.coalesce(of_step, by_time) * STALL_MS * 1_000_000
    times = [name for name in ("start_ns", "end_ns", "launch_ns") if name in events.columns]
    return events.with_columns(pl.col(name) + moved_ns for name in times)


@pytest.fixture(scope="module")
def stalled(ranks):
    return side_of(answer(each(stall_between_steps)(ranks)), what="after")


def test_a_stall_of_the_loader_before_every_step_regresses_by_its_length(before, stalled):
    checks = {check.metric: check for check in gate(stalled, before).checks}
    assert checks["step_ms"].verdict == "regressed"
    assert checks["step_ms"].change == pytest.approx(STALL_MS, rel=0.05)
    assert checks["compute_ms"].verdict == "pass"


def test_the_diff_says_that_the_ranks_are_idle_and_its_waterfall_sums_to_the_change(
    before, stalled
):
    result = diff(before, stalled)
    assert "compute takes as long as before; rank" in result.story[0]
    assert "idle time grew by 50" in result.story[0]
    waterfall = result.document.waterfall
    assert sum(row.change_ms for row in waterfall.changes) == pytest.approx(
        waterfall.after_ms - waterfall.before_ms
    )
    assert waterfall.after_ms - waterfall.before_ms == pytest.approx(STALL_MS, rel=0.05)
    assert waterfall.changes[0].part == "idle"


def timed(step_ms):
    """A run of which the step times are known, with the samples that follow from them."""
    return Run("", make_samples({"step_ms": step_ms, **slow_step_samples(step_ms)}))


def checks_of(after_ms, before_ms):
    return {check.metric: check for check in judge([timed(after_ms)], [timed(before_ms)])}


def test_two_of_eight_steps_ten_times_slower_never_pass():
    slow = [ms * (10 if i in (2, 6) else 1) for i, ms in enumerate(BASE_MS)]
    checks = checks_of(slow, BASE_MS)
    assert checks["step_ms"].change == pytest.approx(0.2, abs=0.3)  # the median step is as before
    assert checks["mean_step_ms"].after == pytest.approx(3.25 * 100, rel=0.01)
    assert checks["mean_step_ms"].verdict in ("inconclusive", "regressed")
    assert checks["slow_steps"].after == 0.25


def test_every_fourth_of_200_steps_ten_times_slower_regresses():
    usual = BASE_MS * 25
    slow = [ms * (10 if i % 4 == 0 else 1) for i, ms in enumerate(usual)]
    checks = checks_of(slow, usual)
    assert checks["mean_step_ms"].verdict == "regressed"
    assert checks["slow_steps"].verdict == "regressed"
    assert checks["slow_steps"].change == 0.25


def test_slow_steps_of_a_long_run_are_kept_in_a_baseline_file():
    from tracekit.diffs.baseline import choose_steps

    is_slow = [float(i % 4 == 0) for i in range(200)]
    kept = choose_steps(is_slow)
    assert len(kept) == 64
    assert sum(kept) / 64 == pytest.approx(0.25, abs=0.12)


@pytest.mark.parametrize("errors", [0.9, 1.1])
def test_a_mean_may_grow_by_two_standard_errors_of_the_baselines_steps(errors):
    # One of eight steps takes 100 ms more: a deviation of 35 ms, so two means differ by 35 * sqrt(2
    # / 8) = 17.7 ms.
    noisy = [100.0, 100.0, 200.0, 100.0, 100.0, 100.0, 100.0, 100.0]
    more = errors * 2 * 35.36 * (2 / 8) ** 0.5
    check = checks_of([ms + more for ms in noisy], noisy)["mean_step_ms"]
    assert check.limit == pytest.approx(35.36, rel=0.01)
    assert (check.verdict == "pass") == (errors < 1)


@pytest.mark.parametrize(("slow", "passes"), [(1, True), (3, False)])
def test_one_slow_step_more_of_forty_is_allowed_and_three_are_not(slow, passes):
    usual = BASE_MS * 5
    after = [ms * (2 if i < slow else 1) for i, ms in enumerate(usual)]
    check = checks_of(after, usual)["slow_steps"]
    assert (check.verdict == "pass") == passes
    assert check.limit == 0.05


def half_the_kernels(rows):
    return [structs.replace(row, count=row.count / 2, ns=row.ns * 0.95) for row in rows]


KERNELS = [
    Kernel("gemm", "forward", "mlp", count=32, ns=40_000_000),
    Kernel("gemm", "dgrad", "mlp", count=32, ns=40_000_000),
    Kernel("adam", "optimizer", "", count=4, ns=10_000_000),
]


@pytest.mark.parametrize(
    ("facts_before", "facts_after", "reason"),
    [
        (
            Facts(tokens=8192.0),
            Facts(tokens=4096.0),
            "work per step differs: 8,192 tokens before, 4,096 after",
        ),
        (Facts(tflop=10.0), Facts(tflop=5.0), "work per step differs: 10 TFLOP before, 5 after"),
        (Facts(), Facts(), "every kernel of the model runs 0.5 times as often"),
    ],
)
def test_half_the_work_in_almost_the_same_time_is_no_improvement(facts_before, facts_after, reason):
    old = Run("a", timed(BASE_MS).samples, facts_before, kernels=KERNELS)
    fewer = half_the_kernels(KERNELS[:2]) + KERNELS[2:]
    new = Run("b", timed([0.953 * ms for ms in BASE_MS]).samples, facts_after, kernels=fewer)
    result = gate(_side(new), _side(old))
    assert result.verdict == "inconclusive"
    assert reason in result.obstacles[0]
    allowed = gate(_side(new), _side(old), config=_config(allow=("work",)))
    assert allowed.obstacles == ()


def test_kernels_that_change_each_in_its_own_way_are_the_same_work():
    fused = [structs.replace(KERNELS[0], count=16), *KERNELS[1:]]
    old, new = (
        Run(name, timed(BASE_MS).samples, kernels=rows)
        for name, rows in (("a", KERNELS), ("b", fused))
    )
    assert gate(_side(new), _side(old)).verdict == "pass"


def ranks_apart(*step_ms):
    """Return a run of 12 steps whose ranks each take their own time: none waits for another."""
    ranks = []
    for rank_ms in step_ms:
        steps = [one_step(step, rank_ms + 0.1 * (step % 3)) for step in range(12)]
        ranks.append(
            SimpleNamespace(
                rank=len(ranks), per_step=[msgspec.convert(row, StepFigures) for row in steps]
            )
        )
    return Run("run", per_step_samples(ranks))


def test_one_slow_rank_that_nobody_waits_for_is_found():
    usual = ranks_apart(100, 100, 100, 100)
    slow = ranks_apart(100, 100, 100, 170)
    result = gate(_side(slow), _side(usual))
    checks = {check.metric: check for check in result.checks}
    assert result.verdict == "regressed"
    assert checks["step_ms"].verdict == "pass"  # the median over ranks
    assert checks["slowest_rank_ms"].verdict == "regressed"
    assert checks["slowest_rank_ms"].change == pytest.approx(70, rel=0.01)
    assert gate(_side(usual), _side(slow)).verdict == "pass"
    assert gate(_side(usual), _side(usual)).verdict == "pass"


def test_one_rank_alone_has_no_slowest():
    assert "slowest_rank_ms" not in ranks_apart(100).metric_names


def many_kernels(*, renamed=0.0, ratio=1.0, jitter=0.0, split=0.0):
    """Return 100 kernels of equal time, of which a share has new names, and which run *ratio* times as often.

    The last ones, a share of *split*, are divided into two each.
    """
    rows = []
    for number in range(100):
        name = f"{'new' if number < renamed * 100 else 'kernel'}{number}"
        count = 40 * ratio * (1 + jitter * (number % 3 - 1))
        if number >= 100 - 100 * split:
            count *= 2
        label = ("forward", "dgrad", "other")[number % 3]
        rows.append(Kernel(name, label, "", count=count, ns=10**6 * ratio))
    return rows


@pytest.mark.parametrize(
    ("facts", "change", "reason"),
    [
        # Marked twice as often: a step is half as long, and takes 28 % more time for the same work.
        (Facts(), {"renamed": 0.0, "ratio": 0.5}, "0.5 times as often"),
        (Facts(), {"renamed": 0.2, "ratio": 0.5}, "0.5 times as often"),
        (Facts(), {"renamed": 0.4, "ratio": 0.5, "jitter": 0.02}, "times as often"),
        (Facts(), {"renamed": 0.6, "ratio": 0.5}, "too few kernels in common (40.0 %"),
        (Facts(), {"renamed": 0.6}, "too few kernels in common (40.0 %"),
        # As many micro-batches, of another model.
        (Facts(microbatches=8), {"renamed": 0.6}, "too few kernels in common (40.0 %"),
        (Facts(), {"renamed": 1.0}, "too few kernels in common (0.0 %"),
        # Marked twice as often, and kernels divided or of varying number.
        (
            Facts(),
            {"ratio": 0.5, "split": 0.3},
            "70.0 % of the model's kernel time is in kernels that",
        ),
        (Facts(), {"ratio": 0.5, "split": 0.28, "renamed": 0.4}, "by different factors"),
        (Facts(), {"ratio": 0.5, "jitter": 0.08}, "by different factors"),
        (Facts(microbatches=8), {"ratio": 0.5, "jitter": 0.08}, "by different factors"),
    ],
)
def test_steps_whose_work_cannot_be_compared_are_inconclusive(facts, change, reason):
    old = Run("a", timed(BASE_MS).samples, facts, kernels=many_kernels())
    new = Run(
        "b",
        timed([0.64 * ms for ms in BASE_MS]).samples,
        facts,
        kernels=many_kernels(**change),
    )
    result = gate(_side(new), _side(old))
    assert result.verdict == "inconclusive"
    assert reason in result.obstacles[0]
    assert gate(_side(new), _side(old), config=_config(allow=("work",))).obstacles == ()


@pytest.mark.parametrize(
    "change", [{}, {"jitter": 0.04}, {"renamed": 0.4}, {"split": 0.5}, {"jitter": 0.1}]
)
def test_kernels_under_new_names_are_compared_as_long_as_most_are_the_same(change):
    old, new = (
        Run(name, timed(BASE_MS).samples, kernels=rows)
        for name, rows in (("a", many_kernels()), ("b", many_kernels(**change)))
    )
    assert gate(_side(new), _side(old)).verdict == "pass"


def _side(run):
    from tracekit.diffs import Side

    return Side((run,), {})


def _config(**settings):
    from tracekit.diffs.gate_config import Config

    return Config(**settings)


@pytest.fixture(scope="module")
def shortened(ranks):
    """The run with rank 1's file ending before its last three steps."""
    last = sorted(ranks[1].events["step"].drop_nulls().unique())[-3:]
    begin = ranks[1].events.filter(pl.col("step") == last[0])["start_ns"].min()
    kept = ranks[1].events.filter(
        (pl.col("start_ns") < begin) & ~pl.col("step").is_in(last).fill_null(False)
    )
    return answer([ranks[0], replace(ranks[1], events=kept)]), last


def test_steps_that_one_rank_lacks_are_named_and_leave_the_verdict_open(before, shortened):
    analysis, last = shortened
    (notice,) = [notice for notice in analysis.notices if notice.code == "steps-not-common"]
    named = ", ".join(map(str, last))
    assert notice_sentence(notice).startswith(
        f"rank 1: steps {named} are missing, which other ranks recorded"
    )
    assert analysis.to_dict()["step"]["not_common"] == [
        {"step": step, "missing_ranks": [1]} for step in last
    ]
    result = gate(side_of(analysis, what="after"), before)
    assert result.verdict == "inconclusive"
    assert f"not every rank recorded steps {named}" in result.checks[0].reason


def test_the_level_of_the_step_time_is_that_of_the_run(ranks):
    analysis = answer(ranks)
    (run,) = side_of(analysis, what="x").runs
    check = judge([run], [run])[0]
    assert (check.metric, check.before) == (
        "step_ms",
        pytest.approx(analysis.step.time_ns / 1e6, abs=1e-6),
    )
    assert from_analysis(analysis.to_document(), name="x").steps == len(analysis.step.per_step)


def test_a_baseline_file_without_means_of_steps_is_compared_by_its_step_times(tmp_path):
    from tracekit.diffs.baseline import dump
    from tracekit.diffs.load_runs import read_baseline

    file = tmp_path / "old.json"
    file.write_text(dump(_side(Run("a", make_samples({"step_ms": BASE_MS})))))
    result = gate(_side(timed(BASE_MS)), read_baseline(str(file)))
    assert {check.metric: check.verdict for check in result.checks}["mean_step_ms"] == "pass"
