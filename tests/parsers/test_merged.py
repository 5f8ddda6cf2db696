"""One file with the traces of several ranks is divided into these ranks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tracekit.errors import InputError
from tracekit.parsers import kineto
from tracekit.parsers.discovery import discover
from tracekit.run.load import load

SAMPLE = Path(__file__).parents[2] / "sample_traces/1f1b"
PROCESS_ROWS = ("process_name", "process_labels", "process_sort_index")
PROCESS_OFFSET = 10_000_000


def with_labels(traces, label="[TP{:02d}]"):
    """The traces in one, as SGLang's merger writes them: a label in front of each process id."""
    merged = {"traceEvents": []}
    for rank, trace in enumerate(traces):
        for event in trace["traceEvents"]:
            merged["traceEvents"].append({**event, "pid": f"{label.format(rank)} {event['pid']}"})
        for key, value in trace.items():
            merged.setdefault(key, value)
    return merged


def with_process_names(traces, name="RANK {} - CPU"):
    """The traces in one, as TraceFusion writes them: process ids of its own for each rank, named behind the events."""
    events = []
    rank_of_process = {}
    for rank, trace in enumerate(traces):
        for event in trace["traceEvents"]:
            if event["name"] in PROCESS_ROWS or event.get("cat") == "Trace":
                continue
            args = {**event.get("args", {}), "rank": rank, "pid_raw": event["pid"]}
            pid = event["pid"]
            if isinstance(pid, int):
                pid += rank * PROCESS_OFFSET
                rank_of_process[pid] = rank
            events.append({**event, "pid": pid, "args": args})
    for pid, rank in rank_of_process.items():
        args = {"name": name.format(rank)}
        events.append({"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": args})
    return {"traceEvents": events}


@pytest.fixture(scope="module")
def traces():
    """Two ranks of a sample, a part of their events each."""
    shortened = []
    for rank in (0, 1):
        data = (SAMPLE / f"rank{rank}.pt.trace.json.gz").read_bytes()
        trace = json.loads(gzip.decompress(data))
        shortened.append({**trace, "traceEvents": trace["traceEvents"][::5]})
    return shortened


def write(path, trace, **options):
    data = json.dumps(trace, **options).encode()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize(
    ("merge", "options"),
    [(with_labels, {}), (with_labels, {"indent": 2}), (with_process_names, {"indent": 4})],
)
def test_each_rank_has_the_events_of_its_own_file(tmp_path, traces, merge, options):
    path = write(tmp_path / "merged.json.gz", merge(traces), **options)
    parts = kineto.read_ranks(path)
    assert [part.source.rank for part in parts] == [0, 1]
    for part in parts:
        rank = part.source.rank
        alone = kineto.read(write(tmp_path / f"rank{rank}.json", traces[rank])).events
        # Rows about the recording itself are of no process that ran anything.
        alone = alone.filter(alone["kind"] != "other").drop("id")
        own = part.events.filter(part.events["kind"] != "other").drop("id")
        if merge is with_process_names:  # it leaves out when the clock began
            shift = alone["start_ns"].min() - own["start_ns"].min()
            own = own.with_columns(own["start_ns"] + shift, own["end_ns"] + shift)
            alone = alone.drop("pid")
            own = own.drop("pid")
        assert own.equals(alone)


def test_positions_become_ranks_as_servers_number_them(tmp_path):
    call = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2}
    labels = ("TP01-PP00", "TP00-PP01", "TP00-PP00", "TP01-PP01")
    events = [{**call, "pid": f"[{label}] {number}"} for number, label in enumerate(labels)]
    path = write(tmp_path / "merged.json", {"traceEvents": events})
    pids = [part.events["pid"][0] for part in kineto.read_ranks(path)]
    assert pids == [2, 0, 1, 3]


@pytest.mark.parametrize("label", ["[Unknown]", "[DP{}]", "[TP00]"])
def test_where_labels_tell_no_ranks_the_ranks_files_are_asked_for(tmp_path, run_command, label):
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 2}
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "ts": 5, "dur": 2, "pid": 0}
    traces = [{"traceEvents": [{**call, "pid": 70 + rank}, kernel]} for rank in (0, 1)]
    merged = with_labels(traces, label)
    path = write(tmp_path / "merged.json", merged)
    if label == "[TP00]":  # one rank alone: no two files were merged
        assert [part.source.rank for part in kineto.read_ranks(path)] == [0]
        return
    shown = run_command("analyze", path)
    assert shown.returncode == 2
    (line,) = shown.stderr.splitlines()
    assert "holds several ranks merged into one file" in line
    assert "name the files of the ranks" in line


def test_processes_without_a_rank_in_their_names_are_refused(tmp_path):
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 2}
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "ts": 5, "dur": 2, "pid": 0}
    traces = [{"traceEvents": [{**call, "pid": 70 + rank}, kernel]} for rank in (0, 1)]
    path = write(tmp_path / "merged.json", with_process_names(traces, name="python {}"))
    with pytest.raises(InputError, match="holds several ranks merged"):
        kineto.read_ranks(path)
    for event in (merged := with_process_names(traces, name="python {}"))["traceEvents"]:
        event.get("args", {}).pop("pid_raw", None)  # nothing marks the file as merged
    path = write(tmp_path / "merged.json", merged)
    with pytest.raises(InputError, match="several processes with a GPU each"):
        load(discover(path).refs[0].path)


def test_a_damaged_merged_file_is_read_as_far_as_it_goes(tmp_path, traces):
    path = write(tmp_path / "merged.json.gz", with_labels(traces))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 3 // 4])
    first, second = kineto.read_ranks(path)
    alone = kineto.read(write(tmp_path / "rank0.json", traces[0]))
    assert first.source.counts["kernel"] == alone.source.counts["kernel"]
    assert {notice.code for notice in second.source.notices} >= {"truncated"}
    with pytest.raises(InputError, match="is damaged"):
        kineto.read_ranks(path, lenient=False)


def test_a_label_across_two_blocks_is_found(tmp_path):
    call = '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, "pid": "[TP0%d] 7"}'
    for padding in range(0, 130, 9):  # the block ends before, in and behind the second id
        head = '{"traceEvents": [' + call % 0 + ","
        blanks = " " * ((1 << 20) - len(head) - padding)
        path = tmp_path / "merged.json"
        path.write_text(head + blanks + call % 1 + "]}")
        assert [part.source.rank for part in kineto.read_ranks(path)] == [0, 1]


def test_ranks_are_chosen_as_of_single_files(tmp_path, traces):
    path = write(tmp_path / "merged.json.gz", with_labels(traces))
    trace = load(path, ranks=[1])
    assert [source.rank for source in trace.sources] == [1]
    assert {source.reader for source in trace.sources} == {"kineto"}
