"""What each GPU event waited for before it could start: its stream, its launch, or work on another stream.

A trace says when events ran and when they were launched; it seldom says which event waited for which. The last thing
to happen before an event started is what held it back:

``stream``
    the event before it on its stream ended;
``launch``
    it was launched;
``other``
    work on another stream ended, while its own stream was free and it had been launched already;
``nothing``
    none of these is in the trace.

Where the last of them lies long before the start, something held the event that the trace does not show: ``sure`` says
so. Every event is held by at most one other, so that following the holders back is a walk without choices.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import present, to_int64
from tracekit.intervals import Longs
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS

Codes = npt.NDArray[np.int8]
Bools = npt.NDArray[np.bool_]

NOTHING, STREAM, LAUNCH, OTHER = 0, 1, 2, 3
HOW = ("nothing", "stream", "launch", "other")

NEXT_NS = 5_000
"""A queued event that starts so soon after the one before it on its stream waited for nothing else."""
HELD_NS = 100_000
"""Longest time from what held an event back (an end, a launch call) to its start: what lies further back did not."""
EARLY_NS = 1_000
"""Ends are recorded so much too late at most: work that starts earlier than that before an end did not wait for it."""
_NEVER = np.iinfo(np.int64).min // 4


class Holds(msgspec.Struct, frozen=True, eq=False):
    """What held back each row of a labelled table."""

    how: Codes
    by: Longs
    """Row of the GPU event that held it, -1 where none did."""
    since_ns: Longs
    """When that ended, or when it was launched; its own start where nothing held it."""
    sure: Bools
    stream: Longs
    """A number from 0 for each stream of each device."""
    waits: Bools
    """Whether its stream was told to wait for another since the event before it on its stream was launched."""


def holds(labelled: pl.DataFrame, waits_ns: Longs | None = None) -> Holds:
    """Return what held back each GPU event of one rank; *waits_ns*: when streams were told to wait, ascending.

    >>> events = pl.DataFrame({"stream": [7, 9, 7], "start_ns": [0, 0, 100_000], "end_ns": [20_000, 98_000, 110_000],
    ...                        "launch_ns": [-9_000, -9_000, 5_000]})
    >>> held_back = holds(events)
    >>> [HOW[how] for how in held_back.how], held_back.by.tolist(), held_back.sure.tolist()
    (['launch', 'launch', 'other'], [-1, -1, 1], [True, True, True])
    """
    start, end, launch, known, stream = _columns(labelled)
    before, free = _before(stream, start, end)
    other = _other(stream, start, end)
    released = np.where(other >= 0, np.minimum(end[other], start), _NEVER)
    launched_ns = np.where(known, np.minimum(launch, start), _NEVER)
    waits = _waits(before, launch, known, waits_ns)
    queued = before >= 0
    # Compute right behind its neighbour on the stream, or with no word that its stream should wait: other ends are
    # chance. Communication and copies wait for the work that made their data, whatever their stream did before.
    compute = _is_compute(labelled)
    chance = compute & queued & ((start - free <= NEXT_NS) | (~waits & (start - free <= HELD_NS)))
    released = np.where(chance, _NEVER, released)
    last = np.maximum(np.maximum(np.where(queued, free, _NEVER), launched_ns), released)
    how = np.select(
        [last == _NEVER, ~compute & (released == last), queued & (free == last), launched_ns == last],
        [NOTHING, OTHER, STREAM, LAUNCH],
        default=OTHER,
    )
    by = np.where(how == STREAM, before, np.where(how == OTHER, other, -1))
    since = np.where(how == NOTHING, start, np.minimum(last, start))
    return Holds(how.astype(np.int8), by, since, (how != NOTHING) & (start - last <= HELD_NS), stream, waits)


def _is_compute(labelled: pl.DataFrame) -> Bools:
    if "label" not in labelled.columns:
        return np.ones(len(labelled), np.bool_)
    return ~CategoryColumn.from_series(labelled["label"]).map((*COMMUNICATION_LABELS, *COPY_LABELS).__contains__)


def _waits(before: Longs, launch: Longs, known: Bools, waits_ns: Longs | None) -> Bools:
    """Return which events' streams may have been told to wait.

    A wait right before its launch is its own; of earlier ones, since the event before it on its stream, each launch on
    another stream may have asked for one. Where the trace records no waits at all, any may have been.
    """
    if waits_ns is None or not len(waits_ns) or not known.any():
        return np.ones(len(before), np.bool_)
    both = known & (before >= 0) & known[before]
    every, turn = _turns(launch, known)
    earlier = np.where(both, turn[before], turn)
    asked, last = (np.searchsorted(waits_ns, every, side=side) for side in ("left", "right"))
    told = asked[turn] - asked[earlier] > np.maximum(turn - earlier - 1, 0)
    own = (turn > 0) & (asked[turn] > last[turn - 1])
    waits: Bools = ~both | told | own
    return waits


def _turns(launch: Longs, known: Bools) -> tuple[Longs, Longs]:
    """Return all moments at which something was launched, in order, and which of them is each event's."""
    order = np.argsort(np.where(known, launch, np.iinfo(np.int64).max), kind="stable")
    ordered = launch[order[: int(known.sum())]]
    new = np.diff(ordered, prepend=ordered[0] - 1) > 0
    turn = np.zeros(len(launch), np.int64)
    turn[order[: len(ordered)]] = np.cumsum(new) - 1
    return ordered[new], turn


def in_order(start: Longs, end: Longs) -> Longs:
    """Return the rows by start, then end; labelled tables come nearly so."""
    behind = (start[1:] < start[:-1]) | ((start[1:] == start[:-1]) & (end[1:] < end[:-1]))
    return np.lexsort((end, start)) if behind.any() else np.arange(len(start))


def _columns(labelled: pl.DataFrame) -> tuple[Longs, Longs, Longs, Bools, Longs]:
    start, end = labelled["start_ns"].to_numpy(), labelled["end_ns"].to_numpy()
    launch = labelled["launch_ns"]
    return start, end, to_int64(launch, 0), present(launch), streams(labelled)


def streams(labelled: pl.DataFrame) -> Longs:
    """Return a number from 0 for each event's stream; streams of several devices are apart."""
    stream = to_int64(labelled["stream"])
    if "device" in labelled.columns and labelled["device"].n_unique() > 1:
        stream = stream + (to_int64(labelled["device"]) + 1) * (1 << 40)
    known = np.unique(stream[np.flatnonzero(np.diff(stream, prepend=stream[:1] - 1))])  # of runs, few by few
    return np.searchsorted(known, stream)


def _before(stream: Longs, start: Longs, end: Longs) -> tuple[Longs, Longs]:
    """Return, for each event, the one before it on its stream that ends last, and when the stream was free."""
    order = in_order(start, end)
    order = order[np.argsort(stream[order].astype(np.int16), kind="stable")]  # 16 bits: a radix sort
    first = np.diff(stream[order], prepend=-1) != 0
    before = np.full(len(order), -1, np.int64)
    free = np.full(len(order), _NEVER, np.int64)
    if not len(order):
        return before, free
    # Streams laid end to end, so that one running maximum serves them all.
    low, high = int(start.min()), int(end.max())
    key = stream[order] * (high - low + 1) + (end[order] - low)
    best = np.maximum.accumulate(np.where(key == np.maximum.accumulate(key), np.arange(len(order)), 0))
    later = np.flatnonzero(~first)
    before[order[later]] = order[best[later - 1]]
    free[order[later]] = end[order[best[later - 1]]]
    return before, free


def _other(stream: Longs, start: Longs, end: Longs) -> Longs:
    """Return, for each event, the row of the latest event of another stream to end before it started; -1 for none."""
    order = np.argsort(end, kind="stable")
    streams = stream[order]
    turns = np.diff(streams, prepend=-1) != 0
    # Where the latest to end is of the same stream, the last one before its unbroken run is of another.
    place = np.where(turns, np.arange(len(order)), 0)
    run = np.maximum.accumulate(place) if len(order) else place
    latest = np.searchsorted(end[order], start + EARLY_NS, side="right") - 1
    other = np.full(len(start), -1, np.int64)
    some = np.flatnonzero(latest >= 0)
    at = latest[some]
    at = np.where(streams[at] == stream[some], run[at] - 1, at)
    other[some] = np.where(at >= 0, order[at], -1)
    # An event cannot have waited for one that started with it or after it.
    other[(other >= 0) & (start[other] >= start)] = -1
    return other
