"""Stalls of the host: short operators that take many times their usual time again and again.

A thread that the system takes off its core stands still wherever it is, also in operators that do
next to nothing. So a stall is an operator that takes at least a millisecond and many times its median
while no call of the GPU's library inside it does. Stalls of several operators mean that other
processes or threads share the cores.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import polars as pl

from tracekit.classify.names import HOST_ACTIVITIES
from tracekit.intervals import Intervals, union, union_of

MIN_STALL_NS = 1_000_000
"""Time of a stall: the system's shares of a core are a few milliseconds."""
MAX_STALL_NS = 200_000_000
"""Time of a stall, at most: what takes longer has a reason of its own."""
MIN_TIMES_MEDIAN = 20
"""Duration of a stalled operator over the median of its name."""
MIN_CALLS = 4
"""Calls of an operator from which its usual duration is known."""
MIN_STALLED_OPERATORS = 3
"""Different operators that must stall: one alone has a reason of its own."""
MIN_STALLED_BOOKS = 2
"""Stalls of operators that only keep books (views, transposes), which nothing but the system can delay."""
MAX_SHARE_IN_CALLS = 0.5
"""Share of a stall inside long calls of the GPU's library, from which these are the reason."""


def find_stalls(events: pl.DataFrame, launching: Collection[str] = ()) -> Intervals:
    """Return when the host stood still, of one rank's events; nothing if it did so in few operators only.

    Args:
        events: The rank's events.
        launching: Operators that launch GPU work. These and operators that only keep books take the
            same time whatever their sizes; others may compute on the CPU.

    >>> names = ["aten::view", "aten::t", "aten::detach"] * 5
    >>> starts = [number * 10_000_000 for number in range(15)]
    >>> ends = [start + (5_000_000 if number < 3 else 1_000) for number, start in enumerate(starts)]
    >>> events = pl.DataFrame({"kind": "cpu_op", "name": names, "tid": 1, "start_ns": starts, "end_ns": ends})
    >>> find_stalls(events).total_ns
    15000000
    """
    nothing = union(np.zeros(0, np.int64), np.zeros(0, np.int64))
    ns = pl.col("end_ns") - pl.col("start_ns")
    columns = events.select("kind", "name", "tid", "start_ns", "end_ns")
    is_op = pl.col("kind") == "cpu_op"
    # Only the few operators that ever take long are compared with their usual time.
    long_ops = columns.filter(is_op & (ns >= MIN_STALL_NS))
    names = long_ops["name"].unique()
    if names.is_empty():
        return nothing
    name = pl.col("name").cast(pl.String)
    keeps_books = name.str.contains(HOST_ACTIVITIES["bookkeeping"])
    compiling = long_ops.filter(name.str.contains(HOST_ACTIVITIES["compile"]))
    eligible = names.to_frame("name").filter(keeps_books | name.is_in(list(launching)))["name"]
    ops = columns.filter(is_op & pl.col("name").is_in(eligible.implode())).with_columns(ns=ns)
    usual_ns = pl.col("ns").median().over("name")
    is_stalled = (
        pl.col("ns").is_between(MIN_STALL_NS, MAX_STALL_NS)
        & (pl.col("ns") > MIN_TIMES_MEDIAN * usual_ns)
        & (pl.len().over("name") >= MIN_CALLS)
    )
    stalled = ops.filter(is_stalled)
    in_compilation = union(compiling["start_ns"].to_numpy(), compiling["end_ns"].to_numpy())
    if stalled.height:
        in_ns = in_compilation.covered_ns(
            stalled["start_ns"].to_numpy(), stalled["end_ns"].to_numpy()
        )
        stalled = stalled.filter(pl.Series(in_ns) == 0)
    if stalled.is_empty():
        return nothing
    is_call = pl.col("kind").is_in(["runtime", "driver"])
    calls = columns.filter(is_call & (ns >= MIN_STALL_NS / 2))
    in_calls = union(calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy())
    covered_ns = in_calls.covered_ns(stalled["start_ns"].to_numpy(), stalled["end_ns"].to_numpy())
    stalled = stalled.filter(pl.Series(covered_ns) <= MAX_SHARE_IN_CALLS * stalled["ns"])
    # The operators around a stalled one stall with it: the innermost tells which and when.
    ordered = stalled.sort("tid", "start_ns", -pl.col("end_ns"))
    contains_next = (pl.col("start_ns").shift(-1).over("tid") < pl.col("end_ns")).fill_null(
        value=False
    )
    innermost = ordered.filter(~contains_next)
    idle_work = innermost.filter(keeps_books).height
    if innermost["name"].n_unique() < MIN_STALLED_OPERATORS or idle_work < MIN_STALLED_BOOKS:
        return nothing
    gaps = _long_gaps(columns)
    standing_still = union_of(gaps) & _without_any_event(columns)
    return union_of(stalled) | standing_still


def _long_gaps(host: pl.DataFrame) -> pl.DataFrame:
    """Return the time between recorded events of a thread that is many times the usual one."""
    until = pl.col("end_ns").cum_max().shift(1).over("tid")
    gaps = (
        host.sort("tid", "start_ns")
        .select("tid", end_ns="start_ns", start_ns=until)
        .drop_nulls()
        .with_columns(ns=pl.col("end_ns") - pl.col("start_ns"))
        .filter(pl.col("ns") > 0)
    )
    usual_ns = pl.col("ns").median().over("tid")
    is_long = pl.col("ns").is_between(MIN_STALL_NS, MAX_STALL_NS) & (
        pl.col("ns") > MIN_TIMES_MEDIAN * usual_ns
    )
    return gaps.filter(is_long)


def _without_any_event(host: pl.DataFrame) -> Intervals:
    """Return the stretches, at least as long as a stall, in which no event of any thread starts or ends.

    A thread that waits while another one works stands still for a reason.
    """
    times = np.unique(np.concatenate([host["start_ns"].to_numpy(), host["end_ns"].to_numpy()]))
    is_long = np.diff(times) >= MIN_STALL_NS
    return union(times[:-1][is_long], times[1:][is_long])
