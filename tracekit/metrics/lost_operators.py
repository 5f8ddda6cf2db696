"""GPU work that is missing together with its launches: operators that launched something in steps of like work.

A profiler can lose both ends of a launch, the call and its kernel. Then only the operator around it is left. It is
compared with the other steps in which as many operators of its name ran: where each of them launched something in
most of these steps, one that launched nothing has lost its work.
"""

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools
from tracekit.metrics.host.events import QUEUED_PATTERN, NamedRows

MIN_UNLIKE_SHARE = 0.01
"""Share by which the launches of steps must differ, and of a step's operators that must have lost theirs."""
_OPERATOR_COLUMNS = ("name", "tid", "step", "start_ns", "end_ns")


def find_lost_operators(
    calls: NamedRows, labelled: pl.DataFrame, events: pl.DataFrame
) -> pl.DataFrame:
    """Return the operators whose launches are missing from a step, with ``operators``, those of the step that launch.

    Args:
        calls: The host's calls.
        labelled: GPU events with the operators that launched them (``op``).
        events: All events of the rank.

    >>> rows = [{"kind": "cpu_op", "name": "aten::mm", "tid": 1, "step": s, "start_ns": 10 * s, "end_ns": 10 * s + 5}
    ...         for s in (0, 1, 2)]
    >>> rows += [{"kind": "runtime", "name": "cudaLaunchKernel", "tid": 1, "step": s, "start_ns": 10 * s + 1}
    ...          for s in (0, 2)]
    >>> events = pl.DataFrame(rows)
    >>> calls = NamedRows(events.filter(kind="runtime"))
    >>> find_lost_operators(calls, pl.DataFrame({"op": ["aten::mm"]}), events).select("step", "start_ns").rows()
    [(1, 10)]
    """
    queued = calls.select(calls.named(QUEUED_PATTERN)).rows
    nothing = pl.DataFrame(
        schema={"step": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "operators": pl.UInt32}
    )
    launching = labelled["op"].unique().drop_nulls()
    if not len(launching) or not _have_unlike_launches(queued, events["step"]):
        return nothing
    is_launching = (pl.col("kind") == "cpu_op") & pl.col("name").cast(pl.String).is_in(
        launching.cast(pl.String).implode()
    )
    operators = events.filter(is_launching).select(_OPERATOR_COLUMNS).drop_nulls("step")
    operators = operators.with_columns(launches=pl.Series(_has_launch(operators, queued)))
    # Of each name in each step: how many ran, and whether each launched something.
    alike = operators.group_by("name", "step").agg(
        ran=pl.len(), all_launch=pl.col("launches").all()
    )
    steps_alike = alike.group_by("name", "ran").agg(
        launch_in_most=pl.col("all_launch").mean() >= 0.5
    )
    compared = operators.join(alike.select("name", "step", "ran"), on=["name", "step"]).join(
        steps_alike, on=["name", "ran"]
    )
    regular = compared.filter("launch_in_most").with_columns(operators=pl.len().over("step"))
    lost = regular.filter(~pl.col("launches"))
    is_notable = pl.len().over("step") > MIN_UNLIKE_SHARE * pl.col("operators")
    return (
        lost.filter(is_notable).select("step", "start_ns", "end_ns", "operators").sort("start_ns")
    )


def _have_unlike_launches(queued: pl.DataFrame, step_of_event: pl.Series) -> bool:
    """Return whether steps of the rank launched unlike numbers of GPU events."""
    counts = queued.drop_nulls("step").group_by("step").len()["len"].to_numpy()
    steps = step_of_event.drop_nulls().n_unique()
    if len(counts) < steps:
        return True
    if steps < 2:
        return False
    return bool(counts.max() - counts.min() > MIN_UNLIKE_SHARE * counts.max())


def _has_launch(operators: pl.DataFrame, queued: pl.DataFrame) -> Bools:
    """Return which operators have a launch on their thread while they run."""
    has_launch = np.zeros(len(operators), np.bool_)
    for (tid,), launches in queued.group_by("tid"):
        rows = np.flatnonzero((operators["tid"] == tid).fill_null(value=False).to_numpy())
        launch_ns = launches["start_ns"].sort().to_numpy()
        first = np.searchsorted(launch_ns, operators["start_ns"].to_numpy()[rows], side="left")
        behind = np.searchsorted(launch_ns, operators["end_ns"].to_numpy()[rows], side="right")
        has_launch[rows] = behind > first
    return has_launch
