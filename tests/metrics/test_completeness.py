"""Launches without their work: captured, cut off, lost inside, or a graph's nodes.

Each threshold on both sides.
"""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.metrics import completeness as module
from tracekit.metrics.host.events import NamedRows
from tracekit.report.notices import notice_sentence

US = 1_000


def recorded(calls, gpu):
    return module.check_completeness(NamedRows(calls), gpu)


def calls(n, *, every=10 * US, name="cudaLaunchKernel", step=None):
    return pl.DataFrame(
        {
            "kind": "runtime",
            "name": name,
            "correlation": range(n),
            "tid": 1,
            "start_ns": [i * every for i in range(n)],
        },
    ).with_columns(end_ns=pl.col("start_ns") + US, step=pl.lit(step, pl.Int64))


def ran(which, *, every=10 * US, length=8 * US, stream=7):
    """Kernels that start 2 µs after their launch."""
    ids = list(which)
    return pl.DataFrame(
        {
            "kind": "kernel",
            "correlation": ids,
            "launch_ns": [i * every for i in ids],
            "stream": stream,
            "device": 0,
        },
        schema_overrides={"correlation": pl.Int64, "launch_ns": pl.Int64},
    ).with_columns(
        start_ns=pl.col("launch_ns") + 2 * US, end_ns=pl.col("launch_ns") + 2 * US + length
    )


def codes(result):
    return [notice.code for notice in result.notices]


def test_all_there():
    result = recorded(calls(50), ran(range(50)))
    assert result.idle_known
    assert not result.notices
    assert not len(result.unrecorded)


def test_launches_after_the_last_kernel_are_a_cut_end_and_idle_is_known():
    result = recorded(calls(100), ran(range(60)))
    assert codes(result) == ["recording-cut"]
    assert notice_sentence(result.notices[0]).startswith("the last 40 launches have no GPU event")
    assert result.idle_known
    assert not len(result.unrecorded)


def test_launches_before_the_first_kernel_are_a_cut_begin():
    result = recorded(calls(100), ran(range(30, 100)))
    assert codes(result) == ["recording-cut"]
    assert notice_sentence(result.notices[0]).startswith("the first 30 launches have no GPU event")
    assert result.idle_known


def test_a_stream_that_ended_early_does_not_make_a_loss_a_cut():
    """A copy on a stream of its own at the begin: what is lost in the middle came after it, and is still a loss."""
    gpu = pl.concat([ran([0], stream=9), ran([i for i in range(1, 200) if i != 100])])
    assert codes(recorded(calls(200), gpu)) == ["gpu-events-lost"]


def before_the_recording(n, *, starts_at):
    """Kernels without a launch on the stream of compute, one every microsecond."""
    return ran(range(n)).with_columns(
        correlation=pl.int_range(1000, 1000 + n, dtype=pl.Int64),
        launch_ns=pl.lit(None, pl.Int64),
        start_ns=starts_at + pl.int_range(n) * US,
        end_ns=starts_at + pl.int_range(n) * US + 500,
    )


@pytest.mark.parametrize(
    ("starts_at", "noticed"), [(-100 * US, ["gpu-events-lost"]), (3000 * US, [])]
)
def test_kernels_launched_before_the_recording_are_not_those_of_its_launches(starts_at, noticed):
    """A whole stream is lost, every tenth launch.

    40 kernels without a launch come before or after all others.
    """
    gpu = pl.concat(
        [ran([i for i in range(200) if i % 10 != 5]), before_the_recording(40, starts_at=starts_at)]
    )
    result = recorded(calls(200), gpu)
    assert codes(result) == noticed
    assert result.idle_known == (not noticed)


@pytest.mark.parametrize(
    ("last_on_other", "code"), [(189, "recording-cut"), (170, "gpu-events-lost")]
)
def test_a_stream_must_have_work_near_the_end_to_be_cut_there(last_on_other, code):
    """EDGE_SHARE: a tenth of 200 launches.

    The other stream's next kernel, launched before the end, is missing.
    """
    lost = {last_on_other + 1, 199}
    gpu = pl.concat(
        [
            ran([last_on_other], stream=9),
            ran([i for i in range(199) if i not in lost and i != last_on_other]),
        ]
    )
    assert module.EDGE_SHARE == 0.1
    assert code in codes(recorded(calls(200), gpu))


@pytest.mark.parametrize(("lost", "is_known"), [(2, True), (3, False)])
def test_more_than_two_in_a_hundred_lost_inside_leave_idle_unknown(lost, is_known):
    lost_launches = {40 + 5 * i for i in range(lost)}
    result = recorded(calls(100), ran(i for i in range(100) if i not in lost_launches))
    assert module.MAX_LOST_SHARE == 0.02
    assert codes(result) == ["gpu-events-lost"]
    assert result.idle_known is is_known


def test_one_lost_launch_is_said_and_its_time_is_not_recorded():
    result = recorded(calls(1000), ran(i for i in range(1000) if i != 500))
    assert codes(result) == ["gpu-events-lost"]
    assert result.idle_known
    # From the end of kernel 499 (or its own launch) to the start of kernel 501.
    assert list(zip(result.unrecorded.start_ns, result.unrecorded.end_ns, strict=True)) == [
        (5000 * US, 5012 * US)
    ]


@pytest.mark.parametrize(("apart", "counts"), [(64, True), (65, False)])
def test_a_stream_used_long_before_and_after_does_not_hold_the_lost_work(apart, counts):
    """MAX_LAUNCHES_TO_NEIGHBOUR: so many launches on either side of the lost one."""
    on_other = {500 - apart, 500 + apart}
    gpu = pl.concat(
        [
            ran(sorted(on_other), stream=9),
            ran(i for i in range(1000) if i != 500 and i not in on_other),
        ]
    )
    result = recorded(calls(1000), gpu)
    assert module.MAX_LAUNCHES_TO_NEIGHBOUR == 64
    wide = result.unrecorded.totals_ns(1)[0] > 100 * US
    assert wide is counts or bool(wide) == counts


def test_launches_inside_a_capture_run_nothing_and_that_is_said():
    marks = pl.DataFrame(
        {"kind": "runtime", "name": ["cudaStreamBeginCapture", "cudaStreamEndCapture"], "tid": 1,
         "start_ns": [399 * US, 599 * US], "end_ns": [400 * US, 600 * US]},
    )  # fmt: skip
    host = pl.concat([calls(100), marks], how="diagonal")
    result = recorded(host, ran(i for i in range(100) if not 40 <= i < 60))
    assert codes(result) == ["graph-captured"]
    assert result.idle_known
    # The same on another thread is no capture of these.
    elsewhere = recorded(host.with_columns(tid=pl.when(pl.col("correlation").is_null()).then(2).otherwise("tid")),
                         ran(i for i in range(100) if not 40 <= i < 60))  # fmt: skip
    assert codes(elsewhere) == ["gpu-events-lost"]
    assert not elsewhere.idle_known


def graph(*spans, launch_ns=0, correlation=0):
    return pl.DataFrame(
        [{"kind": "kernel", "correlation": correlation, "launch_ns": launch_ns, "stream": 7, "device": 0,
          "start_ns": a * US, "end_ns": b * US} for a, b in spans],
    )  # fmt: skip


@pytest.mark.parametrize(("gap", "holes"), [(20, 0), (21, 1)])
def test_long_gaps_between_the_nodes_of_one_graph_launch_are_not_recorded(gap, holes):
    result = recorded(calls(1, name="cudaGraphLaunch"), graph((10, 20), (20 + gap, 60)))
    assert module.MIN_NODE_GAP_NS == 20 * US
    assert len(result.unrecorded) == holes
    assert codes(result) == ["graph-nodes-missing"] * holes


@pytest.mark.parametrize(("wait", "holes"), [(200, 0), (201, 1)])
def test_a_queued_graph_that_begins_late_on_an_idle_gpu_lacks_its_first_nodes(wait, holes):
    """Work before it ended at 20 µs; the graph's call returned long before."""
    host = calls(2).with_columns(name=pl.Series(["cudaLaunchKernel", "cudaGraphLaunch"]))
    gpu = pl.concat([graph((2, 20)), graph((20 + wait, 500), launch_ns=10 * US, correlation=1)])
    result = recorded(host, gpu)
    assert module.MIN_QUEUED_GAP_NS == 200 * US
    assert len(result.unrecorded) == holes


def test_a_graph_that_left_nothing_makes_idle_unknown():
    host = calls(3).with_columns(
        name=pl.Series(["cudaLaunchKernel", "cudaGraphLaunch", "cudaLaunchKernel"])
    )
    result = recorded(host, ran([0, 2]))
    assert codes(result) == ["graphs-unseen"]
    assert not result.idle_known


def started_late(start_ns, *, busy_until_ns=100):
    """Two streams; the second one's first kernel is launched at once and starts at *start_ns*."""
    calls = pl.DataFrame(
        {
            "name": ["cudaLaunchKernel"] * 2,
            "tid": 1,
            "correlation": [1, 2],
            "start_ns": [0, 10],
            "end_ns": [5, 20],
            "step": pl.Series([None, None], dtype=pl.Int64),
        }
    )
    gpu = pl.DataFrame(
        {
            "kind": "kernel",
            "correlation": [1, 2],
            "start_ns": [30, start_ns],
            "end_ns": [busy_until_ns, start_ns + 10],
            "stream": [7, 8],
            "device": 0,
            "launch_ns": [0, 10],
        }
    )
    return module.check_completeness(NamedRows(calls), gpu).unrecorded


def test_work_that_waits_for_nothing_in_the_file_waits_for_work_from_before_it():
    """The GPU runs nothing from 100 ns to 3 ms, though the next kernel was launched at 10 ns."""
    waits = started_late(3_000_000)
    assert (waits.start_ns.tolist(), waits.end_ns.tolist()) == ([100], [3_000_000])


def test_a_start_right_behind_its_launch_or_behind_other_work_is_no_wait_for_earlier_work():
    assert not len(started_late(500_000))
    assert not len(started_late(3_000_000, busy_until_ns=2_999_000))


def missing_launches(*correlations, calls, graph=None, streams=None):
    events = {
        "correlation": correlations,
        "start_ns": range(len(correlations)),
        "device": 0,
        "stream": streams or 7,
    }
    frame = pl.DataFrame(events, strict=False).with_columns(graph=pl.lit(graph, pl.Int64))
    return module.count_missing_launches(
        pl.DataFrame({"correlation": calls}, schema={"correlation": pl.Int64}), frame
    )


def test_what_ran_before_the_first_launched_event_of_its_stream_lacks_no_launch():
    assert missing_launches(1, 2, 3, 4, calls=[3, 4]) == 0
    assert missing_launches(1, 2, 3, 4, calls=[2, 4]) == 1
    assert missing_launches(1, 2, 3, 4, calls=[1, 4]) == 2
    assert missing_launches(1, 2, 3, 4, calls=[]) == 4
    # Stream 9 was in use before the recording began; no event of stream 8 has a launch.
    assert missing_launches(1, 2, 3, 4, calls=[1, 3], streams=[7, 9, 9, 8]) == 1


def test_events_without_a_correlation_lack_their_launch():
    assert missing_launches(1, None, calls=[1, None]) == 1


def test_nodes_of_graphs_have_no_launch_of_their_own():
    assert missing_launches(1, 2, 3, calls=[1], graph=5) == 0
    assert missing_launches(1, 2, 3, calls=[1], graph=0) == 2


def test_a_launch_in_a_hundred_may_be_missing():
    assert missing_launches(*range(100), calls=[*range(50), *range(51, 100)]) == 0
    assert missing_launches(*range(100), calls=[*range(50), *range(52, 100)]) == 2
