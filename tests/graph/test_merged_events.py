"""Joined events replay like those that they were joined from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from tracekit.align.matching import match
from tracekit.analysis.combine.communication import Communication
from tracekit.graph.event_graph import EventGraph
from tracekit.graph.loadable import TableInMemory
from tracekit.graph.merged_events import merge_events
from tracekit.graph.rank_events import BEFORE, GAPS_WITHIN, HOST_WORK, RANK_EVENTS
from tracekit.run.measure import SourceWorker
from tracekit.store.sources import find


def kernels(*rows):
    """Return events of one stream, launched 10 ns apart from -1000 on: label, start, end, and changes of columns."""
    events = []
    for i, (label, start_ns, end_ns, *changes) in enumerate(rows):
        event = {
            "start_ns": start_ns,
            "end_ns": end_ns,
            "launch_ns": -1000 + 10 * i,
            "part": 0,
            "label": label,
            "name": label,
            "stream_before": i - 1,
            "other_before": -1,
            "held_by": 1,
            "launch_before": i - 1,
            "released_by": -1,
            "queue_before": -1,
            "loader_before": -1,
            "blocked_ns": 0,
            "loading_ns": 0,
            "after_release_ns": -1,
            "recording_ns": 0 if i == 0 else 4,
            "host_state": None,
        }
        events.append({**event, **(changes[0] if changes else {})})
    return pl.DataFrame(events, schema=RANK_EVENTS)


def no_work():
    return HOST_WORK.to_frame()


def test_a_chain_is_one_event_of_each_kind():
    events = kernels(
        ("pp_comm", 0, 10, {"id": 7}),
        ("dgrad", 10, 30),
        ("wgrad", 30, 33),
        ("dgrad", 35, 50),
        ("wgrad", 50, 60),
        ("pp_comm", 60, 70, {"id": 8}),
    )
    merged = merge_events(events, no_work()).events
    columns = ("label", "start_ns", "end_ns", "launch_ns", *BEFORE, GAPS_WITHIN)
    assert merged.select(columns).rows() == [
        ("pp_comm", 0, 10, -1000, -1, -1, -1, -1, -1, -1, 0),
        ("dgrad", 10, 47, -990, 0, -1, 0, -1, -1, -1, 2),
        ("wgrad", 47, 60, -990, 1, -1, 1, -1, -1, -1, 0),
        ("pp_comm", 60, 70, -950, 2, -1, 2, -1, -1, -1, 0),
    ]
    # Four launches of the profiler lie between the first launch of the chain and the next one.
    assert merged["recording_ns"].to_list() == [0, 4, 0, 16]


@pytest.mark.parametrize(
    "change",
    [
        {"launch_ns": 25},  # it was launched when the one before ran
        {"start_ns": 5_051, "end_ns": 5_060},  # something held it back
        {"id": 7},
        {"other_before": 0},
        {"released_by": 0},
        {"part": 1},
        {"launch_before": 0},
    ],
)
def test_an_event_that_may_be_held_back_stands_alone(change):
    events = kernels(("forward", 0, 20), ("forward", 20, 50), ("forward", 50, 60, change))
    merged = merge_events(events, no_work()).events
    assert merged["end_ns"].to_list()[-1] == events["end_ns"][-1]
    first_is_waited_for = "released_by" in change or "other_before" in change
    assert merged.height == (3 if first_is_waited_for else 2)


def test_what_is_waited_for_ends_its_chain():
    events = kernels(
        ("forward", 0, 20), ("forward", 20, 50), ("forward", 50, 60), ("forward", 60, 80)
    )
    waiting = events.with_columns(other_before=pl.Series([-1, -1, -1, 1], dtype=pl.Int32))
    assert merge_events(waiting, no_work()).events["end_ns"].to_list() == [50, 60, 80]


def test_ranks_joined_at_once_are_joined_as_one_by_one():
    first = kernels(("pp_comm", 0, 10, {"id": 7}), ("dgrad", 10, 30), ("wgrad", 30, 33))
    second = kernels(("dgrad", 5, 25, {"recording_ns": None}), ("dgrad", 25, 40), ("wgrad", 40, 44))
    before = pl.col(BEFORE)
    behind = second.with_columns(pl.when(before >= 0).then(before + first.height).otherwise(-1))
    at_once = merge_events(pl.concat([first, behind]), no_work(), np.repeat([0, 1], 3)).events
    one, other = (merge_events(events, no_work()).events for events in (first, second))
    other = other.with_columns(pl.when(before >= 0).then(before + one.height).otherwise(-1))
    assert at_once.equals(pl.concat([one, other]))


def test_host_work_moves_to_the_next_launch_that_is_left():
    events = kernels(
        ("forward", 0, 20), ("forward", 20, 50), ("forward", 50, 60), ("pp_comm", 60, 80, {"id": 1})
    )
    rows = {
        "event": [0, 1, 2, 3],
        "code": ["python"] * 4,
        "op": [""] * 4,
        "ns": [1, 2, 4, 8],
        "after_ns": [1, 2, 4, 8],
        "blocked_ns": [0, 0, 0, 0],
        "waits": [0, 0, 1, 1],
    }
    work = merge_events(events, pl.DataFrame(rows, schema=HOST_WORK)).host_work
    assert work.rows() == [(0, "python", "", 1, 1, 0, 0), (1, "python", "", 14, 8, 0, 2)]


def test_host_work_before_launches_that_no_launch_follows_is_before_none():
    events = kernels(("pp_comm", 0, 20, {"id": 1}), ("forward", 20, 50), ("forward", 50, 60))
    rows = {
        "event": [0, 1, 2],
        "code": ["python"] * 3,
        "op": [""] * 3,
        "ns": [1, 2, 4],
        "after_ns": [0, 0, 0],
        "blocked_ns": [0, 0, 0],
        "waits": [0, 0, 0],
    }
    work = merge_events(events, pl.DataFrame(rows, schema=HOST_WORK)).host_work
    assert work.rows() == [(0, "python", "", 1, 0, 0, 0), (1, "python", "", 2, 0, 0, 0)]


@pytest.mark.parametrize("name", ["h100-ddp", "1f1b", "compile"])
def test_a_sample_replays_alike_with_joined_events(samples, name):
    ranks = []
    for ref in find(samples / name).refs:
        ranks += SourceWorker().measure(ref)
    communication = Communication.of(ranks, ranks_per_node=None)
    members = match(communication.operations, by_step=communication.by_step).members
    joined = []
    for rank in ranks:
        # Events with a remedy are not joined: here none has one.
        events = rank.graph_events.load().drop("remedies", strict=False)
        merged = merge_events(events, rank.graph_host_work.load())
        tables = replace(
            rank,
            graph_events=TableInMemory(merged.events),
            graph_host_work=TableInMemory(merged.host_work),
        )
        joined.append(tables)
    single = communication.graph
    graph = EventGraph.build(joined, communication.operations, members, communication.clocks)
    assert len(graph.start) < len(single.start)
    assert graph.measured_step_ns == single.measured_step_ns
    for label, factor in (("forward", 0.5), ("forward", 1.5), ("dgrad", 2.0), ("dp_comm", 0.3)):
        step_ns = []
        for each in (single, graph):
            replay = each.replay(np.where(each.has_label(label), factor, 1.0), free=1.0)
            step_ns.append(each.step_ns(each.step_bounds(replay.start, replay.end, replay.launch)))
        assert step_ns[1] == pytest.approx(step_ns[0], rel=0.004)
