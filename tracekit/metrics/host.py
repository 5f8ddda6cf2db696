"""What the host told the GPU besides launching work: streams that wait for events, and calls that block the host."""

from __future__ import annotations

import numpy as np
import polars as pl

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


def host_calls(events: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of one rank that make a stream or the host wait, in order of time.

    >>> events = pl.DataFrame({"kind": ["runtime"] * 3, "tid": [1] * 3, "start_ns": [0, 5, 9], "end_ns": [1, 6, 20],
    ...     "name": ["cudaLaunchKernel", "cudaStreamWaitEvent", "cudaStreamSynchronize"]})
    >>> host_calls(events).select("name", "blocks").rows()
    [('cudaStreamWaitEvent', False), ('cudaStreamSynchronize', True)]
    """
    columns = {"kind", "name", "tid", "start_ns", "end_ns"}
    if not columns <= set(events.columns):
        return CALLS.to_frame()
    wanted = pl.col("kind").is_in(["runtime", "driver"])
    calls = events.lazy().filter(wanted).select("name", "tid", "start_ns", "end_ns").collect()
    names = calls["name"].unique().cast(pl.String).drop_nulls()
    waits = names.filter(names.str.contains(WAITS))
    blocks = names.filter(names.str.contains(BLOCKS))
    every = waits.append(blocks).to_list()
    if not every:
        return CALLS.to_frame()
    return (
        calls.filter(pl.col("name").is_in(every))
        .with_columns(pl.col("name").cast(pl.String))
        .with_columns(blocks=pl.col("name").is_in(blocks.to_list()))
        .sort("start_ns")
    )


def blocked(calls: pl.DataFrame) -> Intervals:
    """Return when the host stood still in a call that waits for the GPU."""
    rows = calls.filter("blocks")
    if rows.is_empty():
        return EMPTY
    return union(rows["start_ns"].to_numpy().astype(np.int64), rows["end_ns"].to_numpy())
