"""What analyze() takes: steps, ranks, rules, and a path, a trace in memory or a store."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.kept import analysis_of
from tracekit.classify import Rule, RuleBook
from tracekit.errors import InputError, OptionError
from tracekit.run.analyze import analyze
from tracekit.run.ingest import ingest
from tracekit.run.load import load
from tracekit.run.measure import SourceWorker

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]


def test_several_steps(run):
    one = run("steps/a").rank(0)
    assert one.steps == tuple(range(2, 10))
    assert len(one.per_step) == 8
    table = run("steps/a").tables["steps"].filter(rank=0)
    assert one.whole.budget.span_ns == table["end_ns"].max() - table["start_ns"].min()
    # Time between steps is the window's, no step's; nothing is counted twice.
    assert sum(s.budget.compute_ns for s in one.per_step) == one.whole.budget.compute_ns


def test_chosen_steps(samples):
    one = analysis_of(samples / "steps/a", steps="4:6", schedule="none").rank(1)
    assert one.steps == (4, 5)
    with pytest.raises(OptionError, match="selects none"):
        analyze(samples / "steps/a", steps="40", schedule="none")


@pytest.mark.parametrize("asked", ["2:4", [2, 3], (3, 2), range(2, 4), slice(2, 4)], ids=str)
def test_steps_are_named_as_in_python_too(samples, asked):
    analysis = analysis_of(samples / "steps/a", ranks=[0], steps=asked, schedule="none")
    assert analysis.rank(0).steps == (2, 3)


def test_one_step_is_a_number(samples):
    assert list(
        analysis_of(samples / "steps/a", ranks=[0], steps=2, schedule="none").rank(0).steps
    ) == [2]
    with pytest.raises(OptionError, match="leaves steps out"):
        analysis_of(samples / "steps/a", ranks=[0], steps=slice(2, 9, 2), schedule="none")


def test_a_rank_that_was_not_analyzed(run):
    with pytest.raises(InputError, match=r"there is no rank 9 \(ranks here: 0, 1, 2, 3\)"):
        run("1f1b").rank(9)


def test_missing_ranks_are_said(samples):
    with pytest.raises(InputError, match="no rank 9"):
        analyze(load(samples / "reload"), ranks=[9], schedule="none")


@pytest.mark.parametrize(("ranks", "with_events"), [(2, 2), (3, 0)])
def test_large_runs_have_no_single_events(tmp_path, monkeypatch, ranks, with_events):
    """The limit is 64 ranks; a lower one here saves the time of analysing so many."""
    assert SourceWorker(keep_events=True).for_ranks(64).keep_events
    assert not SourceWorker(keep_events=True).for_ranks(65).keep_events
    monkeypatch.setattr("tracekit.run.measure.MAX_RANKS_WITH_EVENTS", 2)
    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "pid": 0,
        "tid": 7,
        "ts": 1,
        "dur": 5,
        "args": {"device": 0},
    }
    for rank in range(ranks):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"traceEvents": [kernel]}))
    for traces in (tmp_path, load(tmp_path)):
        assert len(analyze(traces, schedule="none").events) == with_events


def test_rules_made_in_python(samples):
    """A book of rules instead of a file: every matrix product is the router's."""
    book = RuleBook((Rule("mine", "forward", {"gemm": True}, module="router"),))
    analysis = analyze(samples / "compile", rules=book, schedule="none")
    kernels = analysis.tables["kernels"].filter(module="router")
    assert kernels["count"].sum() > 0
    assert set(kernels["label"]) == {"forward"}


def test_a_trace_in_memory_gives_the_same_as_its_path(samples, run):
    assert (
        analyze(load(samples / "reload"), schedule="none").to_dict()["ranks"]
        == run("reload").to_dict()["ranks"]
    )


def test_a_store_gives_the_same_as_its_traces(samples, run, tmp_path):
    ingest(samples / "1f1b", tmp_path / "store")
    assert (
        analyze(tmp_path / "store", schedule="none").to_dict()["ranks"]
        == run("1f1b").to_dict()["ranks"]
    )


def test_the_rank_of_a_single_file_is_an_option(samples, tmp_path):
    file = tmp_path / "trace.json.gz"
    file.write_bytes((samples / "reload/rank0.pt.trace.json.gz").read_bytes())
    assert load(file, file_rank=0).ranks == (0,)


@pytest.fixture(scope="module")
def one_cut_off(samples, tmp_path_factory):
    """Two ranks, of which the second ends in the middle of its events."""
    folder = tmp_path_factory.mktemp("cut")
    for rank in (0, 1):
        text = gzip.decompress((samples / f"reload/rank{rank}.pt.trace.json.gz").read_bytes())
        (folder / f"rank{rank}.json").write_bytes(text if rank == 0 else text[: len(text) * 3 // 4])
    return folder


def test_a_damaged_rank_is_used_left_out_or_an_error(one_cut_off, tmp_path):
    assert [result.rank for result in analyze(one_cut_off, schedule="none").ranks] == [0, 1]
    skipped = analyze(one_cut_off, schedule="none", on_damage="skip")
    assert [result.rank for result in skipped.ranks] == [0]
    assert any(notice.code == "rank-failed" for notice in skipped.notices)
    for read in (
        analyze,
        load,
        lambda path, **options: ingest(path, tmp_path / "store", **options),
    ):
        with pytest.raises(InputError, match=r"rank1\.json"):
            read(one_cut_off, on_damage="error")
    with pytest.raises(OptionError, match="on_damage cannot be 'ignore'"):
        analyze(one_cut_off, on_damage="ignore")
