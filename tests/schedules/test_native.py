"""Large schedules go through native code: the same orders and times as small ones, which do not."""

from __future__ import annotations

import pytest

from tracekit.errors import DeadlockError
from tracekit.schedules import Schedule, Times, controllable, generate, names, simulate, simulator
from tracekit.schedules.ops import parse_orders
from tracekit.schedules.registry import describe

ALL = [name for name in names() if describe(name).pipeline]


@pytest.mark.parametrize("name", ALL)
def test_native_code_keeps_the_same_clock(monkeypatch, name):
    times = Times(F=3, I=4, W=2, B=6, FB=8, P2P=1)
    done = {}
    for size in (0, 10**9):
        monkeypatch.setattr(simulator, "NATIVE_OPS", size)
        done[size] = simulate(generate(name, pp=4, microbatches=8), times)
    assert done[0].start.tolist() == done[10**9].start.tolist()
    assert done[0].makespan == done[10**9].makespan


def test_times_that_are_not_whole_keep_their_clock(monkeypatch):
    monkeypatch.setattr(simulator, "NATIVE_OPS", 0)
    assert simulate(generate("1f1b", pp=2, microbatches=2), Times(F=0.5, I=0.5, W=0.5)).makespan == 4.5


@pytest.mark.parametrize("make", [controllable.v_half, controllable.v_min])
@pytest.mark.parametrize(("pp", "microbatches"), [(1, 1), (2, 3), (3, 7), (4, 12), (6, 5)])
def test_native_code_squeezes_alike(monkeypatch, make, pp, microbatches):
    monkeypatch.setattr(controllable, "NATIVE_OPS", 0)
    native = make(pp, microbatches)
    monkeypatch.setattr(controllable, "NATIVE_OPS", 10**9)
    assert native == make(pp, microbatches), "it is at hand now"
    monkeypatch.setattr(controllable._native_squeeze, "at_hand", lambda: False)
    monkeypatch.setattr(controllable._native_squeeze, "_run", lambda *_: pytest.fail("small ones do without"))
    assert native == make(pp, microbatches)


def test_a_ring_is_told_by_name_in_any_size(monkeypatch):
    monkeypatch.setattr(simulator, "NATIVE_OPS", 0)
    ring = Schedule("ring", 2, 1, 1, (parse_orders("0B0 0F0"), parse_orders("1F0 1B0")))
    with pytest.raises(DeadlockError, match="0B0 waits for"):
        simulate(ring)
