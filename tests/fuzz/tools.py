"""Recordings of other tools nobody wrote: AMD's profilers, Intel's GPUs, all ranks in one file; cut and changed."""

from __future__ import annotations

import gzip
import json
import random
import tempfile
from functools import cache
from pathlib import Path

from tests.fuzz.others import one_line
from tests.parsers import test_merged, test_rocm, test_xpu
from tracekit.errors import InternalError, TracekitError
from tracekit.run.analyze import analyze

EVENTS_LEFT_OUT = 40
"""One event of so many of a sample is kept: an input takes a fifth of a second."""


@cache
def recordings() -> tuple[bytes, ...]:
    """A small recording of each reader."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rpd = test_rocm.write_rpd(folder / "trace.rpd").read_bytes()
        database = test_rocm.write_rocpd(folder / "trace.db").read_bytes()
        processes = [test_rocm.rocprofv3_process(pid, pid) for pid in (1, 2)]
        dispatches = test_rocm.write_json(folder / "1_results.json", processes).read_bytes()
        test_xpu.write(folder)
        (xpu,) = folder.glob("rank*")
        intel = xpu.read_bytes()
    traces = []
    for rank in (0, 1):
        file = test_merged.SAMPLE / f"rank{rank}.pt.trace.json.gz"
        trace = json.loads(gzip.decompress(file.read_bytes()))
        traces.append({**trace, "traceEvents": trace["traceEvents"][::EVENTS_LEFT_OUT]})
    merges = (test_merged.with_labels, test_merged.with_process_names)
    merged = [json.dumps(merge(traces)).encode() for merge in merges]
    packed = gzip.compress(rpd, mtime=0)
    return rpd, packed, database, dispatches, intel, *merged


def make(choose: random.Random) -> bytes:
    """One of the recordings with its end or a piece cut off, bits changed, or a piece zeroed or doubled."""
    data = bytearray(choose.choice(recordings()))
    kind = choose.random()
    if kind < 0.3:
        return bytes(data[: choose.randrange(len(data))])
    if kind < 0.8:
        for _ in range(choose.choice((1, 2, 5, 20, 100))):
            data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
        return bytes(data)
    start = choose.randrange(len(data))
    piece = data[start : start + choose.randrange(1, 4096)]
    if kind < 0.9:
        data[start : start + len(piece)] = bytes(len(piece))
    elif kind < 0.95:
        del data[start : start + len(piece)]
    else:
        data[start:start] = piece
    return bytes(data)


def check(raw: bytes, folder: Path) -> None:
    """The file is analysed, or refused in one line with exit code 2."""
    file = folder / "recording"
    file.write_bytes(raw)
    try:
        analyze(file, workers=1)
    except InternalError:
        raise
    except TracekitError as error:
        one_line(error)
