"""Parts of a pipeline's gap to its ideal, and the bubble that its schedule has by itself."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest

from tracekit.findings.pipeline import COMMUNICATION_CAUSES, NOT_REMOVABLE, schedule_findings

OPERATIONS = pl.DataFrame(
    {
        "label": ["pp_comm", "pp_comm", "forward"],
        "rank": [0, 1, 1],
        "step": [0, 0, 0],
        "start_ns": [0, 100, 200],
        "end_ns": [50, 180, 900],
        "hidden_ns": [0, 60, 0],
        "wait_ns": None,
        "transfer_ns": None,
        "what": ["send", "recv", "linear"],
    }
)
"""A send that is exposed for 50 ns, a receive that is exposed for 20 ns, and a product."""


def context(gap_ns, *, ideal_bubble=0.0, exact=True, saves_ns=None, graphs=False):
    head = SimpleNamespace(
        match=SimpleNamespace(exact=exact),
        gap_ns=sum(gap_ns.values()),
        ideal_bubble=ideal_bubble,
        ideal_ns=1_000,
    )
    predicted = None if saves_ns is None else SimpleNamespace(saves_ns=saves_ns)
    schedule = SimpleNamespace(gap_ns=gap_ns, head=head, compared_with="1f1b")
    return SimpleNamespace(
        analysis=SimpleNamespace(schedule=schedule, tables={"operations": OPERATIONS}),
        uses_cuda_graphs=graphs,
        framework=None,
        predict=lambda change: predicted,
        share=lambda ns: ns / 2_000,
    )


def test_each_removable_part_of_the_gap_is_a_finding_with_at_most_its_own_time_as_saving():
    (finding,) = schedule_findings(context({"p2p": 300, "unexplained": 50}, saves_ns=400))
    assert (finding.case, finding.cost_ns, finding.saves_ns, finding.change) == (
        "p2p",
        300,
        300,
        "hide pp_comm",
    )
    assert finding.evidence["gap_ns"] == 350
    assert [(place.rank, place.name) for place in finding.where] == [(0, "send"), (1, "recv")]


@pytest.mark.parametrize("cause", [*NOT_REMOVABLE, *COMMUNICATION_CAUSES])
def test_what_no_change_of_the_schedule_removes_is_no_finding_of_it(cause):
    assert not list(schedule_findings(context({cause: 300}, saves_ns=300)))


def test_a_part_of_nothing_is_no_finding():
    assert not list(schedule_findings(context({"imbalance": 0, "host": -5})))


def test_a_late_host_under_cuda_graphs_gets_no_advice_to_use_them():
    (finding,) = schedule_findings(context({"host": 10}, graphs=True))
    assert finding.case == "host_under_graphs"
    assert "fewer and larger graphs" in finding.advice


@pytest.mark.parametrize(("bubble", "cases"), [(0.055, ["own_bubble"]), (0.045, [])])
def test_a_bubble_of_a_twentieth_is_a_finding(bubble, cases):
    assert [
        finding.case for finding in schedule_findings(context({}, ideal_bubble=bubble))
    ] == cases


def test_the_bubble_of_a_schedule_that_does_not_match_is_not_its_own():
    assert not list(schedule_findings(context({}, ideal_bubble=0.3, exact=False)))


def test_a_bubble_has_no_predicted_saving():
    (finding,) = schedule_findings(context({}, ideal_bubble=0.25))
    assert (finding.cost_ns, finding.saves_ns, finding.certain) == (250, None, "possible")
