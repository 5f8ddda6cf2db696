"""Samples that others recorded on machines of several GPUs, against what their raw events and their authors say."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from tests.kept import analysis_of
from tests.truth import raw_ranks

pytestmark = pytest.mark.slow

SAMPLES = Path(__file__).parents[2] / "sample_traces"
RUNS = ("h100-ddp", "mi300-ddp")


def truth(run):
    return json.loads((SAMPLES / run / "truth.json").read_text(encoding="utf-8"))


def answer(run):
    return analysis_of(SAMPLES / run).to_document()


@cache
def raw(run):
    ranks = raw_ranks.read_ranks(SAMPLES / run)
    return ranks, raw_ranks.match_collectives(ranks)


def ms(by_key):
    return {str(key): ns / 1e6 for key, ns in by_key.items()}


@pytest.mark.parametrize("run", RUNS)
def test_the_known_answers_are_those_of_the_raw_events(run):
    ranks, collectives = raw(run)
    expected = truth(run)["raw_events"]
    waiting, transfer = raw_ranks.exposed_communication(ranks, collectives)
    waits = raw_ranks.waits_by_step(collectives)
    assert ms(raw_ranks.step_times(ranks)) == pytest.approx(expected["step_ms"], abs=0.001)
    assert (waiting / 1e6, transfer / 1e6) == pytest.approx(
        (expected["exposed_wait_ms"], expected["exposed_transfer_ms"]), abs=0.001
    )
    for name, figure in {
        "compute_ms": raw_ranks.compute_per_step,
        "host_step_ms": raw_ranks.host_step,
        "launched_ahead_ms": raw_ranks.launched_ahead,
    }.items():
        of_ranks = ms({number: figure(rank) for number, rank in ranks.items()})
        assert of_ranks == pytest.approx(expected[name], abs=0.01)
    assert {str(step): [of_step[0][0], of_step[0][1] / 1e6] for step, of_step in waits.items()} == {
        step: [rank, pytest.approx(waited, abs=0.001)]
        for step, (rank, waited) in expected["waited_for"].items()
    }
    if "bus_gb_s" in expected:
        assert raw_ranks.bus_rates(collectives) == pytest.approx(expected["bus_gb_s"], rel=0.001)


def test_each_rank_of_the_amd_run_is_divided_as_its_raw_events_are():
    expected = truth("mi300-ddp")["tracelens"]
    for rank in answer("mi300-ddp").ranks:
        exposed = dict(rank.budget.exposed_ns)
        measured = {
            "compute": rank.budget.compute_ns,
            "exposed_communication": exposed.pop("dp_comm"),
            "exposed_copies": sum(exposed.values()),
            "idle": rank.budget.idle,
            "whole": rank.span_ns,
        }
        assert measured == raw_ranks.whole_budget(raw("mi300-ddp")[0][rank.rank])
        if rank.rank == 0:  # AMD's sheet, which has microseconds
            assert {name: round(ns / 1e6, 3) for name, ns in measured.items()} == {
                name: expected[f"{name}_ms"] for name in measured
            }


@pytest.mark.parametrize("run", RUNS)
def test_steps_kernels_and_waits_are_those_of_the_raw_events(run):
    expected = truth(run)["raw_events"]
    document = answer(run)
    steps = {str(step.step): step.time_ns / 1e6 for step in document.step.per_step}
    assert {step: steps[step] for step in expected["step_ms"]} == pytest.approx(
        expected["step_ms"], abs=0.01
    )
    for rank in document.ranks:
        compute_ms = rank.budget.compute_ns / len(rank.steps) / 1e6
        assert compute_ms == pytest.approx(expected["compute_ms"][str(rank.rank)], abs=0.02)
    rank_steps = sum(len(rank.steps) for rank in document.ranks)
    waited_ns = document.total.because_ns["dp_comm"]["peer_late"]
    assert waited_ns / rank_steps / 1e6 == pytest.approx(expected["exposed_wait_ms"], rel=0.05)


def test_the_rank_that_the_eight_gpus_wait_for_is_named_with_its_reason():
    expected = truth("h100-ddp")["raw_events"]["waited_for"]
    steps = [int(step) for step, (rank, _) in expected.items() if rank == 1]
    first, second = answer("h100-ddp").stragglers[:2]
    assert (first.rank, first.steps, first.why[0].cause) == (1, steps, "host_late")
    assert (second.rank, second.why[0].cause) == (0, "host_late")
    assert 10 in second.steps


def test_the_rank_that_the_four_gpus_wait_for_is_named_with_its_reason():
    first = answer("mi300-ddp").stragglers[0]
    assert (first.rank, first.kind, first.why[0].cause) == (3, "chronic", "host_late")
    assert first.steps == truth("mi300-ddp")["steps"]


def test_the_four_mi300_are_told_of_hip_graphs():
    advice = " ".join(finding.advice for finding in answer("mi300-ddp").findings)
    assert "HIP graphs" in advice
    assert "CUDA" not in advice


def test_the_step_without_the_profiler_is_that_of_the_logs():
    logged_ms = truth("h100-ddp")["logs"]["step_ms"]
    step = answer("h100-ddp").step
    low_ns, high_ns = step.free_range_ns
    assert step.free_from == "modelled"
    assert step.free_ns / 1e6 == pytest.approx(logged_ms, rel=0.08)
    assert low_ns / 1e6 < logged_ms < high_ns / 1e6


def test_the_first_finding_of_the_eight_gpus_is_their_exposed_transfers():
    """The waiting that is recorded is the profiler's: the logs leave no room for it."""
    expected = truth("h100-ddp")["raw_events"]
    first, *others = answer("h100-ddp").findings
    assert (first.code, first.evidence["label"]) == ("exposed_comm", "dp_comm")
    assert first.evidence["transfer_ns"] / 1e6 == pytest.approx(
        expected["exposed_transfer_ms"], abs=0.01
    )
    assert first.evidence["wait_share"] < 0.2
    assert first.evidence["cause"] != "peer_late"
    assert first.cost_ns / 1e6 < expected["exposed_transfer_ms"] * 1.2
    assert first.saves_range_ns[1] <= first.cost_ns
    late = [finding for finding in others if finding.code == "late_host"]
    # One that is late in a single step only has no change of its own.
    assert all((finding.saves_ns or finding.cost_ns) < 200_000 for finding in late)


def test_links_of_the_eight_gpus_are_as_fast_as_nccl_is_elsewhere():
    rows = [row for row in answer("h100-ddp").rates.communication if row.size == "64–256 MB"]
    shares = {row.what: row.share_of_measured for row in rows}
    assert shares == {
        "_allgather_base": pytest.approx(1.0, abs=0.05),
        "_reduce_scatter_base": pytest.approx(0.9, abs=0.1),
    }


def test_the_first_finding_of_the_four_gpus_is_their_launches():
    first = answer("mi300-ddp").findings[0]
    assert first.code == "launch_bound"
    assert first.evidence["events_per_step"] == pytest.approx(1360, rel=0.01)
