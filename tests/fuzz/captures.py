"""Replays of graphs beside captures that somebody changed: kernels joined with launches there are, or one line."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz.change import changed
from tests.fuzz.others import one_line
from tracekit.classify.graph_replays import join_replays
from tracekit.errors import InternalError, TracekitError
from tracekit.parsers.kineto.captures import holds_capture
from tracekit.parsers.source_refs import SourceRef
from tracekit.store.sources import read_ref

LAYERS = 4
REPLAYS = 3
FILES = ("capture", "replay")
VALUES = (
    *(None, True, -1, 0, 1, 7, 2**31, 2**32, 2**63 - 1, 2**63, 2**70, -(2**70), 0.5, 1e300),
    *("", "gemm_tn", "cudaLaunchKernel", "cudaStreamBeginCapture", "cudaGraphLaunch", "\ud800"),
    *("[[8,16],[16,16]]", "x" * 3000, [], [2**40] * 3, [-1], ["a"], [[]], {}, {"a": 1}),
)
KEYS = ("kernel", "correlation", "grid", "stream", "device", "Input Dims", "External id")


def _event(category: str, name: str, ts: int, dur: int, **args: Any) -> dict[str, Any]:
    is_gpu = category == "kernel"
    place = {"pid": 0, "tid": 7} if is_gpu else {"pid": 1, "tid": 1}
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, **place, "args": args}


@cache
def _files() -> dict[str, bytes]:
    """Return a capture of a few layers, and three replays of it."""
    ops = [("aten::mm", "gemm_tn", [[8, 16], [16, 16]]), ("aten::gelu", "GeluKernel", [[8, 16]])]
    capture = [_event("cuda_runtime", "cudaStreamBeginCapture", 0, 1, correlation=1)]
    for i in range(LAYERS * len(ops)):
        op, kernel, dims = ops[i % len(ops)]
        start = 10 + 10 * i
        capture.append(_event("cpu_op", op, start, 8, **{"Input Dims": dims, "External id": i}))
        launch = {"correlation": 1000 + i, "kernel": kernel}
        capture.append(_event("cuda_runtime", "cudaLaunchKernel", start + 1, 1, **launch))
    capture.append(_event("cuda_runtime", "cudaStreamEndCapture", 500, 1, correlation=2))
    replay = []
    for number in range(REPLAYS):
        start = 1000 * number
        replay.append(_event("cuda_runtime", "cudaGraphLaunch", start, 5, correlation=number + 1))
        for i in range(LAYERS * len(ops)):
            kernel = ops[i % len(ops)][1]
            args = {"correlation": number + 1, "stream": 7, "device": 0, "grid": [4, 2, 1]}
            replay.append(_event("kernel", kernel, start + 10 + 2 * i, 1, **args))
    contents = {"capture": capture, "replay": replay}
    return {
        name: json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
        for name, events in contents.items()
    }


def make(choose: random.Random) -> bytes:
    """Return the name of a file on the first line, then the file with values or bytes changed."""
    name = choose.choice(FILES)
    raw = _files()[name]
    if choose.random() < 0.3:
        return name.encode() + b"\n" + changed(raw, choose, times=choose.randrange(1, 4))
    document = json.loads(raw)
    events = document["traceEvents"]
    for _ in range(choose.randrange(1, 6)):
        event = choose.choice(events)
        kind = choose.randrange(6)
        if kind == 0:
            events.remove(event)
        elif kind == 1:
            events.append(json.loads(json.dumps(event)))
        elif kind == 2:
            event[choose.choice(("ph", "cat", "name", "ts", "dur", "args"))] = choose.choice(VALUES)
        elif isinstance(event.get("args"), dict):
            event["args"][choose.choice(KEYS)] = choose.choice(VALUES)
        if len(events) < 2:
            break
    if choose.random() < 0.1:
        choose.shuffle(events)
    return name.encode() + b"\n" + json.dumps(document).encode()


def check(raw: bytes, folder: Path) -> None:
    """Read the replay with its capture and join them; raise if a kernel gets a launch that is not there."""
    changed_name, _, text = raw.partition(b"\n")
    files = {**_files(), changed_name.decode(): text}
    paths = {}
    for name in FILES:
        paths[name] = folder / f"{name}.json"
        paths[name].write_bytes(files[name])
    capture_ref = SourceRef(str(paths["capture"]), "kineto", 0, "option")
    replay_ref = SourceRef(str(paths["replay"]), "kineto", 0, "option", capture=capture_ref)
    try:
        holds_capture(str(paths["capture"]))
        (rank,) = read_ref(replay_ref)
        assert rank.capture is not None
        replays = join_replays(rank.events, rank.capture)
    except TracekitError as error:
        if isinstance(error, InternalError):
            raise AssertionError("a fault of tracekit's own") from error
        one_line(error)
        return
    assert 0 <= replays.joined_ns <= replays.replay_ns, "more time is joined than there is"
    launches = len(rank.capture.events)
    assert replays.joined["launch"].is_between(0, launches).all(), "a launch that is not there"
