"""What the host did instead of launching: every nanosecond of a gap counted on fingers."""

from __future__ import annotations

import polars as pl
import pytest

from tests.kept import analysis_of
from tracekit.metrics.host.events import (
    NamedRows,
    find_calls,
    find_frames,
    split_host_events,
)
from tracekit.metrics.host.idle_activity import HOST_ACTIVITY, find_host_activity, keep_longest
from tracekit.metrics.host.time_by_activity import add_lines
from tracekit.metrics.host.waiting_calls import add_time_inside_launches
from tracekit.schema import EVENTS, LABELLED, conform


def activity_of(events, gpu, gaps):
    """Return ``HOST_ACTIVITY`` of all threads that launch GPU work."""
    launching = split_host_events(events).on_threads(gpu["launch_tid"].unique().to_numpy())
    return find_host_activity(launching, find_frames(events), gpu, gaps)


def find(*ranges, gap=(0, 100), tid=1, threads=(1,)):
    """Return {(what it did, name): ns} of one launch-bound gap.

    Ranges are (kind, name, tid, start, end).
    """
    columns = ("kind", "name", "tid", "start_ns", "end_ns")
    host = conform(pl.DataFrame([dict(zip(columns, row, strict=True)) for row in ranges]), EVENTS)
    gpu = [
        {"start_ns": gap[1], "launch_tid": tid},
        *({"start_ns": 0, "launch_tid": other} for other in threads),
    ]
    holes = pl.DataFrame({"start_ns": [gap[0]], "launch_bound_ns": [gap[1] - gap[0]], "next": [0]})
    rows = activity_of(host, conform(pl.DataFrame(gpu), LABELLED), holes)
    assert rows["ns"].sum() in (0, gap[1] - gap[0])
    return {(row["instead"], row["what"]): row["ns"] for row in rows.iter_rows(named=True)}


def test_the_innermost_range_gets_the_time():
    result = find(("cpu_op", "aten::linear", 1, 10, 60), ("cpu_op", "aten::mm", 1, 20, 50),
                 ("runtime", "cudaLaunchKernel", 1, 30, 40), ("runtime", "cudaMalloc", 1, 70, 90))  # fmt: skip
    assert result == {
        ("operator", "aten::linear"): 20,
        ("operator", "aten::mm"): 20,
        ("launch", "cudaLaunchKernel"): 10,
        ("allocation", "cudaMalloc"): 20,
        ("python", None): 30,
    }


def test_an_item_is_named_where_it_waits():
    inside = [
        ("cpu_op", "aten::_local_scalar_dense", 1, 0, 90),
        ("runtime", "cudaStreamSynchronize", 1, 10, 80),
    ]
    assert find(*inside)["sync", "aten::_local_scalar_dense"] == 70
    assert (
        find(("runtime", "cudaDeviceSynchronize", 1, 10, 80))["sync", "cudaDeviceSynchronize"] == 70
    )


def test_loading_and_collecting_are_what_they_are_whatever_runs_inside():
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    result = find(("cpu_op", loader, 1, 0, 50), ("cpu_op", "aten::to", 1, 10, 40), ("cpu_op", "aten::copy_", 1, 15, 35),
                 ("annotation", "Python GC", 1, 60, 80))  # fmt: skip
    assert result == {
        ("data_loading", loader): 50,
        ("garbage_collection", "Python GC"): 20,
        ("python", None): 30,
    }


def test_a_step_mark_is_python_and_a_range_of_the_user_is_not():
    result = find(("annotation", "ProfilerStep#3", 1, 0, 100), ("annotation", "loss", 1, 40, 60))
    assert result == {("python", None): 80, ("annotation", "loss"): 20}


def test_where_the_launching_thread_had_nothing_another_one_was_at_work():
    """The engine's thread launches; until it begins the main thread sums up the loss."""
    ranges = [("cpu_op", "aten::sum", 1, 0, 30), ("cpu_op", "MmBackward0", 2, 40, 100)]
    result = find(*ranges, tid=2, threads=(1, 2))
    assert result == {
        ("operator", "aten::sum"): 30,
        ("python", None): 10,
        ("operator", "MmBackward0"): 60,
    }
    # Launches nothing.
    assert find(("cpu_op", "aten::sum", 7, 0, 30), ("cpu_op", "x", 1, 0, 1))["python", None] == 99


def test_frames_say_the_line():
    host = [("python", "train.py(12): step", 1, 0, 100), ("cpu_op", "aten::mm", 1, 0, 100)]
    columns = ("kind", "name", "tid", "start_ns", "end_ns")
    events = conform(pl.DataFrame([dict(zip(columns, row, strict=True)) for row in host]), EVENTS)
    gpu = conform(pl.DataFrame({"start_ns": [100], "launch_tid": [1]}), LABELLED)
    holes = pl.DataFrame({"start_ns": [0], "launch_bound_ns": [100], "next": [0]})
    row = activity_of(events, gpu, holes).row(0, named=True)
    assert (row["what"], row["line"], row["ns"]) == ("aten::mm", "train.py(12): step", 100)


def test_a_place_has_the_innermost_line_of_the_program_that_is_open():
    """At 50: not the frame that has ended, nor the one that begins later, nor the library's inside."""
    frames = [
        ("train.py(1): main", 0, 100),
        ("train.py(12): step", 20, 80),
        ("train.py(20): prepare", 30, 50),
        ("torch/nn/functional.py(9): linear", 40, 70),
        ("train.py(30): log", 60, 75),
    ]
    names = pl.DataFrame(frames, schema=["name", "start_ns", "end_ns"], orient="row")
    places = pl.DataFrame({"code": ["python", "host_sync"], "start_ns": [40, 60], "end_ns": 60})
    rows = NamedRows(names.with_columns(pl.col("name").cast(pl.Categorical())))
    assert add_lines(places, rows)["source"].to_list() == [
        "train.py(12): step",
        "train.py(30): log",
    ]


def test_without_a_host_nothing_is_said():
    gpu = conform(pl.DataFrame({"start_ns": [100], "launch_tid": [1]}), LABELLED)
    holes = pl.DataFrame(
        {
            "start_ns": [0],
            "end_ns": [100],
            "launch_bound_ns": [90],
            "dependency_ns": [10],
            "warm_up_ns": [0],
            "next": [0],
        }
    )
    nothing = EVENTS.to_frame()
    assert activity_of(nothing, gpu, holes).is_empty()
    assert add_time_inside_launches(find_calls(nothing), gpu, holes)["dependency_ns"].to_list() == [
        10
    ]


def test_shortening_keeps_the_sums():
    rows = pl.DataFrame(
        {"instead": ["operator"] * 3 + ["sync"], "what": list("abcd"), "ns": [9, 5, 4, 3], "count": [1, 1, 2, 1],
         "line": [None] * 4}, schema=HOST_ACTIVITY, strict=False,
    )  # fmt: skip
    short = keep_longest(rows, count=2)
    assert short.select("instead", "what", "ns", "count").rows() == [
        ("operator", "a", 9, 1), ("operator", "b", 5, 1), ("operator", None, 4, 2), ("sync", None, 3, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["1f1b", "compile", "steps/a"])
def test_on_real_runs_the_parts_sum_to_launch_bound_idle_time(samples, name):
    for rank_result in analysis_of(samples / name).ranks:
        assert (
            sum((rank_result.idle_host_ns or {}).values())
            == rank_result.idle_causes["launch_bound"]
        )
        assert 0 <= rank_result.inside_launch_ns <= rank_result.whole.budget.idle_ns
