"""Thresholds of several packages, each tested on both sides: slightly less, and slightly more."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from tests.classify.conftest import Program
from tracekit.align import clock_bounds
from tracekit.analysis.combine.notices import bound_notices
from tracekit.analysis.measure.by import layers
from tracekit.analysis.measured import make_figures
from tracekit.classify import classify, copies, matmul, pass_direction
from tracekit.diffs import stats, verdict
from tracekit.diffs.metrics import resolve
from tracekit.diffs.noise_thresholds import Noise, prior_deviation
from tracekit.diffs.runs import Run
from tracekit.diffs.samples import make_samples
from tracekit.documents.analysis import Budget, RankFigures
from tracekit.documents.gate import GateSettings
from tracekit.metrics.label_intervals import weak_ns
from tracekit.metrics.rates import ProductTotals
from tracekit.pipeline.against_ideal import compare_run as lines
from tracekit.pipeline.reconstruct import chunk_table as beside

combining = importlib.import_module("tracekit.analysis.combine.combine_ranks")


def measured(*, weak_ns=0, lower_bound=False, **label_ns):
    """A rank that computes for 900 of 1,000 ns."""
    figures = make_figures(
        budget=Budget(compute_ns=900, exposed_ns={}, idle=100),
        label_ns={"other": 0, **label_ns},
        set_ns={},
        label_count={},
        hidden_ns={},
        hidden_by_ns={},
        wait_ns={},
        wait_open_ns={},
        weak_ns=weak_ns,
        because_ns={},
        blocking_ns={},
        exposed_wait_ns=None,
        least_wait_ns=0,
        lower_bound=lower_bound,
        pipeline=True,
    )
    return RankFigures(
        rank=0,
        steps=(),
        **figures,
        phases=(),
        idle_host_ns=None,
        idle_host=(),
        inside_launch_ns=0,
        idle_causes=None,
        per_step=(),
    )


@pytest.mark.parametrize(("other_ns", "is_loud"), [(10, False), (11, True)])
def test_unlabelled_work_is_loud_above_one_percent_of_the_span(other_ns, is_loud):
    assert bool(combining.unlabelled_notices([measured(other=other_ns)])) is is_loud


@pytest.mark.parametrize(("weak", "is_loud"), [(9, False), (10, True)])
def test_weak_labels_are_loud_above_one_percent_of_gpu_time(weak, is_loud):
    assert bool(combining.weak_label_notices([measured(weak_ns=weak)])) is is_loud


@pytest.mark.parametrize(("confidence", "ns"), [(0.64, 5), (0.65, 0)])
def test_evidence_below_the_line_is_weak(confidence, ns):
    event = {"label": ["forward"], "confidence": [confidence], "start_ns": [0], "end_ns": [5]}
    assert weak_ns(pl.DataFrame(event)) == (ns,)


def chunks(gap, *, block=None, between=0):
    """A forward and, after some chunks of neither kind, a backward whose GPU time overlaps the forward's by -gap."""
    filler = [
        {"op": "W", "pair": -1, "launch_ns": 900, "last_ns": 901, "start_ns": 900, "end_ns": 901}
    ] * between
    rows = [
        {"op": "F", "pair": 9, "launch_ns": 0, "last_ns": 1, "start_ns": 0, "end_ns": 100},
        *filler,
        {
            "op": "B",
            "pair": 8,
            "launch_ns": 50,
            "last_ns": 60,
            "start_ns": 100 + gap,
            "end_ns": 200 + gap,
        },
    ]
    return pl.DataFrame(
        [{"block": block, **row} for row in rows], schema_overrides={"block": pl.String}
    )


@pytest.mark.parametrize(
    ("between", "is_tied"),
    [(2, True), (3, False)],
)
def test_the_other_half_is_looked_for_among_the_nearest_chunks(between, is_tied):
    partner = beside.find_partners(chunks(-50, between=between), from_ranges=False)[0]
    assert (partner >= 0) is is_tied


@pytest.mark.parametrize(("overlap", "met"), [(5, False), (6, True)])
def test_halves_of_a_named_block_have_met_above_a_twentieth(overlap, met):
    """TOUCH: 5 % of the shorter half; the two were launched apart."""
    assert (beside.find_partners(chunks(-overlap, block="x"), from_ranges=True)[0] >= 0) is met


@pytest.mark.parametrize(("blocks", "believed"), [(9, True), (10, False)])
def test_names_are_believed_where_more_than_a_tenth_met(blocks, believed):
    """SOME: one block of *blocks* met; with ten of them that is a tenth, and not more."""
    rows = []
    for n in range(blocks):
        start = n * 1_000
        rows += [
            {"block": str(n), "op": "F", "pair": 100 + n, "launch_ns": start, "last_ns": start + 1,
             "start_ns": start, "end_ns": start + 100},
            {"block": str(n), "op": "B", "pair": n, "launch_ns": start + 300, "last_ns": start + 310,
             "start_ns": start + 400 if n else start + 50, "end_ns": start + 500 if n else start + 150},
        ]  # fmt: skip
    partners = beside.find_partners(pl.DataFrame(rows), from_ranges=True).to_list()
    assert (partners[-2] >= 0) is believed


@pytest.mark.parametrize(("late_ns", "is_loud"), [(10, False), (11, True)])
def test_a_rank_that_begins_late_by_more_than_a_hundredth_is_named(late_ns, is_loud):
    replays = SimpleNamespace(
        graph=SimpleNamespace(table=SimpleNamespace(rank=np.array([0, 0]))),
        before={"host": np.array([late_ns, 0])},
        makespan=1_000,
    )
    pipeline = SimpleNamespace(step=0, ranks=[4])
    assert bool(lines.late_start_notices(pipeline, replays)) is is_loud


def runs(*centres):
    """Runs of six steps around each centre."""
    return [[centre + 0.01 * (n % 3) for n in range(6)] for centre in centres]


@pytest.mark.parametrize(
    ("after", "sure"),
    [((102.0, 104.0, 106.0), False), ((104.0, 106.0, 108.0), True)],
    ids=["may be chance", "is not"],
)
def test_runs_must_agree_seven_and_a_half_times_better_than_steps(after, sure):
    """BETWEEN_RUNS_P_FACTOR: a p-value from the spread between runs counts twice against alpha."""
    before = runs(99.0, 101.0, 103.0)
    baseline, candidate = (
        [Run(str(i), make_samples({"step_ms": run})) for i, run in enumerate(s)]
        for s in (before, runs(*after))
    )
    case = verdict.make_case(
        resolve("step_ms"),
        None,
        baseline=baseline,
        candidate=candidate,
        rules=GateSettings(floors={"step_ms": 1.0}),
        noise=None,
    )
    deviation = prior_deviation(case.floor, case.uncertainty)
    spread = stats.between_runs(runs(*after), before, prior=deviation, prior_df=4.0)
    chance = spread.p_not_above(case.tested_change)
    result = verdict.run_test(case, 0.02)
    assert chance < 0.02
    assert result.p_worse >= min(1.0, 2.0 * chance)
    assert (result.p_worse <= 0.02) is sure


def windows_of(*places):
    """Meetings of two ranks at these thousandths of a sixteenth of the recording, their clocks 0.1 ‰ apart."""
    times = pl.Series("since_ns", [1_000 * time_us for time_us in places])
    return pl.DataFrame(
        {"low": 0, "high": 1, "since_ns": times, "ends_ns": times // 10_000, "most_ns": 0, "least_ns": 0,
         "is_most": False, "is_least": False, "surest": True, "low_sends": None},
        schema_overrides={"low_sends": pl.Boolean},
    )  # fmt: skip


@pytest.mark.parametrize(("last", "believed"), [(10_900, False), (11_000, True)])
def test_a_drift_shows_in_eight_sixteenths_of_the_recording(last, believed):
    """DRIFT_WINDOWS and MIN_DRIFT_WINDOWS: two meetings in one sixteenth count once."""
    places = [0, 2_000, 4_000, 6_000, 8_000, 10_000, last, 15_999]
    assert (
        bool(clock_bounds.find_drift(windows_of(*(1_000 * time_us for time_us in places))))
        is believed
    )


@pytest.mark.parametrize(("times", "believed"), [(5.5, False), (6.5, True)])
def test_a_drift_is_six_times_its_scatter(times, believed):
    """MIN_DRIFT_TO_SCATTER_RATIO: the values lie 10 µs above and below a line in turn."""
    at = np.linspace(0, 1e9, 16)
    scatter = 1e4 * np.tile([1, -1, -1, 1], 4)
    rate, _ = clock_bounds.fit_drift(at, times * 1e4 * at / 1e9 + scatter)
    assert bool(rate) is believed


@pytest.mark.parametrize(("outside", "is_loud"), [(0.2, False), (0.21, True)])
def test_a_bound_is_called_low_below_half_of_what_the_table_shows(monkeypatch, outside, is_loud):
    """FAR: the bubble's bound is 10 %."""
    held = SimpleNamespace(exact=True, head=SimpleNamespace(measured_bubble=outside))
    assert bool(bound_notices([measured(lower_bound=True)], held)) is is_loud


@pytest.mark.parametrize(
    ("size", "use"), [((1 << 18) - 1, "host-read"), (1 << 18, "offload-stream")]
)
def test_a_copy_of_a_quarter_of_a_mebibyte_is_no_longer_a_scalar(size, use):
    """LARGE, on a stream of its own."""
    program = Program()
    program.copy("DtoH (Device -> Pinned)", 1, bytes=size, stream=30)
    assert classify(program.events())["rule"].to_list() == [use]


@pytest.mark.parametrize(("uncounted_ns", "counted"), [(10, True), (11, False)])
def test_rates_are_given_where_all_but_a_hundredth_of_the_products_is_counted(
    uncounted_ns, counted
):
    """UNCOUNTED, of 1,000 ns of products."""
    assert ProductTotals(1, 1, 1_000, uncounted_ns, None, 2_000).counted is counted


def test_what_was_known_beforehand_counts_like_four_runs():
    """PRIOR_DEGREES_OF_FREEDOM: two runs' worth of noise 1 with four of noise 2."""
    pooled = Noise(1.0, 2).with_prior(2.0)
    assert (pooled.df, pooled.deviation**2) == (6, pytest.approx((2 * 1 + 4 * 4) / 6))


@pytest.mark.parametrize(("copied_ns", "use"), [(800, "copy"), (700, "compute")])
def test_a_stream_is_for_copies_if_they_fill_three_quarters_of_its_busy_time(copied_ns, use):
    """Stream 0 computes for 5,000 ns; stream 1 is busy for 1,000 ns."""
    length = np.array([5_000, copied_ns, 1_000 - copied_ns])
    times = {"start_ns": np.zeros(3, np.int64), "end_ns": length}
    gpu = SimpleNamespace(stream_number=np.array([0, 1, 1]), int64=times.__getitem__)
    uses = copies.stream_uses(
        gpu, is_copy=np.array([False, True, False]), communicates=np.zeros(3, bool)
    )
    assert uses.any_of(use)[1]


@pytest.mark.parametrize(("products", "added"), [(1, 1), (2, 2), (3, 2)])
def test_a_sum_belongs_to_the_two_products_before_it(products, added):
    is_sum = np.array([False] * products + [True])
    sums = pass_direction.sums_of_products(~is_sum, is_sum, np.zeros(len(is_sum), np.int64))
    assert (sums >= 0).tolist() == [False] * (products - added) + [True] * added + [False]


@pytest.mark.parametrize(("kernels", "tokens"), [(4, 1), (5, 5)])
def test_kernels_of_an_operator_that_launches_up_to_four_are_one_kind(kernels, tokens):
    rows = pl.DataFrame(
        {
            "name": [f"k{i}" for i in range(kernels)],
            "op": "aten::mm",
            "op_id": 1,
            "host_ns": range(kernels),
        }
    ).with_columns(part=pl.lit("F"), label=pl.lit("forward"), number=1, chunk=0, turn=0)
    (chunk,) = layers.split_chunks(rows, "F")
    assert chunk["token"].n_unique() == tokens


@pytest.mark.parametrize(("engine_kernels", "is_told"), [(20, True), (21, False)])
def test_a_thread_that_launches_a_tenth_as_much_tells_which_one_runs_the_backward(
    engine_kernels, is_told
):
    """Thread 0 launches two forward kernels, thread 1 the backward."""
    thread = np.array([0, 0] + [1] * engine_kernels)
    every = np.ones(len(thread), bool)
    on_engine = pass_direction.on_engine_threads(
        SimpleNamespace(thread=thread),
        every,
        named_backward=thread == 1,
        named_forward=thread == 0,
        named_optimizer=~every,
    )
    assert on_engine.tolist() == ((thread == 1) & is_told).tolist()


def test_products_inside_of_up_to_four_others_belong_to_the_outermost():
    """Six products, each called by the one before it."""
    ranges = SimpleNamespace(
        op_of=np.array([-1, 0, 1, 2, 3, 4]), name_matches=lambda rows, pattern: rows >= 0
    )
    outer = matmul.outermost_product_ops(ranges, np.arange(6))
    assert outer.tolist() == [0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize(("products", "is_layer"), [(1, False), (2, True), (4, True), (5, False)])
def test_a_node_of_two_to_four_products_is_a_layer(products, is_layer):
    """The result of the last one is added in place."""
    rows = np.arange(products)
    ranges = SimpleNamespace(
        next_op=np.array([-1] * (products - 1) + [0]),
        previous_op=np.full(products, -1),
        name_matches=lambda rows, pattern: (rows >= 0) & ("add_" in str(pattern)),
    )
    by_use, _ = matmul.roles_by_use(
        ranges, rows, np.zeros(products, np.int64), np.full(products, products)
    )
    expected = ["dgrad"] * (products - 1) + ["wgrad"] if is_layer else [None] * products
    assert by_use.strings() == expected
