"""A rank that waits for another role of its own is not late by its host, iteration by iteration."""

from __future__ import annotations

import pytest

from tests.kept import analysis_of
from tracekit.analysis.combine.stragglers import Stragglers
from tracekit.documents.analysis import Evidence, Straggler, WaitCause
from tracekit.documents.roles import PhaseBand
from tracekit.roles.handovers import StepWindow, explain_by_handovers, find_handovers


def straggler(rank, *late_ns, host_late=80, uncertain=False):
    """Return a rank that one other waits for, by *late_ns* in each step.

    The host is late for *host_late* of it.
    """
    caused_ns = sum(late_ns)
    unknown = WaitCause("unknown", caused_ns - host_late, Evidence(reason="no cause explains it"))
    return Straggler(
        rank,
        "dp_comm",
        caused_ns,
        2,
        uncertain=uncertain,
        kind="chronic",
        steps=list(range(len(late_ns))),
        late_ns=caused_ns // len(late_ns),
        late_ns_by_step=list(late_ns),
        why=[WaitCause("host_late", host_late, Evidence(idle_ns=host_late)), unknown],
    )


def iteration(number, rollout_ends, trainer_starts, *, end):
    """Return the bands of one iteration that begins at 1000 times its number.

    Times count from there.
    """
    begin = 1000 * number
    bands = []
    for rank, (rollout_end, start) in enumerate(zip(rollout_ends, trainer_starts, strict=True)):
        bands.append(
            PhaseBand("rollout", rank, "rollout", begin, begin + rollout_end, rollout_end, number)
        )
        bands.append(
            PhaseBand("trainer", rank, "train", begin + start, begin + end, end - start, number)
        )
    return bands


def handovers(*iterations):
    """Return the handovers to the trainer.

    Each rank has a step from its training to that of the next iteration.
    """
    bands = [band for bands in iterations for band in bands]
    windows = []
    for band in bands:
        if band.role == "trainer":
            windows.append(
                StepWindow(band.rank, band.iteration, band.start_ns, 1000 * (band.iteration + 1))
            )
    return find_handovers("trainer", bands, windows)


def causes(row, *iterations):
    (explained,) = explain_by_handovers(Stragglers(rows=(row,)), handovers(*iterations)).rows
    assert sum(reason.ns for reason in explained.why) == row.caused_ns
    return {(reason.cause, reason.evidence.role): reason.ns for reason in explained.why}


def test_a_trainer_that_starts_when_its_rollout_ends_waited_for_it():
    assert causes(straggler(1, 100), iteration(0, [50, 150], [60, 160], end=300)) == {
        ("waited_itself", "rollout"): 100
    }


def test_the_part_that_the_rollout_does_not_explain_stays_with_the_host():
    """Rank 1 starts 100 later; its rollout ends 25 later."""
    assert causes(straggler(1, 100), iteration(0, [50, 75], [60, 160], end=300)) == {
        ("host_late", None): 55,
        ("waited_itself", "rollout"): 25,
        ("unknown", None): 20,
    }


def test_where_clocks_do_not_tell_who_came_last_only_the_host_is_explained():
    row = straggler(1, 100, uncertain=True)
    assert causes(row, iteration(0, [50, 150], [60, 160], end=300)) == {
        ("waited_itself", "rollout"): 80,
        ("unknown", None): 20,
    }


def test_equal_rollouts_explain_nothing():
    assert causes(straggler(1, 100), iteration(0, [50, 50], [60, 160], end=300)) == {
        ("host_late", None): 80,
        ("unknown", None): 20,
    }


@pytest.mark.parametrize(("waited", "named"), [(9, False), (11, True)])
def test_a_handover_below_a_tenth_of_the_lateness_is_not_named(waited, named):
    reasons = causes(straggler(1, 100), iteration(0, [50, 50 + waited], [60, 160], end=300))
    assert (("waited_itself", "rollout") in reasons) == named


def test_the_last_rank_of_each_iteration_is_the_one_that_is_waited_for():
    """In iteration 0 rank 0 begins 90 after the mean of the others, in iteration 1 rank 1 begins 35 after them."""
    both = (
        iteration(0, [150, 50, 50], [160, 80, 60], end=300),
        iteration(1, [60, 100, 50], [70, 110, 80], end=300),
    )
    result = handovers(*both)
    assert [(one.iteration, one.rank, one.step, one.waited_ns) for one in result] == [
        (0, 0, 0, 90),
        (1, 1, 1, 35),
    ]
    rows = (straggler(0, 90, 10, host_late=70), straggler(1, 0, 35, host_late=0))
    first, second = explain_by_handovers(Stragglers(rows=rows), result).rows
    assert (first.why[0].cause, first.why[0].ns, first.why[0].evidence.iterations) == (
        "waited_itself",
        90,
        [0],
    )
    assert (second.why[0].ns, second.why[0].evidence.iterations) == (35, [1])


def test_a_step_in_which_the_rank_is_late_for_another_reason_keeps_it():
    """Of 90 + 60, the handover explains the 90 of step 0."""
    row = straggler(0, 90, 60, host_late=150)
    assert causes(
        row, iteration(0, [150, 60], [160, 70], end=300), iteration(1, [60, 60], [70, 70], end=300)
    ) == {
        ("waited_itself", "rollout"): 90,
        ("host_late", None): 60,
    }


def test_without_iterations_there_are_no_handovers():
    bands = [PhaseBand("trainer", rank, "train", 10 * rank, 100, 9, None) for rank in (0, 1)]
    assert find_handovers("trainer", bands, []) == []


def test_three_ranks_that_are_last_in_turn(corpus):
    """Rank 0's rollout starts 1.4 s late in iteration 0.

    In iteration 1 that of rank 1 ends last, by 6 ms.
    """
    folder = corpus.parent / "checked" / "rl-3"
    if not folder.is_dir():
        pytest.skip("the checked recordings are not here")
    analysis = analysis_of(folder)
    named = {
        row.rank: (row.why[0].evidence.role, row.why[0].evidence.iterations)
        for row in analysis.stragglers
        if row.label == "dp_comm" and row.why[0].cause == "waited_itself"
    }
    assert named == {0: ("rollout", [0]), 1: ("rollout", [1])}
