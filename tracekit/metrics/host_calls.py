"""CUDA (or HIP) calls of the host: launches, streams told to wait for events, and calls that block the host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools
from tracekit._util.categories import CategoryColumn
from tracekit.intervals import Intervals, union

LAUNCH_PATTERN = "LaunchKernel|LaunchCooperativeKernel|GraphLaunch|Memcpy"
"""Calls that put work on the GPU."""
WAIT_PATTERN = r"StreamWaitEvent"
"""Calls that make a stream wait for an event of another stream; the host continues."""
BLOCKING_PATTERN = (
    r"(Stream|Event|Device|Ctx)Synchronize"
    r"|^(cuda|hip)Memcpy(2D|3D|ToSymbol|FromSymbol)?$|^cuMemcpy(DtoH|HtoD|DtoD)?(_v2)?$"
)
"""Calls in which the host waits until GPU work has ended."""
ASYNC_COPY_PATTERN = r"Memcpy\w*Async"
"""Calls that return at once, unless the copy's memory on the host is pageable."""

WAITING_CALLS = pl.Schema(
    {
        "name": pl.String(),
        "tid": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "blocks": pl.Boolean(),  # the host waits; else a stream does
    }
)
API_COLUMNS = ("kind", "name", "tid", "correlation", "start_ns", "end_ns", "step")
"""Columns of the host's calls that metrics read; filtering fewer columns is faster."""


@dataclass(frozen=True, eq=False)
class ApiCalls:
    """The host's calls of CUDA (or HIP), in the order of the file."""

    calls: pl.DataFrame

    @cached_property
    def names(self) -> CategoryColumn:
        """Name of each call."""
        return CategoryColumn.from_series(self.calls["name"])

    def named(self, pattern: str) -> Bools:
        """Return the mask of calls in whose name *pattern* is found.

        >>> ApiCalls(pl.DataFrame({"name": ["cudaFree", "cudaLaunchKernel"]})).named("Launch").tolist()
        [False, True]
        """
        return self.names.matches(pattern)


def find_api_calls(events: pl.DataFrame) -> ApiCalls:
    """Return the host's calls of CUDA (or HIP) among all events.

    >>> events = pl.DataFrame({"kind": ["runtime", "cpu_op"], "name": ["cudaFree", "aten::mm"]})
    >>> find_api_calls(events).calls.rows()
    [('runtime', 'cudaFree')]
    """
    columns = [column for column in API_COLUMNS if column in events.columns]
    return ApiCalls(events.select(columns).filter(events["kind"].is_in(["runtime", "driver"])))


def find_waiting_calls(api: ApiCalls, gpu_events: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return the calls that make a stream or the host wait (``WAITING_CALLS``), in order of start.

    Args:
        api: The host's calls.
        gpu_events: GPU events of the rank, to see which asynchronous copies made the host wait; None: none did.

    >>> api = pl.DataFrame({"kind": ["runtime"] * 3, "tid": [1] * 3, "start_ns": [0, 5, 9], "end_ns": [1, 6, 20],
    ...     "name": ["cudaLaunchKernel", "cudaStreamWaitEvent", "cudaStreamSynchronize"]})
    >>> find_waiting_calls(ApiCalls(api)).select("name", "blocks").rows()
    [('cudaStreamWaitEvent', False), ('cudaStreamSynchronize', True)]
    """
    columns = ("name", "tid", "start_ns", "end_ns")
    if not set(columns) <= set(api.calls.columns):
        return WAITING_CALLS.to_frame()
    blocks = api.named(BLOCKING_PATTERN)
    if gpu_events is not None:
        blocks = blocks | _is_pageable_copy(api, gpu_events)
    rows = np.flatnonzero(api.named(WAIT_PATTERN) | blocks)
    rows = rows[np.argsort(api.calls["start_ns"].to_numpy()[rows], kind="stable")]
    return api.calls.select(columns)[rows].with_columns(pl.col("name").cast(pl.String), blocks=pl.Series(blocks[rows]))


def _is_pageable_copy(api: ApiCalls, gpu_events: pl.DataFrame) -> Bools:
    """Return the calls of copies from or to pageable memory that returned only after the copy had begun.

    Such a copy needs the host. The call stands still until the stream has reached it: it waits for the work before.
    """
    copies = CategoryColumn.from_series(gpu_events["name"]).matches("(?i)pageable")
    if not copies.any() or not {"correlation", "name"} <= set(api.calls.columns):
        return np.zeros(len(api.calls), np.bool_)
    begun = gpu_events.select("correlation", copy_start_ns="start_ns").filter(pl.Series(copies)).drop_nulls()
    joined = api.calls.select("correlation", "end_ns").join(
        begun.unique("correlation"), on="correlation", how="left", maintain_order="left"
    )
    waited: Bools = (joined["end_ns"] >= joined["copy_start_ns"]).fill_null(False).to_numpy()
    return waited & api.named(ASYNC_COPY_PATTERN)


def find_blocked_time(calls: pl.DataFrame) -> Intervals:
    """Return when the host was inside a call that waits for the GPU; *calls* are ``WAITING_CALLS``."""
    blocks = calls["blocks"].to_numpy()
    return union(calls["start_ns"].to_numpy()[blocks], calls["end_ns"].to_numpy()[blocks])
