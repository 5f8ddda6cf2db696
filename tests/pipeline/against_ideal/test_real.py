"""Captures whose schedule is known: order of every rank, ideal, and causes of the gap."""

from __future__ import annotations

import json

import polars as pl
import pytest

from tests.pipeline.against_ideal.conftest import compare_with_options
from tracekit.classify import classify
from tracekit.documents.coding import to_plain
from tracekit.graph.predictor import fit_predictor
from tracekit.graph.rank_programs import write_program
from tracekit.graph.schedule_rows import layers_per_stage
from tracekit.pipeline.against_ideal import compare_pipelines
from tracekit.pipeline.reconstruct import rank_pipeline
from tracekit.pipeline.schedules import generate
from tracekit.report.schedule.layout import layout_pipeline
from tracekit.run.load import load

pytestmark = pytest.mark.slow


def codes(notices):
    return {n.code for n in notices}


@pytest.mark.parametrize("bare", [False, True])
def test_1f1b_is_named_and_its_gap_is_slow_transfers(compare_sample, bare):
    comparison, _ = compare_sample("1f1b", bare=bare)
    plan = generate("1f1b", pp=4, microbatches=8)
    data = to_plain(comparison.to_document())
    assert (data["name"], data["pp"], data["microbatches"], data["virtual"]) == ("1f1b", 4, 8, 1)
    assert data["exact"]
    assert data["ranks"] == plan.orders()
    assert data["ideal"]["outside_cells"] == pytest.approx(3 / 11, abs=0.01)
    gap, makespan = data["gap_ns"], data["measured"]["makespan_ns"]
    assert sum(gap.values()) == makespan - data["ideal"]["makespan_ns"]
    assert abs(gap["unexplained"]) < 0.05 * makespan
    assert gap["p2p"] > 0.8 * sum(gap.values())


@pytest.mark.parametrize("bare", [False, True])
def test_interleaved_is_named_with_and_without_its_ranges(compare_sample, bare):
    comparison, _ = compare_sample("interleaved", bare=bare)
    plan = generate("interleaved", pp=4, microbatches=8, virtual=2)
    assert (comparison.name, comparison.exact) == ("interleaved", True)
    assert (comparison.microbatches, comparison.virtual) == (8, 2)
    assert comparison.head.orders() == plan.orders()
    assert comparison.head.pipeline.stages_from == ("messages" if bare else "annotations")
    assert abs(comparison.gap_ns["unexplained"]) < 0.05 * comparison.head.measured_ns


@pytest.mark.parametrize("bare", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_dualpipe_is_named_and_says_that_pairs_ran_apart(compare_sample, bare):
    comparison, notices = compare_sample("dualpipe", bare=bare)
    plan = generate("dualpipe", pp=8, microbatches=20)
    assert (comparison.name, comparison.pp, comparison.microbatches, comparison.exact) == (
        "dualpipe",
        8,
        20,
        True,
    )
    assert "blocks-differ" in codes(notices)
    for run_order, order in zip(comparison.head.orders(), plan.ranks, strict=True):
        split = []
        for op in order:  # what the run did: F, then B
            split += (
                [f"{op.stage}F{op.microbatch}", f"{op.b_stage}B{op.b_microbatch}"]
                if op.kind == "FB"
                else [str(op)]
            )
        assert run_order == split
    pairs = sum(op.kind == "FB" for order in plan.ranks for op in order)
    assert comparison.head.match.blocks_run_apart == pairs
    assert abs(comparison.gap_ns["unexplained"]) < 0.05 * comparison.head.measured_ns


@pytest.mark.parametrize("bare", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_nsight_1f1b_without_peers_is_named_by_its_pattern(compare_sample, bare):
    comparison, notices = compare_sample("nsys-1f1b", bare=bare, pattern="*.sqlite")
    assert (comparison.name, comparison.pp, comparison.microbatches, comparison.exact) == (
        "1f1b",
        4,
        8,
        True,
    )
    assert comparison.head.orders() == generate("1f1b", pp=4, microbatches=8).orders()
    cases = {(notice.code, notice.values.get("case")) for notice in notices}
    assert ("size-from-order", "stages") in cases or ("no-peers", "one_pipeline") not in cases
    assert to_plain(comparison.to_document())["confidence"] <= 0.95


@pytest.mark.parametrize("bare", [False, True])
def test_recorded_vpp_overlap_comes_back_with_its_lanes(compare_sample, bare):
    comparison, _ = compare_sample("vpp-overlap", bare=bare)
    assert comparison.name == "interleaved-overlap"
    assert (comparison.pp, comparison.microbatches, comparison.virtual) == (4, 8, 2)
    assert comparison.exact
    assert len({h.pipeline.ranks for h in comparison.all}) == 2  # two expert-parallel replicas
    steady = comparison.lanes.filter(phase="steady")
    assert {"ep_dispatch", "ep_combine", "offload", "onload", "pp_comm"} <= set(
        steady["label"].to_list()
    )


@pytest.mark.parametrize("name", ["1f1b-noshapes", "vpp-overlap"])
def test_samples_follow_their_truth(compare_sample, samples, name):
    truth = json.loads((samples / name / "truth.json").read_text())
    comparison, _ = compare_sample(name)
    assert (comparison.name, comparison.microbatches) == (truth["schedule"], truth["microbatches"])
    assert comparison.head.orders() == truth["orders"]


def test_overlapped_has_its_three_phases_and_blocks(compare_sample):
    comparison, _ = compare_sample("overlapped")
    assert comparison.head.orders() == [["0F0", *(f"(0F{i + 1};0B{i})" for i in range(5)), "0B5"]]
    assert len(comparison.all) == 4  # each rank is a pipeline of one
    lanes = comparison.lanes.filter(rank=0)
    assert lanes.filter(phase="warm-up", label="dgrad").is_empty()
    assert lanes.filter(phase="cool-down", label="forward").is_empty()
    inside = lanes.filter(phase="FB", label="ep_dispatch")
    assert 0 < inside["hidden_ns"].sum() < inside["total_ns"].sum()
    assert comparison.gap_ns["exposed_ep"] > 0.8 * sum(comparison.gap_ns.values())


def test_a_part_of_the_ranks_says_what_it_rules_out(compare_sample):
    comparison, notices = compare_sample("1f1b", bare=True, only={1, 2})
    assert (comparison.name, comparison.pp, comparison.exact) == ("1f1b", 4, True)
    assert comparison.gap_ns is None
    assert "partial-pipeline" in codes(notices)
    assert [bool(order) for order in comparison.head.orders()] == [False, True, True, False]


def test_two_ranks_that_never_talk_are_one_pipeline_by_their_group(compare_sample):
    comparison, notices = compare_sample("1f1b", only={0, 3})
    assert [h.pipeline.ranks for h in comparison.all] == [(0, 1, 2, 3)]
    assert (comparison.name, comparison.exact) == ("1f1b", True)
    assert [n.code for n in notices].count("partial-pipeline") == 1


def test_a_schedule_that_was_not_run_is_held_against_anyway(compare_sample):
    comparison, notices = compare_sample("1f1b", schedule="gpipe")
    assert (comparison.name, comparison.compared_with, comparison.exact) == ("1f1b", "gpipe", True)
    assert comparison.head.match.differences
    # The ideal that is drawn is gpipe's own, and ends where its makespan says.
    drawn = layout_pipeline(comparison.head)["ideal"].cells
    gpipe = generate("gpipe", pp=4, microbatches=8)
    assert [drawn.filter(rank=rank)["name"].to_list() for rank in range(4)] == gpipe.orders()
    assert drawn["end"].max() == comparison.head.ideal_ns
    assert "order-differs" in codes(notices)
    assert sum(comparison.gap_ns.values()) == comparison.head.measured_ns - comparison.head.ideal_ns


def test_an_order_file_can_be_the_ideal(compare_sample, tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text(
        "\n".join(" ".join(order) for order in generate("1f1b", pp=4, microbatches=8).orders())
    )
    comparison, _ = compare_sample("1f1b", schedule=str(file))
    assert (comparison.name, comparison.exact) == ("mine", True)


def test_without_sequence_numbers_order_alone_ties_pairs_and_says_so(samples):
    trace = load(sorted((samples / "1f1b").glob("*.gz")))
    ranks = []
    for rank in trace.ranks:
        labelled = classify(trace.rank(rank).events).with_columns(
            autograd_sequence=pl.lit(None, pl.Int64)
        )
        ranks.append(rank_pipeline(labelled, trace.rank(rank).source))
    comparison, notices = compare_pipelines(ranks)
    assert (comparison.name, comparison.exact) == ("1f1b", True)
    assert to_plain(comparison.to_document())["confidence"] == pytest.approx(
        0.85
    )  # its messages have recorded peers
    assert [n.code for n in notices].count("pairs-by-order") == 1


def test_other_peoples_traces_never_break_it(corpus):
    for files in [[f] for kind in ("gz", "sqlite") for f in sorted(corpus.glob(f"*/*.{kind}"))] + [
        sorted(corpus.glob("dlrm-8ranks/*.gz"))
    ]:
        trace = load(files)
        ranks = [
            rank_pipeline(classify(trace.rank(r).events), trace.rank(r).source) for r in trace.ranks
        ]
        comparison, notices = compare_with_options(ranks, what_if=True)
        assert comparison is not None or notices


def fitted(comparison, ranks):
    head = comparison.head
    by_rank = {table.rank: table for table in ranks}
    return fit_predictor(head.pipeline, by_rank, head.match.schedule, head.replays, exact=True)


@pytest.mark.parametrize("name", ["1f1b", "interleaved"])
def test_the_engine_under_what_if_runs_a_real_run_again(sample_ranks, compare_sample, name):
    comparison, _ = compare_sample(name)
    head = comparison.head
    predictor = fitted(comparison, sample_ranks(name))
    assert predictor.machine.machines[1].queues == "one"
    # PyTorch's order of messages, which other schedules get, runs this one again as well.
    program = write_program(head.match.schedule, "one")
    assert predictor.simulate(program, head.match.schedule).makespan == pytest.approx(
        head.measured_ns, rel=0.05
    )
    assert predictor.replay_error < 0.05
    assert predictor.machine.machines[1].eager  # senders are gone before late receivers come
    assert (
        layers_per_stage(head.pipeline.detail, head.match.schedule.stages).tolist()
        == [3] * head.match.schedule.stages
    )


@pytest.mark.parametrize("name", ["dualpipe", "vpp-overlap", "memory"])
def test_orders_nobody_wrote_down_are_run_again_as_recorded(sample_ranks, compare_sample, name):
    comparison, _ = compare_sample(name)
    assert fitted(comparison, sample_ranks(name)).replay_error < 0.08


@pytest.mark.parametrize(
    ("name", "waits"), [("meg-recompute", True), ("titan-ac", False), ("ds-pipe", False)]
)
def test_runs_limited_by_their_hosts_are_run_again(corpus, name, waits):
    """Megatron's host stands still until each message is there.

    Those of PyTorch and DeepSpeed run ahead.
    """
    trace = load(sorted((corpus.parent / "frameworks" / name).glob("*.gz")))
    ranks = [
        rank_pipeline(classify(trace.rank(rank).events), trace.rank(rank).source)
        for rank in trace.ranks
    ]
    comparison, _ = compare_pipelines(ranks)
    predictor = fitted(comparison, ranks)
    assert predictor.replay_error < 0.08
    assert predictor.ops[1].host_waits == waits


def test_no_pipeline_is_said(compare_sample):
    comparison, notices = compare_sample("reload")
    assert comparison is None
    assert "no-pipeline" in codes(notices)
    assert compare_sample("1f1b", schedule="none") == (None, ())


def test_layout_overrides_what_the_messages_say(compare_sample):
    comparison, _ = compare_sample("1f1b", layout="pp=4")
    assert comparison.positions[3] == {"pp": 3}
    assert comparison.exact


def test_both_profilers_show_the_same_schedule_cells_and_labels(compare_sample, samples):
    """The same program (three blocks a stage under one profiler, two under the other) recorded both ways."""
    torch, _ = compare_sample("1f1b")
    nsys, _ = compare_sample("nsys-1f1b", pattern="*.sqlite")
    same = (
        "name",
        "pp",
        "microbatches",
        "virtual",
        "ranks",
        "exact",
        "differences",
        "fb_run_apart",
    )
    assert {k: to_plain(torch.to_document())[k] for k in same} == {
        k: to_plain(nsys.to_document())[k] for k in same
    }
    names = ("rank", "op", "stage", "microbatch")
    assert sorted(torch.cells.select(names).rows()) == sorted(nsys.cells.select(names).rows())
    assert torch.cells.height == 4 * 8 * 2
    labels = {}
    for folder, pattern, blocks in (("1f1b", "*.gz", 3), ("nsys-1f1b", "*.sqlite", 2)):
        trace = load(sorted((samples / folder).glob(pattern)))
        table = pl.concat(
            classify(trace.rank(r).events).with_columns(rank=pl.lit(r)) for r in trace.ranks
        )
        matrix = table.filter(pl.col("name").cast(pl.String).str.contains("nvjet|gemm|cutlass"))
        counts = matrix.group_by("rank", "label").len().with_columns(pl.col("len") / blocks)
        kinds = table.select("rank", "label", "pass").unique()
        sends = table.filter(label="pp_comm").group_by("rank").len()
        labels[folder] = [
            sorted(t.cast({pl.Enum: pl.String}).rows(), key=str) for t in (counts, kinds, sends)
        ]
    assert labels["1f1b"] == labels["nsys-1f1b"]
    assert labels["1f1b"][0][0] == (0, "dgrad", 32.0)
