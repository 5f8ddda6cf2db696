"""What the parsers' tests share: real bytes, and a way to write small traces."""

from __future__ import annotations

import gzip
import io
import json

import pytest


@pytest.fixture(scope="session")
def real_bytes(samples):
    """A real trace, inflated (0.1 MB, 280 complete events)."""
    return gzip.decompress((samples / "reload/rank0.pt.trace.json.gz").read_bytes())


@pytest.fixture
def trace():
    """A trace file made of the given events and top-level keys."""

    def make(*events, **keys):
        return io.BytesIO(json.dumps({**keys, "traceEvents": list(events)}).encode())

    return make


@pytest.fixture
def event():
    """A complete event with sensible defaults."""

    def make(name="aten::mm", *, ts=10, dur=5, cat="cpu_op", pid=1, tid=1, **args):
        return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}

    return make


@pytest.fixture
def path(tmp_path):
    """Where a test writes its Nsight export."""
    return tmp_path / "report.sqlite"
