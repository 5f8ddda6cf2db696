"""Parts of a pipeline's gap to its ideal, and the bubble that its schedule has by itself."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest

from tests.kept import analysis_of
from tracekit.findings.pipeline import (
    COMMUNICATION_CAUSES,
    EARLIER_HOST,
    FASTER_MESSAGES,
    HIDDEN_MESSAGES,
    NOT_REMOVABLE,
    ScheduleGap,
)

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


def changed_step(saves_ns, *path, change=""):
    """A predicted step, and the parts of its critical path as label and time; None is the host."""
    parts = [SimpleNamespace(label=label, ns=ns) for label, ns in path]
    return SimpleNamespace(saves_ns=saves_ns, critical_path=parts, change=change)


def context(
    gap_ns,
    *,
    ideal_bubble=0.0,
    exact=True,
    saves_ns=None,
    graphs=False,
    predictions=None,
):
    head = SimpleNamespace(
        match=SimpleNamespace(exact=exact),
        gap_ns=sum(gap_ns.values()),
        ideal_bubble=ideal_bubble,
        ideal_ns=1_000,
    )
    any_change = None if saves_ns is None else changed_step(saves_ns)
    schedule = SimpleNamespace(gap_ns=gap_ns, head=head, compared_with="1f1b")
    return SimpleNamespace(
        analysis=SimpleNamespace(comparison=schedule, tables={"operations": OPERATIONS}),
        uses_cuda_graphs=graphs,
        framework=None,
        predict=lambda *changes: (predictions or {}).get(changes, any_change),
        share=lambda ns: ns / 2_000,
        step_ns=2_000,
    )


def test_what_the_profiler_adds_to_a_gap_is_a_part_of_it(samples):
    """Half of the waiting for messages and a quarter of the late launches are left without it."""
    recorded = analysis_of(samples / "1f1b").comparison
    assert "profiler" not in recorded.gap_ns
    split = recorded.with_profiler({"p2p": 0.5, "host": 0.25})
    assert sum(split.gap_ns.values()) == sum(recorded.gap_ns.values())
    lost_ns = recorded.gap_ns["p2p"] * 0.5 + recorded.gap_ns["host"] * 0.75
    assert split.gap_ns["profiler"] == pytest.approx(lost_ns, abs=2)
    assert split.gap_ns["p2p"] == pytest.approx(recorded.gap_ns["p2p"] * 0.5, abs=1)
    assert split.to_document().gap_ns == split.gap_ns
    assert all("profiler" in step.gap_ns for step in split.to_document().pipelines)


def test_a_gap_costs_no_more_than_the_step():
    (finding,) = ScheduleGap.find(context({"host": 6_000}, saves_ns=10))
    assert (finding.cost_ns, finding.share) == (2_000, 1.0)


def test_each_removable_part_of_the_gap_is_a_finding_that_saves_what_its_change_does():
    (finding,) = ScheduleGap.find(context({"p2p": 300, "unexplained": 50}, saves_ns=400))
    assert (finding.case, finding.cost_ns, finding.saves_ns, finding.change) == (
        "p2p",
        300,
        400,
        HIDDEN_MESSAGES,
    )
    assert finding.gap_ns == 350
    assert [(location.rank, location.name) for location in finding.where] == [
        (0, "send"),
        (1, "recv"),
    ]


@pytest.mark.parametrize("cause", [*NOT_REMOVABLE, *COMMUNICATION_CAUSES])
def test_what_no_change_of_the_schedule_removes_is_no_finding_of_it(cause):
    assert not list(ScheduleGap.find(context({cause: 300}, saves_ns=300)))


def test_a_part_of_nothing_is_no_finding():
    assert not list(ScheduleGap.find(context({"imbalance": 0, "host": -5})))
    (finding,) = ScheduleGap.find(context({"imbalance": 1, "host": -5}))
    assert finding.cost_ns == 1


def test_a_late_host_under_cuda_graphs_gets_no_advice_to_use_them():
    (finding,) = ScheduleGap.find(context({"host": 10}, graphs=True))
    assert finding.case == "host_under_graphs"
    assert "fewer and larger graphs" in finding.advice()


@pytest.mark.parametrize(("bubble", "cases"), [(0.055, ["own_bubble"]), (0.045, [])])
def test_a_bubble_of_a_twentieth_is_a_finding(bubble, cases):
    assert [finding.case for finding in ScheduleGap.find(context({}, ideal_bubble=bubble))] == cases


def test_the_bubble_of_a_schedule_that_does_not_match_is_not_its_own():
    assert not list(ScheduleGap.find(context({}, ideal_bubble=0.3, exact=False)))


def test_a_bubble_has_no_predicted_saving():
    (finding,) = ScheduleGap.find(context({}, ideal_bubble=0.25))
    assert (finding.cost_ns, finding.saves_ns, finding.certain) == (250, None, "possible")


HIDDEN = (HIDDEN_MESSAGES,)
EARLIER = (EARLIER_HOST,)
FASTER = (FASTER_MESSAGES,)


def test_messages_that_save_little_because_hosts_take_as_long_are_judged_with_earlier_hosts():
    predictions = {
        HIDDEN: changed_step(30, (None, 900), ("dgrad", 50)),
        EARLIER: changed_step(20, ("pp_comm", 700)),
        HIDDEN + EARLIER: changed_step(350, ("dgrad", 500), change="hide pp_comm, no host delay"),
    }
    messages, host = ScheduleGap.find(context({"p2p": 300, "host": 40}, predictions=predictions))
    assert (messages.case, str(messages.change)) == ("p2p_and_host", "hide pp_comm, no host delay")
    assert (messages.cost_ns, messages.saves_ns) == (340, 350)  # of both parts of the gap
    assert messages.messages_alone_ns == 30
    assert "do both" in messages.advice()
    assert (host.case, host.saves_ns) == ("host", 20)


def test_hosts_that_would_save_as_much_alone_are_not_asked_for_together_with_messages():
    predictions = {
        HIDDEN: changed_step(30, (None, 900)),
        EARLIER: changed_step(20),
        HIDDEN + EARLIER: changed_step(50, change="hide pp_comm, no host delay"),
    }
    (finding,) = ScheduleGap.find(context({"p2p": 300}, predictions=predictions))
    assert (finding.case, finding.saves_ns, finding.change) == ("p2p", 30, *HIDDEN)


def test_earlier_hosts_are_not_asked_for_where_compute_takes_longest():
    predictions = {
        HIDDEN: changed_step(30, ("dgrad", 500), (None, 400)),
        EARLIER: changed_step(20),
        HIDDEN + EARLIER: changed_step(290),
    }
    (finding,) = ScheduleGap.find(context({"p2p": 300}, predictions=predictions))
    assert (finding.case, finding.saves_ns) == ("p2p", 30)


@pytest.mark.parametrize(
    ("faster_ns", "case", "saves_ns"), [(120, "p2p_transfer", 120), (30, "p2p", 30)]
)
def test_messages_for_which_there_is_too_little_compute_must_be_faster(faster_ns, case, saves_ns):
    predictions = {
        # Two ranks of one label together are longer than the host.
        HIDDEN: changed_step(30, (None, 300), ("pp_comm", 200), ("pp_comm", 150)),
        FASTER: changed_step(faster_ns),
    }
    (finding,) = ScheduleGap.find(context({"p2p": 300}, predictions=predictions))
    assert (finding.case, finding.saves_ns) == (case, saves_ns)


def test_a_part_that_is_more_than_the_whole_gap_says_that_others_make_up_for_it():
    finding = next(ScheduleGap.find(context({"p2p": 76_000_000, "variation": -34_000_000})))
    assert "(other differences from the ideal make up for 34.0 ms of that)" in finding.text()
    finding = next(ScheduleGap.find(context({"p2p": 76_000_000, "imbalance": 4_000_000})))
    assert "make up" not in finding.text()
