"""Start constraints: what each GPU event of a rank waited for before it started.

A trace says when events ran and when they were launched; it seldom says which event waited for
which. Before an event starts, three things happen that are in the trace:

``stream``
    the previous event on its stream ends;
``launch``
    it is launched;
``other``
    work on another stream ends, which its stream may have been told to wait for;
``nothing``
    none of these is known.

After each of them an event usually starts in a time that hardly varies on a rank: a launch takes 5 to 15 µs to arrive,
the next kernel of a stream starts 1 to 5 µs after the one before, a stream that waited for another 2 to 10 µs
after that. These times are measured where only one of the three can have been the last. An event launched
after the other two was held back by its launch; else by that after which it started in the time that is most nearly
usual: the last to happen is not always that, as a launch is on its way for some time, and other work may end by chance.
Where it lies long before the start, something held the event back that the trace does not show: the constraint is
then not certain.

Causes of exposure, the replay and the critical path read the same constraints.
"""

from typing import NamedTuple

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
first, where the trace does not record that streams were told to wait."""
MAX_REACTION_NS = 100_000
"""Longest time from what held an event back (an end, a launch call) to the event's start; beyond,
it was not that."""
END_TOLERANCE_NS = 1_000
"""Ends are recorded late by at most this: work that starts earlier than this before an end did not
wait for it."""
USUAL_LATENCY_NS = 5_000
"""Time from a launch to the start of its kernel where the trace has none that started at once. From
the loops of the recording's cost, 2026-11-18."""
USUAL_KERNEL_GAP_NS = 1_200
"""Time between two kernels of a stream where the second was launched in time and the trace has no
such pair. From the loops of the recording's cost, 2026-11-18."""
MAX_EVENTS_TO_LOOK_BACK = 64
"""Events that ended before an event started, of which one is looked for that it can have waited for."""
NEVER = np.iinfo(np.int64).min // 4
"""Earlier than every time of a trace; differences with it do not overflow."""


class StartConstraints(msgspec.Struct, frozen=True, eq=False):
    """What each row of a labelled table may have waited for on the GPU, and what held it back."""

    stream_before: Ints
    """Row of the event before it on its stream; -1 if there is none."""
    other_before: Ints
    """Row of the last work of another stream to end that it may have waited for; -1 if there is
    none."""
    kind: npt.NDArray[np.int8]
    """What held it back: index in ``CONSTRAINT_KINDS``."""
    is_certain: Bools
    """Whether the event started within ``MAX_REACTION_NS`` of that."""
    stream: Ints
    """Number of its stream, from 0; streams of different devices differ."""
    may_wait: Bools
    """Whether its stream may have been told to wait since the previous event on the stream was
    launched."""

    @property
    def blocker(self) -> Ints:
        """Row of the GPU event that held each event back; -1 if none did."""
        of_other_stream = np.where(self.kind == OTHER_STREAM, self.other_before, -1)
        return np.where(self.kind == STREAM, self.stream_before, of_other_stream)


class ReadyTimes(NamedTuple):
    """When each of the three reasons to wait was over, of each event; ``NEVER`` where there is no such reason.

    No later than the event's start.
    """

    stream_ns: Ints
    launch_ns: Ints
    other_ns: Ints

    @classmethod
    def of(
        cls, start: Ints, end: Ints, launch: Ints, has_launch: Bools, before: tuple[Ints, Ints]
    ) -> "ReadyTimes":
        """Return those of events with these times; *before* are rows of ``stream_before`` and ``other_before``."""
        stream_before, other_before = before
        return cls(
            np.where(stream_before >= 0, np.minimum(end[stream_before], start), NEVER),
            np.where(has_launch, np.minimum(launch, start), NEVER),
            np.where(other_before >= 0, np.minimum(end[other_before], start), NEVER),
        )


class Reactions(NamedTuple):
    """In what time events of a rank usually start after what they waited for."""

    stream_ns: int
    launch_ns: int
    other_ns: int


def usual_reactions(start: Ints, ready: ReadyTimes) -> Reactions:
    """Return the lower quartile of each reaction, over the events that can have waited for nothing else.

    >>> start = np.array([20_000, 50_000, 91_000])
    >>> ready = ReadyTimes(np.array([0, 49_000, 90_000]), np.array([13_000, 14_000, 15_000]), np.full(3, NEVER))
    >>> usual_reactions(start, ready)
    Reactions(stream_ns=1000, launch_ns=7000, other_ns=1000)
    """
    stream_ns, launch_ns, other_ns = ready
    work_ns = np.maximum(stream_ns, other_ns)
    # What follows no recorded work may have waited for work from before the recording.
    is_launched_last = (work_ns > NEVER) & (launch_ns >= work_ns)
    latency_ns = _usual(start - launch_ns, is_launched_last, USUAL_LATENCY_NS)
    has_arrived = work_ns - launch_ns >= latency_ns
    is_stream_last = (stream_ns > NEVER) & has_arrived & (stream_ns >= other_ns)
    gap_ns = _usual(start - stream_ns, is_stream_last, USUAL_KERNEL_GAP_NS)
    is_other_last = (other_ns > NEVER) & has_arrived & (other_ns - stream_ns > gap_ns)
    return Reactions(gap_ns, latency_ns, _usual(start - other_ns, is_other_last, gap_ns))


def _usual(reaction_ns: Ints, counts: Bools, default_ns: int) -> int:
    """Return the lower quartile of the reactions that count."""
    counted = reaction_ns[counts & (reaction_ns <= MAX_REACTION_NS)]
    return round(float(np.quantile(counted, 0.25))) if len(counted) else default_ns


def find_start_constraints(
    labelled: pl.DataFrame, wait_calls_ns: Ints | None = None
) -> StartConstraints:
    """Return what each GPU event of one rank waited for.

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
    has_previous = previous >= 0
    may_wait = _may_wait(previous, launch, has_launch, wait_calls_ns)
    other = last_of_other_stream(stream, start, end, launch, has_launch)
    # Compute right behind its neighbour on the stream, or on a stream that was not told to wait:
    # that other work ended just then is chance. Communication and copies wait for the work
    # that produced their data in any case.
    since_previous_ns = start - end[previous]
    waits_recorded = wait_calls_ns is not None and len(wait_calls_ns) > 0
    is_chance = since_previous_ns <= MAX_BACK_TO_BACK_NS
    if waits_recorded:
        is_chance = ~may_wait & (since_previous_ns <= MAX_REACTION_NS)
    other[is_compute & has_previous & is_chance] = -1

    ready = ReadyTimes.of(start, end, launch, has_launch, (previous, other))
    kind = _choose_kind(start, ready, is_compute)
    # A stream that was not told to wait may have stood behind that work all the same, in a queue.
    other[is_compute & ~may_wait & (kind != OTHER_STREAM)] = -1
    by_kind = np.stack(
        [np.full(len(start), NEVER), ready.stream_ns, ready.launch_ns, ready.other_ns]
    )
    since_ns = start - by_kind[kind, np.arange(len(start))]
    return StartConstraints(
        stream_before=previous,
        other_before=other,
        kind=kind,
        is_certain=(kind != NOTHING) & (since_ns <= MAX_REACTION_NS),
        stream=stream,
        may_wait=may_wait,
    )


def _choose_kind(start: Ints, ready: ReadyTimes, is_compute: Bools) -> npt.NDArray[np.int8]:
    """Return what held each event back: a launch behind the work, else that after which it started as usual."""
    usual = usual_reactions(start, ready)
    distance = {
        kind: np.where(ready_ns > NEVER, np.abs(start - ready_ns - usual_ns), -NEVER)
        for kind, ready_ns, usual_ns in (
            (STREAM, ready.stream_ns, usual.stream_ns),
            (LAUNCH, ready.launch_ns, usual.launch_ns),
            (OTHER_STREAM, ready.other_ns, usual.other_ns),
        )
    }
    nearest = np.minimum.reduce(list(distance.values()))
    # Where two are as near, the first case counts: communication waits for its data.
    cases = [
        (NOTHING, nearest == -NEVER),
        (LAUNCH, ready.launch_ns > np.maximum(ready.stream_ns, ready.other_ns)),
        (OTHER_STREAM, ~is_compute & (distance[OTHER_STREAM] == nearest)),
        (STREAM, distance[STREAM] == nearest),
        (LAUNCH, distance[LAUNCH] == nearest),
    ]
    kinds, conditions = zip(*cases, strict=True)
    kind: npt.NDArray[np.int8] = np.select(conditions, kinds, default=OTHER_STREAM).astype(np.int8)
    return kind


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


def last_of_other_stream(
    stream: Ints, start: Ints, end: Ints, launch: Ints, has_launch: Bools
) -> Ints:
    """Return for each event the row of the last work of another stream that it can have waited for; -1 if none.

    That ended before the event started, had begun before it, and was launched before it. Of what ended last,
    ``MAX_EVENTS_TO_LOOK_BACK`` are looked at.
    """
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
    for _ in range(MAX_EVENTS_TO_LOOK_BACK):
        candidate = order[position]
        is_own_stream = stream[candidate] == stream[rows]
        is_later = has_launch[candidate] & has_launch[rows] & (launch[candidate] > launch[rows])
        is_possible = ~is_own_stream & ~is_later & (start[candidate] < start[rows])
        other[rows[is_possible]] = candidate[is_possible]
        # Of its own stream, all of the run is left out.
        position = np.where(is_own_stream, run_start[position], position) - 1
        is_left = ~is_possible & (position >= 0)
        rows, position = rows[is_left], position[is_left]
        if not len(rows):
            break
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
