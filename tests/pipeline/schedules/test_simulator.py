"""The simulator against a slow one, against bounds nothing can beat, and against orders that cannot run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tracekit.errors import DeadlockError, OptionError, ScheduleError
from tracekit.pipeline.schedules import Op, Schedule, Times, controllable, generate, names, simulate
from tracekit.pipeline.schedules.ops import parse_orders

PIPELINES = [name for name in names() if name != "weight-reload"]


@st.composite
def schedules(draw):
    """Any schedule at sizes it takes."""
    name = draw(st.sampled_from(PIPELINES))
    p = draw(st.integers(1, 6))
    m = draw(st.integers(1, 14))
    v = (
        draw(st.integers(1, 3))
        if name in ("interleaved", "interleaved-overlap", "interleaved-zb", "looped-bfs")
        else None
    )
    try:
        return generate(name, pp=p, microbatches=m, virtual=v)
    except ScheduleError:
        assume(False)


def plan(*lines, microbatches=1):
    return Schedule(
        "mine", len(lines), microbatches, 1, tuple(parse_orders(line) for line in lines)
    )


@given(schedules())
@settings(max_examples=30, deadline=None)
def test_every_op_is_there_once(schedule):
    made = {"F": [], "I": [], "W": []}
    for op in (op for rank in schedule.ranks for op in rank):
        if op.kind in ("F", "FB"):
            made["F"].append((op.stage, op.microbatch))
        b = (op.b_stage, op.b_microbatch) if op.kind == "FB" else (op.stage, op.microbatch)
        for kind in {"F": "", "FB": "IW", "B": "IW", "I": "I", "W": "W"}[op.kind]:
            made[kind].append(b)
    everything = [(s, i) for s in range(schedule.stages) for i in range(schedule.microbatches)]
    assert all(sorted(each) == everything for each in made.values())
    per_rank = 1 if schedule.name in ("dualpipe", "chimera") else schedule.virtual
    assert schedule.stages == schedule.pp * per_rank


@given(schedules(), st.data())
@settings(max_examples=30, deadline=None)
def test_against_the_slow_simulator(slow_simulate, schedule, data):
    numbers = data.draw(st.randoms(use_true_random=False))
    durations = [[numbers.randint(1, 50) for _ in rank] for rank in schedule.ranks]
    latency = data.draw(st.integers(0, 9))
    done = simulate(schedule, Times(P2P=latency), durations=durations)
    wanted = slow_simulate(schedule.orders(), lambda r, k, _: durations[r][k], latency)
    mine = {}
    for r, (a, b) in enumerate(
        zip(schedule.table.offsets[:-1], schedule.table.offsets[1:], strict=True)
    ):
        mine |= {(r, k): (int(done.start[a + k]), int(done.end[a + k])) for k in range(b - a)}
    assert mine == wanted


@given(schedules(), st.data())
@settings(max_examples=30, deadline=None)
def test_bounds_nothing_can_beat(schedule, data):
    t = Times(
        **{key: data.draw(st.integers(1, 20)) for key in ("F", "I", "W")},
        P2P=data.draw(st.integers(0, 5)),
    )
    done = simulate(schedule, t)
    assert all(done.makespan >= work for work in done.busy)
    assert all(bubble >= 0 for bubble in done.bubble)
    assert done.makespan >= critical_path(schedule, t)
    assert (
        done.idle_by_phase.select("warm_up", "steady", "cool_down").sum_horizontal().to_list()
        == done.bubble
    )
    total = schedule.stages * schedule.microbatches * (t.F + t.I + t.W)
    assert sum(done.busy) == total


def critical_path(schedule, t):
    """One micro-batch down all stages and back, with the p2p of its way: an FB or B only makes it longer."""
    longest = 0
    for i in range(schedule.microbatches):
        way = schedule.stage_ranks[:, i]
        hops = int((way[1:] != way[:-1]).sum())
        longest = max(longest, schedule.stages * (t.F + t.I) + 2 * hops * t.P2P)
    return longest


@given(schedules())
@settings(max_examples=30, deadline=None)
def test_peak_memory_counted_op_by_op(schedule):
    peaks = []
    for rank in schedule.ranks:
        held = peak = 0
        for op in rank:
            held += op.kind in ("F", "FB")
            peak = max(peak, held)
            held -= op.kind in ("B", "W", "FB")
        assert held == 0
        peaks.append(peak)
    assert simulate(schedule).peak_activations == peaks


def test_p2p_counts_only_between_ranks():
    two = simulate(plan("0F0 0B0", "1F0 1B0"), Times(F=1, B=2, P2P=0.5))
    assert two.makespan == 1 + 0.5 + 1 + 2 + 0.5 + 2
    one = simulate(plan("0F0 1F0 1B0 0B0"), Times(F=1, B=2, P2P=0.5))
    assert one.makespan == 6


def test_p2p_by_link_and_by_bytes():
    orders = plan("0F0 0B0", "1F0 1B0")
    assert simulate(orders, Times(F=1, B=1, P2P=[[0, 3], [5, 0]])).makespan == 4 + 3 + 5
    assert simulate(
        orders, Times(F=1, B=1, P2P=1, p2p_bytes=100, p2p_bandwidth=50)
    ).makespan == 4 + 2 * (1 + 2)


def test_times_by_stage_micro_batch_and_rank():
    orders = plan("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1", microbatches=2)
    by_stage = simulate(orders, Times(F=(1, 10), B=(2, 20)))
    assert by_stage.busy == [6, 60]
    table = simulate(orders, Times(F=[[1, 2], [3, 4]], B=1))
    assert (table.end - table.start).tolist() == [1, 2, 1, 1, 3, 1, 4, 1]
    slow = simulate(orders, Times(F=1, B=2, rank_factor=(1, 3)))
    assert slow.busy == [6, 18]


def test_fb_by_default_is_the_sum_of_its_halves():
    orders = plan("0F0 (0F1;0B0) 0B1", microbatches=2)
    assert simulate(orders, Times(F=[[1, 2]], B=[[10, 20]])).busy == [1 + (2 + 10) + 20]
    assert simulate(orders, Times(F=1, B=2, FB=2.5)).busy == [1 + 2.5 + 2]


def test_whole_nanoseconds_stay_exact():
    big = 10**17 + 1  # a float64 would round this
    done = simulate(plan("0F0 0B0"), durations=[[big, 1]])
    assert done.makespan == big + 1


@pytest.mark.parametrize(
    ("lines", "ring"),
    [
        (("0B0 0F0",), "rank 0 at 0B0 waits for 0F0 of rank 0"),
        (("0F0 0W0 0I0",), "rank 0 at 0W0 waits for 0I0 of rank 0"),
        (("(0F0;0B0)",), r"rank 0 at \(0F0;0B0\) waits for \(0F0;0B0\) of rank 0"),
    ],
)
def test_deadlock_on_one_rank(lines, ring):
    with pytest.raises(DeadlockError, match=ring):
        simulate(plan(*lines))


def test_deadlock_names_the_ring():
    orders = plan("0F0 0B0 0F1 0B1", "1F1 1F0 1B0 1B1", microbatches=2)
    with pytest.raises(DeadlockError) as caught:
        simulate(orders)
    assert "rank 0 at 0B0 waits for 1B0 of rank 1" in caught.value.message
    assert "rank 1 at 1F1 waits for 0F1 of rank 0" in caught.value.message


def test_idle_by_phase_of_gpipe():
    done = simulate(generate("gpipe", pp=3, microbatches=2))
    assert done.idle_by_phase.rows() == [(0, 2 + 4, 0, 0), (1, 1 + 1 + 2, 0, 2), (2, 2, 0, 4)]


@pytest.mark.parametrize(
    "durations", [[[1, 1], [1]], [[1, 1]], [[1, 1], [1, -1]], [[1, 1], [1, float("nan")]]]
)
def test_wrong_durations(durations):
    with pytest.raises((ScheduleError, OptionError)):
        simulate(plan("0F0 0B0", "1F0 1B0"), durations=durations)


def test_a_schedule_that_takes_no_time():
    done = simulate(plan("0F0 0B0"), durations=[[0, 0]])
    assert (done.makespan, done.bubble_fraction, done.bubble_rate_zb, done.bubble_over_work) == (
        0,
        0,
        0,
        0,
    )


def test_searched_schedules_take_times_by_stage():
    times = Times(F=[2] * 4, I=[2] * 4, W=[1] * 4, P2P=[[0] * 4] * 4)
    by_kind = Times(F=2, I=2, W=1)
    assert generate("zb-1p", pp=4, microbatches=8, times=times) == generate(
        "zb-1p", pp=4, microbatches=8, times=by_kind
    )


def test_cells_table():
    cells = simulate(plan("0F0 (0F1;0B0) 0B1", microbatches=2)).cells
    assert cells.columns == [
        "rank",
        "op",
        "stage",
        "microbatch",
        "b_stage",
        "b_microbatch",
        "start",
        "end",
    ]
    assert cells.rows()[1] == (0, "FB", 0, 1, 0, 0, 1, 4)
    assert cells.rows()[0][4:6] == (None, None)


@pytest.mark.parametrize("name", PIPELINES)
def test_only_schedules_that_flow_both_ways_hold_two_stages_weights(name):
    assert generate(name, pp=4, microbatches=8).both_ways == (name in {"dualpipe", "chimera"})


def test_placement_follows_the_direction():
    dual = generate("dualpipe", pp=4, microbatches=8)
    assert dual.stage_ranks[:, 0].tolist() == [0, 1, 2, 3]
    assert dual.stage_ranks[:, 7].tolist() == [3, 2, 1, 0]
    assert generate("zb-v", pp=3, microbatches=2).stage_ranks[:, 0].tolist() == [0, 1, 2, 2, 1, 0]
    assert generate("interleaved", pp=2, microbatches=2).stage_ranks[:, 1].tolist() == [0, 1, 0, 1]
    assert not dual.stage_ranks.flags.writeable


def test_ops_are_hashable_and_read_back():
    for text in ("0F3", "7I0", "0W2", "4B1", "(0F7;7B3)"):
        assert str(Op.parse(text)) == text
        assert hash(Op.parse(text)) == hash(Op.parse(text))
    assert Op.parse("(0F7;7B3)OVERLAP_F_B") == Op("FB", 0, 7, 7, 3)
    assert (
        len({generate("1f1b", pp=2, microbatches=2), generate("1f1b", pp=2, microbatches=2)}) == 1
    )


def test_numpy_durations_are_taken():
    orders = plan("0F0 0B0", "1F0 1B0")
    assert (
        simulate(orders, durations=[np.array([1, 2]), np.array([3, 4])]).makespan == 1 + 3 + 4 + 2
    )


def test_filling_gaps_stops_where_no_op_can_ever_run():
    """The input gradient that the weight gradient needs is not in the order."""
    forward, _, weight_gradient = range(3)
    order = [(forward, 0, 0), (weight_gradient, 0, 0)]
    with pytest.raises(ValueError, match="none of the 1 ops that are left can run"):
        controllable.fill_gaps([order], limit=2)
