"""Calls of the tools for agents with hostile arguments: an answer in JSON, or one error of tracekit's own."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz.others import one_line
from tracekit.cli.mcp_server import MAX_ANSWER_CHARACTERS, TOOLS, Tools
from tracekit.errors import InternalError, TracekitError

SECRET = "zeppelin-outside-the-folder"
TEXTS = (
    *(
        "",
        ".",
        "..",
        "/",
        "run",
        "run/rank0.json",
        "../secret",
        "run/../../secret",
        "link",
        "~",
        "\0",
        "a\0b",
        "x" * 5000,
    ),
    *(
        "file:///etc/passwd",
        "http://127.0.0.1:1/x",
        "s3://a/b",
        "*",
        "run/*",
        "[",
        "run\n",
        "\ud800",
        "é" * 300,
        "-1",
    ),
    *(
        "auto",
        "none",
        "1f1b",
        "gpipe",
        "0",
        "0:1",
        ":",
        "9" * 40,
        "1:0",
        "nan",
        "forward",
        "gemm",
        "(a+)+$",
        "\x1b[2J",
    ),
    *(
        "timeline",
        "budget",
        "run0:run",
        "run0:rank0.json",
        "{secret}",
        "/dev/zero",
        "/proc/self/environ",
        "CON",
        "a" * 256,
    ),
)
NUMBERS = (0, 1, 2, 3, 4, 8, -1, 10**3, 10**6, 2**31, 2**63, -(2**63) - 1, 10**30, None)
ARGUMENTS = {
    "analyze": ("path", "schedule", "steps"),
    "findings": ("handle", "offset"),
    "table": ("handle", "name", "offset", "rank"),
    "what_if": ("path",),
    "explain": ("path", "event", "rank"),
    "diff": ("before", "after"),
    "doctor": ("path",),
    "schedule": ("name", "pp", "microbatches", "virtual"),
}
_COUNTS = ("offset", "rank", "pp", "microbatches", "virtual")
_REQUIRED_COUNTS = ("offset", "pp", "microbatches")


def small_trace() -> dict[str, Any]:
    """Return a trace of two steps with a launch and a kernel each."""
    events: list[dict[str, Any]] = []
    for step in range(2):
        ts = 100 * step
        same = {"ph": "X", "pid": 1, "tid": 1}
        events += [
            {**same, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": ts, "dur": 90},
            {**same, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": ts + 5, "dur": 2,
             "args": {"correlation": step}},
            {**same, "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": ts + 20, "dur": 50,
             "args": {"correlation": step, "stream": 7, "device": 0}},
        ]  # fmt: skip
    return {"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events}


@cache
def _tools(folder: Path) -> Tools:
    """Return tools over one run; beside its folder there is a file that nobody may read."""
    (folder / "inside/run").mkdir(parents=True)
    (folder / "inside/run/rank0.json").write_text(json.dumps(small_trace()))
    (folder / "secret").write_text(SECRET)
    (folder / "inside/link").symlink_to(folder / "secret")
    return Tools([folder / "inside"])


def make(choose: random.Random) -> bytes:
    """Return a tool's name and its arguments, as JSON."""
    tool = choose.choice(TOOLS)
    arguments: dict[str, Any] = {}
    for name in ARGUMENTS[tool]:
        if name in _COUNTS:
            values = [
                value for value in NUMBERS if value is not None or name not in _REQUIRED_COUNTS
            ]
            arguments[name] = choose.choice(values)
        elif name == "steps" and choose.random() < 0.5:
            arguments[name] = None
        elif name in ("path", "before", "after") and choose.random() < 0.1:
            arguments[name] = "run"
        else:
            text = choose.choice(TEXTS)
            arguments[name] = text + choose.choice(TEXTS) if choose.random() < 0.2 else text
    return json.dumps([tool, arguments]).encode()


def check(raw: bytes, folder: Path) -> None:
    """Call a tool."""
    tool, arguments = json.loads(raw)
    arguments = {key: value.replace("{secret}", str(folder / "secret")) if isinstance(value, str) else value
                 for key, value in arguments.items()}  # fmt: skip
    try:
        answer = json.dumps(getattr(_tools(folder), tool)(**arguments))
    except TracekitError as error:
        if isinstance(error, InternalError):
            raise AssertionError("a fault of tracekit's own") from error
        one_line(error)
        answer = str(error)
    assert SECRET not in answer, "a file outside the folder was read"
    assert len(answer) < 2 * MAX_ANSWER_CHARACTERS, "an answer without a bound"
