"""The commands over memory snapshots without traces."""

from __future__ import annotations

import gzip
import json
import pickle

import pytest

import tracekit
from tests.memory_snapshots import block, event, segment, snapshot, write
from tracekit.errors import InputError


def test_the_answer_names_what_grows(run_command, snapshots):
    done = run_command("memory", str(snapshots / "leak-plain/memory_rank0.pickle.gz"))
    assert done.returncode == 0
    assert "Rank 0 holds 566.8 MB" in done.stdout
    assert "every step leaves 4.2 MB behind, allocated at model.py:25" in " ".join(
        done.stdout.split()
    )


def test_the_json_is_the_document(run_command, snapshots):
    done = run_command("memory", str(snapshots / "fragmentation"), "--json")
    document = json.loads(done.stdout)
    assert document["format"] == "tracekit.memory/1"
    (only,) = document["snapshots"]
    assert only["contents"]["fragmentation"]["largest_request_bytes"] == 400 << 20
    assert document["peak_bytes"] == only["contents"]["peak"]["bytes"]


def test_peaks_are_those_that_the_allocator_counted(snapshots):
    for run in ("leak-plain", "no-stacks", "oom", "streams", "expandable", "fsdp-ckpt"):
        for measured in tracekit.memory(snapshots / run, ranks=[0]).snapshots:
            if "early" in measured.path:
                continue
            truth = json.loads(
                gzip.decompress((snapshots / run / "truth_rank0.json.gz").read_bytes())
            )
            assert measured.contents.figures.peak.bytes == max(
                step["allocated_peak"] for step in truth["steps"]
            )


def test_a_history_that_was_cut_says_what_it_does_not_know(run_command, snapshots):
    done = run_command("memory", str(snapshots / "cut"))
    assert "before the snapshot's history began" in " ".join(done.stderr.split())
    (only,) = tracekit.memory(snapshots / "cut").snapshots
    truth = json.loads(gzip.decompress((snapshots / "cut/truth_rank0.json.gz").read_bytes()))
    # Its 150 events are frees after the last step: the level before them is what the allocator
    # counted at its end.
    assert only.contents.figures.peak.bytes == truth["steps"][-1]["allocated_end"]
    assert only.contents.figures.end_difference_bytes == 0


def test_without_stacks_and_profiler_the_optimizer_is_still_known(snapshots):
    document = tracekit.memory(snapshots / "no-stacks").to_document()
    contents = document.snapshots[0].contents
    truth = json.loads(gzip.decompress((snapshots / "no-stacks/truth_rank0.json.gz").read_bytes()))
    state = sum(
        -(-row["bytes"] // 512) * 512
        for row in truth["tensors"]
        if row["kind"] == "optimizer_state"
    )
    assert contents.by_category["optimizer_state"] == state
    assert [step.peak_bytes for step in contents.steps] == [
        step["allocated_peak"] for step in truth["steps"]
    ]
    assert "memory-no-stacks" in [warning.code for warning in document.warnings]


def test_a_request_that_failed_is_said(run_command, snapshots):
    done = run_command("memory", str(snapshots / "oom"))
    assert "rank 0 ran out of memory" in done.stdout


def test_two_snapshots_of_one_process_differ_by_what_grew(run_command, snapshots):
    paths = [str(snapshots / f"leak/{name}_rank1.pickle.gz") for name in ("early", "memory")]
    change = tracekit.diff_memory(*paths).changes[0]
    assert change.end.after_bytes - change.end.before_bytes == 3 * 8_388_608  # three steps later
    grown = max(change.end.lines, key=lambda line: line.after_bytes - line.before_bytes)
    assert grown.line.startswith("model.py:")
    done = run_command("diff", *paths)
    assert done.returncode == 0
    assert "318.8 MB → 344.0 MB" in done.stdout
    document = json.loads(run_command("diff", *paths, "--json").stdout)
    assert document["format"] == "tracekit.memory-diff/1"


def test_a_flame_graph_is_written(run_command, snapshots, tmp_path):
    path = tmp_path / "peak.svg"
    done = run_command(
        "memory", str(snapshots / "leak-plain/memory_rank0.pickle.gz"), "-o", str(path)
    )
    assert done.returncode == 0
    assert "model.py" in path.read_text()


def test_each_moment_counts_what_is_there(tmp_path):
    events = [
        event("alloc", 0, 512, 1),
        event("alloc", 512, 1024, 2),
        event("free_requested", 512, 1024, 3),
    ]
    content = snapshot(events, [segment(0, [block(0, 512)])])
    path = write(tmp_path / "rank0.pickle", content)
    contents = tracekit.memory(path).snapshots[0].contents
    assert (contents.figures.peak.bytes, contents.end_contents["bytes"].sum()) == (1536, 512)


def test_analyze_says_which_command_reads_snapshots_alone(run_command, snapshots):
    done = run_command("analyze", str(snapshots / "no-stacks/memory_rank0.pickle.gz"))
    assert done.returncode == 2
    assert "tracekit memory" in done.stderr


@pytest.mark.parametrize("content", [b"\x80\x05", b"not a pickle", b""])
def test_what_is_no_snapshot_ends_in_one_line(run_command, tmp_path, content):
    path = tmp_path / "a.pickle"
    path.write_bytes(content)
    done = run_command("memory", str(path))
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_snapshot_without_any_allocation_is_an_error(tmp_path):
    with pytest.raises(InputError, match="holds no allocation"):
        tracekit.memory(write(tmp_path / "a.pickle", snapshot()))


def test_a_snapshot_that_cannot_be_read_is_left_out_beside_one_that_can(tmp_path):
    write(
        tmp_path / "rank0.pickle",
        snapshot([event("alloc", 0, 512, 1)], [segment(0, [block(0, 512)])]),
    )
    (tmp_path / "rank1.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": [7]}))
    report = tracekit.memory(tmp_path)
    assert [measured.rank for measured in report.snapshots] == [0]
    assert [notice.code for notice in report.notices] == ["memory-snapshot-failed"]
    with pytest.raises(InputError):
        tracekit.memory(tmp_path, ranks=[1])


def test_a_store_says_that_it_keeps_no_snapshots(run_command, samples, tmp_path):
    from tracekit import ingest

    store = ingest(samples / "memory-snapshot", tmp_path / "store", ranks=[3]).path
    done = run_command("memory", str(store))
    assert done.returncode == 2
    assert "a store keeps what analyze tells of memory snapshots, not the snapshots" in done.stderr
    assert "tracekit analyze" in done.stderr


def test_each_gpu_of_a_process_is_shown(run_command, tmp_path):
    first = [event("alloc", 1 << 20, 4096, 5)]
    second = [event("alloc", 9 << 20, 8192, 6), event("alloc", (9 << 20) + 8192, 512, 7)]
    segments = [
        segment(1 << 20, [block(1 << 20, 4096), block((1 << 20) + 4096, 4096, "inactive")]),
        segment(9 << 20, [block(9 << 20, 8192), block((9 << 20) + 8192, 512)], device=1),
    ]
    path = write(
        tmp_path / "memory_rank0.pickle", snapshot(segments=segments, traces=[first, second])
    )
    report = tracekit.memory(path)
    peaks = [(one.contents.device, one.contents.figures.peak.bytes) for one in report.snapshots]
    assert peaks == [(0, 4096), (1, 8704)]
    assert "memory-several-devices" not in [notice.code for notice in report.notices]
    assert "rank 0 GPU 1" in run_command("memory", str(path)).stdout


def test_the_page_is_written(run_command, snapshots, tmp_path):
    page = tmp_path / "memory.html"
    done = run_command("memory", str(snapshots / "oom"), "-o", str(page))
    assert done.returncode == 0
    text = page.read_text(encoding="utf-8")
    assert "What would have made it fit" in text
    paths = [str(snapshots / f"leak/{name}_rank1.pickle.gz") for name in ("early", "memory")]
    done = run_command("diff", *paths, "-o", str(page))
    assert done.returncode == 0
    assert "At the peak: by purpose" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("amount", ["0", "-3", "nan"])
def test_no_gpu_has_such_a_memory(run_command, snapshots, amount):
    done = run_command("memory", str(snapshots / "oom"), f"--gpu-memory={amount}")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is no GPU's memory" in done.stderr
