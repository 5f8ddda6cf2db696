"""Start constraints: the last thing that had to happen before each GPU event could start.

A trace says when events ran and when they were launched; it seldom says which event waited for
which. Of everything that must happen before an event starts, the last to happen is what held it
back:

``stream``
    the previous event on its stream ended;
``launch``
    it was launched;
``other``
    work on another stream ended, while its own stream was free and it had been launched already;
``nothing``
    none of these is in the trace.

Where the last of them lies long before the start, something held the event back that the trace does
not show: the constraint is then not certain. Every event is held back by at most one other, so that
following constraints back from an event is a walk without choices.
"""

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.arrays import Bools, Ints, SortedGroups
from tracekit._util.columns import present, to_int64
from tracekit.metrics.label_intervals import COMPUTE_SET, has_label, label_codes

CONSTRAINT_KINDS = ("nothing", "stream", "launch", "other")
NOTHING, STREAM, LAUNCH, OTHER_STREAM = range(len(CONSTRAINT_KINDS))

MAX_BACK_TO_BACK_NS = 5_000
"""Longest time between two events of a stream for which the second waited for nothing but the
first."""
MAX_REACTION_NS = 100_000
"""Longest time from what held an event back (an end, a launch call) to the event's start; beyond,
it was not that."""
END_TOLERANCE_NS = 1_000
"""Ends are recorded late by at most this: work that starts earlier than this before an end did not
wait for it."""
_NEVER = np.iinfo(np.int64).min // 4
"""Earlier than every time of a trace; differences with it do not overflow."""


class StartConstraints(msgspec.Struct, frozen=True, eq=False):
    """The start constraint of each row of a labelled table."""

    kind: npt.NDArray[np.int8]
    """Index in ``CONSTRAINT_KINDS``."""
    blocker: Ints
    """Row of the GPU event that held it back; -1 if none did."""
    since_ns: Ints
    """End of the blocker, or time of the launch; the event's own start if there is no
    constraint."""
    is_certain: Bools
    """Whether the event started within ``MAX_REACTION_NS`` of the constraint."""
    stream: Ints
    """Number of its stream, from 0; streams of different devices differ."""
    may_wait: Bools
    """Whether its stream may have been told to wait since the previous event on the stream was
    launched."""


def find_start_constraints(
    labelled: pl.DataFrame, wait_calls_ns: Ints | None = None
) -> StartConstraints:
    """Return the start constraint of each GPU event of one rank.

    Args:
        labelled: GPU events of one rank.
        wait_calls_ns: When the host told a stream to wait for another, ascending; None or empty if
            not recorded.

    >>> from tracekit.schema import LABELLED, conform
    >>> events = {"label": "forward", "stream": [7, 9, 7], "start_ns": [0, 0, 100_000],
    ...           "end_ns": [20_000, 98_000, 110_000], "launch_ns": [-9_000, -9_000, 5_000]}
    >>> constraints = find_start_constraints(conform(pl.DataFrame(events), LABELLED))
    >>> [CONSTRAINT_KINDS[kind] for kind in constraints.kind], constraints.blocker.tolist()
    (['launch', 'launch', 'other'], [-1, -1, 1])

    """
    start = labelled["start_ns"].to_numpy()
    end = labelled["end_ns"].to_numpy()
    launch = to_int64(labelled["launch_ns"], 0)
    has_launch = present(labelled["launch_ns"])
    stream = number_streams(labelled)
    is_compute = has_label(label_codes(labelled), COMPUTE_SET)
    previous = previous_on_stream(stream, start, end)
    other = last_of_other_stream(stream, start, end)
    may_wait = _may_wait(previous, launch, has_launch, wait_calls_ns)

    # When each of the three constraints was met; never where it does not exist.
    has_previous = previous >= 0
    stream_free_ns = np.where(has_previous, end[previous], _NEVER)
    launched_ns = np.where(has_launch, np.minimum(launch, start), _NEVER)
    other_end_ns = np.where(other >= 0, np.minimum(end[other], start), _NEVER)
    # Compute right behind its neighbour on the stream, or on a stream that was not told to wait:
    # that other work ended just then is coincidence. Communication and copies wait for the work
    # that produced their data in any case.
    since_free_ns = start - stream_free_ns
    is_coincidence = (since_free_ns <= MAX_BACK_TO_BACK_NS) | (
        ~may_wait & (since_free_ns <= MAX_REACTION_NS)
    )
    other_end_ns = np.where(is_compute & has_previous & is_coincidence, _NEVER, other_end_ns)

    last_ns = np.maximum(np.maximum(stream_free_ns, launched_ns), other_end_ns)
    # Where two were met at the same time, the first case counts.
    kind = np.select(
        [
            last_ns == _NEVER,
            ~is_compute & (other_end_ns == last_ns),
            has_previous & (stream_free_ns == last_ns),
            launched_ns == last_ns,
        ],
        [NOTHING, OTHER_STREAM, STREAM, LAUNCH],
        default=OTHER_STREAM,
    )
    return StartConstraints(
        kind=kind.astype(np.int8),
        blocker=np.where(kind == STREAM, previous, np.where(kind == OTHER_STREAM, other, -1)),
        since_ns=np.where(kind == NOTHING, start, np.minimum(last_ns, start)),
        is_certain=(kind != NOTHING) & (start - last_ns <= MAX_REACTION_NS),
        stream=stream,
        may_wait=may_wait,
    )


def number_streams(labelled: pl.DataFrame) -> Ints:
    """Return the number of each event's stream, from 0; streams of different devices differ."""
    stream = to_int64(labelled["stream"])
    if labelled["device"].n_unique() > 1:
        stream = stream + (to_int64(labelled["device"]) + 1) * (1 << 40)
    # Many events in a row are of the same stream: sort only the first of each such run.
    run_starts = SortedGroups.of(stream).first
    return np.searchsorted(np.unique(stream[run_starts]), stream)


def sort_by_start(start: Ints, end: Ints) -> Ints:
    """Return the rows by start, then end; labelled tables are nearly always sorted so already."""
    out_of_order = (start[1:] < start[:-1]) | ((start[1:] == start[:-1]) & (end[1:] < end[:-1]))
    return np.lexsort((end, start)) if out_of_order.any() else np.arange(len(start))


def previous_on_stream(stream: Ints, start: Ints, end: Ints) -> Ints:
    """Return for each event the earlier event of its stream that ends last; -1 if there is none."""
    previous = np.full(len(start), -1, np.int64)
    if not len(start):
        return previous
    # Rows stream by stream, each in order of start. 16 bits make the stable sort a radix sort.
    order = sort_by_start(start, end)
    order = order[np.argsort(stream[order].astype(np.int16), kind="stable")]
    # Ends shifted by stream, so that all ends of a stream lie above those of the stream before: one
    # running maximum serves all streams. ``latest`` is the position at which the running maximum
    # was reached.
    stride = int(end.max()) - int(start.min()) + 1
    key = stream[order] * stride + end[order]
    positions = np.arange(len(order))
    latest = np.maximum.accumulate(np.where(key == np.maximum.accumulate(key), positions, 0))
    has_previous = np.flatnonzero(np.diff(stream[order], prepend=-1) == 0)
    previous[order[has_previous]] = order[latest[has_previous - 1]]
    return previous


def last_of_other_stream(stream: Ints, start: Ints, end: Ints) -> Ints:
    """Return for each event the row of the last event of another stream to end before it started; -1 if none."""
    order = np.argsort(end, kind="stable")
    ordered_stream = stream[order]
    # First position of the run of events of one stream that each position (in order of ends) lies
    # in.
    begins_run = np.diff(ordered_stream, prepend=-1) != 0
    run_start = np.maximum.accumulate(np.where(begins_run, np.arange(len(order)), 0))
    latest = np.searchsorted(end[order], start + END_TOLERANCE_NS, side="right") - 1
    other = np.full(len(start), -1, np.int64)
    rows = np.flatnonzero(latest >= 0)
    position = latest[rows]
    # Where the last to end is of the event's own stream, take the one before its run: that is of
    # another stream.
    position = np.where(ordered_stream[position] == stream[rows], run_start[position] - 1, position)
    other[rows] = np.where(position >= 0, order[position], -1)
    # An event cannot have waited for one that started with it or after it.
    other[(other >= 0) & (start[other] >= start)] = -1
    return other


def _may_wait(previous: Ints, launch: Ints, has_launch: Bools, wait_calls_ns: Ints | None) -> Bools:
    """Return which events' streams may have been told to wait.

    A wait call between the last launch before an event's own and its own is meant for it. Of the
    wait calls since the launch of the previous event on its stream, each launch in between (on
    other streams) may account for one; if there are more, one may be the event's. Where the trace
    records no wait calls, any event may have waited.
    """
    if wait_calls_ns is None or not len(wait_calls_ns) or not has_launch.any():
        return np.ones(len(previous), np.bool_)
    both_launched = has_launch & (previous >= 0) & has_launch[previous]
    launch_times, turn = np.unique(launch[has_launch], return_inverse=True)
    launch_index = np.zeros(len(launch), np.int64)
    launch_index[has_launch] = turn
    previous_index = np.where(both_launched, launch_index[previous], launch_index)
    calls_before = np.searchsorted(wait_calls_ns, launch_times, side="left")
    calls_until = np.searchsorted(wait_calls_ns, launch_times, side="right")
    calls_between = calls_before[launch_index] - calls_before[previous_index]
    launches_between = np.maximum(launch_index - previous_index - 1, 0)
    is_own_call = (launch_index > 0) & (calls_before[launch_index] > calls_until[launch_index - 1])
    may_wait: Bools = ~both_launched | (calls_between > launches_between) | is_own_call
    return may_wait
