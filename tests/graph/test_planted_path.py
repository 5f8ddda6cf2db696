"""Delays planted into graphs of a few events: the critical path and changes find them alike, with their size."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tests.graph.test_changes import MS, Tables, kernel
from tracekit.align.clocks import Clocks
from tracekit.align.matching import MEMBERS
from tracekit.align.waits import with_waits
from tracekit.errors import OptionError
from tracekit.graph.change import parse_change
from tracekit.graph.changes import WhatIfGraph
from tracekit.graph.critical_path import critical_path
from tracekit.graph.event_graph import EventGraph
from tracekit.graph.loadable import TableInMemory
from tracekit.graph.rank_events import HOST_WORK
from tracekit.metrics.causes import PIECES
from tracekit.schema import conform

GAP_MS = 0.002
"""Time that is left between two kernels however early the second one is launched."""


def path_and_changes(*ranks, host_work=(), **waits):
    """Return the segments of the path as (rank, kind, label, ms, idle ms), and the graph that changes are asked of."""
    parts = [Tables(rank, events, **waits) for rank, events in enumerate(ranks)]
    for part in parts:
        part.launches_known = True
        part.graph_host_work = TableInMemory(
            pl.DataFrame(list(host_work), schema=HOST_WORK, orient="row")
        )
    rows = [
        {"rank": rank, "id": number, "label": row["label"], "start_ns": row["start_ns"], "end_ns": row["end_ns"],
         "match": row.get("match")}
        for rank, events in enumerate(ranks)
        for number, row in enumerate(events)
    ]  # fmt: skip
    schema = {"rank": pl.Int32, "id": pl.Int64, "label": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64,
              "match": pl.Int64}  # fmt: skip
    operations = pl.DataFrame(rows, schema=schema).drop_nulls("match")
    members = conform(
        operations.with_row_index("row").with_columns(transfer_ns=pl.lit(0)).sort("match"), MEMBERS
    )
    clocks = Clocks.recorded(range(len(ranks)))
    members = with_waits(members, clocks)
    graph = EventGraph.build(parts, operations, members, clocks)
    exposed = {rank: PIECES.to_frame() for rank in range(len(ranks))}
    path = critical_path(graph, parts, operations, members, clocks, exposed=exposed)
    ns = pl.col("end_ns") - pl.col("start_ns")
    segments = path.segments.select("rank", "kind", "label", ns // MS, pl.col("idle_ns") // MS)
    return segments.rows(), WhatIfGraph(graph, graph.measured_step_ns)


def saves_ms(graph, change):
    return graph.predict([parse_change(change)]).saves_ns / MS


def test_a_late_launch():
    """The second kernel could run at 10 and is launched at 30: the GPU is idle for 20 of the host's time."""
    segments, graph = path_and_changes(
        [kernel("forward", 0, 10, launch=0), kernel("wgrad", 30, 40, launch=30)]
    )
    assert segments == [(0, "host", None, 30, 20), (0, "kernel", "wgrad", 10, 0)]
    assert saves_ms(graph, "no host delay") == pytest.approx(20, abs=GAP_MS)


def test_a_slow_loader():
    """Of the 30 before the second launch the host loads data for 25: without that it comes as early as it can run."""
    segments, graph = path_and_changes(
        [kernel("forward", 0, 10, launch=0), kernel("wgrad", 30, 40, launch=30)],
        host_work=[(1, "data_loading", "", 25 * MS, 25 * MS, 0, 0)],
    )
    assert segments == [(0, "host", None, 30, 20), (0, "kernel", "wgrad", 10, 0)]
    assert saves_ms(graph, "no data loading") == pytest.approx(20, abs=GAP_MS)


def test_a_late_peer():
    """Rank 1 computes for 30, rank 0 for 10: both reduce from 30 on, which takes 5."""
    segments, graph = path_and_changes(
        *(
            [kernel("forward", 0, ms), kernel("dp_comm", ms, 35, match=0, name="nccl")]
            for ms in (10, 30)
        )
    )
    assert segments[0] == (1, "kernel", "forward", 30, 0)
    assert segments[-1][1:4] == ("collective", "dp_comm", 5)
    assert saves_ms(graph, "rank 1 like others") == pytest.approx(20, abs=GAP_MS)


def test_a_wait_of_the_host_leaves_the_work_it_waits_for_on_the_path():
    """The host waits for the forward of 20 and takes 5 from there to the next launch: without the wait 5 are saved."""
    segments, graph = path_and_changes(
        [kernel("forward", 0, 20, launch=0), kernel("wgrad", 25, 35, launch=25)], syncs=[(1, 20)]
    )
    assert segments == [
        (0, "kernel", "forward", 20, 0),
        (0, "host", None, 5, 5),
        (0, "kernel", "wgrad", 10, 0),
    ]
    assert saves_ms(graph, "no host delay") == pytest.approx(5, abs=GAP_MS)


ITEM, COPY = "aten::item", "aten::copy_"


def test_without_one_wait_the_host_stands_at_the_next():
    """The host waits for the forward of 20 in `item`, launches a small copy and waits for it, then loads for 10.

    Without the first wait it waits as long at the second: only its own work between the two is done meanwhile.
    """
    _, graph = path_and_changes(
        [
            kernel("forward", 0, 20, launch=0),
            kernel("memory", 22, 23, launch=22),
            kernel("wgrad", 33, 43, launch=33),
        ],
        syncs=[(1, 20), (22.5, 23)],
        host_work=[
            (1, "host_sync", ITEM, 0, 0, 19 * MS, 1),
            (2, "host_sync", COPY, 0, 0, MS // 2, 1),
            (2, "data_loading", "", 10 * MS, 10 * MS, 0, 0),
        ],
    )
    assert saves_ms(graph, f"no synchronisation in {ITEM}") == pytest.approx(2, abs=GAP_MS)
    assert saves_ms(graph, f"no synchronisation in {COPY}") == pytest.approx(0.5, abs=GAP_MS)
    assert saves_ms(graph, "no synchronisation") == pytest.approx(12, abs=2 * GAP_MS)


def test_of_two_waits_before_one_launch_the_second_holds_as_long():
    """Two operators ask for what the forward computed, one after the other: without either the other one waits."""
    _, graph = path_and_changes(
        [kernel("forward", 0, 20, launch=0), kernel("wgrad", 25, 35, launch=25)],
        syncs=[(1, 20), (21, 21.01)],
        host_work=[
            (1, "host_sync", ITEM, 0, 0, 19 * MS, 1),
            (1, "host_sync", COPY, 0, 0, 0, 1),
        ],
    )
    assert saves_ms(graph, f"no synchronisation in {ITEM}") == 0
    assert saves_ms(graph, f"no synchronisation in {COPY}") == 0
    assert saves_ms(graph, "no synchronisation") == pytest.approx(5, abs=GAP_MS)


def test_a_wait_in_an_operator_that_does_not_wait_is_refused_with_those_that_do():
    _, graph = path_and_changes(
        [kernel("forward", 0, 20, launch=0), kernel("wgrad", 25, 35, launch=25)],
        syncs=[(1, 20)],
        host_work=[(1, "host_sync", ITEM, 0, 0, 19 * MS, 1)],
    )
    with pytest.raises(OptionError, match=f"it waits in {ITEM}"):
        saves_ms(graph, f"no synchronisation in {COPY}")


def test_a_full_queue_holds_the_host_until_there_is_room():
    """The launch of the fourth kernel stands until the first has ended: with kernels of half the time half as long."""
    events = [
        kernel("forward", 0, 10, launch=0),
        kernel("forward", 10, 20, launch=1),
        kernel("forward", 20, 30, launch=2),
        kernel("wgrad", 40, 50, launch=40),
    ]
    segments, graph = path_and_changes(events, full_queue=[(3, 10)])
    assert graph.graph.events["queue_before"].to_list() == [-1, -1, -1, 0]
    assert segments == [
        (0, "kernel", "forward", 10, 0),
        (0, "host", None, 30, 10),
        (0, "kernel", "wgrad", 10, 0),
    ]
    assert saves_ms(graph, "forward x0.5") == pytest.approx(5, abs=GAP_MS)


def test_a_fast_host_runs_ahead_as_far_as_its_queue_holds():
    """The host launches a kernel of 1 ms every ms. At a hundredth of that, 1,024 launches fill the queue."""
    count = 1_500
    kernels = [kernel("forward", ms, ms + 1, launch=ms - 0.001) for ms in range(count)]
    _, graph = path_and_changes(kernels)
    replay = graph.graph.replay(host_factor=np.full(count, 0.01))
    before_room = replay.launch[1_000]
    assert before_room < 12 * MS
    assert replay.launch[1_400] == replay.end[1_400 - 1_024]


def test_a_slow_loader_comes_when_it_comes():
    """Each step the host works for 4 of its 10 and waits for the batch for 6, and the GPU computes for 1.

    The first batch that it waited for tells nothing of the loader. A faster host waits longer.
    """
    steps = [
        [
            kernel("forward", 10 * step + 6, 10 * step + 7, launch=10 * step + 6),
            kernel("wgrad", 10 * step + 9, 10 * step + 10, launch=10 * step + 9),
        ]
        for step in range(3)
    ]
    events = [event for step in steps for event in step]
    segments, graph = path_and_changes(
        events,
        loading=[(0, 5), (10, 15), (20, 25)],
        host_work=[(number, "data_loading", "", 0, 0, 0, 0) for number in (2, 4)],
    )
    assert graph.graph.events["loader_before"].to_list() == [-1, -1, 0, -1, 2, -1]
    assert graph.graph.events["loading_ns"].to_list() == [0, 0, 5 * MS, 0, 5 * MS, 0]
    assert segments[-2:] == [(0, "host", None, 23, 18), (0, "kernel", "wgrad", 1, 0)]
    assert saves_ms(graph, "no launch delay") == pytest.approx(2, abs=GAP_MS)
    assert saves_ms(graph, "no data loading") == pytest.approx(10, abs=GAP_MS)
