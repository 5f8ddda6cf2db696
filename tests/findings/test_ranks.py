"""Ranks that the others wait for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.findings.conftest import Recording
from tests.kept import analysis_of
from tracekit import analyze
from tracekit.analysis.combine.stragglers import SlowGpu
from tracekit.documents.analysis import ChangedStep, Evidence
from tracekit.findings import ranks
from tracekit.findings.ranks import KINDS_OF_CAUSE, RankFinding

NO_EVIDENCE = SimpleNamespace(
    ratio=2.0,
    multiprocessors=None,
    multiprocessors_of_others=None,
    tokens=None,
    tokens_of_others=None,
)


def straggler(
    rank, *causes, label="dp_comm", steps=(1, 2), uncertain=False, late_with=(), kind="chronic"
):
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
        kind=kind,
    )


SAVED_NS = {
    "rank 3 like others": 40,
    "links of rank 3 like others": 40,
    "ranks 1, 3 like others": 90,
}


def context(
    *rows, pipeline_cause=None, slow_gpus=(), by_rank=None, because_ns=None, free_exposed_share=1.0
):
    waiting = SimpleNamespace(pipeline_cause=lambda rank: pipeline_cause, slow_gpus=slow_gpus)
    return SimpleNamespace(
        analysis=SimpleNamespace(
            stragglers=rows, waiting=waiting, total=SimpleNamespace(because_ns=because_ns or {})
        ),
        free_exposed_share=lambda label: free_exposed_share,
        step=SimpleNamespace(per_step=(1, 2, 3, 4), time_ns_by_rank=by_rank or {}),
        predict=lambda change: (
            ChangedStep(str(change), (), 1_000, saves_ns=SAVED_NS[str(change)])
            if str(change) in SAVED_NS
            else None
        ),
        share=lambda ns: ns / 1_000,
    )


@pytest.mark.parametrize(
    ("cause", "code"), [(cause, kind.code) for cause, (kind, _) in KINDS_OF_CAUSE.items()]
)
def test_the_largest_known_cause_of_lateness_gives_the_code(cause, code):
    (finding,) = RankFinding.find(context(straggler(3, (cause, 30), ("unknown", 20))))
    assert (finding.code, finding.ranks, finding.steps) == (code, (3,), (1, 2))
    assert finding.cost_ns == 50  # 100 in two of four steps
    links = "links of " if cause == "slow_link" else ""
    assert (str(finding.change), finding.saves_ns) == (f"{links}rank 3 like others", 40)


def test_lateness_that_is_mostly_unexplained_costs_what_is_explained():
    (finding,) = RankFinding.find(context(straggler(3, ("slow_gpu", 20), ("unknown", 60))))
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
    assert not list(RankFinding.find(context(row)))


def test_a_rank_is_named_once():
    rows = [straggler(3, ("slow_gpu", 30)), straggler(3, ("host_late", 20), label="tp_comm")]
    assert [finding.code for finding in RankFinding.find(context(*rows))] == ["slow_rank"]


def test_ranks_that_are_late_together_for_one_reason_are_one_finding_with_one_change():
    rows = [
        straggler(3, ("slow_gpu", 30), late_with=[1]),
        straggler(1, ("slow_gpu", 28), late_with=[3]),
    ]
    (finding,) = RankFinding.find(context(*rows))
    assert (finding.code, finding.case, finding.ranks) == ("slow_rank", "together", (1, 3))
    assert (str(finding.change), finding.saves_ns) == ("ranks 1, 3 like others", 90)
    assert finding.cost_ns == 50  # the others wait once for both: 100 in two of four steps
    assert "ranks 1, 3, which are late together" in finding.text()
    assert "one alone saves little" in finding.advice()


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
    findings = list(RankFinding.find(context(first, other)))
    assert [finding.ranks for finding in findings] == [(3,), (1,)]
    assert not any(finding.case for finding in findings)


def test_the_slow_rank_of_a_recorded_run_is_named(samples):
    slow = [
        finding
        for finding in analysis_of(samples / "slow-ddp").findings
        if finding.code == "slow_rank"
    ]
    assert [finding.ranks for finding in slow] == [(2,)]


SLOW_GPU = SlowGpu(5, 300, Evidence(ratio=1.5))
STEPS_BY_RANK = {3: 1_000, 4: 1_010, 5: 1_290, 6: 990}


def test_a_slow_gpu_that_nobody_waits_for_costs_what_its_own_steps_take_longer():
    (finding,) = RankFinding.find(context(slow_gpus=[SLOW_GPU], by_rank=STEPS_BY_RANK))
    assert (finding.code, finding.case, finding.ranks) == ("slow_rank", "own_steps", (5,))
    assert finding.cost_ns == finding.saves_ns == 290  # the others' median is 1,000
    assert not finding.is_bound
    assert "rank 5 take" in finding.text()


def test_a_slow_gpu_costs_no_more_than_its_kernels_take_longer():
    by_rank = {**STEPS_BY_RANK, 5: 1_500}  # 200 more for another reason
    (finding,) = RankFinding.find(context(slow_gpus=[SLOW_GPU], by_rank=by_rank))
    assert finding.cost_ns == 300


def test_nothing_is_said_of_a_slow_gpu_whose_steps_are_as_long_as_the_others():
    by_rank = {**STEPS_BY_RANK, 5: 1_010}
    assert not list(RankFinding.find(context(slow_gpus=[SLOW_GPU], by_rank=by_rank)))


def test_a_slow_gpu_of_one_replica_is_named_though_the_runs_step_is_no_shorter_without_it(
    monkeypatch,
):
    """Its replica waits for it, the others do not: the step of the run is the median of all ranks."""
    monkeypatch.setitem(SAVED_NS, "rank 5 like others", 0)
    late_in_its_replica = straggler(5, ("slow_gpu", 30))
    (finding,) = RankFinding.find(
        context(late_in_its_replica, slow_gpus=[SLOW_GPU], by_rank=STEPS_BY_RANK)
    )
    assert (finding.case, finding.cost_ns) == ("own_steps", 290)


def test_the_slow_one_of_ranks_that_never_synchronise_is_the_first_finding(tmp_path):
    """Five ranks without collectives: four kernels of 1 ms a step, of 1.5 ms on rank 2."""
    for rank in range(5):
        recording = Recording(rank=rank, world_size=5)
        length = 1.5 if rank == 2 else 1.0
        for number in range(4):
            # Clocks are apart: ranks with equal times are copies of one recording.
            start = number * (4 * length + 0.2) + rank * 0.001
            recording.step(number, start, start + 4 * length + 0.2)
            for kernel in range(4):
                begin = start + 0.1 + kernel * length
                shapes = {"Input Dims": [[64, 64], [64, 64]]}
                recording.kernel(start + kernel * 0.05, begin, begin + length, args=shapes)
            recording.call("cudaDeviceSynchronize", start + 0.3, begin + length)
        recording.write(tmp_path)
    first = analyze(tmp_path).findings[0]
    assert (first.code, first.case, first.ranks) == ("slow_rank", "own_steps", (2,))


def test_the_waiting_for_a_rank_is_that_without_the_profiler_with_the_recorded_one_beside_it():
    """Of 100 recorded, 60 are waiting; without the profiler 70 are exposed, 30 of them waiting: half."""
    causes = {"dp_comm": {"peer_late": 60, "nothing_to_hide": 40}}
    (finding,) = RankFinding.find(
        context(straggler(3, ("host_late", 30)), because_ns=causes, free_exposed_share=0.7)
    )
    assert (finding.late_ns, finding.recorded_late_ns) == (50, 100)
    assert finding.cost_ns == 25  # in two of four steps


def test_a_cause_that_explains_a_part_of_the_waiting_says_which():
    row = straggler(3, ("host_late", 20_000_000), ("unknown", 60_000_000))
    row.late_ns = 100_000_000
    (finding,) = RankFinding.find(context(row))
    assert finding.text().endswith(", 25.0 ms of it because its process starts its work late")


def test_a_rank_that_was_late_in_one_step_is_not_priced_by_a_change_of_every_step():
    (finding,) = RankFinding.find(
        context(straggler(3, ("more_work", 30), steps=(2,), kind="one_off"))
    )
    assert (finding.change, finding.saves_ns, finding.cost_ns) == (None, None, 25)
    assert finding.is_bound


@pytest.mark.parametrize(
    ("other", "together"),
    [
        ({}, (1, 3)),
        ({"late_with": ()}, (3,)),
        ({"label": "tp_comm"}, (3,)),
        ({"steps": ()}, (3,)),
        ({"uncertain": True}, (3,)),
        ({"cause": "slow_gpu"}, (3,)),
        ({"cause": None}, (3,)),
        ({"rank": 2, "late_with": (3,)}, (3,)),  # rank 3 is not late with it
        ({"rank": 7}, (3,)),  # it has a finding
    ],
)
def test_ranks_are_late_together_for_the_same_reason(monkeypatch, other, together):
    usual = {
        "rank": 1,
        "late_with": (3,),
        "label": "dp_comm",
        "steps": (0,),
        "uncertain": False,
        "cause": "host_late",
    }
    row = SimpleNamespace(**{**usual, "rank": 3, "late_with": (1, 7)})
    rows = [row, SimpleNamespace(**{**usual, **other})]
    cause_of = lambda context, row: row.cause and SimpleNamespace(cause=row.cause)  # noqa: E731
    monkeypatch.setattr(ranks, "main_cause", cause_of)
    context = SimpleNamespace(analysis=SimpleNamespace(stragglers=rows))
    assert (
        ranks.ranks_late_together(context, row, SimpleNamespace(cause="host_late"), {7}) == together
    )
