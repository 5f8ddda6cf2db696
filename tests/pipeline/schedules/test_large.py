"""The clock and the gap filling of schedules, compared with plain Python that does the same step by step."""

from __future__ import annotations

import pytest

from tracekit.errors import DeadlockError
from tracekit.pipeline.schedules import Schedule, Times, generate, names, simulate
from tracekit.pipeline.schedules.ops import parse_orders
from tracekit.pipeline.schedules.registry import describe

ALL = [name for name in names() if describe(name).pipeline]


def starts_by_repetition(schedule, durations, forward_latency, backward_latency):
    """Start every op at the latest arrival of what it waits for, again and again until nothing changes."""
    edges = schedule.edges
    latency = {"previous": [0] * len(durations), "own": [0] * len(durations)}
    latency |= {"forward": forward_latency, "backward": backward_latency}
    start = [0] * len(durations)
    while True:
        moved = [
            max(
                [0]
                + [
                    start[j] + durations[j] + latency[edge][op]
                    for edge in ("previous", "forward", "backward", "own")
                    if (j := int(getattr(edges, edge)[op])) >= 0
                ]
            )
            for op in range(len(durations))
        ]
        if moved == start:
            return start
        start = moved


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "times", [Times(F=3, I=4, W=2, B=6, FB=8, P2P=1), Times(F=0.5, I=0.25, W=0.5, P2P=0.125)]
)
def test_every_op_starts_as_soon_as_its_inputs_are_there(name, times):
    schedule = generate(name, pp=4, microbatches=8)
    done = simulate(schedule, times)
    edges = schedule.edges
    latencies = [
        times.latencies(schedule.table, edge).tolist() for edge in (edges.forward, edges.backward)
    ]
    assert done.start.tolist() == starts_by_repetition(
        schedule, times.durations(schedule).tolist(), *latencies
    )


def test_times_that_are_not_whole_keep_their_clock():
    assert (
        simulate(generate("1f1b", pp=2, microbatches=2), Times(F=0.5, I=0.5, W=0.5)).makespan == 4.5
    )


@pytest.mark.parametrize("name", ["v-half", "v-min"])
@pytest.mark.parametrize(("pp", "microbatches"), [(1, 1), (2, 3), (3, 7), (4, 12), (6, 5)])
def test_filling_gaps_keeps_every_op_once_and_memory_low(name, pp, microbatches):
    schedule = generate(name, pp=pp, microbatches=microbatches)
    for rank in schedule.ranks:
        assert len(set(map(str, rank))) == len(rank) == 6 * microbatches
    limit = 2 * ((pp + 2) // 2 if name == "v-half" else (pp + 4) // 3)
    assert max(simulate(schedule).peak_activations) <= limit


def test_a_deadlock_is_told_by_name():
    ring = Schedule("ring", 2, 1, 1, (parse_orders("0B0 0F0"), parse_orders("1F0 1B0")))
    with pytest.raises(DeadlockError, match="0B0 waits for"):
        simulate(ring)
