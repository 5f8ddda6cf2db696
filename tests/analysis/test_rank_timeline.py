"""The host's ranges on the page's timeline."""

from __future__ import annotations

import polars as pl

from tracekit.analysis.measure import rank_timeline as module
from tracekit.analysis.measure.rank_timeline import rank_timeline
from tracekit.classify import classify
from tracekit.metrics.host.waiting_calls import WAITING_CALLS
from tracekit.schema import EVENTS, RankEvents, Source, conform

HOST_EVENTS = [
    # kind, thread, name, start, end
    ("cpu_op", 7, "aten::linear", 10, 40),
    ("cpu_op", 7, "aten::addmm", 20, 30),
    ("cpu_op", 9, "MmBackward0", 50, 90),
    ("annotation", 7, "ProfilerStep#1", 0, 100),
    ("runtime", 7, "cudaLaunchKernel", 22, 24),
]


def _timeline(frames=None):
    rows = pl.DataFrame(
        HOST_EVENTS, ["kind", "tid", "name", "start_ns", "end_ns"], orient="row"
    ).with_columns(rank=0)
    events = conform(rows, EVENTS)
    rank = RankEvents(events, Source("made-up", "kineto", 0, "name"))
    return rank_timeline(rank, classify(events), WAITING_CALLS.to_frame(), frames)


def test_inner_operators_follow_those_around_them_and_threads_are_told_apart():
    host = _timeline().host
    assert host.select(pl.col("lane").cast(pl.String), "thread", "name").rows() == [
        ("ranges", 0, "ProfilerStep#1"),
        ("operators", 0, "aten::linear"),
        ("operators", 0, "aten::addmm"),
        ("operators", 1, "MmBackward0"),
    ]


def test_python_functions_are_a_lane_of_their_own_where_stacks_were_read():
    frames = pl.DataFrame(
        {"tid": [7], "name": ["train.py(3): step"], "start_ns": [5], "end_ns": [95]}
    )
    timeline = _timeline(frames)
    assert timeline.host_count == 5
    python = timeline.host.filter(pl.col("lane") == "Python")
    assert python.select("thread", "name", "start_ns", "end_ns").rows() == [
        (0, "train.py(3): step", 5, 95)
    ]


def test_the_shortest_ranges_are_left_out_and_counted(monkeypatch):
    monkeypatch.setattr(module, "MAX_HOST_RANGES", 2)
    timeline = _timeline()
    assert timeline.host["name"].to_list() == ["ProfilerStep#1", "MmBackward0"]
    assert timeline.host_count == 4
