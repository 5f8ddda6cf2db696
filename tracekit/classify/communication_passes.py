"""Pass of communication kernels: forward or backward.

The autograd engine tells for what runs inside it. Elsewhere a send passes on what was computed before it, and a receive
serves what is computed after the host waited for it. Where a forward and a backward ran side by side since the last
message, both results are to be sent: the peer tells them apart if the two kinds go to different ranks, else the result
that was computed first is sent first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracekit._util.arrays import Bools, Ints
from tracekit._util.categories import CategoryColumn, group_by_values
from tracekit.classify.autograd import Autograd
from tracekit.classify.collectives import Collectives
from tracekit.classify.host_ranges import Launches, Ranges
from tracekit.classify.pass_direction import Directions
from tracekit.classify.row_order import codes_in

PASSES = ("forward", "backward")
_MAX_OPEN_CALLS = 8
"""Calls that may be open on a group at once for its k-th wait to be taken as the wait for its k-th call."""
_MIN_MESSAGES_PER_EXCEPTION = 4
"""A peer is sent one kind of result if at most one message in so many is of the other kind."""
_PASS_OF_DIRECTION = {"wgrad": "backward", "recompute": "backward", "optimizer": None}


class CommPasses(NamedTuple):
    """Evidence for the pass of each communication kernel, and the pass of compute."""

    value: CategoryColumn  # pass of each communication kernel
    engine: CategoryColumn  # as the autograd engine tells
    producer: CategoryColumn  # pass of the last compute launched before it
    consumer: CategoryColumn  # pass of the first compute launched after the host waited for it
    compute: CategoryColumn  # of compute: its pass, where that is known without its neighbours
    is_recompute: Bools  # of any event: it runs forward work again inside the backward


def find_comm_passes(
    ranges: Ranges,
    launches: Launches,
    autograd: Autograd,
    comm: Collectives,
    directions: Directions,
    *,
    is_kernel: Bools,
) -> CommPasses:
    """Find the pass of every communication kernel."""
    size, launch = len(is_kernel), launches.start_ns
    communicates, site, direction = comm.library.present, autograd.site, directions.value
    engine = CategoryColumn.choose(
        size,
        [
            ("backward", communicates & site.any_of("backward", "recompute")),
            ("forward", communicates & site.any_of("forward")),
        ],
    )
    reliable = direction.where(directions.source.any_of("autograd", "matmul", "name") & is_kernel)
    compute = reliable.replace([_PASS_OF_DIRECTION.get(value, value) for value in reliable.values])

    rows, compute_rows = np.flatnonzero(communicates), launches.ordered(compute.present)
    waits = _wait_times(ranges, launches, comm)[rows]
    consumer = compute.take(_first_after(launch, compute_rows, waits)).spread(rows, size)
    producer = compute.take(_last_before(launch, compute_rows, launch[rows])).spread(rows, size)

    sendable = compute.where(~direction.any_of("wgrad"))  # gradients of weights are not sent on
    sent = sent_passes(launch, sendable, comm.call.any_of("send"), comm.peer, launches.order)
    sent = sent.fill(producer.where(comm.call.any_of("all_reduce", "reduce_scatter", "reduce")))
    received = _received_passes(comm, sent).fill(consumer.where(comm.call.any_of("recv", "all_gather")))
    forward_only = CategoryColumn.choose(size, [("forward", communicates & direction.any_of("forward"))])
    value = engine.fill(sent).fill(received).fill(forward_only)
    is_recompute = direction.any_of("recompute") | site.any_of("recompute")
    return CommPasses(value, engine, producer, consumer, compute, is_recompute)


def _received_passes(comm: Collectives, sent: CategoryColumn) -> CategoryColumn:
    """Return the pass of receives: a peer that is sent forward work alone returns gradients, and the reverse.

    Two ranks that hold several stages each may send each other both. Then a receive is left open.
    """
    has_peer = comm.peer >= 0
    is_send, is_receive = comm.call.any_of("send") & has_peer, comm.call.any_of("recv") & has_peer
    peer = np.maximum(comm.peer, 0)

    def peer_is_sent(value: str) -> Bools:
        """Return for every event whether its peer is sent work of this pass."""
        receivers = comm.peer[is_send & sent.any_of(value)]
        return (np.bincount(receivers, minlength=int(peer.max(initial=0)) + 1) > 0)[peer]

    forward, backward = (peer_is_sent(value) for value in PASSES)
    return CategoryColumn.choose(
        len(peer), [("backward", is_receive & forward & ~backward), ("forward", is_receive & backward & ~forward)]
    )


def _wait_times(ranges: Ranges, launches: Launches, comm: Collectives) -> Ints:
    """Return when the host waited for each kernel: the k-th wait on a group is for its k-th call; -1 where unknown."""
    wait_of = np.full(len(launches.start_ns), -1, np.int64)
    waits = ranges.collective_rows("wait")
    rows = launches.ordered(comm.library.present)
    if not len(waits) or not len(rows):
        return wait_of
    waits = waits[np.argsort(ranges.start(waits), kind="stable")]
    groups = group_by_values(np.arange(len(waits)), ranges.text("group", waits))
    waits_of_group = {group: waits[indices] for group, indices in groups}
    for group, calls in group_by_values(rows, comm.group):
        launch, wait = launches.start_ns[calls], ranges.start(waits_of_group.get(group, waits[:0]))
        # With fewer waits than calls, or many calls open at once, waits do not follow the order of calls.
        if len(launch) != len(wait) or _max_open_calls(launch, wait) > _MAX_OPEN_CALLS:
            continue
        is_after = wait >= launch
        wait_of[calls[is_after]] = wait[is_after]
    return wait_of


def _max_open_calls(launch: Ints, wait: Ints) -> int:
    """Return how many calls were open at most at a wait; above the limit if every wait comes before any call."""
    last_call = np.searchsorted(launch, wait, side="right") - 1
    open_calls = (last_call - np.arange(len(wait)))[last_call >= 0]
    return int(open_calls.max()) if len(open_calls) else _MAX_OPEN_CALLS + 1


def _first_after(time: Ints, rows: Ints, moments: Ints) -> Ints:
    """Return the first of *rows*, which are in order of *time*, after each moment; -1 where none or no moment."""
    return np.where(moments >= 0, np.append(rows, -1)[np.searchsorted(time[rows], moments, side="right")], -1)


def _last_before(time: Ints, rows: Ints, moments: Ints) -> Ints:
    """Return the last of *rows*, which are in order of *time*, before each moment; -1 where none or no moment."""
    return np.where(moments >= 0, np.append(-1, rows)[np.searchsorted(time[rows], moments, side="left")], -1)


def sent_passes(
    time: Ints, computed: CategoryColumn, is_send: Bools, peer: Ints, order: Ints | None = None
) -> CategoryColumn:
    """Return the pass of what every send carries; null for other rows.

    Args:
        time: Launch time of each event; -1 where unknown.
        computed: Pass of the compute whose result may be sent, so none of gradients of weights.
        is_send: Mask of sends.
        peer: Rank that each send goes to; -1 where unknown.
        order: Rows with a time in order of time, if that is known already.

    >>> time, computed = np.array([1, 2, 3, 4]), CategoryColumn(PASSES, np.array([0, 1, -1, -1]))
    >>> is_send, peer = np.array([False, False, True, True]), np.array([-1, -1, 2, 2])
    >>> sent_passes(time, computed, is_send, peer).strings()
    [None, None, 'forward', 'backward']
    """
    if order is None:
        order = np.argsort(time, kind="stable")
        order = order[time[order] >= 0]
    sends = order[is_send[order]]
    if not len(sends):
        return CategoryColumn.constant(None, len(time))
    code = codes_in(computed, PASSES)[order]
    runs = _find_send_runs(time[sends], [time[order[code == index]] for index in range(len(PASSES))])
    is_pure, is_mixed = runs.is_new[0] != runs.is_new[1], runs.is_new[0] & runs.is_new[1]

    # A run after one pass alone carries that pass. A run after both carries both results in the order they were
    # computed if it has the messages of two results, and the later result if it has those of one.
    run, run_length = runs.run, np.bincount(runs.run)
    pure_lengths = run_length[is_pure]
    result_length = int(np.bincount(pure_lengths).argmax()) if len(pure_lengths) else 1  # messages per result
    position, length, later = np.arange(len(sends)) - runs.first[run], run_length[run], runs.later_pass[run]
    both = np.where(position < result_length, 1 - later, later)
    by_order = np.where(length == 2 * result_length, both, np.where(length == result_length, later, -1))
    by_run = np.where(is_pure[run], later, -1)
    by_peer = _passes_by_peer(peer[sends], by_run)
    sent = np.where(by_peer >= 0, by_peer, np.where(is_mixed[run], by_order, by_run))
    return CategoryColumn(PASSES, sent).spread(sends, len(time))


class _SendRuns(NamedTuple):
    """Runs of sends with nothing computed between them."""

    run: Ints  # run of each send
    first: Ints  # first send of each run
    is_new: Bools  # for each pass (row) and run (column): the pass computed something since the run before
    later_pass: Ints  # of each run: the pass that computed last


def _find_send_runs(send_times: Ints, compute_times: list[Ints]) -> _SendRuns:
    """Group sends, which are in order of time, into runs; *compute_times* are those of each pass, in order."""
    # For each pass (row) and send (column): how much was computed before the send. It rises where a run starts.
    computed_before = np.stack([np.searchsorted(times, send_times) for times in compute_times])
    starts_run = (np.diff(computed_before, axis=1, prepend=-1) > 0).any(axis=0)
    first = np.flatnonzero(starts_run)
    computed_before = computed_before[:, first]
    is_new = np.diff(computed_before, axis=1, prepend=0) > 0
    # Time of the last compute of each pass before each run; -1 where none.
    last_computed = np.stack(
        [np.append(times, -1)[count - 1] for times, count in zip(compute_times, computed_before, strict=True)]
    )
    later_pass = np.argmax(np.where(is_new, last_computed, -1), axis=0)
    return _SendRuns(np.cumsum(starts_run) - 1, first, is_new, later_pass)


def _passes_by_peer(peer: Ints, code: Ints) -> Ints:
    """Return the pass of what each peer is sent, if activations go to some ranks and gradients to others; else -1.

    A few exceptions do not count: a message may be sent only after the next result is computed.
    """
    usable = (peer >= 0) & (code >= 0)
    peers = int(peer.max(initial=-1)) + 1
    count = np.stack([np.bincount(peer[usable & (code == index)], minlength=peers) for index in range(len(PASSES))])
    pass_of_peer = np.where(count.any(axis=0), np.argmax(count, axis=0), -1)
    is_one_kind = _MIN_MESSAGES_PER_EXCEPTION * count.min(axis=0) <= count.max(axis=0)
    if not is_one_kind.all() or not {0, 1} <= set(pass_of_peer.tolist()):
        return np.full(len(peer), -1, np.int64)
    return np.where(peer >= 0, np.append(pass_of_peer, -1)[peer], -1)
