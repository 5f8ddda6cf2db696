"""What the parsers' tests share: real bytes, a way to write small traces, and a recording of Nsight Systems."""

from __future__ import annotations

import gzip
import io
import json

import pytest
from pyarrow import ipc

from tests.parsers.nsight_reading import frames


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
        return {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": pid,
            "tid": tid,
            "ts": ts,
            "dur": dur,
            "args": args,
        }

    return make


@pytest.fixture
def path(tmp_path):
    """Where a test writes its Nsight export."""
    return tmp_path / "report.sqlite"


@pytest.fixture
def sample(samples):
    """Four ranks that Nsight Systems recorded, exported as sqlite; rank 0 as Parquet, too."""
    return samples / "nsys-1f1b"


@pytest.fixture(scope="session")
def arrow_file(samples, tmp_path_factory):
    """Rank 0's tables as one .arrow file: a stream a table, one after another, named in the schema's metadata."""
    path = tmp_path_factory.mktemp("arrow") / "rank0.arrow"
    with path.open("wb") as file:
        for name, frame in frames(samples / "nsys-1f1b" / "rank0.parquetdir").items():
            table = frame.to_arrow().replace_schema_metadata({"table_name": name})
            with ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table)
    return path
