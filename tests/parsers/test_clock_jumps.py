"""Jumps of a recording's clock, and numbers of steps that come twice."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.kept import analysis_of
from tracekit import analyze
from tracekit.run.load import load

MS = 1_000
"""Of microseconds, the unit of PyTorch's traces."""


def mark(number, start, duration):
    step = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}"}
    return {**step, "pid": 1, "tid": 1, "ts": start, "dur": duration}


def launch(number, start):
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7}
    args = {"correlation": number, "device": 0, "stream": 7}
    return [
        {**call, "ts": start, "dur": 5, "args": args},
        {**kernel, "ts": start + 10, "dur": 20, "args": args},
    ]


def read(folder, events):
    (folder / "rank0.json").write_text(json.dumps({"traceEvents": events}))
    return load(folder).rank(0)


def two_steps(jump):
    """Two steps of 10 ms with a launch each ms; the clock jumps in the middle of the first."""
    events = [mark(1, 0, 10 * MS), mark(2, 10 * MS + 20, 10 * MS)]
    for number in range(20):
        events += launch(number, number * MS + 100)
    for event in events:
        event["ts"] += jump * (event["ts"] >= 5 * MS)
    return events


def notices(rank, code):
    return [notice.values for notice in rank.source.notices if notice.code == code]


def test_times_behind_a_jump_are_moved_back(tmp_path):
    rank = read(tmp_path, two_steps(50 * MS))
    assert [(n["count"], n["jump_ns"] // 1_000_000) for n in notices(rank, "clock-jump")] == [
        (1, 50)
    ]
    launches = rank.events.filter(kind="runtime").sort("start_ns")["start_ns"]
    # The time between the launch before the jump and the one behind it is not known better than between two marks.
    assert launches.diff().drop_nulls().to_list() == pytest.approx(
        [1_000_000] * 19, abs=20_000 * 50
    )
    assert rank.events.filter(kind="kernel")["step"].to_list() == [1] * 10 + [2] * 10


@pytest.mark.parametrize("jump", [0, MS // 2])
def test_where_marks_follow_each_other_nothing_is_moved(tmp_path, jump):
    rank = read(tmp_path, two_steps(jump))
    assert not notices(rank, "clock-jump")


def test_a_pause_of_the_host_is_no_jump(tmp_path):
    # The host pauses for 50 ms within the step, whose mark lasts as long.
    events = two_steps(50 * MS)
    events[0]["dur"] += 50 * MS
    rank = read(tmp_path, events)
    assert not notices(rank, "clock-jump")


def test_a_call_that_holds_the_host_is_no_jump(tmp_path):
    events = two_steps(50 * MS)
    wait = {"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "pid": 1, "tid": 1}
    events.append({**wait, "ts": 4_150, "dur": 50_900, "args": {"correlation": 99}})
    rank = read(tmp_path, events)
    assert not notices(rank, "clock-jump")


def test_a_jump_leaves_the_findings_as_they_were(samples, tmp_path):
    file = samples / "compile" / "rank0.pt.trace.json.gz"
    trace = json.loads(gzip.decompress(file.read_bytes()))
    times = [event["ts"] for event in trace["traceEvents"] if event.get("ph") == "X"]
    middle = (min(times) + max(times)) / 2
    for event in trace["traceEvents"]:
        if event.get("ph") != "M" and event.get("ts", 0) >= middle:
            event["ts"] += 50 * MS
    (tmp_path / file.name).write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    jumped = analyze(tmp_path)
    whole = analysis_of(samples / "compile")
    assert "clock-jump" in {notice.code for notice in jumped.notices}
    assert [finding.code for finding in jumped.findings] == [f.code for f in whole.findings]
    assert jumped.step.time_ns == pytest.approx(whole.step.time_ns, rel=0.05)


def test_steps_whose_numbers_come_back_are_steps_of_their_own(tmp_path):
    events = [mark(number, at * MS, MS) for at, number in enumerate([3, 4, 3, 4])]
    for number in range(4):
        events += launch(number, number * MS + 100)
    rank = read(tmp_path, events)
    assert rank.events.filter(kind="kernel")["step"].to_list() == [3, 4, 5, 6]
    assert notices(rank, "steps-renumbered") == [{"step": 3}]


def test_a_mark_that_is_listed_twice_is_one_step(tmp_path):
    events = [mark(3, 0, MS), {**mark(3, 0, MS), "cat": "cpu_op"}, mark(4, MS, MS), *launch(1, 100)]
    rank = read(tmp_path, events)
    assert rank.events["step"].drop_nulls().unique().sort().to_list() == [3, 4]
    assert not notices(rank, "steps-renumbered")
