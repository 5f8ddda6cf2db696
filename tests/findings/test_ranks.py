"""Ranks that the others wait for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.kept import analysis_of
from tracekit.documents.analysis import ChangedStep
from tracekit.findings.ranks import CODES, rank_findings
from tracekit.report.findings import with_sentences

NO_EVIDENCE = SimpleNamespace(
    ratio=2.0,
    multiprocessors=None,
    multiprocessors_of_others=None,
    tokens=None,
    tokens_of_others=None,
)


def straggler(rank, *causes, label="dp_comm", steps=(1, 2), uncertain=False, late_with=()):
    why = [SimpleNamespace(cause=cause, ns=ns, evidence=NO_EVIDENCE) for cause, ns in causes]
    caused_ns = sum(ns for _, ns in causes)
    return SimpleNamespace(
        rank=rank,
        label=label,
        steps=steps,
        uncertain=uncertain,
        why=why,
        late_ns=100,
        caused_ns=caused_ns,
        late_with=late_with,
    )


SAVED_NS = {"rank 3 like others": 40, "ranks 1, 3 like others": 90}


def context(*rows, pipeline_cause=None):
    stragglers = SimpleNamespace(rows=rows, pipeline_cause=lambda rank: pipeline_cause)
    return SimpleNamespace(
        analysis=SimpleNamespace(stragglers=stragglers),
        step=SimpleNamespace(per_step=(1, 2, 3, 4)),
        predict=lambda change: (
            ChangedStep(change, (), 1_000, saves_ns=SAVED_NS[change])
            if change in SAVED_NS
            else None
        ),
        share=lambda ns: ns / 1_000,
    )


@pytest.mark.parametrize(("cause", "code"), CODES.items())
def test_the_largest_known_cause_of_lateness_gives_the_code(cause, code):
    (finding,) = rank_findings(context(straggler(3, (cause, 30), ("unknown", 20))))
    assert (finding.code, finding.ranks, finding.steps) == (code, (3,), (1, 2))
    assert finding.cost_ns == 50  # 100 in two of four steps
    assert (finding.change, finding.saves_ns) == ("rank 3 like others", 40)


def test_lateness_that_is_mostly_unexplained_costs_what_is_explained():
    (finding,) = rank_findings(context(straggler(3, ("slow_gpu", 20), ("unknown", 60))))
    assert finding.cost_ns == 12  # a quarter of 100 in two of four steps


@pytest.mark.parametrize(
    "row",
    [
        straggler(3, ("unknown", 30)),
        straggler(3, ("slow_gpu", 30), uncertain=True),
        straggler(3, ("slow_gpu", 30), steps=()),
        straggler(3, ("more_work", 30), label="pp_comm"),
    ],
    ids=["unknown cause", "uncertain", "in no step", "unequal stages"],
)
def test_a_rank_that_is_not_certainly_late_for_a_known_reason_is_no_finding(row):
    assert not list(rank_findings(context(row)))


def test_a_rank_is_named_once():
    rows = [straggler(3, ("slow_gpu", 30)), straggler(3, ("host_late", 20), label="tp_comm")]
    assert [finding.code for finding in rank_findings(context(*rows))] == ["slow_rank"]


def test_ranks_that_are_late_together_for_one_reason_are_one_finding_with_one_change():
    rows = [
        straggler(3, ("slow_gpu", 30), late_with=[1]),
        straggler(1, ("slow_gpu", 28), late_with=[3]),
    ]
    (finding,) = rank_findings(context(*rows))
    assert (finding.code, finding.case, finding.ranks) == ("slow_rank", "together", (1, 3))
    assert (finding.change, finding.saves_ns) == ("ranks 1, 3 like others", 90)
    assert finding.cost_ns == 50  # the others wait once for both: 100 in two of four steps
    assert "ranks 1, 3, which are late together" in with_sentences([finding])[0].text
    assert "one alone saves little" in with_sentences([finding])[0].advice


@pytest.mark.parametrize(
    "other",
    [
        straggler(1, ("host_late", 28), late_with=[3]),
        straggler(1, ("slow_gpu", 28), late_with=[3], label="tp_comm"),
        straggler(1, ("slow_gpu", 28)),
    ],
    ids=["for another reason", "in another label", "by itself"],
)
def test_ranks_that_are_late_for_other_reasons_or_elsewhere_are_findings_of_their_own(other):
    first = straggler(3, ("slow_gpu", 30), late_with=[1])
    findings = list(rank_findings(context(first, other)))
    assert [finding.ranks for finding in findings] == [(3,), (1,)]
    assert not any(finding.case for finding in findings)


def test_the_slow_rank_of_a_recorded_run_is_named(samples):
    slow = [
        finding
        for finding in analysis_of(samples / "slow-ddp").findings
        if finding.code == "slow_rank"
    ]
    assert [finding.ranks for finding in slow] == [(2,)]
