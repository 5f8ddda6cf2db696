"""Folders that look like roles: several runs are recognised by when they were recorded, before anything is parsed."""

from __future__ import annotations

import gzip
import json

import pytest

from tracekit.errors import InputError
from tracekit.parsers.kineto.recording_window import recording_window
from tracekit.roles import assign
from tracekit.roles.assign import find_roles


def trace(start_us, end_us, *, rank=0, marks=True):
    """Return a trace of one kernel, with the marks that the profiler writes last."""
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": start_us + 1, "dur": 1}
    ]
    if marks:
        events += [
            {
                "name": "Iteration Start: PyTorch Profiler",
                "ph": "i",
                "pid": "Traces",
                "tid": "",
                "ts": start_us,
            },
            {"name": "Record Window End", "ph": "i", "pid": "", "tid": "", "ts": end_us},
        ]
    document = {"distributedInfo": {"rank": rank, "world_size": 2}, "baseTimeNanoseconds": 10**18}
    return json.dumps({**document, "traceEvents": events})


def write_runs(folder, windows, **options):
    for name, (start_us, end_us) in windows.items():
        (folder / name).mkdir()
        for rank in (0, 1):
            text = trace(start_us, end_us, rank=rank, **options)
            (folder / name / f"rank{rank}.json").write_text(text)
    return folder


@pytest.mark.parametrize("compressed", [False, True])
def test_the_window_of_a_recording_is_read_from_its_marks(tmp_path, compressed):
    file = tmp_path / "rank0.json"
    text = trace(1000.5, 3000).encode()
    file.write_bytes(gzip.compress(text) if compressed else text)
    assert recording_window(file) == (10**18 + 1_000_500, 10**18 + 3_000_000)


def test_a_trace_without_marks_or_cut_short_has_no_window(tmp_path):
    file = tmp_path / "rank0.json"
    file.write_text(trace(0, 1, marks=False))
    assert recording_window(file) is None
    file.write_bytes(gzip.compress(trace(0, 1).encode())[:-20])
    assert recording_window(file) is None
    assert recording_window(tmp_path / "nowhere") is None


def test_runs_that_follow_each_other_are_refused_before_they_are_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(assign, "read_ref", lambda *_, **__: pytest.fail("a trace was parsed"))
    write_runs(tmp_path, {"monday": (0, 100), "tuesday": (100, 200)})
    with pytest.raises(InputError, match=r"these look like 2 runs in .*: monday, tuesday"):
        find_roles(str(tmp_path))


def test_roles_that_were_recorded_at_the_same_time_stay_roles(tmp_path):
    write_runs(tmp_path, {"trainer": (0, 100), "rollout": (99, 200)})
    refs = find_roles(str(tmp_path)).refs
    assert {ref.role for ref in refs} == {"trainer", "rollout"}


def test_one_rank_that_began_earlier_keeps_roles_together(tmp_path):
    """The smallest traces of both roles do not meet, another rank's do."""
    write_runs(tmp_path, {"trainer": (0, 100), "rollout": (150, 200)})
    (tmp_path / "trainer/rank1.json").write_text(trace(0, 170, rank=1) + " " * 50)
    refs = find_roles(str(tmp_path)).refs
    assert len(refs) == 4


def test_without_marks_nothing_is_decided_before_parsing(tmp_path):
    write_runs(tmp_path, {"a": (0, 100), "b": (100, 200)}, marks=False)
    refs = find_roles(str(tmp_path)).refs
    assert {ref.role for ref in refs} == {"a", "b"}
