"""Synthetic traces: what is written is what was meant, in both forms, and thousands of ranks cost no memory."""

from __future__ import annotations

import itertools
import tracemalloc

import polars as pl
import pytest

from tests.reference import read
from tests.synthetic_nsight import write_nsys
from tracekit.classify import classify
from tracekit.errors import OptionError
from tracekit.pipeline.against_ideal import compare_pipelines
from tracekit.pipeline.reconstruct import rank_pipeline
from tracekit.pipeline.schedules import generate, simulate
from tracekit.run.load import load
from tracekit.synthetic import EPOCH_NS, Recipe, rank_events, write_kineto, write_run

PLAN = generate("interleaved", pp=2, microbatches=4, virtual=2)
RICH = Recipe(
    PLAN,
    p2p_ns=50_000,
    jitter=0.05,
    ep_ns=200_000,
    ep_exposed_ns=50_000,
    offload_ns=100_000,
    offload_exposed_ns=30_000,
    replicas=2,
    annotations=True,
    steps=2,
)


def test_a_plain_recipe_is_the_simulation():
    made = Recipe(PLAN)
    assert made.simulation().makespan == simulate(PLAN, made.times).makespan
    events = rank_events(made, 0)
    work = events.filter(pl.col("name").cast(pl.String).str.starts_with("nvjet"))
    assert work["start_ns"].min() == EPOCH_NS
    # 4 micro-batches × 2 chunks, F + B each.
    assert (work["end_ns"] - work["start_ns"]).sum() == 8 * 3_000_000


def test_kineto_files_hold_exactly_the_events(tmp_path):
    file = write_kineto(RICH, 3, tmp_path / "rank3.pt.trace.json.gz")
    written, meant = read(file), rank_events(RICH, 3)
    for name in meant.columns:
        left, right = (frame[name].cast(pl.String).to_list() for frame in (written, meant))
        assert left == right, name


@pytest.mark.parametrize("reader", ["kineto", "nsight"])
def test_both_forms_are_read_and_labelled_alike(tmp_path, reader):
    if reader == "kineto":
        files = write_run(RICH, tmp_path)
    else:
        files = [
            write_nsys(RICH, rank, tmp_path / f"rank{rank}.sqlite")
            for rank in range(RICH.world_size)
        ]
    trace = load(files)
    assert trace.ranks == (0, 1, 2, 3)
    assert {source.reader for source in trace.sources} == {reader}
    ranks = [
        rank_pipeline(classify(trace.rank(r).events), trace.rank(r).source) for r in trace.ranks
    ]
    comparison, _ = compare_pipelines(ranks)
    assert (comparison.name, comparison.exact) == ("interleaved", True)
    assert comparison.head.orders() == PLAN.orders()
    assert {h.pipeline.ranks for h in comparison.all} == {(0, 2), (1, 3)}
    assert comparison.head.measured_ns == RICH.simulation().makespan


def test_every_kernel_has_a_launch_before_it():
    events = rank_events(RICH, 1)
    gpu = events.filter(pl.col("stream").is_not_null()).select("correlation", "start_ns")
    calls = events.filter(pl.col("kind") == "runtime").select("correlation", called_ns="start_ns")
    joined = gpu.join(calls, on="correlation", validate="1:1")
    assert joined.height == gpu.height
    assert (joined["called_ns"] < joined["start_ns"]).all()


def test_kernels_of_one_stream_do_not_overlap():
    work = rank_events(RICH, 0).filter(stream=7).sort("start_ns")
    assert (work["start_ns"][1:] >= work["end_ns"][:-1]).all()


def test_troubles_are_injected_as_asked():
    plain, slow = Recipe(PLAN), Recipe(PLAN, rank_factor={1: 2.0}, slow_cells={(0, "F", 0, 2): 3.0})
    table = PLAN.table
    assert (slow.work_ns[table.rank == 1] == 2 * plain.work_ns[table.rank == 1]).all()
    changed = slow.work_ns[table.rank == 0] != plain.work_ns[table.rank == 0]
    assert changed.sum() == 1
    shifted = (
        rank_events(Recipe(PLAN, skew_ns={1: 500}), 1)["start_ns"]
        - rank_events(plain, 1)["start_ns"]
    )
    assert shifted.unique().to_list() == [500]
    assert rank_events(Recipe(PLAN, jitter=0.1, seed=1), 0).equals(
        rank_events(Recipe(PLAN, jitter=0.1, seed=1), 0)
    )


def test_impossible_recipes_are_refused():
    with pytest.raises(OptionError, match="ep_exposed_ns"):
        Recipe(PLAN, ep_ns=1, ep_exposed_ns=2)
    with pytest.raises(OptionError):
        Recipe(PLAN, steps=0)


def test_a_thousand_ranks_are_made_one_at_a_time():
    many = Recipe(generate("1f1b", pp=4, microbatches=4), replicas=512)
    assert many.world_size == 2048
    many.simulation()
    tracemalloc.start()
    for rank in itertools.islice(range(0, many.world_size, 97), 20):
        events = rank_events(many, rank)
        assert events["rank"][0] == rank
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8_000_000
