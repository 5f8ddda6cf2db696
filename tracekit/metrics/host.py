"""What the host told the GPU besides launching work: streams that wait for events, and calls that block the host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools
from tracekit._util.categories import CategoryColumn
from tracekit.intervals import Intervals, union

LAUNCHES = "LaunchKernel|LaunchCooperativeKernel|GraphLaunch|Memcpy"
"""Work is put on the GPU."""
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


@dataclass(frozen=True, eq=False)
class Api:
    """The host's calls of CUDA (or HIP), in the order of the file."""

    calls: pl.DataFrame

    @cached_property
    def names(self) -> CategoryColumn:
        """What each call is called."""
        return CategoryColumn.from_series(self.calls["name"])

    def named(self, pattern: str) -> Bools:
        """Return in which calls' names *pattern* is found.

        >>> Api(pl.DataFrame({"name": ["cudaFree", "cudaLaunchKernel"]})).named("Launch").tolist()
        [False, True]
        """
        return self.names.matches(pattern)


def api_calls(events: pl.DataFrame) -> Api:
    """Return the host's calls of CUDA (or HIP) among all events.

    >>> api_calls(pl.DataFrame({"kind": ["runtime", "cpu_op"], "name": ["cudaFree", "aten::mm"]})).calls.rows()
    [('runtime', 'cudaFree')]
    """
    known = [column for column in API_COLUMNS if column in events.columns]
    asked = events["kind"].is_in(["runtime", "driver"])
    calls = events.select(known)
    return Api(calls if asked.all() else calls.filter(asked))


def host_calls(api: Api) -> pl.DataFrame:
    """Return those of the host's calls that make a stream or the host wait, in order of time.

    >>> api = pl.DataFrame({"kind": ["runtime"] * 3, "tid": [1] * 3, "start_ns": [0, 5, 9], "end_ns": [1, 6, 20],
    ...     "name": ["cudaLaunchKernel", "cudaStreamWaitEvent", "cudaStreamSynchronize"]})
    >>> host_calls(Api(api)).select("name", "blocks").rows()
    [('cudaStreamWaitEvent', False), ('cudaStreamSynchronize', True)]
    """
    columns = ("name", "tid", "start_ns", "end_ns")
    if not set(columns) <= set(api.calls.columns):
        return CALLS.to_frame()
    rows = np.flatnonzero(api.named(f"{WAITS}|{BLOCKS}"))
    rows = rows[np.argsort(api.calls["start_ns"].to_numpy()[rows], kind="stable")]
    blocks = pl.Series("blocks", api.named(BLOCKS)[rows])
    return api.calls.select(columns)[rows].with_columns(pl.col("name").cast(pl.String), blocks)


def blocked(calls: pl.DataFrame) -> Intervals:
    """Return when the host stood still in a call that waits for the GPU."""
    rows = calls["blocks"].to_numpy()
    return union(calls["start_ns"].to_numpy()[rows], calls["end_ns"].to_numpy()[rows])
