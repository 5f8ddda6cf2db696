"""What a recording cannot tell: idle and waiting time is null or a bound, and the reason is said."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.kept import analysis_of
from tracekit.errors import InputError
from tracekit.report.notices import error_message, notice_sentence
from tracekit.run.analyze import analyze

pytestmark = pytest.mark.slow


def test_without_its_peers_the_bubble_is_a_lower_bound(samples):
    alone = analysis_of(samples / "1f1b", ranks=[0], schedule="none")
    one = alone.rank(0).whole
    assert one.bubble.wait_ns is None
    assert one.wait_ns == {"pp_comm": None}
    assert one.lower_bound
    assert one.bubble_fraction == one.budget.idle_ns / one.budget.span_ns
    assert "wait-unknown" in {note.code for note in alone.notices}


def test_why_waiting_is_not_known(run):
    """All four ranks of the Nsight run are there, so giving more would not help.

    Of the other, one of four is.
    """
    message = {n.code: notice_sentence(n) for n in run("nsys-1f1b", schedule="none").notices}[
        "wait-unknown"
    ]
    assert message.startswith("60 of 60 sends and receives do not name their peer: ")
    assert message.endswith("; record the peers")
    alone = run("1f1b", ranks=[0], schedule="none")
    message = {n.code: notice_sentence(n) for n in alone.notices}["wait-unknown"]
    assert message.startswith("11 of 11 sends and receives have no peer in these traces: ")
    assert message.endswith("; add rank 1")


def test_ranks_of_two_recordings_of_one_program(samples, tmp_path):
    """The same operations, 8.2 s later: clocks could differ by that, so it is said and not refused."""
    for run, rank in (("a", 0), ("b", 1)):
        name = f"rank{rank}.pt.trace.json.gz"
        (tmp_path / name).write_bytes((samples / "steps" / run / name).read_bytes())
    messages = [
        notice_sentence(n)
        for n in analyze(tmp_path, schedule="none").notices
        if n.code == "clocks-apart"
    ]
    assert len(messages) == 1
    assert messages[0].startswith("rank 1 was recorded 8.2 s after rank 0: ")
    assert not [n for n in analysis_of(samples / "steps/a").notices if n.code == "clocks-apart"]


def write(path, events, *, rank=0, world_size=1):
    info = {"rank": rank, "world_size": world_size}
    with gzip.open(path, "wt") as out:
        json.dump({"schemaVersion": 1, "distributedInfo": info, "traceEvents": events}, out)
    return path


def kernel(ts, dur, correlation, **args):
    return {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": ts, "dur": dur,
            "args": {"device": 0, "stream": 7, "correlation": correlation, **args}}  # fmt: skip


def launch(ts, correlation, name="cudaLaunchKernel"):
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 2,
            "args": {"correlation": correlation}}  # fmt: skip


def test_graph_launches_without_kernels_give_null_not_idle(tmp_path):
    """Two small kernels around graph launches that left nothing behind: 98 % idle would be false."""
    path = write(tmp_path / "rank0.json.gz", [
        launch(0, 1), kernel(5, 10, 1), launch(100, 2, "cudaGraphLaunch"), launch(500, 3), kernel(990, 10, 3),
    ])  # fmt: skip
    analysis = analyze(path, schedule="none")
    data = analysis.to_dict()["ranks"][0]
    assert data["budget_ns"]["idle"] is None
    assert data["bubble"]["fraction"] is None
    assert data["idle_causes_ns"] is None
    assert "graphs-unseen" in {note.code for note in analysis.notices}


def test_a_file_that_lost_its_kernels_gives_null_not_idle(tmp_path):
    """Cut off in the middle of the GPU's part: launches are there, most kernels are not."""
    calls = [launch(10 * n, n) for n in range(100)]
    analysis = analyze(
        write(tmp_path / "rank0.json.gz", [*calls, kernel(5, 9, 0), kernel(995, 9, 99)]),
        schedule="none",
    )
    assert analysis.rank(0).whole.bubble_fraction is None
    assert "gpu-events-lost" in {note.code for note in analysis.notices}
    whole = [*calls, *(kernel(10 * n + 5, 9, n) for n in range(100))]
    kept = analyze(write(tmp_path / "rank1.json.gz", whole), schedule="none").ranks[0].whole
    assert kept.idle_known
    assert kept.budget.idle_ns < 0.2 * kept.budget.span_ns


@pytest.mark.parametrize(("every", "cause"), [(1, "nothing_to_hide"), (2, "unknown")])
def test_where_kernels_were_lost_it_is_not_known_that_no_compute_could_run_beside_a_copy(
    tmp_path, every, cause
):
    """A copy to the host after all compute.

    Then every second kernel of the compute is missing from the file.
    """
    calls = [launch(10 * n, n) for n in range(100)]
    kernels = [kernel(10 * n + 5, 9, n) for n in range(every - 1, 100, every)]
    copy = kernel(1010, 500, 200, stream=20) | {
        "cat": "gpu_memcpy",
        "name": "Memcpy DtoH (Device -> Pinned)",
    }
    events = [*calls, *kernels, launch(1001, 200, "cudaMemcpyAsync"), copy]
    data = analyze(write(tmp_path / "rank0.json.gz", events), schedule="none").to_dict()["ranks"][0]
    assert data["exposed_because_ns"]["offload"] == {cause: 500_000}


def test_graph_kernels_fill_the_graph(tmp_path):
    path = write(tmp_path / "rank0.json.gz", [
        launch(0, 1), kernel(5, 10, 1), launch(100, 2, "cudaGraphLaunch"), kernel(110, 200, 2), kernel(310, 200, 2),
    ])  # fmt: skip
    data = analyze(path, schedule="none").to_dict()["ranks"][0]
    assert data["budget_ns"]["idle"] == 95_000
    assert data["span_ns"] == 505_000


def test_no_gpu_events_at_all_is_an_error(tmp_path):
    path = write(tmp_path / "rank0.json.gz", [launch(0, 1)])
    with pytest.raises(InputError, match=r"rank0\.json\.gz: no GPU work was recorded") as caught:
        analyze(path, schedule="none")
    assert "no GPU events: record with CUDA activities on" in error_message(caught.value)


def test_one_rank_of_two_with_gpu_events_is_analysed(tmp_path):
    write(tmp_path / "rank0.json.gz", [launch(0, 1), kernel(5, 10, 1)], world_size=2)
    write(tmp_path / "rank1.json.gz", [launch(0, 1)], rank=1, world_size=2)
    analysis = analyze(tmp_path, schedule="none")
    assert [rank.whole.budget.compute_ns for rank in analysis.ranks] == [10_000, 0]
    assert "no-gpu-events" in {note.code for note in analysis.notices}


def test_a_file_cut_before_its_gpu_events_is_an_error(samples, tmp_path):
    """The profiler writes GPU events last, so half a file has none: recording CUDA activities would not help."""
    whole = gzip.decompress((samples / "1f1b/rank0.pt.trace.json.gz").read_bytes())
    (tmp_path / "rank0.json").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="no GPU work was recorded") as caught:
        analyze(tmp_path, schedule="none")
    sentence = "there are no GPU events: the file ends before them: copy it again"
    assert sentence in error_message(caught.value)
