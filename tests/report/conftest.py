"""What several reports are tried on."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def kernels_named(tmp_path):
    """Write a trace whose kernels have these names, one after the other, and return its path."""

    def write(names):
        events = [
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 1000 * i, "dur": 900,
             "args": {"device": 0, "stream": 7, "correlation": i + 1}}
            for i, name in enumerate(names)
        ]  # fmt: skip
        path = tmp_path / "odd.json"
        path.write_text(json.dumps({"traceEvents": events}))
        return path

    return write
