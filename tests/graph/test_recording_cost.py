"""The step without the profiler: hosts whose recorded events can be counted, and loops that were timed."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from msgspec import structs

from tests.graph.test_changes import MS, graph_of, kernel
from tracekit import analyze
from tracekit.graph.change import parse_change
from tracekit.graph.recording_cost import find_recording_cost
from tracekit.intervals import union
from tracekit.metrics.host.events import split_host_events
from tracekit.schema import EVENTS, MEMORY, RankEvents, Source, conform

US = 1_000
CORPUS = os.environ.get("TRACEKIT_CORPUS")


def recorded_host(*, launch_us=6.5, calls=60, operators=3, shapes=False, frames=0, **source):
    """Return a rank of *calls* launches, 100 µs apart, each inside *operators* nested operators."""
    rows = []
    for number in range(calls):
        start = number * 100 * US
        for depth in range(operators):
            rows.append(("cpu_op", "aten::linear", start + depth, start + 50 * US))
        launch = start + 10 * US
        rows.append(("runtime", "cudaLaunchKernel", launch, launch + round(launch_us * US)))
    frame = pl.DataFrame(rows, schema=["kind", "name", "start_ns", "end_ns"], orient="row")
    events = conform(frame.with_columns(tid=pl.lit(1)), EVENTS)
    values = {"reader": "kineto", "record_shapes": shapes, "skipped": {"python": frames}, **source}
    return RankEvents(events, Source(path="", rank=0, rank_from="", **values), MEMORY.to_frame())


def cost_us(rank, start_us=0, end_us=100):
    cost = find_recording_cost(rank, split_host_events(rank.events))
    (ns,) = cost.between(np.array([start_us * US]), np.array([end_us * US]))
    return ns / US


def test_every_recorded_event_gives_back_its_cost_where_it_was_recorded():
    rank = recorded_host(operators=3)
    assert cost_us(rank) == pytest.approx(3 * 1.75 + 11)
    assert cost_us(rank, 5, 100) == pytest.approx(11)  # behind the operators' starts
    assert cost_us(rank, 20, 100) == 0
    assert cost_us(recorded_host(operators=7)) == pytest.approx(7 * 1.75 + 11)


def test_shapes_cost_more_for_each_operator():
    assert cost_us(recorded_host(shapes=True)) == pytest.approx(3 * (1.75 + 0.5) + 11)


def test_the_work_of_a_graph_costs_the_call_that_launches_it():
    """40 kernels of one launch call of 6.5 µs cost no more than it takes; four cost 1.3 µs each."""
    rank = recorded_host(operators=1)
    graphs = pl.col("name").cast(pl.String).replace("cudaLaunchKernel", "cudaGraphLaunch")
    events = rank.events.with_columns(
        graphs.cast(pl.Categorical).alias("name"), correlation=pl.int_range(pl.len())
    )
    rank = RankEvents(events, rank.source, rank.memory)
    host = split_host_events(events)
    kernels = pl.Series("correlation", [1] * 4 + [3] * 40)
    cost = find_recording_cost(rank, host, kernels)
    ns = cost.between(np.array([0, 100, 200]) * US, np.array([100, 200, 300]) * US)
    assert (ns / US).tolist() == pytest.approx([12.75 + 4 * 1.3, 12.75 + 6.5, 12.75], abs=0.01)


@pytest.mark.parametrize(
    ("operators", "share"),
    [(1, 60 * 12.75 / 910), (3, 0.85)],  # at most 85 % of any time are the profiler's
)
def test_a_host_that_stands_still_does_so_for_the_profiler_too(operators, share):
    """60 launches in 5.91 ms, of which the host stood still for 5: 12.75 µs each are 84 % of the rest."""
    rank = recorded_host(operators=operators)
    host = split_host_events(rank.events)
    stalls = union([20 * US], [5_020 * US])
    cost = find_recording_cost(rank, host, stalls=stalls)
    (ns,) = cost.between(np.array([30 * US]), np.array([50 * US]))
    assert ns / US == pytest.approx(20 * share, rel=0.02)
    (before_ns,) = cost.between(np.array([15 * US]), np.array([19 * US]))
    assert before_ns == 0


def test_python_frames_cost_evenly_over_the_time_of_the_recording():
    """600 frames in 5.9 ms from the first to the last recorded event."""
    with_frames = cost_us(recorded_host(frames=590)) - cost_us(recorded_host())
    assert with_frames == pytest.approx(590 * 0.25 * 100 / 5_910, rel=0.01)


@pytest.mark.parametrize(
    ("launch_us", "slowness"),
    [(6.5, 1.0), (9.75, 1.5 ** (1.45 * 1.3)), (1.0, 0.4**1.3), (40.0, 2.5**1.3)],
)
def test_the_median_launch_tells_how_slow_the_host_is_within_bounds(launch_us, slowness):
    assert cost_us(recorded_host(launch_us=launch_us)) == pytest.approx(16.25 * slowness, rel=1e-3)


def test_fewer_than_forty_trivial_events_tell_nothing_of_the_host():
    assert cost_us(recorded_host(launch_us=9.75, calls=40)) > 17
    assert cost_us(recorded_host(launch_us=9.75, calls=39)) == pytest.approx(16.25)


def with_events(rank, *rows):
    """Return the rank with more events, as kind, name, thread, start and end in µs."""
    schema = ["kind", "name", "tid", "start_ns", "end_ns"]
    more = pl.DataFrame(rows, schema=schema, orient="row").with_columns(
        pl.col("start_ns", "end_ns").cast(pl.Float64) * US
    )
    more = more.with_columns(pl.col("start_ns", "end_ns").cast(pl.Int64))
    events = pl.concat([rank.events, conform(more, EVENTS)])
    return RankEvents(events, rank.source, rank.memory)


def test_each_thread_has_a_state_of_its_own_which_changes_over_time():
    """Launches of thread 1 take 6.5 µs; on thread 2 empties take 3.9 µs for 2 ms, and then twice that for 2 ms."""
    empties = [
        ("cpu_op", "aten::empty", 2, 40 + 10 * n, 40 + 10 * n + (3.9 if n < 200 else 7.8))
        for n in range(400)
    ]
    slow_thread = [("runtime", "cudaLaunchKernel", 2, 4_050, 4_056.5)]
    rank = with_events(recorded_host(operators=1), *empties, *slow_thread)
    # 10 operators and a launch of thread 1 in its usual state, and 10 empties of thread 2.
    assert cost_us(rank, 1_000, 1_100) == pytest.approx(12.75 + 10 * 1.75, rel=1e-3)
    assert cost_us(rank, 3_000, 3_100) == pytest.approx(12.75 + 10 * 1.75 * 2**1.3, rel=1e-3)


def test_a_call_that_queues_no_work_costs_what_it_took():
    query = ("runtime", "cudaGetErrorString", 1, 60, 60.4)
    wait = ("runtime", "cudaStreamSynchronize", 1, 61, 90)
    assert cost_us(with_events(recorded_host(), query)) == pytest.approx(16.25 + 0.4)
    assert cost_us(with_events(recorded_host(), wait)) == pytest.approx(16.25 + 11)


@pytest.mark.parametrize(
    "rank", [recorded_host(operators=0), recorded_host(reader="nsight"), recorded_host(calls=0)]
)
def test_without_recorded_operators_and_calls_of_pytorch_the_cost_is_not_known(rank):
    assert find_recording_cost(rank, split_host_events(rank.events)) is None


def with_recording(graph, ns, states=None):
    """The graph whose recording cost *ns* before each launch, and whose host was in some states."""
    events = graph.graph.events.with_columns(
        recording_ns=pl.lit(ns, pl.Int64),
        host_state=pl.Series(states or [None] * graph.graph.events.height, dtype=pl.Float32),
    )
    return structs.replace(graph, graph=structs.replace(graph.graph, events=events))


def launched_every(ms, *, kernels=5, work=1.0, **more):
    rows = [kernel("forward", ms * n, ms * n + work, launch=ms * n) for n in range(kernels)]
    return graph_of(rows, **more)


def test_a_host_that_is_the_limit_launches_earlier_without_the_profiler():
    """A launch every 4 ms, of which 1 ms is the profiler's: four launches save 4 ms."""
    graph = with_recording(launched_every(4), MS)
    assert graph.free_step.time_ns == graph.measured_ns - 4 * MS
    assert graph.free_step.source == "modelled"
    assert graph.free_step.budget.idle_ns == graph.free_step.time_ns - 5 * MS


def test_a_gpu_that_is_the_limit_takes_its_own_time_and_has_a_narrow_range():
    """Kernels of 3.5 ms, a launch every 4 ms, of which 2 ms is the profiler's."""
    graph = with_recording(launched_every(4, work=3.5), 2 * MS)
    free = graph.free_step
    assert free.time_ns == pytest.approx(5 * 3.5 * MS, rel=0.001)
    assert (free.range_ns[1] - free.range_ns[0]) / free.time_ns < 0.1
    assert graph.predict([parse_change("no host delay")]).saves_ns == pytest.approx(
        0, abs=0.02 * MS
    )


def test_some_of_the_hosts_time_is_left_however_many_events_it_recorded():
    """Of the 4 ms before each of four launches 15 %; the last kernel takes a quarter of a ms."""
    graph = with_recording(launched_every(4, work=0.25), 100 * MS)
    assert graph.free_step.time_ns == pytest.approx((4 * 0.6 + 0.25) * MS, rel=0.01)


def test_the_range_reaches_the_recorded_step_if_events_were_lost():
    lossy = with_recording(launched_every(4, events_lost=True), 3 * MS)
    assert lossy.free_step.range_ns[1] == lossy.measured_ns


def test_the_range_is_that_of_the_cost_and_the_host_and_five_percent_more_on_either_side():
    """Of 4 ms before each of four launches the profiler has 0.5: 3.45 × 0.85 to 3.6 × 1.05 ms stay, and a kernel."""
    free = with_recording(launched_every(4), MS // 2).free_step
    assert free.time_ns == 15 * MS
    assert free.range_ns == pytest.approx((0.95 * 12.73 * MS, 1.05 * 16.12 * MS), rel=1e-6)


@pytest.mark.parametrize(
    ("states", "low_ms", "high_ms"),
    [
        ([1.0] * 5, 4 * 3.45 * 0.93, 4 * 3.6),  # one state throughout
        ([4.0] * 5, 4 * 3.45 * 0.93, 4 * 3.6),
        # A tenth slower in half of the time (operators take 1.21 times as long).
        ([1.0, 1.0, 1.0, 1.21, 1.21], 2 * 3.45 * 0.93 * (1 + 1 / 1.1), 2 * 3.6 * (1.1 + 1)),
    ],
)
def test_the_range_spans_the_fast_and_the_slow_state_of_the_host(states, low_ms, high_ms):
    """All of its time may be as in the state that it had for a tenth of it. Of 4 ms the profiler has 0.5."""
    free = with_recording(launched_every(4), MS // 2, states).free_step
    assert free.time_ns == 15 * MS
    assert free.range_ns == pytest.approx(
        (0.95 * (low_ms + 1) * MS, 1.05 * (high_ms + 1) * MS), rel=1e-6
    )


def test_the_range_is_at_most_half_of_the_step_wide():
    """Of 17 ms the profiler has 8: 7.12 to 11.08 ms around 9, and more with the host's own range."""
    free = with_recording(launched_every(4), 2 * MS).free_step
    low_ns, high_ns = free.range_ns
    low_ms, high_ms = 4 * 1.8 * 0.85 + 1, 4 * 2.4 * 1.05 + 1
    assert free.time_ns == 9 * MS
    assert high_ns - low_ns == pytest.approx(0.5 * 9 * MS, rel=1e-6)
    assert (9 * MS - low_ns) / (high_ns - 9 * MS) == pytest.approx(
        (1 - 0.95 * low_ms / 9) / (1.05 * high_ms / 9 - 1), rel=1e-5
    )


def test_transfers_and_few_steps_that_differ_widen_the_range():
    """Two ranks transfer for 80 of 100, which may take 15 % more the next time.

    Three steps of 100, 110 and 130 tell the usual one within their median deviation over the root of three.
    """
    ranks = [
        [
            kernel("forward", 0, 20, launch=0),
            kernel("dp_comm", 20, 100, match=0, name="nccl", launch=0),
        ]
        for _ in range(2)
    ]
    free = with_recording(graph_of(*ranks), 0).free_step
    low, high = 1 - math.hypot(0.04, 0.12), 1 + math.hypot(0.05, 0.12)
    assert free.range_ns == pytest.approx((low * 100 * MS, high * 100 * MS), rel=1e-6)
    lengths, start, rows = (100, 110, 130), 0, []
    for step, length in enumerate(lengths):
        rows.append(kernel("forward", start, start + length, launch=start, step=step))
        start += length
    free = with_recording(graph_of(rows), 0).free_step
    varies = 10 / 110 / math.sqrt(3)
    low, high = 1 - math.hypot(0.04, varies), 1 + math.hypot(0.05, varies)
    assert free.range_ns == pytest.approx((low * free.time_ns, high * free.time_ns), rel=1e-6)


def test_savings_are_of_the_free_step_and_predictions_also_of_a_recording():
    """Kernels of 2 ms that take 1 ms save nothing of a host that launches every 3 ms."""
    graph = with_recording(launched_every(4, work=2.0), MS)
    row = graph.predict([parse_change("no host delay")])
    assert row.predicted_ns == pytest.approx(10 * MS, rel=0.001)
    assert row.free_ns == 14 * MS
    assert row.free_predicted_ns == pytest.approx(10 * MS, rel=0.001)
    assert row.saves_ns == row.free_ns - row.free_predicted_ns


def test_a_free_step_that_the_recorder_timed_needs_no_model():
    graph = with_recording(launched_every(4, timed_free_ns=12 * MS), MS)
    assert (graph.free_step.time_ns, graph.free_step.source) == (12 * MS, "timed")
    assert graph.free_step.range_ns == (12 * MS, 12 * MS)
    unknown = launched_every(4, timed_free_ns=12 * MS)  # no recorded host: still timed
    assert (unknown.free_step.time_ns, unknown.free_step.budget) == (12 * MS, None)


def test_a_saving_is_never_more_than_the_step_it_is_of():
    """Of 13 ms without the profiler the host delays 8: of 8 ms that were timed, the same share."""
    timed = with_recording(launched_every(4, timed_free_ns=8 * MS), MS)
    row = timed.predict([parse_change("no host delay")])
    assert (row.free_ns, row.saves_ns) == (8 * MS, pytest.approx(8 * 8 / 13 * MS, rel=0.01))
    longer = with_recording(launched_every(4), -MS)
    assert longer.free_step.time_ns == longer.measured_ns == 17 * MS
    row = longer.predict([parse_change("no host delay")])
    assert row.saves_ns == pytest.approx(17 * 16 / 21 * MS, rel=0.01)


def test_a_recording_whose_cost_is_not_known_has_no_free_step():
    graph = launched_every(4)
    assert graph.free_step is None
    row = graph.predict([parse_change("no host delay")])
    assert (row.free_ns, row.free_predicted_ns) == (None, None)
    assert row.saves_ns == row.measured_ns - row.predicted_ns


def test_a_host_that_was_too_slow_to_wait_waits_without_the_profiler():
    """The GPU was done with 1 ms of work before the host asked; a faster host asks earlier and waits."""
    rows = [
        kernel("forward", 0, 3, launch=0),
        kernel("forward", 10, 11, launch=9.9),
    ]
    graph = with_recording(graph_of(rows, syncs=[(9, 9.1)]), 9 * MS)
    replay = graph.graph.replay(free=1.0)
    assert replay.start[1] >= replay.end[0] + 0.1 * MS  # not before the kernel that it waits for


LOOPS = ("plain", "unfused", "mask-sync", "decode")


@pytest.mark.skipif(
    CORPUS is None, reason="TRACEKIT_CORPUS is not set: the timed loops are not here"
)
@pytest.mark.parametrize("loop", LOOPS)
def test_the_free_step_of_timed_loops_is_near_what_was_timed(loop):
    folder = Path(CORPUS) / "recording-cost"
    run = json.loads((folder / "truth.json").read_text())["runs"][loop]
    free_ns = analyze(folder / loop / "shapes", schedule="none").step.free_ns
    assert free_ns / 1e6 == pytest.approx(run["free_ms"][0], rel=0.1)  # before it was ever profiled
    assert analyze(folder / loop / "gpu-only", schedule="none").step.free_ns is None
