"""Causes of exposure: one for each exposed nanosecond of communication and copies.

While an operation is exposed no compute runs. The causes say what the next compute was waiting for, in this order:

``peer_late``
    the operation itself waited for another rank (its wait part), whatever stream it is on;
``same_stream``
    it is queued on the operation's own stream, behind it (or, at the end of a step, the operation behind compute);
``launched_late``
    the host had not launched the compute, or launched the operation so late that compute which had run long enough to
    hide it was already under way; a host that stood in a call that waits for the GPU was not late;
``one_queue``
    it was held until the operation ended although nothing told its stream to wait: streams share a hardware queue;
``compute_waited``
    its stream, or the host, was told to wait for the operation, and no other compute was launched in between;
``nothing_to_hide``
    it waited for the operation when all compute launched since then, or all of the step's forward and backward work,
    was done; or it waited for other work; or there was none left;
``unknown``
    the trace does not say: no launches, no peers' traces, or held back by something that was not recorded. An operation
    that lacks the traces of some members may have waited for them, so that nothing but its known wait has a cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints, find_ids
from tracekit._util.categories import CategoryColumns
from tracekit._util.columns import concat_ranks, present, to_int64
from tracekit.intervals import Intervals, union, union_of
from tracekit.metrics.label_intervals import COMPUTE_SET, EXPOSABLE_LABELS, has_label, label_codes
from tracekit.metrics.start_constraints import (
    LAUNCH,
    NOTHING,
    OTHER_STREAM,
    StartConstraints,
    find_start_constraints,
    sort_by_start,
)
from tracekit.schema import COMMUNICATION_LABELS, COMPUTE_LABELS, EXPOSURE_CAUSES

COMPUTE_STREAM_SHARE = 0.1
"""Share of a rank's compute time from which a stream counts as one of its compute streams."""
MIN_COMPUTE_SHARE = 0.01
"""Share of GPU time below which kernels that belong to no model are no compute that could hide anything."""
LONGEST_CHAIN = 32
"""Holders followed back from the next compute; what lies further back is unknown."""
_STEP_WORK = ("forward", "dgrad", "wgrad", "backward", "recompute")
_SAME, _QUEUE, _LATE, _NOTHING, _WAITED, _, _UNKNOWN = range(len(EXPOSURE_CAUSES))

PIECES = pl.Schema(
    {
        "part": pl.Int64(),
        "label": pl.Enum(EXPOSABLE_LABELS),
        "cause": pl.Enum(EXPOSURE_CAUSES),
        "id": pl.Int64(),  # of the event that carries it
        "start_ns": pl.Int64(),
        "ns": pl.Int64(),
    }
)
"""Exposed time of one rank by cause, before its peers were heard."""
EVENT_CAUSES = pl.Schema({"id": pl.Int64(), "cause": pl.Enum(EXPOSURE_CAUSES), "ns": pl.Int64()})
"""Exposed time of each event by cause."""


@dataclass(frozen=True, eq=False)
class Rank:
    """One rank's GPU events as arrays, and what held each back: what causes and the critical path start from."""

    labelled: pl.DataFrame
    calls: pl.DataFrame
    """The host's waiting calls (``metrics.host_calls.WAITING_CALLS``)."""
    constraints: StartConstraints
    start_ns: Ints
    end_ns: Ints
    launch_ns: Ints
    launched: Bools
    label: Ints
    part: Ints

    @classmethod
    def of(cls, labelled: pl.DataFrame, calls: pl.DataFrame) -> Rank:
        """Return the arrays of a labelled table (with ``part``, if it has parts); *calls* are the waiting calls."""
        launch = labelled["launch_ns"]
        stream_waits_ns = calls["start_ns"].filter(~calls["blocks"]).to_numpy()
        return cls(
            labelled,
            calls,
            find_start_constraints(labelled, stream_waits_ns),
            labelled["start_ns"].to_numpy(),
            labelled["end_ns"].to_numpy(),
            to_int64(launch, 0),
            present(launch),
            label_codes(labelled),
            to_int64(labelled["part"]) if "part" in labelled.columns else np.zeros(len(labelled), np.int64),
        )

    @cached_property
    def blocked(self) -> Intervals:
        """When the host stood still for the GPU."""
        return union_of(self.calls.filter("blocks"))

    @property
    def waits_recorded(self) -> bool:
        """Whether the trace records that streams were told to wait."""
        return not self.calls["blocks"].all()

    @cached_property
    def texts(self) -> CategoryColumns:
        """What their text columns say."""
        return CategoryColumns(self.labelled)

    @cached_property
    def order(self) -> Ints:
        """The rows by start, then end."""
        return sort_by_start(self.start_ns, self.end_ns)

    def labels(self, *names: str) -> Bools:
        """Return which rows have one of these labels."""
        return has_label(self.label, names)

    @cached_property
    def compute(self) -> Ints:
        """Rows of compute on compute streams, by start: small kernels on a copy's stream hide nothing."""
        rows = np.flatnonzero(self.labels(*COMPUTE_SET) & (self.end_ns > self.start_ns))
        stream = self.constraints.stream[rows]
        if not len(rows) or self._only_moves_data(rows):
            return rows[:0]
        busy = np.bincount(stream, weights=(self.end_ns - self.start_ns)[rows])
        rows = rows[busy[stream] >= COMPUTE_STREAM_SHARE * busy.sum()]
        ordered: Ints = rows[np.argsort(self.start_ns[rows], kind="stable")]
        return ordered

    def _only_moves_data(self, compute: Ints) -> bool:
        """Return whether no compute belongs to a model and all of it is next to nothing, as in a parameter server."""
        durations_ns = self.end_ns - self.start_ns
        is_small = durations_ns[compute].sum() < MIN_COMPUTE_SHARE * durations_ns.sum()
        return bool(is_small and not self.labels(*COMPUTE_LABELS).any())

    @cached_property
    def computes(self) -> Bools:
        """Which rows these are."""
        mask = np.zeros(len(self.start_ns), np.bool_)
        mask[self.compute] = True
        return mask

    @cached_property
    def runs(self) -> Intervals:
        """When they ran."""
        return union(self.start_ns[self.compute], self.end_ns[self.compute])

    @cached_property
    def launches(self) -> Ints:
        """When they were launched, in order."""
        return np.sort(self.launch_ns[self.compute[self.launched[self.compute]]], kind="stable")

    @cached_property
    def last_work(self) -> Ints:
        """When the last forward or backward work of each part begins; never where it has none."""
        last = np.full(int(self.part.max(initial=0)) + 1, np.iinfo(np.int64).max, np.int64)
        rows = self.order[self.labels(*_STEP_WORK)[self.order]]
        last[self.part[rows]] = self.start_ns[rows]  # starts ascend: the last one stays
        return last


def exposure_causes(rank: Rank, paid: Mapping[str, Intervals], *, parts: bool) -> pl.DataFrame:
    """Return PIECES: the causes of each label's exposed time (*paid*, as ``Lanes.exposed`` gives it).

    With *parts* the groups of *paid* are the rank's parts, else all is one group.
    """
    group = rank.part if parts else np.zeros_like(rank.part)
    pieces_of_label = {label: _pieces(rank, label, lane, group) for label, lane in paid.items() if len(lane)}
    if not pieces_of_label:
        return PIECES.to_frame()
    label = np.repeat(
        [EXPOSABLE_LABELS.index(name) for name in pieces_of_label],
        [len(pieces[0]) for pieces in pieces_of_label.values()],
    )
    part, start, end, owner = (np.concatenate(columns) for columns in zip(*pieces_of_label.values(), strict=True))
    if_host_ran, if_host_waited = _judge(rank, start, end, owner)
    # Where it matters whether the host waited for the GPU, the piece is cut where the host began and ended to wait.
    edges = np.stack([rank.blocked.start_ns, rank.blocked.end_ns], axis=1).ravel()
    piece, start, end, edge = _cut(start, end, edges, if_host_ran != if_host_waited)
    label, part, owner = label[piece], part[piece], owner[piece]
    is_waiting = edge % 2 == 1  # behind an odd number of edges
    cause = np.where(is_waiting, if_host_waited[piece], if_host_ran[piece])
    return pl.DataFrame(
        {
            "part": part,
            "label": pl.Series(EXPOSABLE_LABELS, dtype=PIECES["label"])[label],
            "cause": pl.Series(EXPOSURE_CAUSES, dtype=PIECES["cause"])[cause],
            "id": rank.labelled["id"].gather(owner),
            "start_ns": start,
            "ns": end - start,
        },
        schema=PIECES,
    )


def _pieces(rank: Rank, label: str, lane: Intervals, group: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return group, start, end and event of a label's exposed time, cut where another event begins to carry it.

    Of several events at once the one that ends last of those begun carries it.
    """
    rows = np.flatnonzero(rank.labels(label) & (rank.end_ns > rank.start_ns))
    low = int(rank.start_ns[rows].min())
    stride = int(rank.end_ns[rows].max()) - low + 1
    rows = rows[np.argsort(group[rows] * stride + rank.start_ns[rows], kind="stable")]
    begin = group[rows] * stride + (rank.start_ns[rows] - low)
    until = group[rows] * stride + (rank.end_ns[rows] - low)
    longest = np.maximum.accumulate(until)
    turn = np.ones(len(rows), np.bool_)
    turn[1:] = longest[1:] > longest[:-1]
    carriers = np.flatnonzero(turn)
    cuts = begin[carriers]
    first, last = lane.group * stride + (lane.start_ns - low), lane.group * stride + (lane.end_ns - low)
    which, start, end, edge = _cut(first, last, cuts, np.ones(len(lane), np.bool_))
    shift = lane.group[which] * stride - low
    real = end > start
    return lane.group[which][real], (start - shift)[real], (end - shift)[real], rows[carriers[edge[real] - 1]]


def _cut(start: Ints, end: Ints, edges: Ints, is_cut: Bools) -> tuple[Ints, Ints, Ints, Ints]:
    """Cut those intervals that *is_cut* marks at *edges*, which ascend; the others stay whole.

    Returns:
        Interval, start and end of each piece, and the number of edges up to its start.

    """
    first = np.searchsorted(edges, start, side="right")
    count = np.where(is_cut, np.searchsorted(edges, end, side="left") - first, 0) + 1
    row = np.repeat(np.arange(len(start)), count)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    # Piece nth of a row lies between the edges first + nth - 1 and first + nth, or its own start or end.
    edge = first[row] + nth
    cut_start = np.where(nth == 0, start[row], np.append(edges, 0)[edge - 1])
    cut_end = np.where(nth == count[row] - 1, end[row], np.append(edges, 0)[edge])
    return row, cut_start, cut_end, edge


def _judge(rank: Rank, start: Ints, end: Ints, owner: Ints) -> tuple[Ints, Ints]:
    """Return the cause of each piece [start, end) of the events *owner*, as far as this rank alone can tell.

    Returns:
        The cause if the host was not waiting for the GPU then, and the cause if it was.

    """
    if not rank.launched.any():
        unknown = np.full(len(start), _UNKNOWN, np.int64)
        return unknown, unknown
    constraints, stream = rank.constraints, rank.constraints.stream
    compute = rank.compute
    next_compute = np.searchsorted(rank.start_ns[compute], start)
    ahead, behind = _pick(compute, next_compute), _pick(compute, next_compute - 1)
    is_followed = (ahead >= 0) & (rank.part[ahead] == rank.part[owner])
    earlier = (behind >= 0) & (rank.part[behind] == rank.part[owner])
    same = np.where(is_followed, stream[ahead] == stream[owner], earlier & (stream[behind] == stream[owner]))
    blocker, by = _walk(rank, np.where(is_followed, ahead, -1), start, end)
    how, sure = constraints.kind[blocker], constraints.is_certain[blocker]
    launch_bound = sure & (how == LAUNCH)
    tied = sure & (by == owner)
    unasked = tied & (how == OTHER_STREAM) & rank.computes[blocker] & ~constraints.may_wait[blocker]
    queue = unasked & rank.waits_recorded & (rank.launch_ns[blocker] > rank.launch_ns[owner])
    tail = start >= rank.last_work[rank.part[owner]]
    missed = _beside(rank.runs, rank.start_ns[owner]) >= end - start
    # The operation would have been hidden if it had been launched earlier by its exposed time; was the host free then?
    early = rank.start_ns[owner] - (end - start)
    host_free = rank.blocked.covered_ns(early, np.maximum(rank.launch_ns[owner], early)) * 2 < end - start
    begun_late = (constraints.kind[owner] == LAUNCH) & constraints.is_certain[owner] & missed & host_free
    between = _launched_between(rank, owner, ahead)

    def decide(*, host_waited: bool) -> Ints:
        waits = (tied & ~unasked) | (launch_bound & host_waited)
        # The first that holds decides.
        return np.select(
            [
                same,
                ~rank.launched[owner] | (is_followed & ~rank.launched[ahead]),
                ~is_followed,
                (blocker < 0) | ~sure | (how == NOTHING),
                launch_bound & (not host_waited),
                queue,
                unasked,
                waits & tail,
                waits & begun_late,
                waits & between,
                waits,
            ],
            [_SAME, _UNKNOWN, _NOTHING, _UNKNOWN, _LATE, _QUEUE, _UNKNOWN, _NOTHING, _LATE, _NOTHING, _WAITED],
            default=_NOTHING,  # held by other work than this
        )

    return decide(host_waited=False), decide(host_waited=True)


def _pick(rows: Ints, at: Ints) -> Ints:
    """Return rows[at], -1 where *at* is outside."""
    return np.append(rows, -1)[np.where((at >= 0) & (at < len(rows)), at, -1)]


def _walk(rank: Rank, row: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return the event held back during the piece and its holder, following the holders back from *row*."""
    constraints = rank.constraints
    row = row.copy()
    for _ in range(LONGEST_CHAIN):
        by = np.where(row >= 0, constraints.blocker[row], -1)
        # The holder began after the middle of the piece: it was itself waiting then.
        on = (by >= 0) & (rank.start_ns[by] * 2 > start + end)
        if not on.any():
            return row, by
        row = np.where(on, by, row)
    return np.where(on, -1, row), by


def _beside(runs: Intervals, at: Ints) -> Ints:
    """Return how long compute had been running without a break at these moments; 0 where none ran."""
    if not len(runs):
        return np.zeros(len(at), np.int64)
    before = np.searchsorted(runs.start_ns, at, side="left") - 1
    inside = (before >= 0) & (runs.end_ns[np.maximum(before, 0)] > at)
    return np.where(inside, at - runs.start_ns[np.maximum(before, 0)], 0)


def _launched_between(rank: Rank, owner: Ints, ahead: Ints) -> Bools:
    """Return whether compute was launched after the owner and before the next compute."""
    first = np.searchsorted(rank.launches, rank.launch_ns[owner], side="right")
    return np.searchsorted(rank.launches, rank.launch_ns[ahead], side="left") > first


def with_peers(pieces: Mapping[int, pl.DataFrame], waited: pl.DataFrame) -> pl.DataFrame:
    """Return exposed time by rank, part, label and cause, waiting for peers included, in that order.

    An operation waits at its beginning; whatever kept compute away then, the peer was late. Where the wait is unknown,
    or only a lower bound (``open``), the rest may have been waiting too: its cause is unknown. Copies wait for nobody.

    Args:
        pieces: PIECES of each rank.
        waited: Operations of all ranks with their waits.

    >>> pieces = pl.DataFrame({"part": [0, 0], "label": ["dp_comm", "dp_comm"],
    ...     "cause": ["nothing_to_hide", "same_stream"], "id": [4, 5], "start_ns": [10, 50], "ns": [30, 5]},
    ...     schema=PIECES)
    >>> waited = pl.DataFrame({"rank": 1, "id": [4, 5], "start_ns": [0, 50], "wait_ns": [25, 0], "open": False})
    >>> with_peers({1: pieces}, waited).drop("rank", "part").rows()
    [('dp_comm', 'same_stream', 5), ('dp_comm', 'nothing_to_hide', 15), ('dp_comm', 'peer_late', 15)]
    """
    all_pieces = concat_ranks(pieces, PIECES)
    # Each rank counts its events from 0: an id of its own for every event of the run.
    ids = 1 + max(int(to_int64(table["id"]).max(initial=-1)) for table in (all_pieces, waited))
    id_in_run = pl.col("rank").cast(pl.Int64) * ids + pl.col("id")
    split = _split_waits(all_pieces.with_columns(id=id_in_run), waited.with_columns(id=id_in_run))
    keys = ["rank", "part", "label", "cause"]
    return split.group_by(keys).agg(pl.col("ns").sum()).sort(keys)


def causes_by_event(pieces: pl.DataFrame, waited: pl.DataFrame) -> pl.DataFrame:
    """Return the exposed time of each event of a rank by cause, waiting for peers included: ``EVENT_CAUSES``.

    Exposed time that several events cover belongs to one of them, as in the sums over events.

    >>> pieces = pl.DataFrame({"part": [0, 0], "label": ["dp_comm", "dp_comm"],
    ...     "cause": ["nothing_to_hide", "same_stream"], "id": [4, 5], "start_ns": [10, 50], "ns": [30, 5]},
    ...     schema=PIECES)
    >>> waited = pl.DataFrame({"id": [4, 5], "start_ns": [0, 50], "wait_ns": [25, 0], "open": False})
    >>> causes_by_event(pieces, waited).rows()
    [(4, 'nothing_to_hide', 15), (4, 'peer_late', 15), (5, 'same_stream', 5)]
    """
    split = _split_waits(pieces, waited).with_columns(pl.col("id").fill_null(-1))
    return split.group_by("id", "cause").agg(pl.col("ns").sum()).sort("id", "cause")


def _split_waits(pieces: pl.DataFrame, waited: pl.DataFrame) -> pl.DataFrame:
    """Return the pieces with those parts of them as pieces of their own in which operations waited for a peer."""
    of_operation = pieces["label"].is_in(COMMUNICATION_LABELS).to_numpy()
    ns = pieces["ns"].to_numpy()
    # The row of the operation that each piece is a part of. The last element stands for no operation (-1).
    own = find_ids(to_int64(pieces["id"]), to_int64(waited["id"]))
    has_wait = np.append(waited["wait_ns"].is_not_null().to_numpy(), False)[own]
    is_complete = np.append((waited["wait_ns"].is_not_null() & ~waited["open"]).to_numpy(), False)[own]
    until = np.append(waited["start_ns"].to_numpy() + to_int64(waited["wait_ns"], 0), 0)[own]
    wait_ns = np.where(of_operation & has_wait, np.clip(until - pieces["start_ns"].to_numpy(), 0, ns), 0)
    unknown, peer_late = (pl.lit(cause, PIECES["cause"]) for cause in ("unknown", "peer_late"))
    cause = pl.when(pl.Series(of_operation & ~is_complete)).then(unknown).otherwise("cause")
    pieces = pieces.drop("start_ns")
    rest = pieces.with_columns(cause=cause, ns=pl.Series(ns - wait_ns)).filter(pl.col("ns") > 0)
    waits = pieces.with_columns(cause=peer_late, ns=pl.Series(wait_ns)).filter(pl.col("ns") > 0)
    return pl.concat([rest, waits])
