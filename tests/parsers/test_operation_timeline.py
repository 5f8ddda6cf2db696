"""Timelines of operations: what is read of them, and which files are refused."""

from __future__ import annotations

import gzip
import json

import pytest

from tracekit.errors import InputError
from tracekit.parsers.file_type import detect_file_type
from tracekit.parsers.operation_timeline import read_operation_timeline


def thread(pid, tid, name):
    return {"name": "thread_name", "pid": pid, "tid": tid, "ph": "M", "args": {"name": name}}


def operation(name, ts=1.0, dur=2.0, pid=0, tid=1, **args):
    given = {"step": 3, "model_chunk": 0, "mb_id": 5, "seq_id": 6, **args}
    return {
        "name": name,
        "cat": name,
        "pid": pid,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "ph": "X",
        "args": given,
    }


THREADS = [
    thread(0, 1, "PP rank 0, TP rank 1, compute"),
    thread(2, 1, "PP rank 3, TP rank 0, pp-comm"),
]


def read(tmp_path, events, *, compress=False):
    raw = json.dumps(events).encode()
    path = tmp_path / "timeline.json"
    path.write_bytes(gzip.compress(raw) if compress else raw)
    return read_operation_timeline(path)


@pytest.mark.parametrize("compress", [False, True])
def test_an_operation_has_its_rank_step_and_times(tmp_path, compress):
    events = [
        *THREADS,
        {"name": "process_name", "pid": 0, "ph": "M", "args": {"name": "replica 0"}},
        operation("forward-compute", ts=1.25, dur=0.5),
        operation("forward-recv", pid=2, mb_id=-1, model_chunk=-1),
    ]
    timeline = read(tmp_path, events, compress=compress)
    columns = (
        "replica",
        "pipeline_rank",
        "tensor_rank",
        "step",
        "name",
        "number",
        "chunk",
        "microbatch",
    )
    assert timeline.operations.select(columns).rows() == [
        (0, 0, 1, 3, "forward-compute", 6, 0, 5),
        (2, 3, 0, 3, "forward-recv", 6, None, None),
    ]
    assert timeline.operations.select("start_ns", "end_ns").row(0) == (1250, 1750)
    assert timeline.left_out == 0


def test_an_operation_that_ends_before_it_starts_is_left_out_and_counted(tmp_path):
    timeline = read(
        tmp_path, [*THREADS, operation("forward-compute"), operation("optimizer", dur=-0.1)]
    )
    assert timeline.operations["name"].to_list() == ["forward-compute"]
    assert timeline.left_out == 1


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([], "is not a timeline of operations: no forward-compute or backward-compute"),
        ([*THREADS, operation("optimizer")], "is not a timeline of operations: no forward-compute"),
        ([operation("forward-compute")], "thread 1 of process 0 has no name"),
        (
            [*THREADS, operation("forward-compute", step=None)],
            "1 of 1 operations have no step or number",
        ),
        (
            [*THREADS, operation("forward-compute", seq_id=None)],
            "1 of 1 operations have no step or number",
        ),
        ({"traceEvents": []}, "is not a timeline of operations"),
        ([{"name": "forward-compute", "pid": "x"}], "is not a timeline of operations"),
    ],
)
def test_other_files_are_refused(tmp_path, events, problem):
    with pytest.raises(InputError, match=problem):
        read(tmp_path, events)


@pytest.mark.parametrize(
    "raw",
    [b"", b"[", gzip.compress(b"[", mtime=0)[:-4], b"\x1f\x8bnothing", b"[" * 100_000],
    ids=["empty", "open", "cut gzip", "no gzip", "deep"],
)
def test_damaged_files_are_refused(tmp_path, raw):
    path = tmp_path / "timeline.json"
    path.write_bytes(raw)
    with pytest.raises(InputError, match="is not a timeline of operations"):
        read_operation_timeline(path)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_operation_timeline(tmp_path / "nothing.json")


def test_it_is_not_taken_for_a_trace_of_a_profiler(tmp_path):
    raw = json.dumps([operation("backward-compute"), *THREADS]).encode()
    assert detect_file_type(raw).why.startswith("is a timeline of operations; read it with")
