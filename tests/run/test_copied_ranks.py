"""Files of several ranks that are copies of one: which rank's it is cannot be known, so none is analysed."""

from __future__ import annotations

import gzip
import json
import shutil

import pytest

from tracekit import analyze, diagnose, ingest, load
from tracekit.errors import InputError
from tracekit.late import late

STEPS = 10


def write_rank(folder, rank, *, late_us=0):
    """Write a rank that computes for 500 us a step, and then reduces with the others until 900 us."""
    events = []

    def launch(number, name, *, at, start, end, stream):
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 100, "tid": 1}
        kernel = {"cat": "kernel", "name": name, "pid": 0, "tid": stream}
        args = {"correlation": number, "External id": number}
        events.append({"ph": "X", **call, "ts": at, "dur": 5, "args": args})
        args = args | {"device": 0, "stream": stream}
        events.append({"ph": "X", **kernel, "ts": start, "dur": end - start, "args": args})

    for step in range(STEPS):
        start = 1000 * step
        mark = {"cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 100, "tid": 1}
        events.append({"ph": "X", **mark, "ts": start, "dur": 1000, "args": {}})
        compute_end = start + 520 + late_us
        launch(2 * step + 1, "gemm", at=start + 10, start=start + 20, end=compute_end, stream=7)
        reduction = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        reduced = start + 900
        launch(
            2 * step + 2, reduction, at=start + 15, start=compute_end + rank, end=reduced, stream=20
        )
    folder.mkdir(exist_ok=True)
    (folder / f"rank{rank}.json").write_text(json.dumps({"traceEvents": events}))


@pytest.fixture
def run(tmp_path):
    """Four ranks, of which rank 3 is slow; its file is overwritten by a copy of rank 0's."""
    for rank in range(4):
        write_rank(tmp_path / "run", rank, late_us=200 * (rank == 3))
    shutil.copy(tmp_path / "run/rank0.json", tmp_path / "run/rank3.json")
    return tmp_path / "run"


def copies(notices):
    return [notice for notice in notices if notice.code == "copied-ranks"]


def test_copies_are_left_out_with_a_notice(run):
    result = analyze(run, schedule="none")
    assert [rank.rank for rank in result.ranks] == [1, 2]
    (notice,) = copies(result.notices)
    assert notice.ranks == (0, 3)
    assert notice.values["files"] == (str(run / "rank0.json"), str(run / "rank3.json"))


def test_copies_in_a_store_and_in_memory_are_left_out_too(run, tmp_path):
    store = ingest(run, tmp_path / "store")
    assert len(copies(store.notices)) == 1
    for traces in (store.path, load(run)):
        result = analyze(traces, schedule="none")
        assert [rank.rank for rank in result.ranks] == [1, 2]
        assert len(copies(result.notices)) == 1


def test_where_nothing_is_left_it_is_an_error(run):
    files = [run / "rank0.json", run / "rank3.json"]
    with pytest.raises(InputError, match="no rank is left") as raised:
        analyze(files, schedule="none")
    assert raised.value.exit_code == 2
    with pytest.raises(InputError, match="copies of one"):
        analyze(run, schedule="none", on_damage="error")


def test_the_doctor_says_it(run):
    (finding,) = [one for one in diagnose(run).findings if one.code == "copied-ranks"]
    assert (finding.ranks, finding.severity) == ((0, 3), "blocks")


def test_lateness_of_copies_is_not_compared(tmp_path, samples):
    folder = tmp_path / "run"
    folder.mkdir()
    for rank in range(4):
        source = samples / f"slow-ddp/rank{0 if rank == 3 else rank}.pt.trace.json.gz"
        shutil.copy(source, folder / f"rank{rank}.pt.trace.json.gz")
    for file in folder.glob("*"):  # their names tell the ranks
        trace = json.loads(gzip.decompress(file.read_bytes()))
        del trace["distributedInfo"]
        file.write_bytes(gzip.compress(json.dumps(trace).encode()))
    assert any(notice.code == "copied-ranks" for notice in late(folder).notices)


def test_ranks_that_differ_by_a_microsecond_are_two(tmp_path):
    for rank in range(2):
        write_rank(tmp_path / "run", rank)
    result = analyze(tmp_path / "run", schedule="none")
    assert [rank.rank for rank in result.ranks] == [0, 1]
    assert not copies(result.notices)
