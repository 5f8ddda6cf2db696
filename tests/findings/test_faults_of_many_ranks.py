"""The same planted fault is found in runs of any size, with the same saving, from traces and from a store."""

from __future__ import annotations

import json

import pytest

from tests.faulty_runs import FAULTS, tables_of_faulty_run, write_faulty_run
from tests.kept import analysis_of, measuring_once
from tracekit.analysis.combine.combine_ranks import combine
from tracekit.errors import OptionError
from tracekit.report.first_screen import certainty
from tracekit.results import AnalysisResult
from tracekit.run.analyze import analyze
from tracekit.run.ingest import ingest

pytestmark = pytest.mark.slow

MS = 1_000_000
LOST_MS = 6.0
"""Time of a step that each fault costs."""


def check_fault(analysis, name):
    """Assert that there is one finding about the fault, with the rank and the time that it costs."""
    fault = FAULTS[name]
    (finding,) = (finding for finding in analysis.findings if finding.code == fault.code)
    assert fault.rank in finding.ranks
    assert not fault.is_of_stage or finding.ranks == (fault.rank, fault.rank + 1)
    assert finding.saves_ns / MS == pytest.approx(LOST_MS, rel=0.03)
    assert analysis.step.time_ns / MS == pytest.approx(29.2, abs=0.1)


def without_paths(analysis):
    document = json.loads(analysis.to_json())
    document["source"]["paths"] = None
    return document


def replay_at_most(monkeypatch, ranks):
    """Replay fewer ranks than usual, so that small runs show what is done with large ones."""
    module = "tracekit.analysis.combine.replayed_ranks"
    monkeypatch.setattr(f"{module}.MAX_REPLAYED_RANKS", ranks)
    monkeypatch.setattr(f"{module}.MAX_RANKS_OF_MESSAGES", ranks // 2)
    monkeypatch.setattr(f"{module}.MAX_RANKS_OF_GROUPS", ranks // 2)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_in_a_small_run(tmp_path, name):
    check_fault(analyze(write_faulty_run(tmp_path, 4, FAULTS[name]), schedule="none"), name)


def test_a_fault_is_found_where_not_all_ranks_are_replayed(tmp_path, monkeypatch):
    """Four of ten ranks are replayed: the pair with the slow rank, and one of the usual pairs."""
    replay_at_most(monkeypatch, 4)
    traces = write_faulty_run(tmp_path / "traces", 10, FAULTS["slow_rank"])
    with measuring_once():
        analysis = analyze(traces, schedule="none", timeline=False)
    check_fault(analysis, "slow_rank")
    assert analysis.graph.graph.ranks == (0, 1, 2, 3)
    (notice,) = (notice for notice in analysis.notices if notice.code == "sampled")
    assert (notice.values["replayed"], notice.values["count"]) == (4, 10)
    assert notice.values["waited_for"] == (2, 3)
    assert notice.values["spread"] == 0.0
    assert "savings from a replay of 4 ranks, chosen of 10" in certainty(analysis)
    # A rank that nobody named is not there; one that a change names is.
    assert analysis.what_if("rank 8 like others").why_not is not None
    with measuring_once():
        named = analyze(traces, schedule="none", timeline=False, changes=["rank 8 like others"])
    assert named.graph.graph.ranks == (2, 3, 8, 9)
    assert named.changed_steps[0].saves_ns == 0
    with pytest.raises(OptionError, match="there is no rank 10 in this run"):
        analysis.what_if("rank 10 like others")


@pytest.mark.nightly
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("ranks", [16, 64])
def test_a_fault_is_found_in_larger_runs(tmp_path, ranks, name):
    traces = write_faulty_run(tmp_path / "traces", ranks, FAULTS[name])
    from_traces = analyze(traces, schedule="none", timeline=False)
    check_fault(from_traces, name)
    store = ingest(traces, tmp_path / "store").path
    from_store = analyze(store, schedule="none", timeline=False)
    assert without_paths(from_store) == without_paths(from_traces)


def test_tables_with_other_numbers_are_those_of_traces(tmp_path):
    fault = FAULTS["slow_link"]
    tables = tables_of_faulty_run(tmp_path / "few", 8, fault)
    from_traces = analyze(write_faulty_run(tmp_path / "all", 8, fault), schedule="none")
    from_tables = combine(tables, result_type=AnalysisResult)
    assert without_paths(from_tables) == without_paths(from_traces)


@pytest.mark.nightly
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("ranks", [256, 1024])
def test_a_fault_is_found_in_very_large_runs(tmp_path, ranks, name):
    tables = tables_of_faulty_run(tmp_path, ranks, FAULTS[name])
    check_fault(combine(tables, result_type=AnalysisResult), name)


NIGHTLY_SAMPLES = ("h100-ddp", "steps/a", "compile", "dualpipe", "rates", "layers", "megatron-moe")
SAMPLES = (
    *("1f1b", "slow-ddp", "nsys-1f1b"),
    *(pytest.param(name, marks=pytest.mark.nightly) for name in NIGHTLY_SAMPLES),
)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_store_gives_the_answer_of_its_traces(samples, tmp_path, name):
    store = ingest(samples / name, tmp_path / "store").path
    from_store = analyze(store, timeline=False)
    assert without_paths(from_store) == without_paths(analysis_of(samples / name))
