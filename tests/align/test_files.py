"""From files to waits: sequence numbers in the arguments, several processes in one file, clocks that leave it open."""

from __future__ import annotations

import json
import re

import pytest

from tracekit import analyze, load
from tracekit.errors import InputError
from tracekit.report.sections.stragglers import name_straggler, stragglers

pytestmark = pytest.mark.usefixtures("measured_once")

GROUP = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2]",
         "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Float"}  # fmt: skip


def write_rank(folder, rank, operations, *, kernel_args=None, call_args=None, world_size=3):
    """Write a rank's file: a step in which each operation (start and end in µs) is launched 20 µs before it starts."""
    (folder / f"rank{rank}.json").write_text(
        json.dumps(trace(rank, operations, kernel_args, call_args, world_size))
    )


def trace(rank, operations, kernel_args=None, call_args=None, world_size=3):
    end = operations[-1][1] + 1_000
    events = [_event("user_annotation", "ProfilerStep#2", 0, end, rank)]
    for n, (start, finish) in enumerate(operations):
        ids = {"correlation": n + 1, "External id": n + 1}
        own = {key: values[n] for key, values in (kernel_args or {}).items()}
        call = {key: values[n] for key, values in (call_args or {}).items()}
        compute = {"correlation": 1000 + n}
        events += [
            _event("cuda_runtime", "cudaLaunchKernel", start - 900, 5, rank, **compute),
            _event("kernel", "gemm_kernel", start - 800, 750, rank, device=rank, stream=7, **compute),
            _event("cpu_op", "record_param_comms", start - 22, 9, rank, **{"External id": n + 1}, **GROUP, **call),
            _event("cuda_runtime", "cudaLaunchKernel", start - 20, 5, rank, **ids),
            _event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", start, finish - start, rank,
                   device=rank, stream=20, **ids, **GROUP, **own),
        ]  # fmt: skip
    ranks = {"backend": "nccl", "rank": rank, "world_size": world_size}
    return {"schemaVersion": 1, "distributedInfo": ranks, "traceEvents": events}


def _event(cat, name, ts, dur, rank, **args):
    pid, tid = (rank, args["stream"]) if cat == "kernel" else (100 + rank, 1)
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


STARTS = [1_000, 11_000, 21_000, 31_000]


@pytest.mark.parametrize("where", ["kernel_args", "call_args"])
@pytest.mark.parametrize("key", ["Seq", "collective_seq_id"])
def test_recorded_sequence_numbers_decide_which_operations_are_one(tmp_path, where, key):
    """Ranks 1 and 2 lack the first collective, and all they recorded came 10 ms early: times alone say otherwise."""
    full, later = [(t, t + 500) for t in STARTS], [(t + 200, t + 500) for t in STARTS[:3]]
    write_rank(tmp_path, 0, full, **{where: {key: [7, 8, 9, 10]}})
    for rank in (1, 2):
        write_rank(tmp_path, rank, later, **{where: {key: [8, 9, 10]}})
    members = analyze(tmp_path, schedule="none").tables["matched"]
    assert members.filter(rank=0)["start_ns"].to_list() == [t * 1_000 for t in STARTS[1:]]
    assert members.group_by("match").len()["len"].to_list() == [3, 3, 3]


def test_several_processes_in_one_file_are_refused_with_the_reason(tmp_path):
    """Two ranks' files merged into one, as some viewers do: devices 0 and 1 of two processes are not one rank."""
    merged = trace(0, [(t, t + 500) for t in STARTS])
    merged["traceEvents"] += trace(1, [(t, t + 500) for t in STARTS])["traceEvents"]
    (tmp_path / "merged.json").write_text(json.dumps(merged))
    with pytest.raises(
        InputError, match=r"merged.json: holds several processes .*GPUs 0, 1.*not one rank"
    ) as error:
        analyze(tmp_path / "merged.json")
    assert error.value.hint == "give the file that each rank's profiler wrote"
    one = trace(0, [(t, t + 500) for t in STARTS])
    (tmp_path / "merged.json").write_text(json.dumps(one))
    assert analyze(tmp_path / "merged.json", schedule="none").total.budget.span_ns


def test_two_processes_on_one_gpu_are_not_one_rank(tmp_path):
    """As above, but both processes call their GPU 0."""
    merged = trace(0, [(t, t + 500) for t in STARTS])
    other = trace(1, [(t, t + 500) for t in STARTS])["traceEvents"]
    for event in other:
        if event["cat"] == "kernel":
            event["pid"] = event["args"]["device"] = 0
        if "correlation" in event["args"]:
            event["args"]["correlation"] += 500_000
    merged["traceEvents"] += other
    (tmp_path / "merged.json").write_text(json.dumps(merged))
    with pytest.raises(InputError, match="several processes with a GPU each"):
        analyze(tmp_path / "merged.json")


@pytest.mark.parametrize("command", ["analyze", "doctor"])
def test_one_process_that_computes_on_two_gpus_is_refused(tmp_path, run_command, command):
    """As `device_map` and DataParallel do. Each GPU idles half of the time, which their union hides."""
    two_gpus = trace(0, [(t, t + 500) for t in STARTS])
    for event in two_gpus["traceEvents"]:
        if event["cat"] == "kernel" and event["ts"] > 15_000:
            event["pid"] = event["args"]["device"] = 1
    (tmp_path / "rank0.json").write_text(json.dumps(two_gpus))
    shown = run_command(command, tmp_path / "rank0.json")
    assert shown.returncode == 2
    (line,) = shown.stderr.splitlines()
    assert "one process computes on 2 GPUs (GPU 0: 4 kernels, GPU 1: 4 kernels)" in line
    assert "one GPU per process" in line


def test_a_kernel_on_another_gpu_is_left_out_and_counted(tmp_path):
    run = trace(0, [(t, t + 500) for t in STARTS])
    elsewhere = {"correlation": 77, "device": 1, "stream": 7}
    run["traceEvents"] += [
        _event("cuda_runtime", "cudaLaunchKernel", 5_000, 5, 0, correlation=77),
        {**_event("kernel", "fill", 5_010, 3, 0, **elsewhere), "pid": 1},
    ]
    (tmp_path / "rank0.json").write_text(json.dumps(run))
    trace_read = load(tmp_path / "rank0.json")
    assert trace_read.events["device"].drop_nulls().unique().to_list() == [0]
    assert trace_read.sources[0].skipped["events on other devices"] == 1
    assert not any(notice.code == "no-launches" for notice in trace_read.notices)


@pytest.mark.parametrize(("apart_us", "candidates"), [(50, [1, 2]), (300, [2])])
def test_ranks_that_arrive_within_what_clocks_may_be_off_are_both_named(
    tmp_path, apart_us, candidates
):
    """Rank 0 waits 2 ms in each of 12 collectives.

    Rank 2 comes after rank 1, whose clocks may be off by 0.1 ms.
    """
    times = [10_000 * n + 1_000 for n in range(12)]
    for rank, late in enumerate((0, 2_000 - apart_us, 2_000)):
        write_rank(tmp_path, rank, [(t + late, t + 3_000 + n) for n, t in enumerate(times)])
    analysis = analyze(tmp_path, schedule="none")
    (straggler, *_) = json.loads(analysis.to_json())["stragglers"]
    assert (straggler["rank"], straggler["candidates"]) == (2, candidates)
    assert straggler["uncertain"] is (len(candidates) > 1)
    named = "1 or 2" if len(candidates) > 1 else "2"
    assert name_straggler(stragglers(analysis)[0]) == named
    for extension in ("html", "md"):
        analysis.save(tmp_path / f"out.{extension}")
    assert f"| {named} |" in (tmp_path / "out.md").read_text()
    page = re.sub(r">\s+", ">", (tmp_path / "out.html").read_text())
    assert ('<th scope="row">1 or 2</th>' in page) is (len(candidates) > 1)
