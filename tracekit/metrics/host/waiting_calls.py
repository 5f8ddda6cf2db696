"""Calls of the host that wait: streams told to wait for events, and calls that block the host."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, SortedGroups, find_sorted, take_or_missing
from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import NULL_INT64, present, to_int64, with_nulls
from tracekit.classify.names import HOST_ACTIVITIES, HOST_CALLS
from tracekit.intervals import Intervals, union_of
from tracekit.metrics.host.events import BLOCKING_PATTERN, QUEUED_PATTERN, NamedRows

MIN_SLOW_LAUNCH_NS = 100_000
"""A launch call takes microseconds. One that takes longer than this also did something else, such
as loading code."""
FULL_QUEUE_LAUNCHES = 512
"""Launches whose work has not started, from which on a slow launch call is taken to wait for room in the queue.

CUDA's queue of a stream has 1,024 entries; records of events and waits for them take entries as
well, and are not counted. With so much work before it, a launch is early by any measure.
"""
MIN_LOADER_WAIT_NS = 500_000
"""Time in which a loader with workers hands a batch over, from which on the batch was not there: taking
one from the thread that pins them takes 40 to 100 µs."""
MAX_TENSOR_HANDOVER_NS = 5_000_000
"""Time in which a worker hands the shared memory of a tensor over, where the main process asks it itself: the
worker's thread for that waits for Python's lock for up to its switch interval (``sys.getswitchinterval``) while
the worker prepares its next batch. It took 0.3 to 1.1 ms in 11 batches."""

WAITING_CALLS = pl.Schema(
    {
        "name": pl.String(),
        "tid": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "blocks": pl.Boolean(),  # the host waits; else a stream does
        "for_room": pl.Boolean(),  # the host waits for room in the launch queue
    }
)


def find_waiting_calls(
    calls: NamedRows,
    gpu_events: pl.DataFrame | None = None,
    *,
    in_full_queue: Bools | None = None,
) -> pl.DataFrame:
    """Return the calls that make a stream or the host wait (``WAITING_CALLS``), in order of start.

    Args:
        calls: The host's calls.
        gpu_events: GPU events of the rank, to see which asynchronous copies made the host wait;
            None: none did.
        in_full_queue: Launch calls that waited for room in the queue; by default those that
            ``waits_for_queue`` finds.

    >>> rows = pl.DataFrame({"kind": ["runtime"] * 3, "tid": [1] * 3, "start_ns": [0, 5, 9], "end_ns": [1, 6, 20],
    ...     "name": ["cudaLaunchKernel", "cudaStreamWaitEvent", "cudaStreamSynchronize"]})
    >>> find_waiting_calls(NamedRows(rows)).select("name", "blocks").rows()
    [('cudaStreamWaitEvent', False), ('cudaStreamSynchronize', True)]
    """
    columns = ("name", "tid", "start_ns", "end_ns")
    blocks = calls.named(BLOCKING_PATTERN)
    for_room = np.zeros(len(calls), np.bool_)
    if gpu_events is not None:
        for_room = waits_for_queue(calls, gpu_events) if in_full_queue is None else in_full_queue
        blocks = blocks | _is_pageable_copy(calls, gpu_events) | for_room
    rows = np.flatnonzero(calls.named(HOST_CALLS["stream_wait"]) | blocks)
    rows = rows[np.argsort(calls.rows["start_ns"].to_numpy()[rows], kind="stable")]
    return calls.rows.select(columns)[rows].with_columns(
        pl.col("name").cast(pl.String),
        blocks=pl.Series(blocks[rows]),
        for_room=pl.Series(for_room[rows]),
    )


def find_loader_waits(ranges: NamedRows, operators: NamedRows) -> Intervals:
    """Return when the host waited for batches that other processes prepare.

    A batch that is there is taken at once by a loader with a thread that pins memory. Without that thread the
    main process builds the batch's tensors itself, in operators inside the loader's range: it waited for the
    batch only if the first of them comes later than a worker takes to hand a tensor over. The loader's own
    work in the main process is no wait.

    Args:
        ranges: Ranges of the threads that launch GPU work.
        operators: Operators of these threads.

    >>> rows = {"name": ["enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"] * 3, "tid": [1] * 3,
    ...         "start_ns": [0, 9_000_000, 20_000_000], "end_ns": [50_000, 12_000_000, 21_400_000]}
    >>> rebuilt = {"name": ["aten::set_"], "tid": [1], "start_ns": [20_900_000], "end_ns": [20_910_000]}
    >>> operators = NamedRows(pl.DataFrame(rebuilt))
    >>> find_loader_waits(NamedRows(pl.DataFrame(rows)), operators).to_frame().rows()
    [(0, 9000000, 12000000)]
    """
    asked = ranges.select(ranges.named(HOST_ACTIVITIES["loader_with_workers"])).rows
    asked = asked.select("tid", "start_ns", "end_ns").with_row_index("range").sort("start_ns")
    first_operator = (
        operators.rows.select("tid", operator_ns="start_ns")
        .sort("operator_ns")
        .join_asof(
            asked, left_on="operator_ns", right_on="start_ns", by="tid", check_sortedness=False
        )
        .filter(pl.col("operator_ns") < pl.col("end_ns"))
        .group_by("range")
        .agg(pl.col("operator_ns").min())
    )
    asked = asked.join(first_operator, on="range", how="left", maintain_order="left")
    takes_long = pl.col("end_ns") - pl.col("start_ns") >= MIN_LOADER_WAIT_NS
    is_awaited = pl.col("operator_ns") - pl.col("start_ns") >= MAX_TENSOR_HANDOVER_NS
    return union_of(asked.filter(takes_long & is_awaited.fill_null(True)))


def _is_pageable_copy(calls: NamedRows, gpu_events: pl.DataFrame) -> Bools:
    """Return the asynchronous copies from or to pageable memory whose call returned only after the copy had begun.

    Such a copy needs the host. The call stands still until the stream has reached it: it waits for
    the work before.
    """
    copies = CategoryColumn.from_series(gpu_events["name"]).matches("(?i)pageable")
    if not copies.any():
        return np.zeros(len(calls), np.bool_)
    begun = (
        gpu_events.select("correlation", copy_start_ns="start_ns")
        .filter(pl.Series(copies))
        .drop_nulls()
    )
    joined = calls.rows.select("correlation", "end_ns").join(
        begun.unique("correlation"), on="correlation", how="left", maintain_order="left"
    )
    waited: Bools = (joined["end_ns"] >= joined["copy_start_ns"]).fill_null(False).to_numpy()
    return waited & calls.named(HOST_CALLS["async_copy"])


def waits_for_queue(calls: NamedRows, gpu_events: pl.DataFrame) -> Bools:
    """Return the launch calls that stood still because the GPU's queue was full."""
    is_queued = calls.named(QUEUED_PATTERN)
    start_ns = calls.rows["start_ns"].to_numpy()
    is_slow: Bools = is_queued & (calls.rows["end_ns"].to_numpy() - start_ns > MIN_SLOW_LAUNCH_NS)
    if not is_slow.any():
        return is_slow
    # When the work of each launch call began.
    correlation = to_int64(gpu_events["correlation"], NULL_INT64)
    by_correlation = np.argsort(correlation, kind="stable")
    work = SortedGroups.of(correlation[by_correlation])
    begin_ns = work.lowest(gpu_events["start_ns"].to_numpy()[by_correlation])
    launches = np.flatnonzero(is_queued & present(calls.rows["correlation"]))
    work_of_launch = find_sorted(
        to_int64(calls.rows["correlation"])[launches], correlation[by_correlation][work.first]
    )
    has_work = work_of_launch >= 0
    # Launches of all streams before the call whose work had not begun: those launched less those
    # begun before it.
    launched = np.searchsorted(np.sort(start_ns[launches[has_work]]), start_ns[is_slow])
    begun = np.searchsorted(np.sort(begin_ns[work_of_launch[has_work]]), start_ns[is_slow])
    waits = is_slow.copy()
    waits[is_slow] = launched - begun >= FULL_QUEUE_LAUNCHES
    return waits


def add_time_inside_launches(
    calls: NamedRows, labelled: pl.DataFrame, gaps: pl.DataFrame
) -> pl.DataFrame:
    """Return the gaps with ``inside_launch_ns``: idle time inside the launch call of the event that ended the gap.

    That time is the host's: it moves from ``dependency_ns`` to ``launch_bound_ns``, unless it is
    ``warm_up_ns``.

    >>> calls = NamedRows(pl.DataFrame({"correlation": [7], "end_ns": [90]}))
    >>> gaps = pl.DataFrame({"start_ns": [5], "end_ns": [95], "launch_bound_ns": [75], "dependency_ns": [15],
    ...                      "warm_up_ns": [0], "next": [0]})
    >>> with_calls = add_time_inside_launches(calls, pl.DataFrame({"correlation": [7]}), gaps)
    >>> with_calls.select("inside_launch_ns", "launch_bound_ns", "dependency_ns").row(0)
    (10, 85, 5)
    """
    if gaps.is_empty():
        return gaps.with_columns(inside_launch_ns=pl.lit(0, pl.Int64))
    # When the call of each launch returned. A call inside another has the same correlation: the
    # outer one returns last, and counts.
    correlation = to_int64(calls.rows["correlation"])
    with_number = np.flatnonzero(correlation >= 0)
    by_correlation = with_number[np.argsort(correlation[with_number], kind="stable")]
    launches = SortedGroups.of(correlation[by_correlation])
    return_ns = launches.highest(calls.rows["end_ns"].to_numpy()[by_correlation])
    ended_by = to_int64(labelled["correlation"])[gaps["next"].to_numpy()]
    launch = find_sorted(ended_by, correlation[by_correlation][launches.first])
    returned = with_nulls(take_or_missing(return_ns, launch), launch >= 0).alias("returned")
    inside_ns = (
        pl.min_horizontal("returned", "end_ns") - pl.col("start_ns") - pl.col("launch_bound_ns")
    )
    is_known = pl.col("returned").is_not_null()
    with_returns = gaps.with_columns(returned).with_columns(
        inside_launch_ns=pl.when(is_known).then(inside_ns.clip(0)).otherwise(0)
    )
    moved_ns = pl.min_horizontal(
        pl.col("inside_launch_ns") - pl.col("warm_up_ns"), "dependency_ns"
    ).clip(0)
    return with_returns.with_columns(
        launch_bound_ns=pl.col("launch_bound_ns") + moved_ns,
        dependency_ns=pl.col("dependency_ns") - moved_ns,
    ).drop("returned")
