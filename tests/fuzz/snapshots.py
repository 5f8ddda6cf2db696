"""Memory snapshots nobody wrote: damage is an error in one line or a notice, and never runs anything."""

from __future__ import annotations

import gzip
import pickle
import random
from functools import cache
from pathlib import Path

from tests.fuzz.others import one_line
from tests.memory_snapshots import annotation, block, event, segment, snapshot
from tracekit.errors import TracekitError
from tracekit.memory.run import diff_memory, memory

VALUES = (
    *(None, -1, 0, 1, 2**31, 2**63, 2**70, -(2**64), 0.5, 1e300, float("nan"), True),
    *("", "abc", "alloc", "free_completed", "\x1b[2J", [], [[]], {}, (1, 2)),
)
FORBIDDEN = "tracekit-fuzz-snapshot-ran"


@cache
def _snapshot() -> dict:
    """Three steps that allocate and free, one tensor that stays, and memory that the history does not know."""
    events = [event("segment_alloc", 0, 1 << 20, 0)]
    annotations = []
    for step in range(3):
        start = 1_000 * step
        annotations += annotation(f"ProfilerStep#{step}", start, start + 900)
        for i in range(6):
            events.append(event("alloc", i << 14, 1 << 12, start + 10 * i + 1))
        for i in range(6):
            events.append(event("free_requested", i << 14, 1 << 12, start + 500 + 10 * i))
            events.append(event("free_completed", i << 14, 1 << 12, start + 505 + 10 * i))
    events.append(event("alloc", 7 << 14, 1 << 13, 3_000))
    events.append(event("oom", 1 << 16, 1 << 30, 3_100))
    blocks = [block(7 << 14, 1 << 13), block(9 << 14, 1 << 12, state="inactive")]
    return snapshot(events, [segment(0, blocks)], annotations)


class _Runs:
    def __reduce__(self):
        return open, (FORBIDDEN, "w")


def _change_values(choose: random.Random) -> dict:
    """Return a snapshot with some values replaced, removed or repeated."""
    content = pickle.loads(pickle.dumps(_snapshot()))
    for _ in range(choose.randrange(1, 8)):
        rows = [content]
        for name in ("segments", "external_annotations"):
            if isinstance(content.get(name), list):
                rows += content[name]
        traces = content.get("device_traces")
        if isinstance(traces, list) and traces and isinstance(traces[0], list):
            rows += traces[0]
        target = choose.choice([row for row in rows if isinstance(row, dict) and row] or [content])
        key = choose.choice(list(target))
        if choose.random() < 0.2:
            del target[key]
        else:
            target[key] = choose.choice(VALUES)
        if not content:
            break
    return content


def _rearrange(choose: random.Random) -> dict:
    """Return a snapshot of valid values that contradicts itself: shuffled, doubled, cut, or with other sizes."""
    content = pickle.loads(pickle.dumps(_snapshot()))
    for _ in range(choose.randrange(1, 4)):
        events = content["device_traces"][0]
        times = [row["time_us"] for row in events]
        start, end = sorted(choose.randrange(len(events) + 1) for _ in range(2))
        kind = choose.randrange(7)
        if kind == 0:
            events[start:end] = choose.sample(events[start:end], end - start)
        elif kind == 1:  # shuffled under the old times
            choose.shuffle(events)
            events = [{**row, "time_us": time} for row, time in zip(events, times, strict=True)]
        elif kind == 2:
            events = [row for row in events for _ in range(choose.randrange(1, 3))]
        elif kind == 3:
            del events[start:end]
        elif kind == 4:
            content["segments"] = content["segments"] * choose.randrange(3)
        elif kind == 5:
            for row in content["segments"]:
                row["blocks"] = row["blocks"] * choose.randrange(3)
        else:
            for row in events[start:end]:
                row["size"] = choose.choice((0, 1, 1 << 12, 1 << 20, 1 << 30))
        if not events:
            events = [event("alloc", 0, 1, 0)]
        content["device_traces"] = [events]
    return content


def make(choose: random.Random) -> bytes:
    """A snapshot with bytes, values or order changed."""
    kind = choose.randrange(7)
    if kind == 0:
        raw = pickle.dumps(_change_values(choose), protocol=choose.randrange(2, 6))
    elif kind == 1:
        changed = bytearray(pickle.dumps(_snapshot()))
        for _ in range(choose.randrange(1, 8)):
            changed[choose.randrange(len(changed))] = choose.randrange(256)
        raw = bytes(changed)
    elif kind == 2:
        whole = pickle.dumps(_snapshot())
        raw = whole[: choose.randrange(len(whole))]
    elif kind == 3:
        content = pickle.loads(pickle.dumps(_snapshot()))
        choose.shuffle(content["device_traces"][0])
        raw = pickle.dumps(content)
    elif kind in (4, 5):
        raw = pickle.dumps(_rearrange(choose))
    else:
        name = choose.choice(("segments", "device_traces", "allocator_settings", "more"))
        raw = pickle.dumps({**_snapshot(), name: [_Runs()]}, protocol=choose.randrange(2, 6))
    return gzip.compress(raw) if choose.random() < 0.2 else raw


def check(raw: bytes, folder: Path) -> None:
    """Read it, alone and against a sound one.

    Raise for anything but an error of one line or a result.
    """
    path = folder / "memory_rank0.pickle"
    path.write_bytes(raw)
    sound = folder / "sound.pickle"
    sound.write_bytes(pickle.dumps(_snapshot()))
    try:
        report = memory(path)
        str(report)
        report.to_json()
        for row in report.to_dict()["snapshots"]:
            _check_levels(row["contents"])
        diff_memory(sound, path).to_json()
    except TracekitError as error:
        one_line(error)
    assert not Path(FORBIDDEN).exists(), "a pickle ran code"


def _check_levels(contents: dict | None) -> None:
    """Raise if more is held than reserved."""
    peak = None if contents is None else contents["peak"]
    if peak is not None and peak["reserved_bytes"] is not None:
        assert peak["bytes"] <= peak["reserved_bytes"], "more is held than reserved"
