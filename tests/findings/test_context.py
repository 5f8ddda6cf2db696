"""What findings share: ranks and times of a run."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest

from tracekit.findings.context import Context


def context_of(*, recorded=None, free=None, step_ns=1_000):
    """The step's budget as recorded and without the profiler: idle and exposed time."""

    def budget(figures):
        return SimpleNamespace(idle_ns=figures[0], exposed_ns={"dp_comm": figures[1]})

    step = SimpleNamespace(
        reference_ns=step_ns,
        budget_ns=budget(recorded),
        free_budget_ns=budget(free) if free else None,
    )
    return Context(SimpleNamespace(step=step, changed_steps=()))


@pytest.mark.parametrize(
    ("recorded", "free", "shares"),
    [
        ((100, 80), (25, 60), (0.25, 0.75)),
        ((100, 80), (150, 90), (1.0, 1.0)),  # no more than recorded
        ((100, 80), None, (1.0, 1.0)),
        ((100, 80), (), (1.0, 1.0)),  # the parts are not known
        ((0, 0), (25, 60), (1.0, 1.0)),
    ],
)
def test_idle_and_exposed_time_are_shares_of_what_was_recorded(recorded, free, shares):
    context = context_of(recorded=recorded, free=free)
    assert (context.free_idle_share, context.free_exposed_share("dp_comm")) == shares
    assert context.free_exposed_share("tp_comm") == 1.0


@pytest.mark.parametrize(("step_ns", "share"), [(1_000, 0.25), (0, 0.0), (None, 0.0)])
def test_a_share_is_of_the_step(step_ns, share):
    assert context_of(recorded=(0, 0), step_ns=step_ns).share(250) == share


@pytest.mark.parametrize(
    ("step_kinds", "idle_ns", "share"),
    [(("decode",), 100, 0.3), ((), 100, None), (("decode",), 0, None)],
)
def test_idle_time_between_steps_is_a_share_where_a_server_has_steps(step_kinds, idle_ns, share):
    """Steps from 0 to 50 and from 80 on: 30 of 100 ns lie between them."""
    timed = SimpleNamespace(budget=SimpleNamespace(idle_ns=idle_ns))
    steps = pl.DataFrame({"rank": [0, 0], "start_ns": [0, 80], "end_ns": [50, 150]})
    analysis = SimpleNamespace(
        ranks=[SimpleNamespace(timed_steps=[timed])],
        step_kinds=step_kinds,
        tables={"steps": steps},
    )
    assert Context.between_steps_share.func(SimpleNamespace(analysis=analysis)) == share
