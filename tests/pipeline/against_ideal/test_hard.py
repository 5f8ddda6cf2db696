"""Traces with missing evidence: the right schedule is named, or none with the reason.

Never a wrong one.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from msgspec.structs import replace

from tests.pipeline.against_ideal.conftest import SAMPLES, strip
from tracekit.align.steps import number_steps
from tracekit.classify import classify
from tracekit.pipeline.against_ideal import compare_pipelines
from tracekit.pipeline.reconstruct import rank_pipeline
from tracekit.pipeline.reconstruct.rank_pipeline import rank_pipeline as table_of
from tracekit.pipeline.schedules import Times, generate
from tracekit.run.load import load
from tracekit.schema import LABELLED, Source, conform
from tracekit.synthetic import Recipe, rank_events

pytestmark = pytest.mark.slow

NAME = pl.col("name").cast(pl.String)
TIMES = Times(F=1_000_000, I=900_000, W=700_000)


@pytest.fixture(
    scope="module", params=["interleaved", pytest.param("1f1b", marks=pytest.mark.nightly)]
)
def run(request):
    """A real run's events and sources, rank by rank, and its name; with and without ranges."""
    trace = load(sorted((SAMPLES / request.param).glob("*.gz")))
    ranks = [(trace.rank(r).events, trace.rank(r).source) for r in trace.ranks]
    return request.param, ranks


def compare(ranks, **options):
    numbered = [number_steps(classify(events)) for events, _ in ranks]
    parts = [
        rank_pipeline(labelled, source)
        for (labelled, _), (_, source) in zip(numbered, ranks, strict=True)
    ]
    comparison, notices = compare_pipelines(parts, **options)
    notices = [*notices, *(notice for _, step_notices in numbered for notice in step_notices)]
    for step in comparison.all if comparison else ():
        assert step.gap_ns is None or sum(step.gap_ns.values()) == step.measured_ns - step.ideal_ns
    return comparison, {n.code for n in notices}


def assert_schedule(comparison, name, *, ranks=((0, 1, 2, 3),)):
    assert (comparison.name, comparison.pp, comparison.microbatches, comparison.exact) == (
        name,
        4,
        8,
        True,
    )
    assert {h.pipeline.ranks for h in comparison.all} == set(ranks)


def without_step_marks(events):
    return events.filter(~NAME.str.starts_with("ProfilerStep")).with_columns(
        step=pl.lit(None, events.schema["step"])
    )


def without_peers(events, source, *, groups=True):
    removed = ["peer"] if groups else ["peer", "group", "group_desc", "group_ranks"]
    source = source if groups else replace(source, groups=())
    return events.with_columns(pl.lit(None, events.schema[c]).alias(c) for c in removed), source


@pytest.mark.parametrize("recorded_ranks", [(3,), (0, 1), (1, 3)])
def test_some_of_the_ranks(run, recorded_ranks):
    name, ranks = run
    comparison, codes = compare([strip(*ranks[r]) for r in recorded_ranks])
    assert_schedule(comparison, name)
    assert comparison.gap_ns is None
    assert "partial-pipeline" in codes


def test_a_first_rank_alone_fits_more_than_one_schedule_and_says_so(run):
    name, ranks = run
    comparison, codes = compare(ranks[:1])
    assert comparison.name == name
    # What zb-h1 does there, with whole backwards, and the overlapped schedule, with its blocks run
    # apart, is the same.
    assert {"1f1b": "zb-h1", "interleaved": "interleaved-overlap"}[
        name
    ] in comparison.head.match.ambiguous_with
    assert "schedule-ambiguous" in codes


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_of_schedules_that_a_rank_cannot_tell_apart_the_commonest_comes_first(name):
    """The first rank of both runs the same units of work in the same order; the last ones do not."""
    first = synthetic(generate(name, pp=4, microbatches=8))[:1]
    comparison, _ = compare(first)
    assert comparison.possible_names.startswith("1f1b")
    assert "zb-h1" in comparison.possible_names
    document = comparison.to_document()
    assert (document.name, document.exact) == ("1f1b", True)
    assert "zb-h1" in document.ambiguous_with
    comparison, _ = compare(synthetic(generate(name, pp=4, microbatches=8)))
    assert comparison.possible_names == name


def test_no_step_marks(run):
    name, ranks = run
    comparison, _ = compare([(without_step_marks(events), source) for events, source in ranks])
    assert_schedule(comparison, name)


def test_no_peers(run):
    name, ranks = run
    comparison, codes = compare([without_peers(*strip(*rank)) for rank in ranks])
    assert_schedule(comparison, name)
    assert {"no-peers", "size-from-order"} <= codes
    comparison, codes = compare([without_peers(*ranks[r]) for r in (0, 2)])
    assert_schedule(comparison, name)
    assert "partial-pipeline" in codes


def test_no_peers_and_not_all_ranks_is_no_pipeline_at_all(run):
    _, ranks = run
    comparison, codes = compare([without_peers(*strip(*ranks[r]), groups=False) for r in (1, 3)])
    assert comparison is None
    assert codes == {"no-schedule"}


def test_two_replicas_of_one_pipeline(run):
    """One of the runs without peers, as messages of several chunks need them most."""
    name, ranks = run
    both = list(ranks)
    for events, source in ranks:
        groups = tuple(
            replace(g, name=f"{g.name}b", ranks=tuple(r + 4 for r in g.ranks))
            for g in source.groups
        )
        moved = events.with_columns(
            pl.col("peer") + 4,
            pl.col("rank") + 4,
            group=(pl.col("group").cast(pl.String) + "b").cast(events.schema["group"]),
        )
        both.append((moved, replace(source, rank=source.rank + 4, groups=groups)))
    comparison, _ = compare(both if name == "1f1b" else [without_peers(*rank) for rank in both])
    assert_schedule(comparison, name, ranks=((0, 1, 2, 3), (4, 5, 6, 7)))


@pytest.mark.parametrize(
    ("share", "end", "bare"),
    [(0.3, False, True), (0.3, True, False), (0.6, False, False), (0.6, True, True)],
)
def test_a_window_that_ends_or_begins_inside_the_step_is_none_with_the_reason(
    run, share, end, bare
):
    _, ranks = run
    times = np.concatenate([e.filter(kind="kernel")["start_ns"].to_numpy() for e, _ in ranks])
    cut_ns = times.min() + share * (times.max() - times.min())
    inside_window = pl.col("start_ns") > cut_ns if end else pl.col("start_ns") < cut_ns
    recorded = [strip(*rank) if bare else rank for rank in ranks]
    comparison, codes = compare(
        [(events.filter(inside_window), source) for events, source in recorded]
    )
    assert comparison is None
    assert codes & {"partial-step", "no-schedule"}


def test_forwards_alone_are_no_training_schedule(run):
    _, ranks = run
    cut = []
    for events, source in ranks:
        labelled = classify(events)
        back = pl.col("label").is_in(["dgrad", "wgrad", "backward", "optimizer"]) | (
            pl.col("pass") == "backward"
        )
        removed = labelled.filter(back)["id"]
        engine = NAME.str.contains("Backward|autograd::engine|Optimizer")
        cut.append((events.filter(~pl.col("id").is_in(removed.implode()) & ~engine), source))
    comparison, codes = compare(cut)
    assert comparison is None
    assert "no-schedule" in codes


def synthetic(plan, *, only=None, **more):
    recipe = Recipe(plan, TIMES, **{"p2p_ns": 50_000, **more})
    return [
        (rank_events(recipe, r), Source(f"rank{r}", "kineto", r, "name"))
        for r in only or range(recipe.world_size)
    ]


def test_iterations_without_marks_are_told_apart_by_their_optimizer():
    marked = synthetic(generate("zb-h1", pp=3, microbatches=6), steps=3)
    comparison, codes = compare([(without_step_marks(events), source) for events, source in marked])
    assert [(h.match.schedule.name, h.match.exact, h.pipeline.step) for h in comparison.all] == [
        ("zb-h1", True, step) for step in range(3)
    ]
    assert "no-steps" in codes


def joined(first, second):
    """Two runs of the same ranks, one after the other, steps numbered on."""
    both = []
    for (a, source), (b, _) in zip(first, second, strict=True):
        later = a["end_ns"].max() - b["start_ns"].min() + 1_000_000
        moved = b.with_columns(
            pl.col("start_ns", "end_ns") + later,
            pl.col("step") + a["step"].max() + 1,
            pl.col("id") + a.height,
            pl.col("correlation") + 1_000_000,
            pl.col("sequence") + 1_000_000,
        )
        both.append((pl.concat([a, moved]), source))
    return both


@pytest.mark.parametrize("warm_up_first", [True, False])
def test_a_step_that_differs_is_named_apart_from_the_others(warm_up_first):
    warm_up = synthetic(generate("1f1b", pp=3, microbatches=3))
    usual = synthetic(generate("1f1b", pp=3, microbatches=6), steps=2)
    comparison, codes = compare(joined(warm_up, usual) if warm_up_first else joined(usual, warm_up))
    assert (comparison.name, comparison.microbatches, comparison.exact) == ("1f1b", 6, True)
    assert "steps-differ" in codes


def test_the_step_shown_is_a_whole_one():
    whole = synthetic(generate("1f1b", pp=3, microbatches=6), steps=2)
    kernel_starts = [events.filter(kind="kernel")["start_ns"] for events, _ in whole]
    end = max(int(starts.quantile(0.7)) for starts in kernel_starts)
    comparison, codes = compare(
        [(events.filter(pl.col("start_ns") < end), source) for events, source in whole]
    )
    assert (comparison.name, comparison.microbatches, comparison.exact) == ("1f1b", 6, True)
    assert comparison.head.pipeline.step == 0
    assert "partial-step" in codes


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1"])
def test_one_micro_batch_fits_several_names_and_says_which(name):
    comparison, codes = compare(synthetic(generate(name, pp=4, microbatches=1)))
    assert comparison.exact
    assert name in {comparison.name, *comparison.head.match.ambiguous_with}
    assert "schedule-ambiguous" in codes


@pytest.mark.parametrize(
    "name", ["1f1b", "gpipe", "zb-h1", "zb-v", "dualpipe", "interleaved", "interleaved-zb"]
)
def test_two_ranks(name):
    plan = generate(name, pp=2, microbatches=4)
    comparison, _ = compare(synthetic(plan))
    assert comparison.exact
    assert name in {comparison.name, *comparison.head.match.ambiguous_with}
    assert comparison.head.orders() == plan.orders()


def test_gradients_scaled_at_the_end_are_no_forward():
    rows = [
        ("forward", 1, None), ("forward", 2, None), ("dgrad", 2, "MmBackward0"), ("dgrad", 1, "MmBackward0"),
        ("pp_comm", None, None), ("forward", None, None),
    ]  # fmt: skip
    kernels = [
        {"id": index, "label": label, "name": "k", "node": node, "autograd_sequence": number, "launch_ns": index * 10,
         "start_ns": 100 + index * 10, "end_ns": 109 + index * 10 - (8 if index == 5 else 0),
         "p2p": "send:1" if label == "pp_comm" else None, "step": 0}
        for index, (label, number, node) in enumerate(rows)
    ]  # fmt: skip
    table = conform(pl.DataFrame(kernels, infer_schema_length=None), LABELLED)
    chunks = table_of(table, Source("x", "kineto", 0, "name")).chunks
    assert chunks.select("op", "start_ns", "end_ns").rows() == [("F", 100, 119), ("B", 120, 139)]


def test_other_peoples_runs_have_no_pipeline(corpus):
    """Data parallel, recommendation and inference runs: no schedule is named."""
    for pattern in (
        "dlrm-8ranks/*.gz",
        "hta/rank-0*.gz",
        "kineto/resnet*.gz",
        "tracelens/q*.gz",
        "tracelens/r*.gz",
    ):
        trace = load(sorted(corpus.glob(pattern)))
        comparison, codes = compare(
            [(trace.rank(r).events, trace.rank(r).source) for r in trace.ranks]
        )
        assert comparison is None
        assert codes & {"no-pipeline", "no-schedule", "partial-step"}
