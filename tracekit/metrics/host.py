"""What the host told the GPU besides launching work: streams that wait for events, and calls that block the host."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit._util.coded import Text
from tracekit.intervals import EMPTY, Intervals, union

WAITS = r"StreamWaitEvent"
"""A stream waits for an event of another stream; the host goes on."""
BLOCKS = (
    r"(Stream|Event|Device|Ctx)Synchronize"
    r"|^(cuda|hip)Memcpy(2D|3D|ToSymbol|FromSymbol)?$|^cuMemcpy(DtoH|HtoD|DtoD)?(_v2)?$"
)
"""The host stops until GPU work has ended."""

CALLS = pl.Schema({"name": pl.String(), "tid": pl.Int64(), "start_ns": pl.Int64(), "end_ns": pl.Int64(),
                   "blocks": pl.Boolean()})  # fmt: skip


API_COLUMNS = ("kind", "name", "tid", "correlation", "start_ns", "end_ns", "step")
"""What the metrics ask of the host's calls of CUDA; a table of fewer columns is cut faster."""


def api_calls(events: pl.DataFrame) -> pl.DataFrame:
    """Return the host's calls of CUDA (or HIP), in the order of the file.

    >>> api_calls(pl.DataFrame({"kind": ["runtime", "cpu_op"], "name": ["cudaFree", "aten::mm"]})).rows()
    [('runtime', 'cudaFree')]
    """
    known = [column for column in API_COLUMNS if column in events.columns]
    asked = events["kind"].is_in(["runtime", "driver"])
    calls = events.select(known)
    return calls if asked.all() else calls.filter(asked)


def calls_named(calls: pl.DataFrame, pattern: str) -> pl.DataFrame:
    """Return the calls in whose name *pattern* is found.

    >>> calls_named(pl.DataFrame({"name": ["cudaFree", "cudaLaunchKernel"]}), "Launch").rows()
    [('cudaLaunchKernel',)]
    """
    return calls.filter(pl.Series(Text.of(calls["name"]).matches(pattern), dtype=pl.Boolean))


def host_calls(api: pl.DataFrame) -> pl.DataFrame:
    """Return those of the host's calls (``api_calls``) that make a stream or the host wait, in order of time.

    >>> api = pl.DataFrame({"kind": ["runtime"] * 3, "tid": [1] * 3, "start_ns": [0, 5, 9], "end_ns": [1, 6, 20],
    ...     "name": ["cudaLaunchKernel", "cudaStreamWaitEvent", "cudaStreamSynchronize"]})
    >>> host_calls(api).select("name", "blocks").rows()
    [('cudaStreamWaitEvent', False), ('cudaStreamSynchronize', True)]
    """
    columns = ("name", "tid", "start_ns", "end_ns")
    if not set(columns) <= set(api.columns):
        return CALLS.to_frame()
    calls = calls_named(api.select(columns), f"{WAITS}|{BLOCKS}")
    if calls.is_empty():
        return CALLS.to_frame()
    blocks = pl.Series(Text.of(calls["name"]).matches(BLOCKS))
    return calls.with_columns(pl.col("name").cast(pl.String), blocks=blocks).sort("start_ns")


def blocked(calls: pl.DataFrame) -> Intervals:
    """Return when the host stood still in a call that waits for the GPU."""
    rows = calls.filter("blocks")
    if rows.is_empty():
        return EMPTY
    return union(rows["start_ns"].to_numpy().astype(np.int64), rows["end_ns"].to_numpy())
