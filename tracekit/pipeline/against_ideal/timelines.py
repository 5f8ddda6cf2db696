"""Timelines of operations held against their ideal, and against an ideal of average durations.

Beside tracekit's own ideal, which has the run's durations and free messages, stands the one that is
published with such timelines: one average duration for all operations of a kind, messages included.
"""

from pathlib import Path

import msgspec
import polars as pl

from tracekit.errors import InputError, Notice
from tracekit.parsers.operation_timeline import (
    CELL_OPERATIONS,
    MESSAGE_OPERATIONS,
    read_operation_timeline,
)
from tracekit.pipeline.against_ideal.compare_run import compare_pipelines
from tracekit.pipeline.against_ideal.comparison import ScheduleComparison
from tracekit.pipeline.reconstruct.operation_timelines import pipelines_of_operations
from tracekit.pipeline.schedules import Times, simulate

RECEIVES = tuple(name for name in MESSAGE_OPERATIONS if name.endswith("-recv"))
"""Messages whose end lets the next operation start."""


class TimelineComparison(msgspec.Struct, frozen=True, eq=False):
    """A timeline of operations held against its ideal."""

    comparison: ScheduleComparison
    """Every pipeline and step with its ideal and gap, as for any run."""
    times: Times
    """Average durations in ns: the mean of forwards and of backwards, the median of messages."""
    average_ideal_ns: int
    """Makespan of the schedule with these averages."""
    left_out: int
    """Operations of the file that end before they start."""
    notices: tuple[Notice, ...] = ()


def compare_timeline(path: str | Path, *, schedule: str = "auto") -> TimelineComparison:
    """Compare a timeline of operations (see ``parsers.operation_timeline``) with the ideal of its schedule.

    Args:
        path: JSON file, plain or gzip.
        schedule: ``auto``, a schedule's name or a file of orders.
    """
    timeline = read_operation_timeline(path)
    comparison, notices = compare_pipelines(
        pipelines_of_operations(timeline.operations), schedule=schedule
    )
    if comparison is None:
        reason = notices[-1] if notices else None
        detail = "" if reason else ": no step has all operations"
        problem = f"{path}: no schedule was recognised{detail}"
        raise InputError(problem, hint="name one with schedule=", notice=reason)
    times = average_times(timeline.operations)
    ran = comparison.head.match.ran or comparison.head.match.schedule
    return TimelineComparison(
        comparison=comparison,
        times=times,
        average_ideal_ns=round(simulate(ran, times).makespan),
        left_out=timeline.left_out,
        notices=notices,
    )


def average_times(operations: pl.DataFrame) -> Times:
    """Return one duration in ns for all forwards, for all backwards and for all messages.

    Computation takes its mean, which keeps the sum of all work; messages their median, because a
    message that waits for its other side says nothing about the transfer.

    >>> rows = {"name": ["forward-compute", "forward-compute", "backward-compute", "forward-recv"]}
    >>> average_times(pl.DataFrame({**rows, "start_ns": [0, 0, 0, 0], "end_ns": [2, 4, 8, 1]})).scalars()["F"]
    3.0
    """
    duration = pl.col("end_ns") - pl.col("start_ns")
    means = dict(operations.group_by("name").agg(duration.mean()).iter_rows())
    forward, backward = (means.get(name) for name in CELL_OPERATIONS)
    message = operations.filter(pl.col("name").is_in(RECEIVES)).select(duration.median()).item()
    return Times(F=forward, B=backward, P2P=message or 0)
