"""The critical path: runs whose path is known by construction, and what must hold on every run."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from tests.kept import analysis_of, measured_tables, measuring_once
from tracekit import analyze
from tracekit._loops.critical_path import SEGMENT_KINDS, walk_back
from tracekit.analysis.combine.combine_ranks import combine
from tracekit.classify import classify
from tracekit.graph.critical_path import SLACK, CriticalPath
from tracekit.graph.path_segments import SEGMENTS
from tracekit.pipeline.schedules import generate
from tracekit.report.notices import notice_sentence
from tracekit.run.load import load
from tracekit.schema import GPU_KINDS, RankEvents, conform
from tracekit.synthetic import Recipe
from tracekit.synthetic.files import write_run

pytestmark = pytest.mark.slow

P2P_NS = 50_000


@pytest.fixture(scope="module")
def make_run(tmp_path_factory):
    """Write and analyze a synthetic 1F1B run of four ranks with troubles.

    Return its recipe and its analysis.
    """

    def run(**troubles):
        folder = tmp_path_factory.mktemp("run")
        recipe = Recipe(generate("1f1b", pp=4, microbatches=6), p2p_ns=P2P_NS, **troubles)
        write_run(recipe, folder)
        return recipe, analyze(folder)

    return run


@pytest.fixture(scope="module")
def plain(make_run):
    return make_run()


def lengths(analysis):
    return analysis.critical_path.segments.with_columns(ns=pl.col("end_ns") - pl.col("start_ns"))


def check(analysis):
    """Segments follow each other from the start of a step on one rank to its last end, to the nanosecond."""
    steps = analysis.clocks.align(analysis.tables["steps"], "interval_start_ns", "interval_end_ns")
    spans = steps.group_by("step").agg(pl.col("interval_start_ns"), pl.col("interval_end_ns").max())
    assert len(spans)
    whole = 0
    for step, starts, end in spans.iter_rows():
        path = analysis.critical_path.segments.filter(pl.col("step").eq_missing(step))
        assert path["start_ns"][0] in starts
        assert path["end_ns"][-1] == end
        assert (path["start_ns"][1:] == path["end_ns"][:-1]).all()
        assert (path["start_ns"] < path["end_ns"]).all()
        whole += end - path["start_ns"][0]
    for by, parts in analysis.critical_path.totals().items():
        assert sum(parts.values()) == whole, by
    for rank_result in analysis.ranks:
        for scope in (rank_result.whole, *rank_result.per_step):
            for label, ns in scope.blocking_ns.items():
                assert ns is None or 0 <= ns <= scope.budget.exposed_ns[label]


def test_the_path_of_a_pipeline_is_its_longest_chain(plain):
    """1F1B, 4 stages, 8 micro-batches: the first and the last go through every stage.

    Nothing on the path waits.
    """
    recipe, analysis = plain
    check(analysis)
    path = lengths(analysis)
    assert set(path["kind"]) <= {"cell", "message", "kernel", "unknown", "host", "launch"}
    # The optimizer starts so much after the pipeline.
    assert path.filter(kind="unknown")["ns"].sum() <= 10_000
    assert path.filter(kind="message")["ns"].to_list() == [P2P_NS] * len(
        path.filter(kind="message")
    )
    cells = path.filter(kind="cell")
    assert cells["what"][:4].to_list() == ["0F0", "1F0", "2F0", "3F0"]
    assert cells["what"][-1] == "0B5"
    assert (
        int(cells["ns"].sum() + path.filter(kind="message")["ns"].sum())
        == recipe.simulation().makespan
    )


@pytest.mark.parametrize(
    "cell",
    [(1, "F", 1, 0), (2, "B", 2, 7), pytest.param((3, "F", 3, 4), marks=pytest.mark.nightly)],
)
def test_a_planted_delay_is_on_the_path_and_removing_it_saves_what_the_path_says(
    make_run, plain, cell
):
    """A cell takes 20 ms longer than the others.

    The same run without that (a replay) is shorter by as much.
    """
    recipe, analysis = make_run(slow_cells={cell: 21.0 if cell[1] == "F" else 11.0})
    check(analysis)
    _, op, stage, microbatch = cell
    path = lengths(analysis)
    segment = path.sort("ns").row(-1, named=True)
    assert (segment["kind"], segment["what"], segment["rank"]) == (
        "cell",
        f"{stage}{op}{microbatch}",
        stage,
    )
    usual = 1_000_000 if op == "F" else 2_000_000
    assert segment["ns"] - usual == pytest.approx(20_000_000, rel=0.01)
    saved = recipe.simulation().makespan - plain[0].simulation().makespan
    assert saved == pytest.approx(segment["ns"] - usual, rel=0.01)
    assert int(path["ns"].sum()) - int(lengths(plain[1])["ns"].sum()) == pytest.approx(
        saved, rel=0.01
    )


def test_work_with_slack_is_not_on_the_path(make_run, plain):
    """Half a millisecond more in the second stage's forwards disappears in the third one, which takes twice as long."""
    _, analysis = make_run(stage_factor={1: 1.25, 2: 2.0})
    check(analysis)
    assert analysis.critical_path.totals()["by_rank"].keys() <= {"0", "1", "2", "3", "unknown"}
    by_stage = analysis.critical_path.totals()["by_stage"]
    assert max(by_stage, key=by_stage.get) == "2"
    slack = analysis.critical_path.slack
    assert slack.filter(rank=2)["path_ns"].item() == slack["path_ns"].max()
    assert plain[1].critical_path.slack["path_ns"].sum() == int(lengths(plain[1])["ns"].sum())


def test_a_late_host_is_on_the_path(make_run):
    """Each cell holds 1 ms in which the host has not launched its kernel: the path is the host's, from the start on."""
    _, analysis = make_run(host_ns=1_000_000)
    check(analysis)
    assert {"launch", "host"} & set(analysis.critical_path.segments["kind"])


def test_blocking_is_the_exposed_time_on_the_path(plain):
    """Of each message a rank's next cell waited for, the transfer is exposed and blocks.

    Waiting is slack.
    """
    _, analysis = plain
    path = lengths(analysis).filter(kind="message")
    blocking = sum(rank_result.whole.blocking_ns["pp_comm"] for rank_result in analysis.ranks)
    assert 0 < blocking == path["exposed_ns"].sum() <= path["ns"].sum()
    assert blocking < analysis.total.budget.exposed_ns["pp_comm"]
    assert analysis.total.blocking_ns["pp_comm"] == blocking


def test_the_document_has_the_path_only_if_it_is_asked_for(samples):
    with measuring_once():
        analysis = analyze(samples / "1f1b")
    document = json.loads(analysis.to_json())
    assert document == {**analysis_of(samples / "1f1b").to_dict(), "source": document["source"]}
    assert "critical_path" not in document
    assert (
        document["ranks"][0]["blocking_ns"].keys()
        == document["ranks"][0]["exposed_because_ns"].keys()
    )
    with_path = analysis.to_dict(show=["critical-path"])
    cells = [segment["what"] for segment in with_path["critical_path"] if segment["kind"] == "cell"]
    assert cells[0] == "0F0"
    assert with_path["critical_path_ns"]["total"] == sum(
        with_path["critical_path_ns"]["by_label"].values()
    )


@pytest.mark.parametrize(
    "name", ["1f1b", "overlapped", "reload", "vpp-overlap", "steps/straggler", "compile"]
)
def test_on_real_runs_the_parts_sum_to_the_steps(samples, name):
    check(analysis_of(samples / name))


def test_a_straggler_is_where_the_path_is(samples):
    """Rank 1 computes 155 of 212 ms, rank 0 67: most of the path is rank 1's."""
    analysis = analysis_of(samples / "steps/straggler")
    by_rank = analysis.critical_path.totals()["by_rank"]
    assert by_rank["1"] > 2 * by_rank["0"]
    assert analysis.critical_path.segments["step"].n_unique() == 8


def test_one_rank_alone_says_that_its_peers_are_missing(samples):
    analysis = analysis_of(samples / "1f1b", ranks=[1], schedule="none")
    check(analysis)
    assert analysis.ranks[0].whole.blocking_ns["pp_comm"] is None
    assert analysis.ranks[0].whole.blocking_ns["memory"] is not None
    (message,) = [notice_sentence(note) for note in analysis.critical_path.notices]
    assert "pp_comm" in message
    assert message.endswith("give all ranks")


def test_where_all_ranks_were_given_the_path_does_not_ask_for_more(samples):
    """Rank 0 lacks its last send: rank 1's receive has no counterpart, although every rank is there."""
    trace = load(samples / "1f1b")
    ranks = [trace.rank(rank) for rank in trace.ranks]
    sends = ranks[0].events.filter(
        pl.col("kind") == "kernel", pl.col("name").cast(pl.String).str.contains("SendRecv")
    )
    kept = ranks[0].events.filter(pl.col("id") != sends.sort("start_ns")["id"][-1])
    ranks[0] = RankEvents(kept, ranks[0].source)
    analysis = combine([measured_tables(rank, pipeline=False) for rank in ranks])
    assert any(note.code == "uneven-operations" for note in analysis.notices)
    notices = (*analysis.notices, *analysis.critical_path.notices)
    assert not any("give all ranks" in notice_sentence(note) for note in notices)


@pytest.mark.parametrize(
    ("uncertain_ns", "candidates"), [(0, [1]), (2_000_000, [1]), (2_500_000, [0, 1])]
)
def test_ranks_are_candidates_for_the_path_if_what_is_uncertain_could_put_them_first(
    uncertain_ns, candidates
):
    """Rank 1 has 8 ms of work on the path and rank 0 3 ms: it takes half the difference to make them equal."""
    end = 11_000_000
    rows = [
        (0, 0, 3_000_000, False),
        (1, 3_000_000, end - uncertain_ns, False),
        (1, end - uncertain_ns, end, True),
    ]
    columns = pl.DataFrame(rows, schema=["rank", "start_ns", "end_ns", "uncertain"], orient="row")
    segments = conform(
        columns.with_columns(step=1, kind=pl.lit("kernel"), label=pl.lit("forward")), SEGMENTS
    )
    path = CriticalPath(segments, segments, SLACK.to_frame())
    assert path.uncertain_ns == uncertain_ns
    assert path.candidates == candidates


def test_of_ranks_that_are_not_replayed_it_is_unknown_what_blocks():
    row = {
        "step": 0,
        "rank": 0,
        "kind": "collective",
        "label": "dp_comm",
        "start_ns": 0,
        "end_ns": 9,
        "exposed_ns": 4,
    }
    segments = conform(pl.DataFrame([row]), SEGMENTS)
    path = CriticalPath(segments, segments, SLACK.to_frame(), ranks_left_out=frozenset({1}))
    assert path.blocking_ns(0, ["dp_comm"]) == {"dp_comm": 4}
    assert path.blocking_ns(1, ["dp_comm"]) == {"dp_comm": None}
    assert path.blocking_ns(2, ["dp_comm"]) == {
        "dp_comm": 0
    }  # replayed, and nothing of it on the path


def test_without_launches_the_path_says_where_it_could_not_go_on(samples):
    rank = load(samples / "1f1b", ranks=[0]).rank(0)
    events = rank.events.filter(pl.col("kind").is_in(GPU_KINDS))
    blind = classify(events)
    assert blind["launch_ns"].null_count() == len(blind)
    analysis = combine(
        [measured_tables(RankEvents(events, rank.source), labelled=blind, pipeline=False)],
    )
    check(analysis)
    assert all(set(causes) == {"unknown"} for causes in analysis.ranks[0].whole.because_ns.values())
    assert all(ns is None for ns in analysis.ranks[0].whole.blocking_ns.values())
    assert any(note.code == "path-ends" for note in analysis.critical_path.notices)


def test_events_that_wait_for_each_other_do_not_send_the_walk_in_a_circle():
    """Each of two events was held back by the end of the other: what came before the second one is not known."""
    replayed = np.array([[4, 6], [8, 10], [0, 0], [1, 0], [-1, -1]])
    segments = np.zeros((12, 5), np.int64)
    none = np.full((4, 2), -1, np.int32)
    count = walk_back(
        event=1,
        now=10,
        at_start=False,
        walk=1,
        begins=np.array([0]),
        rank_index=np.zeros(2, np.int32),
        before=none,
        decisive=none[0],
        replayed=replayed,
        arrivals=np.zeros((2, 0), np.int64),
        visited=np.zeros((2, 2), np.int32),
        segments=segments,
    )
    steps = [
        (event, SEGMENT_KINDS[kind], start, end)
        for event, kind, _, start, end in segments[:count].tolist()
    ]
    assert steps == [(1, "ran", 6, 10), (0, "ran", 4, 6), (1, "nothing", 0, 4)]
