"""A rank that waits for another role of its own is not late by its host."""

from __future__ import annotations

from tracekit.analysis.combine.stragglers import Stragglers
from tracekit.documents.analysis import Evidence, Straggler, WaitCause
from tracekit.documents.roles import PhaseBand
from tracekit.roles.combine import explain_by_other_roles

LATE = Straggler(
    1,
    "dp_comm",
    100,
    2,
    kind="chronic",
    steps=[0],
    late_ns=100,
    why=[WaitCause("host_late", 80, Evidence(idle_ns=80)), WaitCause("unknown", 20, Evidence(reason="clocks"))],
)


def causes(bands):
    stragglers = explain_by_other_roles(Stragglers(rows=(LATE,)), "trainer", bands)
    assert sum(part.ns for part in stragglers.rows[0].why) == 100
    return {(part.cause, part.evidence.role): part.ns for part in stragglers.rows[0].why}


def bands(rollout_end_of_rank_1, trainer_start_of_rank_1, *, iteration=0):
    spans = [
        ("rollout", 0, 0, 50),
        ("rollout", 1, 0, rollout_end_of_rank_1),
        ("trainer", 0, 60, 300),
        ("trainer", 1, trainer_start_of_rank_1, 300),
    ]
    return [PhaseBand(role, rank, role, start, end, end - start, iteration) for role, rank, start, end in spans]


def test_a_trainer_that_starts_when_its_rollout_ends_waited_for_it():
    assert causes(bands(150, 160)) == {("waited_itself", "rollout"): 80, ("unknown", None): 20}


def test_the_part_that_the_rollout_does_not_explain_stays_with_the_host():
    # Rank 1 starts 100 later; its rollout ends 25 later: a quarter of 80.
    assert causes(bands(75, 160)) == {("host_late", None): 60, ("waited_itself", "rollout"): 20, ("unknown", None): 20}


def test_equal_rollouts_explain_nothing():
    assert causes(bands(50, 160)) == {("host_late", None): 80, ("unknown", None): 20}


def test_without_iterations_nothing_is_replaced():
    assert causes(bands(150, 160, iteration=None)) == {("host_late", None): 80, ("unknown", None): 20}
