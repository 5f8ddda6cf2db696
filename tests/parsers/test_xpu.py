"""Recordings of Intel's GPUs by PyTorch's profiler: queues in place of streams, calls of Unified Runtime."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from tracekit import analyze
from tracekit.doctor import diagnose
from tracekit.report.first_screen import headline
from tracekit.run.load import load

STEPS = 3


def write(folder, *, device="Intel(R) Data Center GPU Max 1550"):
    """Three steps of ten products on queue 64, an all-reduce on queue 65 beside nothing, a copy and a wait."""
    events = []
    number = 0

    def queued(call, work, *, queue, times):
        nonlocal number
        number += 1
        kind, name = work
        call_start, start, duration = times
        on_host = {"ph": "X", "pid": 1, "tid": 1}
        launch = {**on_host, "cat": "xpu_runtime", "name": call, "ts": call_start, "dur": 20}
        events.append({**launch, "args": {"correlation": number}})
        on_gpu = {"ph": "X", "pid": 0, "tid": queue, "cat": kind, "name": name, "ts": start}
        args = {"device": 0, "correlation": number, "sycl queue": queue, "l0 queue": "0x55"}
        events.append({**on_gpu, "dur": duration, "args": args})

    for step in range(STEPS):
        begin = 10_000 * step
        on_host = {"ph": "X", "pid": 1, "tid": 1}
        mark = {**on_host, "cat": "user_annotation", "name": f"ProfilerStep#{step}"}
        events.append({**mark, "ts": begin, "dur": 9_990})
        for product in range(10):
            launch = begin + 100 * product
            op = {**on_host, "cat": "cpu_op", "name": "aten::mm", "ts": launch - 5, "dur": 40}
            events.append(op)
            start = begin + 50 + 300 * product
            times = (launch, start, 290)
            queued("urEnqueueKernelLaunch", ("kernel", "gemm_kernel"), queue=64, times=times)
        name = "void oneccl_allreduce_large<sycl::_V1::ext::oneapi::bfloat16>"
        times = (begin + 1_000, begin + 3_100, 900)
        queued("urEnqueueKernelLaunch", ("kernel", name), queue=65, times=times)
        copy = "zeCommandListAppendMemoryCopy(D2M)"
        times = (begin + 1_100, begin + 4_100, 90)
        queued("urEnqueueUSMMemcpy", ("gpu_memcpy", copy), queue=64, times=times)
        wait = {**on_host, "cat": "xpu_runtime", "name": "urQueueFinish", "args": {}}
        events.append({**wait, "ts": begin + 1_200, "dur": 3_100})
    properties = [] if device is None else [{"id": 0, "name": device}]
    path = folder / "rank0.json"
    path.write_text(json.dumps({"deviceProperties": properties, "traceEvents": events}))
    return path


def shown(document):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(document)
    return console.export_text()


def test_queues_are_streams(tmp_path):
    events = load(write(tmp_path)).rank(0).events
    on_gpu = events.filter(events["kind"].is_in(["kernel", "memcpy"]))
    streams = on_gpu["stream"].value_counts().sort("stream").rows()
    assert streams == [(64, 11 * STEPS), (65, STEPS)]


@pytest.mark.parametrize("device", ["1550", "Intel(R) Data Center GPU Max 1550"])
def test_the_gpu_has_its_name(tmp_path, device):
    analysis = analyze(write(tmp_path, device=device))
    assert analysis.sources[0].devices == ("Intel(R) Data Center GPU Max 1550",)
    assert headline(analysis).device == "GPU Max 1550"


def test_collectives_of_oneccl_are_communication(tmp_path):
    analysis = analyze(write(tmp_path))
    (operation,) = analysis.tables["operations"]["what"].unique()
    assert operation == "all_reduce"


def test_a_wait_for_a_queue_is_a_wait_of_the_host_for_the_gpu(tmp_path):
    host = load(write(tmp_path)).rank(0).events.filter(name="urQueueFinish")
    assert len(host) == STEPS
    assert {finding.code for finding in analyze(tmp_path).findings} >= {"host_sync"}


@pytest.mark.parametrize("device", [None, "Intel(R) Data Center GPU Max 1550"])
def test_advice_has_no_words_of_cuda(tmp_path, device, run_command):
    path = write(tmp_path, device=device)
    for text in (run_command("analyze", path, "--full").stdout, shown(diagnose(path))):
        assert "CUDA" not in text
        assert "cuda" not in text
    assert "ProfilerActivity.XPU" in shown(diagnose(path))
