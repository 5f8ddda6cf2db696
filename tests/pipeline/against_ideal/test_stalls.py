"""Why a rank's GPU stood still: counted on fingers."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.intervals import union
from tracekit.pipeline.against_ideal import compare_pipelines
from tracekit.pipeline.reconstruct import rank_pipeline
from tracekit.report.notices import notice_sentence
from tracekit.schema import LABELLED, Source, conform

MS = 1_000_000


def table(rows):
    """(label, launch, start, end, number, p2p, step) … in the order given, times in µs."""
    kernels = [
        {
            "id": index,
            "label": label,
            "name": "k",
            "launch_ns": None if launch is None else launch * 1000,
            "start_ns": start * 1000,
            "end_ns": end * 1000,
            "autograd_sequence": number,
            "node": "MmBackward0" if label == "dgrad" else None,
            "p2p": p2p,
            "step": step,
        }
        for index, (label, launch, start, end, number, p2p, step) in enumerate(rows)
    ]
    frame = pl.DataFrame(kernels, infer_schema_length=None).with_columns(
        pl.col("label").cast(LABELLED["label"])
    )
    return conform(frame, LABELLED)


def stalls(rows, *, around=None):
    everything = None if around is None else table([*around, *rows])
    result = rank_pipeline(table(rows), Source("x", "kineto", 0, "name"), around=everything)
    by_cause = {}
    for cause, cause_stalls in result.stalls.group_by(pl.col("cause").cast(pl.String)):
        merged = union(cause_stalls["start_ns"].to_numpy(), cause_stalls["end_ns"].to_numpy())
        by_cause[cause[0]] = [
            (a // 1000, b // 1000) for a, b in zip(merged.start_ns, merged.end_ns, strict=True)
        ]
    return by_cause


def kernel(launch, start, end, *, label="forward", number=1, p2p=None, step=0):
    return (label, launch, start, end, number, p2p, step)


def test_an_idle_gpu_whose_next_kernel_comes_late_waits_for_its_host_until_it_starts():
    rows = [kernel(0, 10, 100), kernel(150, 170, 200), kernel(160, 200, 300, label="dgrad")]
    # The step's length before its first kernel, and the gap.
    assert stalls(rows)["host"] == [
        (-280, 10),
        (100, 170),
    ]


def test_a_kernel_launched_just_before_the_gap_could_not_start_before_its_launch_arrived():
    rows = [
        kernel(0, 10, 100),
        kernel(150, 170, 200),  # launched into an idle GPU: it takes 20 to start
        kernel(195, 240, 300),  # launched while the GPU worked: until 215 it could not have started
        kernel(197, 300, 400, label="dgrad"),
    ]
    assert stalls(rows)["host"][1:] == [(100, 170), (200, 215)]


def test_the_step_before_stands_in_the_way_as_other_work():
    before = [kernel(-300, -290, -40, label="optimizer", number=None, step=0)]
    rows = [kernel(0, 10, 100, step=1), kernel(20, 100, 200, label="dgrad", step=1)]
    assert stalls(rows) == {"host": [(-180, 10)]}
    assert stalls(rows, around=before) == {"host": [(-40, 10)], "other_work": [(-180, -40)]}


def test_a_short_breath_after_a_message_is_the_messages():
    rows = [
        kernel(0, 10, 100, label="pp_comm", number=None, p2p="recv:1"),
        kernel(1, 104, 200),
        kernel(2, 203, 300, label="dgrad"),
    ]
    assert stalls(rows)["p2p"] == [(10, 104)]


def pipeline(*, late, launched=True):
    """Two ranks, one micro-batch.

    The second rank's host begins its step so many µs after its input was there.
    """
    first = [
        kernel(0, 10, 1010),
        kernel(5, 1010, 1020, label="pp_comm", number=None, p2p="send:1"),
        kernel(6, 1030, 3140 + late, label="pp_comm", number=None, p2p="recv:1"),
        kernel(7, 3140 + late, 4140 + late, label="dgrad"),
    ]
    index = 1010 + late
    second = [
        kernel(
            index if launched else None,
            index,
            index + 30,
            label="pp_comm",
            number=None,
            p2p="recv:0",
        ),
        kernel(index + 1 if launched else None, index + 30, index + 1030),
        kernel(index + 2 if launched else None, index + 1030, index + 2030, label="dgrad"),
        kernel(
            index + 3 if launched else None,
            index + 2030,
            index + 2130,
            label="pp_comm",
            number=None,
            p2p="send:0",
        ),
    ]
    ranks = [
        rank_pipeline(table(rows), Source("x", "kineto", r, "name"))
        for r, rows in enumerate((first, second))
    ]
    return compare_pipelines(ranks)


@pytest.mark.parametrize("late", [0, 700])
def test_a_rank_that_begins_its_step_late_is_held_up_by_its_host(late):
    result, notices = pipeline(late=late)
    assert result.gap_ns["host"] == late * 1000
    assert result.gap_ns["p2p"] == 130_000  # 30 there, 100 back
    assert result.gap_ns["unexplained"] == 0
    messages = [notice_sentence(n) for n in notices if n.code == "late-start"]
    assert messages == (
        ["step 0: rank 1 began 0.7 ms late: its host had not launched anything (counted as host)"]
        if late
        else []
    )


def test_without_launches_a_late_start_stays_unexplained_and_the_gap_is_not_split():
    """More than a tenth of the makespan is unexplained.

    The order is exactly a schedule's all the same.
    """
    result, notices = pipeline(late=700, launched=False)
    assert result.exact
    assert result.gap_ns is None
    assert {"gap-doubtful"} <= {n.code for n in notices}
    assert "late-start" not in {n.code for n in notices}
