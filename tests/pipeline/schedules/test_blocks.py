"""What is inside a block: who waits for whom, and what hides what."""

from __future__ import annotations

import itertools

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.errors import DeadlockError, OptionError, ScheduleError
from tracekit.pipeline.schedules import BlockTimes, block, block_times, generate, simulate
from tracekit.pipeline.schedules.blocks import BLOCK_LANES, Block, Task

FIELDS = tuple(BlockTimes.__dataclass_fields__)


def position(done, task):
    return done.cells.row(by_predicate=pl.col("task") == task, named=True)


def beside(done, one, other):
    """True when two tasks run at the same time."""
    a, b = position(done, one), position(done, other)
    return a["start"] < b["end"] and b["start"] < a["end"]


def test_a_steady_block_hides_its_communication():
    done = block("FB")
    assert beside(done, "combine(B)", "attn(F)")
    assert beside(done, "dispatch(F)", "mlp(B)")
    assert beside(done, "dispatch(B)", "mlp(W)")
    assert beside(done, "combine(F)", "attn(B)")
    assert beside(done, "PP", "attn(W)")
    assert done.exposed == 0
    assert done.duration == 2 + 2 + 1 + 2 + 2 + 1


def test_forward_alone_has_nothing_to_hide_behind():
    done = block("F")
    assert done.duration == 2 + 1.5 + 2 + 1.5 + 1
    assert done.exposed == 1.5 + 1.5 + 1


def test_phases_have_their_copies():
    tasks = {
        kind: block(kind).cells.filter(lane="Offload")["task"].to_list()
        for kind in ("F", "FB", "B")
    }
    assert tasks == {"F": ["offload"], "FB": ["offload", "onload"], "B": ["onload"]}


def test_a_slow_offload_holds_up_the_block():
    assert block("FB", BlockTimes(offload=20, onload=20)).duration == 40


def test_slow_communication_is_exposed():
    assert block("FB", BlockTimes(dispatch=5)).exposed > 0


@given(
    st.sampled_from(["F", "B", "FB"]),
    st.integers(1, 4),
    st.lists(st.integers(1, 9), min_size=11, max_size=11),
)
@settings(max_examples=25, deadline=None)
def test_lanes_in_order_and_needs_met(kind, layers, numbers):
    done = block(kind, BlockTimes(**dict(zip(FIELDS, numbers, strict=True))), layers=layers)
    ends = dict(done.cells.select("task", "end").iter_rows())
    starts = dict(done.cells.select("task", "start").iter_rows())
    for task in done.tasks:
        assert all(ends[need] <= starts[task.name] for need in task.after)
    for lane in BLOCK_LANES:
        each = [task.name for task in done.tasks if task.lane == lane]
        assert all(ends[a] <= starts[b] for a, b in itertools.pairwise(each))
    compute = sum(task.duration for task in done.tasks if task.lane == "Computation")
    assert done.duration >= compute
    assert done.exposed == pytest.approx(done.duration - compute)


def test_overlap_is_never_slower_than_one_after_the_other():
    t = block_times(layers=3)
    assert max(t.F, t.B) <= t.FB <= t.F + t.B
    done = simulate(generate("interleaved-overlap", pp=4, microbatches=8), t)
    assert done.makespan < simulate(generate("interleaved", pp=4, microbatches=8), t).makespan


def test_tasks_that_wait_for_each_other():
    stuck = Block(
        "mine",
        (
            Task("a", BLOCK_LANES[0], "forward", 1, ("b",)),
            Task("b", BLOCK_LANES[1], "comm", 1, ("a",)),
        ),
    )
    with pytest.raises(DeadlockError, match="a, b wait for each other"):
        _ = stuck.cells


def test_wrong_words():
    with pytest.raises(OptionError, match="mlp must be more than 0"):
        BlockTimes(mlp=0)
    with pytest.raises(ScheduleError, match="layers"):
        block("F", layers=0)
    with pytest.raises(ScheduleError, match="no block"):
        block("X")
