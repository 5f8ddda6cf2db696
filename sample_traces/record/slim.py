"""Makes a PyTorch trace small: drops arguments, flows and Python frames that no analysis reads.

Times stay as they are.

    python record/slim.py rank0.json.gz small/rank0.json.gz [STEP | launched | inference]

With a step, only that one is kept, and of its operators those that launched something; ``launched``
keeps all steps and only such operators, ``inference`` of these only products, attention and copies.
The result is framed as the profiler frames its files.
"""

from __future__ import annotations

import gzip
import json
import sys
from bisect import bisect_left
from pathlib import Path
from typing import Any

from tracekit.parsers.kineto.inputs import concrete_value, is_asked

CALLS = ("cuda_runtime", "cuda_driver")
HOST = (*CALLS, "cpu_op", "user_annotation", "fwdbwd")
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
WHOLE = ("launched", "inference")
NEEDED_OPS = (
    "aten::mm",
    "aten::scaled_dot_product_attention",
    "aten::copy_",
    "aten::index_select",
    "aten::argmax",
)
IDLE_CALLS = (
    "cudaStreamIsCapturing",
    "cudaEventQuery",
    "cudaThreadExchangeStreamCaptureMode",
    "cudaGetErrorString",
)
SIZES = (
    "registers per thread",
    "shared memory",
    "blocks per SM",
    "warps per SM",
    "grid",
    "block",
    "context",
)
OCCUPANCY = (*SIZES, "est. achieved occupancy %", "priority")
INPUTS = ("Input Strides", "Concrete Inputs")
UNREAD = ("Ev Idx", "Record function id", "cbid", "queued")


def slim(trace: dict[str, Any], name: str) -> bytes:
    """The trace as gzipped JSON, the same bytes for the same trace."""
    trace = {**trace, "traceName": name}
    events = [event for event in trace.pop("traceEvents") if _is_read(event)]
    head = json.dumps(trace, indent=2)[:-2]
    text = head + ',\n  "traceEvents": [\n' + ",\n".join(map(_framed, events)) + "\n  ]\n}\n"
    return gzip.compress(text.encode(), 9, mtime=0)


def _is_read(event: dict[str, Any]) -> bool:
    """Whether any analysis reads an event; of Python frames, only calls of modules are."""
    frame = event.get("cat") == "python_function"
    return event.get("cat") != "ac2g" and not (
        frame and not event["name"].startswith("nn.Module: ")
    )


def _framed(event: dict[str, Any]) -> str:
    times = {key: event[key] for key in ("ts", "dur") if key in event}
    args = {key: value for key, value in event.get("args", {}).items() if key not in UNREAD}
    for key in INPUTS:
        if key in args and not is_asked(event["name"]):
            del args[key]
    if "Concrete Inputs" in args:
        values = map(concrete_value, args["Concrete Inputs"])
        args["Concrete Inputs"] = ["" if value is None else str(value) for value in values]
    rest = {key: value for key, value in event.items() if key not in ("ts", "dur", "args")}
    lines = [json.dumps(part)[1:-1] for part in (rest, times) if part]
    if args:
        lines.append('"args": {\n      ' + json.dumps(args)[1:-1] + "\n    }")
    return "  {\n    " + ",\n    ".join(lines) + "\n  }"


def one_step(trace: dict[str, Any], number: str) -> dict[str, Any]:
    """Return the trace of one step, or of all (``WHOLE``): what its host did, and what that launched."""
    events = trace["traceEvents"]
    host = [e for e in events if e.get("cat") in HOST]
    if number in WHOLE:
        host = [e for e in host if e["name"] not in IDLE_CALLS]
    else:
        mark = next(
            e
            for e in host
            if e["cat"] == "user_annotation" and e["name"] == f"ProfilerStep#{number}"
        )
        host = [e for e in host if mark["ts"] <= e["ts"] <= mark["ts"] + mark["dur"]]
    calls = [e for e in host if e["cat"] in CALLS and e.get("args", {}).get("correlation")]
    wanted = {e["args"]["correlation"] for e in calls}
    gpu = [
        e for e in events if e.get("cat") in GPU and e.get("args", {}).get("correlation") in wanted
    ]
    starts: dict[Any, list[float]] = {}
    for call in sorted(calls, key=lambda e: e["ts"]):
        starts.setdefault(call["tid"], []).append(call["ts"])

    def launched(event: dict[str, Any]) -> bool:
        times = starts.get(event["tid"], [])
        at = bisect_left(times, event["ts"])
        return at < len(times) and times[at] <= event["ts"] + event["dur"]

    kept = [e for e in host if e["cat"] != "cpu_op" or launched(e)]
    if number == "inference":
        kept = [e for e in kept if e["cat"] != "cpu_op" or e["name"] in NEEDED_OPS]
    for event in gpu if number in WHOLE else ():
        event["args"] = {key: value for key, value in event["args"].items() if key not in OCCUPANCY}
    names = [e for e in events if e.get("ph") == "M"]
    return {**trace, "traceEvents": [*names, *kept, *gpu]}


if __name__ == "__main__":
    source, target, *step = map(str, sys.argv[1:])
    raw = Path(source).read_bytes()
    found = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    Path(target).write_bytes(slim(one_step(found, step[0]) if step else found, Path(target).name))
