"""Causes of exposure in graphs that were replayed on several streams: streams of a replay say nothing."""

import polars as pl
import pytest

from tracekit.intervals import union
from tracekit.metrics.causes import Rank, exposure_causes
from tracekit.metrics.host.waiting_calls import WAITING_CALLS
from tracekit.schema import LABELLED, conform

US = 1_000


def node(start_us, end_us, label, *, stream, correlation=1):
    """One GPU event of a graph launch."""
    return {
        "rank": 0,
        "kind": "kernel",
        "label": label,
        "start_ns": start_us * US,
        "end_ns": end_us * US,
        "device": 0,
        "stream": stream,
        "correlation": correlation,
        "launch_ns": 0,
        "step": 1,
    }


def causes(rows):
    """Time in µs by label and cause; communication and copies are exposed all the time."""
    labelled = pl.DataFrame(rows).with_row_index("id")
    rank = Rank.of(conform(labelled, LABELLED), WAITING_CALLS.to_frame())
    paid = {}
    for label in ("dp_comm", "memory"):
        of_label = labelled.filter(pl.col("label") == label)
        if len(of_label):
            paid[label] = union(of_label["start_ns"].to_numpy(), of_label["end_ns"].to_numpy())
    pieces = exposure_causes(rank, paid, parts=False)
    sums = pieces.group_by("label", "cause").agg(us=pl.col("ns").sum() // US).sort("label", "cause")
    return {(label, cause): us for label, cause, us in sums.iter_rows()}


def step(*, comm_stream, forward_stream=7, optimizer_stream=7, kernels=8):
    """Forward kernels, an all-reduce of 10 µs, one more backward kernel, an all-reduce of 5 µs, the optimizer."""
    forward = [node(i, i + 1, "forward", stream=forward_stream) for i in range(kernels - 4)]
    return [
        *forward,
        node(20, 30, "dp_comm", stream=comm_stream),
        node(30, 31, "wgrad", stream=comm_stream),
        node(40, 45, "dp_comm", stream=comm_stream),
        node(45, 46, "optimizer", stream=optimizer_stream),
    ]


def test_streams_of_a_branched_replay_are_no_cause():
    """By its stream the backward kernel is queued behind the all-reduce.

    The stream is the driver's choice.
    """
    assert causes(step(comm_stream=9)) == {
        ("dp_comm", "unknown"): 10,
        ("dp_comm", "nothing_to_hide"): 5,
    }


def test_a_replay_on_one_stream_is_a_queue():
    assert causes(step(comm_stream=7)) == {("dp_comm", "same_stream"): 15}


@pytest.mark.parametrize(("kernels", "branched"), [(7, False), (8, True)])
def test_a_launch_of_few_kernels_is_no_graph(kernels, branched):
    assert (("dp_comm", "unknown") in causes(step(comm_stream=9, kernels=kernels))) is branched


def test_copies_of_a_branched_replay_have_no_known_cause():
    rows = step(comm_stream=9)
    rows.append(node(50, 52, "memory", stream=9))
    rows.append(node(52, 53, "optimizer", stream=9))
    assert causes(rows)["memory", "unknown"] == 2
