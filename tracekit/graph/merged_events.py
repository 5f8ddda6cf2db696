"""Events of a replay joined where one follows another without being held back: for runs of many ranks.

A kernel that is launched right behind the kernel before it on its stream, before that one begins,
starts when that one ends, whatever other ranks do. A chain of such kernels becomes one event for
each kind of kernel in it, one behind the other: it begins, ends and takes as long as before, and so
does each kind. Events that meet other ranks, that an event of another stream or the host waits for,
and those with a remedy stay as they are. So a rank has as many events as it does different things
between those, however many kernels it runs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from tracekit._loops.critical_path import NO_LIMIT
from tracekit._util.arrays import AnyInts, Bools, Int32s, Ints, group_rows
from tracekit._util.columns import to_int64, with_nulls
from tracekit.graph.constants import MIN_FREE_HOST_SHARE
from tracekit.graph.rank_events import BEFORE, GAPS_WITHIN, HOST_WORK
from tracekit.metrics.start_constraints import MAX_BACK_TO_BACK_NS, STREAM

KIND = ("label", "name", "module", "op")
"""Columns in which joined events are equal: changes and findings select events by them."""


class MergedEvents(NamedTuple):
    """Events of some ranks, and what their hosts did before the launch of each."""

    events: pl.DataFrame
    """The columns of ``RANK_EVENTS`` and ``GAPS_WITHIN``, and ``remedies`` where they were there."""
    host_work: pl.DataFrame
    """``HOST_WORK``; ``event`` is a row of ``events``."""


class _Blocks(NamedTuple):
    """The events that joined ones become: rows in the order of their starts."""

    block: Int32s
    """Of each event: its block."""
    last_block: Int32s
    """Of each event: the last block of its chain, which ends with the chain."""
    first: Ints
    """Of each block: its first event."""
    start_ns: Ints
    end_ns: Ints
    gaps_ns: Ints
    """Time between the events of each block, and before it in its chain."""
    previous: Int32s
    """Of each block: the block before it in its chain; -1: none."""


def merge_events(
    events: pl.DataFrame, host_work: pl.DataFrame, rank: AnyInts | None = None
) -> MergedEvents:
    """Return the events of some ranks, joined where one follows another without being held back.

    Those of several ranks are joined at once in half the time of one by one.

    Args:
        events: ``RANK_EVENTS`` with or without remedies, and any further columns; rank by rank.
        host_work: ``HOST_WORK`` of the same ranks, whose ``event`` is a row of *events*.
        rank: Rank of each event, ascending; None if all are of one rank.
    """
    if rank is None:
        rank = np.zeros(events.height, np.int64)
    # Room that the host was not seen to wait for would hold every kernel apart.
    seen_full = (pl.col("after_release_ns") >= 0) & (pl.col("released_by") < 0)
    events = events.with_columns(queue_before=pl.when(seen_full).then("queue_before").otherwise(-1))
    chain = _first_of_chains(_joined_to(events))
    blocks = _find_blocks(events, chain, rank)
    # A chain is launched with its first event. What the host did before the others' launches lies
    # before the first launch that follows the chain.
    is_first = chain == np.arange(events.height)
    launch_before = events["launch_before"].to_numpy()
    following = np.full(len(blocks.first), -1, np.int32)
    follows = is_first & (launch_before >= 0)
    following[blocks.last_block[launch_before[follows]]] = blocks.block[follows]
    launched_next = np.where(is_first, blocks.block, following[blocks.last_block])

    kept = events[blocks.first]
    before = {}
    for name in BEFORE:
        rows = kept[name].to_numpy()
        before[name] = np.where(rows >= 0, blocks.last_block[np.maximum(rows, 0)], -1)
    is_inner = blocks.previous >= 0
    before["stream_before"][is_inner] = blocks.previous[is_inner]
    before["launch_before"][is_inner] = blocks.previous[is_inner]
    before["other_before"][is_inner] = -1
    held_by = np.where(is_inner, STREAM, kept["held_by"].to_numpy()).astype(np.int8)
    launch_ns = events["launch_ns"][chain[blocks.first]]
    merged = kept.with_columns(
        _recording_of_blocks(events, launched_next, rank, rank[blocks.first]),
        start_ns=pl.Series(blocks.start_ns),
        end_ns=pl.Series(blocks.end_ns),
        launch_ns=launch_ns,
        held_by=pl.Series(held_by),
        **{name: pl.Series(rows.astype(np.int32)) for name, rows in before.items()},
        **{GAPS_WITHIN: pl.Series(blocks.gaps_ns)},
    )
    return MergedEvents(merged, _moved_host_work(host_work, is_first, launched_next))


def _find_blocks(events: pl.DataFrame, chain: Ints, rank: AnyInts) -> _Blocks:
    """Return the events that each chain becomes: one for each kind of event in it, in the order of their first.

    Blocks are rank by rank, those of a rank in the order of their starts.
    """
    count = events.height
    kind = np.zeros(count, np.int64)
    for codes in events.select(pl.col(KIND).to_physical().cast(pl.Int64).fill_null(-1)):
        code = codes.to_numpy() + 1
        kind = kind * (int(code.max(initial=0)) + 1) + code
    block, first = group_rows(chain, kind)
    # Time of each event with the gap before it, if it follows another of its chain.
    start = events["start_ns"].to_numpy()
    end = events["end_ns"].to_numpy()
    before = events["stream_before"].to_numpy()
    is_joined = chain != np.arange(count)
    gap = np.where(is_joined, start - end[before], 0)
    gaps_ns = np.bincount(block, gap, len(first)).astype(np.int64)
    duration_ns = np.bincount(block, end - start, len(first)).astype(np.int64) + gaps_ns
    # Blocks of a chain in the order of their first events, one behind the other.
    by_chain = np.lexsort((first, chain[first]))
    chain_of_block = chain[first[by_chain]]
    leads = np.diff(chain_of_block, prepend=-1) != 0
    since_first_ns = np.cumsum(duration_ns[by_chain]) - duration_ns[by_chain]
    leader = np.maximum.accumulate(np.where(leads, np.arange(len(first)), 0))
    start_ns = start[chain_of_block] + since_first_ns - since_first_ns[leader]
    order = np.lexsort((start_ns, rank[chain_of_block]))
    number = np.empty(len(first), np.int32)  # of each block as ``np.unique`` numbers them
    number[by_chain[order]] = np.arange(len(first), dtype=np.int32)
    # The last block of each chain, by the row of the chain's first event.
    last_block = np.full(count, -1, np.int32)
    is_last = np.append(leads[1:], True)
    last_block[chain_of_block[is_last]] = number[by_chain[is_last]]
    sorted_blocks = by_chain[order]
    previous = np.full(len(first), -1, np.int32)
    inner = np.flatnonzero(~leads)
    previous[number[by_chain[inner]]] = number[by_chain[inner - 1]]
    return _Blocks(
        block=number[block],
        last_block=last_block[chain],
        first=first[sorted_blocks],
        start_ns=start_ns[order],
        end_ns=start_ns[order] + duration_ns[sorted_blocks],
        gaps_ns=gaps_ns[sorted_blocks],
        previous=previous,
    )


def _recording_of_blocks(
    events: pl.DataFrame, launched_next: Int32s, rank: AnyInts, rank_of_block: AnyInts
) -> pl.Series:
    """Return what the profiler added before each launch that is left; null if that is not known of its rank.

    Of each launch it counts as far as the replay without the profiler gives it back.
    """
    recording_ns = to_int64(events["recording_ns"], 0)
    unknown_ranks = rank[events["recording_ns"].is_null().to_numpy()]
    previous = events["launch_before"].to_numpy()
    launch = to_int64(events["launch_ns"], NO_LIMIT)
    since_previous_ns = launch - launch[np.maximum(previous, 0)]
    waiting_ns = events["blocked_ns"].to_numpy() + events["loading_ns"].to_numpy()
    host_ns = np.maximum(since_previous_ns - waiting_ns, 0)
    most_ns = np.where(previous >= 0, (1 - MIN_FREE_HOST_SHARE) * host_ns, 0)
    given_back_ns = np.minimum(recording_ns, most_ns)
    is_launched = launched_next >= 0
    sums = np.bincount(
        launched_next[is_launched], given_back_ns[is_launched], len(rank_of_block)
    ).astype(np.int64)
    is_known = ~np.isin(rank_of_block, unknown_ranks)
    return with_nulls(sums, is_known).alias("recording_ns")


def _joined_to(events: pl.DataFrame) -> Ints:
    """Return of each event the event that it is joined to: the one before it on its stream; -1: none."""
    count = events.height
    start = events["start_ns"].to_numpy()
    end = events["end_ns"].to_numpy()
    launch = to_int64(events["launch_ns"], NO_LIMIT)
    stream_before, other_before, launch_before, released_by, queue_before, loader_before = (
        events[name].to_numpy() for name in BEFORE
    )
    is_free = (events["id"].is_null() & ~_has_remedies(events)).to_numpy()
    # A batch counts from the launch behind the one before.
    is_free[loader_before[loader_before >= 0]] = False
    # An event that something else waits for stands alone or ends its chain, and so does one before
    # a launch that the host waited for.
    is_waited_for = np.zeros(count, np.bool_)
    waits = (released_by >= 0) | (queue_before >= 0) | (loader_before >= 0)
    waits |= events["blocked_ns"].to_numpy() > 0
    for rows in (other_before, released_by, queue_before):
        is_waited_for[rows[rows >= 0]] = True
    is_last_before_wait = np.zeros(count, np.bool_)
    is_last_before_wait[launch_before[waits & (launch_before >= 0)]] = True

    rows = np.flatnonzero(
        is_free
        & (stream_before >= 0)
        & (launch_before == stream_before)
        & ~waits
        & ~is_last_before_wait
    )
    before = stream_before[rows]
    gap_ns = start[rows] - end[before]
    held_by_same = (other_before[rows] < 0) | (other_before[rows] == other_before[before])
    joins = (
        is_free[before]
        & ~is_waited_for[before]
        & held_by_same
        & (launch[rows] <= start[before])
        & (gap_ns >= 0)
        & (gap_ns <= MAX_BACK_TO_BACK_NS)
    )
    part = events["part"].to_numpy()
    joins &= part[rows] == part[before]
    joined_to = np.full(count, -1, np.int64)
    joined_to[rows[joins]] = before[joins]
    return joined_to


def _has_remedies(events: pl.DataFrame) -> pl.Series:
    if "remedies" not in events.columns:
        return pl.Series([False]).new_from_index(0, events.height)
    return events["remedies"].is_not_null()


def _first_of_chains(joined_to: Ints) -> Ints:
    """Return the first event of each event's chain.

    >>> _first_of_chains(np.array([-1, 0, -1, 1, 3]))
    array([0, 0, 2, 0, 0])
    """
    first = np.where(joined_to >= 0, joined_to, np.arange(len(joined_to)))
    # Twice as far with every round.
    while (further := first[first]).tobytes() != first.tobytes():
        first = further
    return first


def _moved_host_work(
    host_work: pl.DataFrame, is_first: Bools, launched_next: Int32s
) -> pl.DataFrame:
    """Return the work of the host before the launches that are left.

    What it did before the launch of a joined event is before the next launch that is left, and not
    behind a wait there.
    """
    work = host_work.filter(pl.col("event") < len(is_first))
    event = work["event"].to_numpy()
    moved = work.with_columns(
        event=pl.Series(launched_next[event].astype(np.int64)),
        after_ns=pl.when(pl.Series(is_first[event])).then("after_ns").otherwise(0),
    )
    of_launches = moved.filter(pl.col("event") >= 0).group_by(
        "event", "code", "op", maintain_order=True
    )
    sums = of_launches.agg(pl.col("ns", "after_ns", "blocked_ns", "waits").sum())
    return sums.select(HOST_WORK.names())
