"""Makes a PyTorch trace small: drops arguments, flows and Python frames that no analysis reads; times stay as they are.

    python record/slim.py rank0.json.gz small/rank0.json.gz

The result is framed as the profiler frames its files.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

UNREAD = ("Input Strides", "Concrete Inputs", "Ev Idx", "Record function id", "cbid", "queued")


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
    return event.get("cat") != "ac2g" and not (frame and not event["name"].startswith("nn.Module: "))


def _framed(event: dict[str, Any]) -> str:
    times = {key: event[key] for key in ("ts", "dur") if key in event}
    args = {key: value for key, value in event.get("args", {}).items() if key not in UNREAD}
    rest = {key: value for key, value in event.items() if key not in ("ts", "dur", "args")}
    lines = [json.dumps(part)[1:-1] for part in (rest, times) if part]
    if args:
        lines.append('"args": {\n      ' + json.dumps(args)[1:-1] + "\n    }")
    return "  {\n    " + ",\n    ".join(lines) + "\n  }"


if __name__ == "__main__":
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    raw = source.read_bytes()
    target.write_bytes(slim(json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw), target.name))
