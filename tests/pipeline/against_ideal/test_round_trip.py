"""Synthetic runs of every schedule come back with their name, order and the injected amounts."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl
import pytest

from tracekit import analyze
from tracekit.align.clock_bounds import MAX_ACKNOWLEDGE_NS
from tracekit.documents.coding import to_plain
from tracekit.pipeline.schedules import Times, generate, names
from tracekit.pipeline.schedules.registry import describe
from tracekit.synthetic import Recipe, write_run

pytestmark = pytest.mark.slow

SIZES = {"dualpipev": (2, 5), "dualpipe": (4, 8), "interleaved-zb": (2, 4), "looped-bfs": (2, 4)}
SAME = {"zb-1p": {"zb-1p", "zb-h1"}}  # at these times the search finds zb-h1's order
ALL = [name for name in names() if describe(name).pipeline]

ONE_OF_EACH_FAMILY = (
    "gpipe",
    "1f1b",
    "interleaved",
    "looped-bfs",
    "zb-h1",
    "zb-v",
    "interleaved-zb",
    "dualpipe",
    "dualpipev",
)
"""Schedules that differ most; the others come back in the nightly run."""


def nightly(*values):
    return pytest.param(*values, marks=pytest.mark.nightly)


def recipe(name, **more):
    pp, microbatches = SIZES.get(name, (4, 8))
    return Recipe(generate(name, pp=pp, microbatches=microbatches), **{"p2p_ns": 50_000, **more})


@pytest.mark.parametrize(
    "name",
    [*ONE_OF_EACH_FAMILY, *(nightly(name) for name in ALL if name not in ONE_OF_EACH_FAMILY)],
)
def test_every_schedule_comes_back(compare_recipe, name):
    run_recipe = recipe(name)
    comparison, _ = compare_recipe(run_recipe)
    assert comparison.name in SAME.get(name, {name})
    assert comparison.exact
    schedule = run_recipe.schedule
    assert (comparison.microbatches, comparison.virtual) == (
        schedule.microbatches,
        schedule.virtual,
    )
    assert comparison.head.orders() == schedule.orders()
    assert comparison.head.measured_ns == run_recipe.simulation().makespan
    assert set(comparison.gap_ns) - {"p2p"} == {
        k for k, ns in comparison.gap_ns.items() if k != "p2p" and ns == 0
    }


@pytest.mark.parametrize("name", ["zb-h1", "zb-v", "dualpipe", "interleaved-zb"])
def test_weight_gradients_in_a_second_engine_run_are_tied_exactly(compare_recipe, name):
    run_recipe = recipe(name, deferred=False)
    comparison, notices = compare_recipe(run_recipe)
    assert comparison.exact
    assert comparison.head.orders() == run_recipe.schedule.orders()
    assert "pairs-by-order" not in {n.code for n in notices}


def test_annotations_give_certainty(compare_recipe):
    comparison, _ = compare_recipe(recipe("interleaved-overlap", annotations=True))
    assert comparison.head.pipeline.stages_from == "annotations"
    assert to_plain(comparison.to_document())["confidence"] == 1.0


PLAN = generate("1f1b", pp=4, microbatches=8)
TIMES = Times(F=1_000_000, I=900_000, W=700_000)


def test_nothing_injected_leaves_no_gap(compare_recipe):
    comparison, _ = compare_recipe(Recipe(PLAN, TIMES))
    assert not any(comparison.gap_ns.values())
    assert comparison.head.ideal_bubble == pytest.approx(3 / 11)


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ({"p2p_ns": 200_000}, "p2p"),
        ({"ep_ns": 300_000, "ep_exposed_ns": 100_000, "replicas": 2}, "exposed_ep"),
        ({"offload_ns": 400_000, "offload_exposed_ns": 150_000}, "offload"),
        ({"host_ns": 120_000}, "host"),
    ],
)
def test_injected_stalls_come_back_within_two_percent(compare_recipe, more, cause):
    run_recipe = Recipe(PLAN, TIMES, **more)
    comparison, _ = compare_recipe(run_recipe)
    injected = run_recipe.simulation().makespan - Recipe(PLAN, TIMES).simulation().makespan
    assert comparison.gap_ns[cause] == pytest.approx(injected, rel=0.02)
    assert (
        sum(abs(ns) for name, ns in comparison.gap_ns.items() if name != cause) <= 0.02 * injected
    )


def test_imbalance_comes_back_by_stage(compare_recipe):
    comparison, _ = compare_recipe(Recipe(PLAN, TIMES, stage_factor={2: 1.5}))
    stage = comparison.factors.stage
    assert stage[2] / stage[0] == pytest.approx(1.5, rel=0.02)
    balanced = Recipe(PLAN, Times(F=1_125_000, I=1_012_500, W=787_500)).simulation().makespan
    assert comparison.head.ideal_ns == pytest.approx(balanced, rel=0.001)
    assert comparison.gap_ns["imbalance"] == comparison.head.measured_ns - comparison.head.ideal_ns


def test_a_straggling_rank_and_a_slow_cell_are_found(compare_recipe):
    comparison, _ = compare_recipe(
        Recipe(PLAN, TIMES, rank_factor={1: 1.3}, slow_cells={(3, "B", 3, 4): 2.0})
    )
    assert comparison.factors.stage[1] / comparison.factors.stage[0] == pytest.approx(1.3, rel=0.02)
    slow = comparison.factors.slow_cells
    assert [(cell.rank, cell.op, cell.microbatch) for cell in slow] == [(3, "B", 4)]
    assert slow[0].factor == pytest.approx(2.0, rel=0.02)
    assert comparison.gap_ns["variation"] > 0


def test_clock_skew_comes_back_and_changes_nothing(compare_recipe):
    skew = {1: 3_000_000, 2: -5_000_000, 3: 777_777}
    comparison, _ = compare_recipe(Recipe(PLAN, TIMES, p2p_ns=50_000, skew_ns=skew))
    plain, _ = compare_recipe(Recipe(PLAN, TIMES, p2p_ns=50_000))
    for rank, ns in skew.items():
        assert comparison.head.pipeline.clocks.offset_ns[rank] == ns
    assert comparison.gap_ns == plain.gap_ns


def test_jitter_is_variation_and_is_measured(compare_recipe):
    run_recipe = Recipe(generate("1f1b", pp=4, microbatches=32), TIMES, jitter=0.1, seed=3)
    comparison, _ = compare_recipe(run_recipe)
    assert comparison.exact
    # The median distance from the middle of a normal distribution is 0.6745 of its standard
    # deviation.
    assert comparison.factors.spread == pytest.approx(0.06745, rel=0.2)
    assert comparison.head.measured_ns == run_recipe.simulation().makespan
    parts = comparison.gap_ns
    assert (
        parts["imbalance"] + parts["variation"]
        == comparison.head.measured_ns - comparison.head.ideal_ns
    )


def test_everything_at_once_still_sums_up(compare_recipe):
    run_recipe = Recipe(
        generate("interleaved-overlap", pp=4, microbatches=8),
        ep_ns=300_000,
        ep_exposed_ns=50_000,
        offload_ns=300_000,
        jitter=0.02,
        p2p_ns=30_000,
        replicas=2,
        skew_ns={2: 1_000_000},
    )
    comparison, _ = compare_recipe(run_recipe)
    assert comparison.exact
    assert len(comparison.all) == 2
    assert sum(comparison.gap_ns.values()) == comparison.head.measured_ns - comparison.head.ideal_ns
    assert comparison.gap_ns["exposed_ep"] > 0
    assert abs(comparison.gap_ns["unexplained"]) < 0.001 * comparison.head.measured_ns


def test_steps_are_held_one_by_one(compare_recipe):
    comparison, _ = compare_recipe(Recipe(PLAN, TIMES, steps=3, p2p_ns=30_000))
    assert [h.pipeline.step for h in comparison.all] == [0, 1, 2]
    assert len({h.measured_ns for h in comparison.all}) == 1


def test_a_swapped_pair_is_the_nearest_schedule_with_the_place_named(compare_recipe):
    ranks = [list(order) for order in PLAN.ranks]
    ranks[1][6], ranks[1][7] = ranks[1][7], ranks[1][6]
    swapped = PLAN.__class__("mine", 4, 8, 1, tuple(map(tuple, ranks)))
    comparison, notices = compare_recipe(Recipe(swapped, TIMES))
    assert (comparison.name, comparison.exact) == ("1f1b", False)
    assert comparison.head.match.differences[0].rank == 1
    assert comparison.head.orders()[1] == [str(op) for op in ranks[1]]
    assert "order-differs" in {n.code for n in notices}


def test_cells_carry_their_shift_against_the_ideal(compare_recipe):
    comparison, _ = compare_recipe(Recipe(PLAN, TIMES, p2p_ns=100_000))
    first = comparison.cells.filter(op="F", microbatch=0).sort("rank")
    assert first["shift_ns"].to_list() == [0, 100_000, 200_000, 300_000]
    plain, _ = compare_recipe(Recipe(PLAN, TIMES))
    assert plain.cells["shift_ns"].unique().to_list() == [0]
    peaks = [b.peak_activations for b in plain.head.bubbles]
    assert peaks == [4, 3, 2, 1]
    assert [b.measured_ns for b in plain.head.bubbles] == [b.ideal_ns for b in plain.head.bubbles]


def test_replicas_are_pipelines_of_their_own_and_ranks_know_their_place(compare_recipe):
    comparison, _ = compare_recipe(Recipe(PLAN, TIMES, replicas=2), layout="pp=4,ep=2")
    assert [h.pipeline.ranks for h in comparison.all] == [(0, 2, 4, 6), (1, 3, 5, 7)]
    assert comparison.positions[5] == {"pp": 2, "ep": 1}


class Mixed(NamedTuple):
    """Jitter of all cells, duration of messages, skew and slowness of rank 1, and delay by the host."""

    jitter: float
    p2p_ns: int
    skew_ns: int
    slow: float
    host_ns: int


MIXED_RUNS = [
    ("1f1b", 3, Mixed(jitter=0.1, p2p_ns=300_000, skew_ns=-5_000_000, slow=2.0, host_ns=100_000)),
    nightly(
        "gpipe", 3, Mixed(jitter=0.05, p2p_ns=150_000, skew_ns=4_000_000, slow=1.5, host_ns=50_000)
    ),
    ("zb-h1", 3, Mixed(jitter=0.1, p2p_ns=300_000, skew_ns=3_000_000, slow=1.9, host_ns=70_000)),
    (
        "interleaved",
        2,
        Mixed(jitter=0.07, p2p_ns=40_000, skew_ns=2_000_000, slow=1.1, host_ns=90_000),
    ),
    ("zb-v", 3, Mixed(jitter=0.1, p2p_ns=300_000, skew_ns=-1_549_065, slow=1.6, host_ns=60_000)),
]
"""Schedule, ranks and what is mixed in. A clock is right, or off by more than a message and its
acknowledgement take: a smaller skew breaks no bound, and is not found."""


@pytest.mark.parametrize(("name", "pp", "mixed"), MIXED_RUNS)
def test_whatever_is_mixed_in_the_parts_sum_to_the_gap(compare_recipe, name, pp, mixed):
    assert mixed.skew_ns == 0 or abs(mixed.skew_ns) > MAX_ACKNOWLEDGE_NS + mixed.p2p_ns
    run_recipe = Recipe(
        generate(name, pp=pp, microbatches=2 * pp),
        TIMES,
        jitter=mixed.jitter,
        p2p_ns=mixed.p2p_ns,
        skew_ns={1: mixed.skew_ns},
        stage_factor={1: mixed.slow},
        host_ns=mixed.host_ns,
    )
    comparison, _ = compare_recipe(run_recipe)
    assert (comparison.name, comparison.exact) == (name, True)
    assert comparison.head.measured_ns == run_recipe.simulation().makespan
    assert sum(comparison.gap_ns.values()) == comparison.head.measured_ns - comparison.head.ideal_ns
    assert abs(comparison.gap_ns["unexplained"]) <= 0.02 * comparison.head.measured_ns


@pytest.mark.parametrize(
    ("pp", "skew_ns"), [(2, 1_119_606), nightly(2, -1_119_606), (3, -1_549_065)]
)
def test_a_skewed_clock_is_found_where_receives_are_posted_in_another_order_than_the_sends(
    tmp_path, pp, skew_ns
):
    """Messages of two stages go the same way between the ranks of a V.

    By their order alone some change partners.
    """
    plan = generate("zb-v", pp=pp, microbatches=2 * pp)
    run_recipe = Recipe(
        plan, TIMES, p2p_ns=254_331, skew_ns={1: skew_ns}, stage_factor={1: 2.0}, host_ns=43_462
    )
    write_run(run_recipe, tmp_path)
    analysis = analyze(tmp_path)
    offset_ns, uncertainty_ns = (
        analysis.clocks.table.filter(rank=1).select("offset_ns", "uncertainty_ns").row(0)
    )
    assert abs(offset_ns - skew_ns) <= uncertainty_ns <= MAX_ACKNOWLEDGE_NS
    assert analysis.comparison.head.measured_ns == run_recipe.simulation().makespan
    matched = analysis.tables["matched"]
    apart_ns = matched.group_by("match").agg(pl.col("end_ns").max() - pl.col("end_ns").min())[
        "end_ns"
    ]
    assert set(apart_ns) == {0}
