"""Dumps of the flight recorder when a step is slower than usual, on all ranks."""

from __future__ import annotations

import pickle
import sys
from types import ModuleType

import pytest

from tests.recorders import dump, entry
from tracekit.errors import OptionError
from tracekit.late import late
from tracekit.record import slow_steps
from tracekit.record.slow_steps import SlowStepDumps, dump_flight_recorder


@pytest.fixture
def torch(monkeypatch):
    """A PyTorch whose flight recorder has one operation."""
    recorder = ModuleType("torch._C._distributed_c10d")
    recorder._dump_nccl_trace = lambda collectives, stacks, active: pickle.dumps(
        dump([entry(1, took_ms=1.0)])
    )
    for name, module in {
        "torch": ModuleType("torch"),
        "torch._C": ModuleType("torch._C"),
        "torch._C._distributed_c10d": recorder,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    return recorder


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [0.0]
    monkeypatch.setattr(slow_steps.time, "perf_counter", lambda: now[0])
    return now


def train(clock, ranks, seconds):
    """One step of so many seconds on each rank."""
    clock[0] += seconds
    for rank in ranks:
        rank.step()


def dumps_of(folder, ranks=2, **options):
    return [SlowStepDumps(folder, rank=rank, world_size=ranks, **options) for rank in range(ranks)]


def written(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.glob("step*/nccl_trace*"))


def test_a_dump_says_its_rank_and_can_be_read(tmp_path, torch):
    for rank in range(2):
        assert (
            dump_flight_recorder(tmp_path / "dumps", rank=rank, world_size=2).name
            == f"nccl_trace_rank_{rank}"
        )
    assert late(tmp_path / "dumps").document.ranks == (0, 1)


def test_a_slow_step_is_dumped_on_all_ranks(tmp_path, torch, clock):
    """Rank 1 ends its step in time, and finds the request of rank 0 after its next."""
    ranks = dumps_of(tmp_path)
    for _ in range(20):
        train(clock, ranks, 1.0)
    clock[0] += 2.0
    ranks[0].step()
    assert written(tmp_path) == ["step21/nccl_trace_rank_0"]
    ranks[1].step()
    assert written(tmp_path) == ["step21/nccl_trace_rank_0", "step21/nccl_trace_rank_1"]


@pytest.mark.parametrize(("seconds", "is_slow"), [(1.4, False), (1.6, True)])
def test_slow_is_half_as_long_again_as_usual(tmp_path, torch, clock, seconds, is_slow):
    ranks = dumps_of(tmp_path)
    for _ in range(20):
        train(clock, ranks, 1.0)
    train(clock, ranks, seconds)
    assert bool(written(tmp_path)) is is_slow


@pytest.mark.parametrize(("steps", "is_slow"), [(9, False), (10, True)])
def test_ten_steps_tell_what_is_usual(tmp_path, torch, clock, steps, is_slow):
    ranks = dumps_of(tmp_path)
    for _ in range(steps):
        train(clock, ranks, 1.0)
    train(clock, ranks, 9.0)
    assert bool(written(tmp_path)) is is_slow


@pytest.mark.parametrize(("between", "count"), [(90, 1), (110, 2)])
def test_a_slow_phase_is_dumped_once_in_a_hundred_steps(tmp_path, torch, clock, between, count):
    ranks = dumps_of(tmp_path, ranks=1)
    for _ in range(20):
        train(clock, ranks, 1.0)
    train(clock, ranks, 3.0)
    for _ in range(between - 1):
        train(clock, ranks, 1.0)
    train(clock, ranks, 3.0)
    assert len(written(tmp_path)) == count


def test_training_goes_on_if_a_dump_fails(tmp_path, torch, clock, monkeypatch):
    monkeypatch.delattr(torch, "_dump_nccl_trace")
    ranks = dumps_of(tmp_path, ranks=1)
    for _ in range(20):
        train(clock, ranks, 1.0)
    train(clock, ranks, 3.0)
    assert written(tmp_path) == []


def test_without_a_flight_recorder_a_dump_is_refused(tmp_path, torch, monkeypatch):
    monkeypatch.delattr(torch, "_dump_nccl_trace")
    with pytest.raises(OptionError, match="no flight recorder"):
        dump_flight_recorder(tmp_path, rank=0, world_size=1)


def test_a_factor_of_one_is_refused(tmp_path):
    with pytest.raises(OptionError, match="not above 1"):
        SlowStepDumps(tmp_path, slower_than=1.0, rank=0, world_size=1)
