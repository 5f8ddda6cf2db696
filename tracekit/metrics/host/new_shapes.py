"""Operators that take many times their usual time on the host whenever their inputs have a new shape.

Libraries that choose or build a kernel for each shape (a plan of cuDNN, a search for the fastest
convolution) do so when they first see it. A sequence that grows by one token has a new shape in every
step.
"""

from __future__ import annotations

from collections.abc import Collection

import polars as pl

from tracekit.classify.names import HOST_ACTIVITIES
from tracekit.intervals import Intervals, union_of
from tracekit.metrics.host.stalls import (
    MAX_SHARE_IN_CALLS,
    MIN_CALLS,
    MIN_STALL_NS,
    MIN_TIMES_MEDIAN,
)

MIN_SLOW_SHAPES = 2
"""Shapes on whose first call an operator must be slow: a single slow call may be the first of all."""
MIN_SHARE_OF_NEW_SHAPES = 0.9
"""Share of an operator's slow calls that have a new shape, from which that is the reason."""


def find_new_shapes(events: pl.DataFrame, launching: Collection[str]) -> dict[str, Intervals]:
    """Return by operator when it took longer than usual on shapes that it had not seen before.

    Args:
        events: The rank's events.
        launching: Operators that launch GPU work: others may compute on the CPU.

    >>> starts = [0, 10_000_000, 20_000_000, 30_000_000, 40_000_000, 50_000_000]
    >>> ends = [start + (5_000_000 if number % 3 == 0 else 1_000) for number, start in enumerate(starts)]
    >>> shapes = ["[[1,8]]"] * 3 + ["[[1,9]]"] * 3
    >>> events = pl.DataFrame({"kind": "cpu_op", "name": "aten::conv", "shapes": shapes, "start_ns": starts,
    ...                        "end_ns": ends})
    >>> {op: slow.total_ns for op, slow in find_new_shapes(events, ["aten::conv"]).items()}
    {'aten::conv': 9998000}
    """
    ns = pl.col("end_ns") - pl.col("start_ns")
    is_op = pl.col("kind") == "cpu_op"
    # Only the few operators that ever take long are compared with their usual time.
    times = events.select("kind", "name", "start_ns", "end_ns")
    long_names = times.filter(is_op & (ns >= MIN_STALL_NS))["name"].unique().to_frame("name")
    name = pl.col("name").cast(pl.String)
    eligible = name.is_in(list(launching)) & ~name.str.contains(HOST_ACTIVITIES["compile"])
    names = long_names.filter(eligible)["name"]
    if names.is_empty():
        return {}
    calls = (
        events.filter(is_op & pl.col("name").is_in(names.implode()))
        .select("name", "shapes", "start_ns", "end_ns", ns=ns)
        .sort("start_ns")
        .with_columns(
            usual_ns=pl.col("ns").median().over("name"),
            count=pl.len().over("name"),
            is_new=pl.struct("name", "shapes").is_first_distinct(),
        )
    )
    is_slow = (
        (pl.col("ns") >= MIN_STALL_NS)
        & (pl.col("ns") > MIN_TIMES_MEDIAN * pl.col("usual_ns"))
        & (pl.col("count") >= MIN_CALLS)
    )
    has_new_shape = pl.col("is_new") & pl.col("shapes").is_not_null()
    slow = calls.filter(is_slow).filter(
        (has_new_shape.mean().over("name") >= MIN_SHARE_OF_NEW_SHAPES)
        & (pl.col("shapes").n_unique().over("name") >= MIN_SLOW_SHAPES)
    )
    if slow.is_empty():
        return {}
    is_call = pl.col("kind").is_in(["runtime", "driver"])
    long_calls = events.filter(is_call & (ns >= MIN_STALL_NS / 2))
    in_calls_ns = union_of(long_calls.select("start_ns", "end_ns")).covered_ns(
        slow["start_ns"].to_numpy(), slow["end_ns"].to_numpy()
    )
    slow = slow.filter(pl.Series(in_calls_ns) <= MAX_SHARE_IN_CALLS * slow["ns"])
    longer = slow.with_columns(
        start_ns=pl.col("start_ns") + pl.col("usual_ns").round().cast(pl.Int64)
    )
    return {
        str(op): union_of(of_op) for (op,), of_op in longer.group_by("name", maintain_order=True)
    }
