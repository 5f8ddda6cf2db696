"""Events of one rank's host, split once: calls of the GPU's library, operators and ranges.

Names stay categorical; a pattern is tried once for each distinct name (``NamedRows.named``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints
from tracekit._util.categories import CategoryColumn, Query
from tracekit._util.columns import to_int64
from tracekit.classify.names import HOST_CALLS

LAUNCH_PATTERN = "|".join(HOST_CALLS[kind] for kind in ("launch_kernel", "launch_graph", "copy"))
"""Calls that put work on the GPU."""
BLOCKING_PATTERN = "|".join(HOST_CALLS[kind] for kind in ("synchronize", "blocking_copy"))
"""Calls in which the host waits until GPU work has ended."""
QUEUED_PATTERN = f"{LAUNCH_PATTERN}|{HOST_CALLS['memset']}"
"""Calls that put an entry into a queue of the GPU."""

API_CALL_COLUMNS = ("name", "tid", "correlation", "start_ns", "end_ns", "step")
"""Columns of the host's calls that metrics read; filtering fewer columns is faster."""
RANGE_COLUMNS = ("name", "tid", "start_ns", "end_ns")
"""Columns of its operators, ranges and frames that metrics read."""


@dataclass(frozen=True, eq=False)
class NamedRows:
    """Host events of one kind, with a categorical name each."""

    rows: pl.DataFrame

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def names(self) -> CategoryColumn:
        """Name of each event."""
        return CategoryColumn.from_series(self.rows["name"])

    @cached_property
    def tid(self) -> Ints:
        """Thread of each event; -1 where it is not known."""
        return to_int64(self.rows["tid"])

    @cached_property
    def threads(self) -> list[int]:
        """Threads that have any of the events, ascending."""
        return [int(tid) for tid in self.rows["tid"].drop_nulls().unique().sort().to_list()]

    def named(self, query: Query) -> Bools:
        """Return the mask of events whose name a pattern is found in, or is one of some words.

        >>> NamedRows(pl.DataFrame({"name": ["cudaFree", "cudaLaunchKernel"]})).named("Launch").tolist()
        [False, True]
        """
        return self.names.matches(query)

    def select(self, mask: Bools) -> NamedRows:
        """Return the events of a mask; the same object if that is all of them."""
        if mask.all():
            return self
        return NamedRows(self.rows.filter(pl.Series(mask)))

    def on_threads(self, threads: Ints) -> NamedRows:
        """Return the events of some threads."""
        return self.select(np.isin(self.tid, threads))


@dataclass(frozen=True, eq=False)
class HostEvents:
    """Events of one rank's host by kind, each in the order of the file."""

    calls: NamedRows
    """Calls of CUDA (or HIP), with ``API_CALL_COLUMNS``."""
    operators: NamedRows
    """Operators, and what PyTorch lists among them."""
    ranges: NamedRows
    """Annotations of the program and of the profiler, its marks of steps among them."""

    def on_threads(self, threads: Ints) -> HostEvents:
        """Return the events of some threads."""
        return HostEvents(
            calls=self.calls.on_threads(threads),
            operators=self.operators.on_threads(threads),
            ranges=self.ranges.on_threads(threads),
        )


def split_host_events(events: pl.DataFrame) -> HostEvents:
    """Split the host's events from all events of a rank.

    >>> from tracekit.schema import EVENTS, conform
    >>> events = pl.DataFrame({"kind": ["runtime", "cpu_op"], "name": ["cudaFree", "aten::mm"]})
    >>> host = split_host_events(conform(events, EVENTS))
    >>> host.calls.rows["name"].to_list(), host.operators.rows["name"].to_list(), len(host.ranges)
    (['cudaFree'], ['aten::mm'], 0)
    """
    return HostEvents(
        calls=find_calls(events),
        operators=_of_kinds(events, ["cpu_op"], RANGE_COLUMNS),
        ranges=_of_kinds(events, ["annotation"], RANGE_COLUMNS),
    )


def find_calls(events: pl.DataFrame) -> NamedRows:
    """Return the host's calls of CUDA (or HIP) among all events of a rank."""
    return _of_kinds(events, ["runtime", "driver"], API_CALL_COLUMNS)


def find_frames(events: pl.DataFrame) -> NamedRows:
    """Return the Python functions and the calls of modules among all events of a rank."""
    return _of_kinds(events, ["python"], RANGE_COLUMNS)


def _of_kinds(events: pl.DataFrame, kinds: list[str], columns: tuple[str, ...]) -> NamedRows:
    return NamedRows(events.select(columns).filter(events["kind"].is_in(kinds)))
