"""The recorder's plans: any schedule's orders become actions that cannot wait for each other."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from tracekit.pipeline.schedules import generate

pytestmark = pytest.mark.slow

RECORD = Path(__file__).parent.parent / "sample_traces" / "record"
RUNS = [
    ("gpipe", 4, 8, None),
    ("1f1b", 4, 8, None),
    ("interleaved", 4, 8, 2),
    ("interleaved-overlap", 4, 8, 2),
    ("looped-bfs", 2, 4, 2),
    ("zb-h1", 4, 8, None),
    ("zb-h2", 4, 8, None),
    ("interleaved-zb", 4, 8, 2),
    ("zb-v", 4, 8, None),
    ("chimera", 4, 8, None),
    ("dualpipe", 8, 20, None),
    ("dualpipev", 4, 10, None),
]


@pytest.fixture(scope="module")
def plans():
    spec = importlib.util.spec_from_file_location("recorder_plan", RECORD / "plan.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["recorder_plan"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["recorder_plan"]


def planned(plans, tmp_path, orders, name="x"):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"name": name, "ranks": orders}))
    return plans.Plan.read(path)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run[0])
def test_both_ends_of_every_message_agree(plans, tmp_path, run):
    name, pp, microbatches, virtual = run
    schedule = generate(name, pp=pp, microbatches=microbatches, virtual=virtual)
    plan = planned(plans, tmp_path, schedule.orders(), name)
    for rank, actions in enumerate(plan.actions):
        assert [
            action.text for action in actions if isinstance(action, plans.Op)
        ] == schedule.orders()[rank]
    messages = [[a for a in actions if isinstance(a, plans.Message)] for actions in plan.actions]
    for a in range(pp):
        for b in range(a):
            mine = [m for m in messages[a] if {m.source, m.target} == {a, b}]
            theirs = [m for m in messages[b] if {m.source, m.target} == {a, b}]
            assert mine == theirs
            assert len(set(mine)) == len(mine)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run[0])
def test_messages_leave_after_their_op_and_arrive_before_it(plans, tmp_path, run):
    name, pp, microbatches, virtual = run
    plan = planned(
        plans,
        tmp_path,
        generate(name, pp=pp, microbatches=microbatches, virtual=virtual).orders(),
        name,
    )
    for rank, actions in enumerate(plan.actions):
        state = {
            piece: i
            for i, action in enumerate(actions)
            if isinstance(action, plans.Op)
            for piece in action.parts
        }
        for i, message in enumerate(actions):
            if not isinstance(message, plans.Message):
                continue
            forward = message.kind == "activation"
            if message.source == rank:
                made = message.stage - 1 if forward else message.stage + 1
                kinds = "F" if forward else "BI"
                assert any(state.get((kind, made, message.microbatch), i) < i for kind in kinds)
            else:
                kinds = "F" if forward else "BI"
                assert any(
                    state.get((kind, message.stage, message.microbatch), -1) > i for kind in kinds
                )


def test_an_order_that_waits_for_itself_is_refused(plans, tmp_path):
    with pytest.raises(SystemExit, match="deadlocks"):
        planned(plans, tmp_path, [["0F0", "0B0"], ["1B0", "1F0"]])
