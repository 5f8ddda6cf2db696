"""Traces whose times contradict each other: kernels before their launch, waits that end before the work, jumps, drifts.

Every analysis ends, in an answer or in one line, and no figure of time exceeds the recording. A clock that was moved
needs to be moved no further.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from tests.fuzz.others import one_line
from tracekit import analyze
from tracekit.align.gpu_clock import (
    LAUNCH_LATENCY_NS,
    MIN_IMPOSSIBLE_NS,
    MIN_LATE_NS,
    align_gpu_clock,
)
from tracekit.errors import InternalError, TracekitError
from tracekit.parsers.clock_jumps import undo_clock_jumps
from tracekit.schema import EVENTS, MEMORY, RankEvents, Source, conform

MAX_LAUNCHES = 40
WAITS = ("cudaDeviceSynchronize", "cudaStreamSynchronize")
SHIFTS_US = (-3000, -300, -50, -1, 0, 0, 0, 5, 3000)
MAX_SECOND_SHIFT_NS = MIN_IMPOSSIBLE_NS + MIN_LATE_NS + LAUNCH_LATENCY_NS
"""What an aligned clock may be moved by again: the tolerance of the bounds, and the time that a launch takes."""
FAR_US = (0, -1e9, 1e12, 3.6e9)


def _call(name: str, start: float, duration: float, correlation: int) -> dict[str, Any]:
    call = {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1}
    return {**call, "ts": start, "dur": duration, "args": {"correlation": correlation}}


def _kernel(start: float, duration: float, stream: int, correlation: int) -> dict[str, Any]:
    args = {"device": 0, "stream": stream, "correlation": correlation}
    kernel = {"ph": "X", "cat": "kernel", "name": f"k{correlation % 3}", "pid": 0, "tid": stream}
    return {**kernel, "ts": start, "dur": duration, "args": args}


def make(rng: random.Random) -> bytes:
    """Return a trace of launches, kernels, waits and steps, with a clock of the GPU that is off in some way."""
    shift = rng.choice(SHIFTS_US)
    drift = rng.choice((0.0, 0.0, 0.02, -0.02, 0.3))
    jitter = rng.choice((0, 0, 20, 500))
    events = []
    now = 1_000.0
    for number in range(1, rng.randrange(2, MAX_LAUNCHES)):
        now += rng.choice((3, 10, 200))
        start = (now + 8) * (1 + drift) + shift + rng.uniform(-jitter, jitter)
        duration = rng.choice((0, 1, 5, 150))
        if rng.random() < 0.01:
            start, duration = rng.choice(FAR_US), abs(rng.choice(FAR_US))
        events.append(_call("cudaLaunchKernel", now, 2, number % rng.choice((1000, 7))))
        events.append(_kernel(start, duration, rng.choice((7, 7, 20)), number))
        if rng.random() < 0.2:
            events.append(
                _call(rng.choice(WAITS), now + 3, rng.choice((1, 40, 400)), 1000 + number)
            )
    for step in range(rng.randrange(4)):
        mark = {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{step // rng.choice((1, 2))}",
        }
        events.append({**mark, "pid": 1, "tid": 1, "ts": 1_000 + 300 * step, "dur": 300})
    if rng.random() < 0.1:
        for event in events[len(events) // 2 :]:
            event["ts"] += 50_000
    rng.shuffle(events)
    return json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()


def check(data: bytes, folder: Path) -> None:
    """Analyse a trace: it ends, and no figure is longer than all of the recording."""
    path = folder / "rank0.json"
    path.write_bytes(data)
    try:
        analysis = analyze(path, workers=1)
    except InternalError:
        raise
    except TracekitError as error:
        one_line(error)
        return
    events = json.loads(data)["traceEvents"]
    host = [event for event in events if event["cat"] != "kernel"]
    begin = min(event["ts"] for event in host)
    longest_ns = 1000 * (max(event["ts"] + event["dur"] for event in host) - begin)
    # GPU work is believed for as long as that, and for a second at least, before and behind.
    longest_ns += 2 * max(longest_ns, 1e9)
    for result in analysis.ranks:
        assert result.whole.budget.span_ns <= longest_ns
    for finding in analysis.findings:
        assert (finding.saves_ns or 0) <= longest_ns, finding
        assert finding.cost_ns <= longest_ns, finding


def check_alignment(data: bytes, folder: Path) -> None:
    """Align the clock of a trace's GPU alone, twice: what was moved by the first time is possible then."""
    jumped = _table(json.loads(data)["traceEvents"])
    events, _, _ = undo_clock_jumps(jumped, MEMORY.to_frame())
    assert events.height == jumped.height
    assert events["start_ns"].is_sorted()
    moved = align_gpu_clock(RankEvents(events, Source("rank0.json", "kineto", 0, "name")))
    cases = {notice.values["case"] for notice in moved.source.notices}
    again = align_gpu_clock(replace(moved, source=Source("rank0.json", "kineto", 0, "name")))
    for notice in again.source.notices:
        if not cases & {"unexplained", "few"}:
            assert notice.values["case"] != "unexplained", notice
            assert abs(int(str(notice.values["shift_ns"]))) <= MAX_SECOND_SHIFT_NS, notice


def _table(events: list[dict[str, Any]]) -> pl.DataFrame:
    """Return events of PyTorch as the parser does, as far as clocks need them."""
    kinds = {"cuda_runtime": "runtime", "user_annotation": "annotation", "kernel": "kernel"}
    rows = []
    for event in sorted(events, key=lambda event: event["ts"]):
        args = event.get("args", {})
        start_ns = round(1_000 * event["ts"])
        rows.append(
            {
                "kind": kinds[event["cat"]],
                "name": event["name"],
                "tid": event["tid"],
                "start_ns": start_ns,
                "end_ns": start_ns + round(1_000 * event["dur"]),
                **{key: args.get(key) for key in ("correlation", "device", "stream")},
            }
        )
    return conform(pl.DataFrame(rows), EVENTS)
