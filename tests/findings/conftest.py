"""Recordings of a few events, written as a profiler writes them, whose findings can be counted by hand."""

from __future__ import annotations

import json

import pytest

from tracekit import analyze

MAIN = 1
"""Thread of the host that launches."""
COMPUTE_STREAM = 7


class Recording:
    """Events of one rank; times in milliseconds."""

    def __init__(self, rank=0, world_size=1, device="NVIDIA H200"):
        self.events = []
        self.rank = rank
        self.head = {"distributedInfo": {"rank": rank, "world_size": world_size}}
        self.head["deviceProperties"] = [{"id": 0, "name": device, "numSms": 132}]

    def add(self, category, name, start, end, *, pid=100, tid=MAIN, **args):
        times = {"ts": start * 1000, "dur": (end - start) * 1000}
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": pid,
                "tid": tid,
                **times,
                "args": args,
            }
        )

    def step(self, number, start, end):
        self.add("user_annotation", f"ProfilerStep#{number}", start, end)

    def annotation(self, name, start, end):
        self.add("user_annotation", name, start, end)

    def op(self, name, start, end, **args):
        self.add("cpu_op", name, start, end, **args)

    def call(self, name, start, end, **args):
        self.add("cuda_runtime", name, start, end, **args)

    def frame(self, name, start, end):
        self.add("python_function", name, start, end)

    def kernel(
        self,
        launch,
        start,
        end,
        *,
        op="aten::mm",
        name="gemm_bf16",
        stream=COMPUTE_STREAM,
        args=None,
        **more,
    ):
        """A kernel, its launch (which takes 0.0065 ms) and the operator around the launch; none if *op* is None."""
        correlation = len(self.events) + 1
        if op is not None:
            within = {"External id": correlation, **(args or {})}
            self.op(op, launch - 0.005, launch + 0.015, **within)
        self.call(
            "cudaLaunchKernel",
            launch,
            launch + 0.0065,
            correlation=correlation,
            **{"External id": correlation},
        )
        on_gpu = {
            "correlation": correlation,
            "stream": stream,
            "device": 0,
            "External id": correlation,
        }
        self.add("kernel", name, start, end, pid=0, tid=stream, **on_gpu, **more)

    def copy(
        self,
        launch,
        launched,
        start,
        end,
        *,
        name="Memcpy HtoD (Pageable -> Device)",
        stream=COMPUTE_STREAM,
        copied=1_000_000,
    ):
        """A copy whose call lasts from *launch* to *launched*."""
        correlation = len(self.events) + 1
        self.op("aten::copy_", launch, launched, **{"External id": correlation})
        self.call("cudaMemcpyAsync", launch, launched, correlation=correlation)
        on_gpu = {"correlation": correlation, "stream": stream, "device": 0, "bytes": copied}
        self.add("gpu_memcpy", name, start, end, pid=0, tid=stream, **on_gpu)

    def write(self, folder):
        path = folder / f"rank{self.rank}.pt.trace.json"
        path.write_text(json.dumps({"schemaVersion": 1, **self.head, "traceEvents": self.events}))
        return path


@pytest.fixture
def analysis_of_steps(tmp_path):
    """Analyse a run of four steps of *period* ms, each of which ``fill(recording, start, number)`` adds to."""

    def analyze_steps(fill, *, period=20.0, count=4, stacks=False, **options):
        recording = Recording(**options)
        for number in range(count):
            recording.step(number, number * period, (number + 1) * period)
            fill(recording, number * period, number)
        recording.write(tmp_path)
        # A rank alone has no pipeline to look for.
        return analyze(tmp_path, stacks=stacks, schedule="none")

    return analyze_steps


@pytest.fixture
def findings_of(analysis_of_steps):
    """Return the findings of such a run by code."""

    def find(fill, **options):
        return {finding.code: finding for finding in analysis_of_steps(fill, **options).findings}

    return find
