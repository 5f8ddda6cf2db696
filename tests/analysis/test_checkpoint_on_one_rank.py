"""A checkpoint that one rank writes: the others wait for all of it, and its host is the reason."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.mutate import answer
from tests.perturbations import read_run, save_in_longest_gap

MS = 1_000_000
LATE_ONCE = Path(__file__).parents[1] / "data/slow-once"
GAP_MS = 80.5
"""Time for which the GPU of rank 1 is idle before step 6 of the recording."""


@cache
def recorded():
    return read_run(LATE_ONCE)


@pytest.mark.parametrize(
    ("copied_share", "in_step_before"),
    [(0.6, True), (0.9, False)],
    ids=["in the step before", "in its step"],
)
def test_the_late_host_costs_the_whole_checkpoint_however_much_of_it_are_copies(
    copied_share, in_step_before
):
    saved = save_in_longest_gap(
        recorded(), 1, copies=20, copied_share=copied_share, in_step_before=in_step_before
    )
    analysis = answer(saved)
    [finding] = [row for row in analysis.findings if row.code == "late_host"]
    assert (finding.ranks, finding.steps) == ((1,), (6,))
    assert finding.cost_ns == pytest.approx(GAP_MS * MS / 3, rel=0.1)  # of three steps
    [row] = [row for row in analysis.stragglers if row.rank == 1]
    assert row.why[0].cause == "host_late"
    assert row.why[0].ns > 0.9 * row.caused_ns
    assert row.why[0].evidence.copy_ns == pytest.approx(copied_share * GAP_MS * MS, rel=0.1)
