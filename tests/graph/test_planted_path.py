"""Delays planted into graphs of a few events: the critical path and changes find them alike, with their size."""

from __future__ import annotations

import polars as pl
import pytest

from tests.graph.test_changes import MS, Tables, kernel
from tracekit.align.clocks import Clocks
from tracekit.align.matching import MEMBERS
from tracekit.align.waits import with_waits
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


def path_and_changes(*ranks, syncs=(), host_work=()):
    """Return the segments of the path as (rank, kind, label, ms, idle ms), and the graph that changes are asked of."""
    parts = [Tables(rank, events, syncs) for rank, events in enumerate(ranks)]
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
        host_work=[(1, "data_loading", 25 * MS, 25 * MS, 0)],
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
