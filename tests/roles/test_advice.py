"""Advice about RL iterations and weight updates, on results made by hand."""

from types import SimpleNamespace

import pytest

from tests.kept import analysis_of
from tests.written_findings import written
from tracekit.align.clocks import Clocks
from tracekit.analysis.result import RoleResults
from tracekit.documents.roles import Iteration, RolloutTail, WeightUpdate
from tracekit.report.findings import finding_line, shown_findings
from tracekit.roles.findings import RoleFinding

MS = 1_000_000


def findings_of(*, step_ns=0, **results):
    analysis = SimpleNamespace(
        role_results=RoleResults(**results),
        clocks=Clocks.recorded(range(4)),
        reload=None,
        sources=(SimpleNamespace(rank=0),),
    )
    context = SimpleNamespace(analysis=analysis, step_ns=step_ns)
    return [finding.to_document() for finding in RoleFinding.find(context)]


def advice(**results):
    return [finding.text for finding in findings_of(**results)]


def iteration(index, tail_rank):
    tail = RolloutTail(tail_rank, 20 * MS, 40 * MS, tail_rank, 0, None, None)
    phases = {"rollout": 60 * MS, "train": 40 * MS, "weight_sync": 0, "idle": 0}
    return Iteration(index, 100 * MS * index, 100 * MS * (index + 1), phases, (), tail)


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        ((3, 3), "the rollout of rank 3 takes 20.0 ms"),
        ((3, 1), "not always the same rank's) takes 20.0 ms"),
    ],
)
def test_a_tail_is_a_ranks_only_if_it_is_in_every_iteration(ranks, named):
    (text,) = advice(iterations=tuple(iteration(index, rank) for index, rank in enumerate(ranks)))
    assert named in text
    assert ("rank 3" in text) is (len(set(ranks)) == 1)


def update(start_ms, took_ms, ideal_ms):
    gap = {"host_and_rpc": (took_ms - ideal_ms) * MS}
    begin, end = start_ms * MS, (start_ms + took_ms) * MS
    return WeightUpdate(
        begin, end, 1000, 1, 0, 0, 0, 0, ideal_ms * MS, 1.0, None, None, 1000, (0,), gap, None
    )


def test_the_longest_weight_update_is_the_one_to_shorten():
    """The first takes 12 of 10 ms, the second 30."""
    (text,) = advice(weight_updates=(update(0, 12, 10), update(100, 30, 10)))
    assert text.startswith("20.0 ms of the 20.0 ms between moving the weights and its ideal")


def test_without_iterations_a_weight_updates_share_is_of_the_recording():
    """As the shares of all other findings of the first screen are."""
    updates = (update(0, 30, 10),)
    (finding,) = findings_of(weight_updates=updates, step_ns=100 * MS)
    assert (finding.share, finding.evidence.get("share_of")) == (0.2, None)


def idle_iteration(index, idle_ms, sync_ms=0):
    phases = {
        "rollout": (60 - idle_ms) * MS,
        "train": 40 * MS,
        "weight_sync": sync_ms * MS,
        "idle": idle_ms * MS,
    }
    return Iteration(index, 100 * MS * index, 100 * MS * (index + 1), phases, (), None)


def test_what_recurs_comes_before_what_one_iteration_has():
    """One of three iterations has 40 ms without a role; each has 30 ms of weight sync, of which 1 ms moves weights."""
    iterations = [idle_iteration(0, 40, 30), idle_iteration(1, 0, 30), idle_iteration(2, 0, 30)]
    updates = tuple(update(start, 1, 1) for start in (0, 100, 200))
    findings = findings_of(iterations=tuple(iterations), weight_updates=updates)
    assert [(finding.code, finding.case) for finding in findings] == [
        ("weight_sync", "around_moving"),
        ("rollout", "between_roles"),
    ]
    assert [finding.evidence["recurs"] for finding in findings] == [True, False]
    # What one iteration has most of is still stated as a mean of all, on the first screen and in lists.
    assert findings[1].cost_ns == 40 * MS // 3
    assert finding_line(findings[1]).endswith("(saves at most 13.3 ms per iteration)")
    assert findings[0].cost_ns == 29 * MS
    assert findings[0].share == pytest.approx(0.29)
    assert findings[0].saves_range_ns == (0, 29 * MS)


@pytest.mark.parametrize(
    ("iterations", "recurs", "says"),
    [
        (1, True, "the rollout of rank 1 starts"),
        (2, True, "in iteration 2, about as much in the other, the"),
        (2, False, "in iteration 2, much less in the other, the"),
        (4, True, "in iteration 2, about as much in most others, the"),
        (4, False, "in iteration 2, much less in the others, the"),
    ],
)
def test_a_late_rollout_says_whether_other_iterations_have_one(iterations, recurs, says):
    evidence = {
        "late_ns": 5 * MS,
        "first_rank": 0,
        "iteration": 2,
        "iterations": iterations,
        "recurs": recurs,
    }
    finding = written("rollout", "late_start", ranks=(1,), evidence=evidence)
    assert finding.text.startswith(says)


def test_what_an_rl_loop_costs_is_the_same_in_every_output(samples, run_command, measured_once):
    """The terminal, the JSON and ``--explain`` count the same list."""
    run = analysis_of(samples / "rl")
    shown = shown_findings(run.findings)
    assert {finding.code for finding in shown[:3]} == {"rollout", "weight_sync"}
    document = run.to_dict()["findings"]
    assert [entry["text"] for entry in document] == [finding.text for finding in run.findings]
    text = " ".join(run_command("analyze", samples / "rl").stdout.split())
    for finding in shown[:3]:
        assert finding.text in text
    explained = run_command("analyze", samples / "rl", "--explain", "3").stdout
    assert explained.startswith(f"3. {shown[2].text}")
    assert "a step" not in explained
