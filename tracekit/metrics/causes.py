"""Causes of exposure: one for each exposed nanosecond of communication and copies.

While an operation is exposed no compute runs. The causes say what the next compute was waiting for,
in this order:

``peer_late``
    the operation itself waited for another rank (its wait part), whatever stream it is on;
``same_stream``
    it is queued on the operation's own stream, behind it (or, at the end of a step, the operation
    behind compute);
``launched_late``
    the host had not launched the compute, or launched the operation so late that compute which had
    run long enough to hide it was already under way; a host that stood in a call that waits for the
    GPU was not late;
``one_queue``
    it was held until the operation ended although nothing told its stream to wait: streams share a
    hardware queue;
``compute_waited``
    its stream, or the host, was told to wait for the operation, and no other compute was launched
    in between;
``nothing_to_hide``
    it waited for the operation when all compute launched since then, or all of the step's forward
    and backward work, was done; or it waited for other work; or there was none left;
``unknown``
    the trace does not say: no launches, no peers' traces, or held back by something that was not
    recorded, as nodes of a graph are that was replayed on several streams. An operation that lacks
    the traces of some members may have waited for them, so that nothing but its known wait has a
    cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints, find_ids
from tracekit._util.categories import CategoryColumn, CategoryColumns
from tracekit._util.columns import concat_ranks, present, to_int64
from tracekit.classify.host_ranges import MIN_GRAPH_EVENTS
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
"""Share of GPU time below which kernels that belong to no model are no compute that could hide
anything."""
LONGEST_CHAIN = 32
"""Holders followed back from the next compute; what lies further back is unknown."""
_STEP_WORK = ("forward", "dgrad", "wgrad", "backward", "recompute")

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
    """The host's waiting calls (``metrics.host.waiting_calls.WAITING_CALLS``)."""
    constraints: StartConstraints
    start_ns: Ints
    end_ns: Ints
    launch_ns: Ints
    launched: Bools
    label: Ints
    part: Ints

    @classmethod
    def of(cls, labelled: pl.DataFrame, calls: pl.DataFrame) -> Rank:
        """Return the arrays of a labelled table (with ``part``, if it has parts).

        *calls* are the waiting calls.
        """
        labelled = _with_launches_of_graphs(labelled)
        launch = labelled["launch_ns"]
        stream_waits_ns = calls["start_ns"].filter(~calls["blocks"]).to_numpy()
        part = np.zeros(len(labelled), np.int64)
        if "part" in labelled.columns:
            part = to_int64(labelled["part"])
        return cls(
            labelled,
            calls,
            find_start_constraints(labelled, stream_waits_ns),
            labelled["start_ns"].to_numpy(),
            labelled["end_ns"].to_numpy(),
            to_int64(launch, 0),
            present(launch),
            label_codes(labelled),
            part,
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
    def in_branched_graph(self) -> Bools:
        """Which rows are of a graph that was replayed on several streams.

        The driver deals the branches of a graph out to streams of its own: which stream a node ran
        on, and what came before it there, says nothing about what it had to wait for.
        """
        events = self.labelled.select("correlation", "device", "stream")
        launches = events.drop_nulls("correlation").group_by("correlation").len()
        graphs = launches.filter(pl.col("len") >= MIN_GRAPH_EVENTS).select("correlation")
        if graphs.is_empty():
            return np.zeros(len(events), np.bool_)
        streams = (
            events.join(graphs, on="correlation", how="semi").unique().group_by("correlation").len()
        )
        branched = streams.filter(pl.col("len") > 1)["correlation"]
        return events["correlation"].is_in(branched.implode()).fill_null(value=False).to_numpy()

    @cached_property
    def last_work(self) -> Ints:
        """When the last forward or backward work of each part begins; never where it has none."""
        last = np.full(int(self.part.max(initial=0)) + 1, np.iinfo(np.int64).max, np.int64)
        rows = self.order[self.labels(*_STEP_WORK)[self.order]]
        last[self.part[rows]] = self.start_ns[rows]  # starts ascend: the last one stays
        return last


def _with_launches_of_graphs(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return the events with the work of graphs launched when the call for all of it returned, if that took long.

    Until then the host is still launching it. What starts before that was launched by then.
    """
    if "launch_end_ns" not in labelled.columns or labelled["launch_end_ns"].is_null().all():
        return labelled
    of_graph = (pl.len().over("correlation") > 1) & (pl.col("correlation") >= 0)
    first_ns = pl.col("start_ns").min().over("correlation")
    returned_ns = pl.max_horizontal("launch_ns", pl.min_horizontal("launch_end_ns", first_ns))
    is_slow = of_graph & pl.col("launch_ns").is_not_null() & pl.col("launch_end_ns").is_not_null()
    return labelled.with_columns(
        launch_ns=pl.when(is_slow).then(returned_ns).otherwise("launch_ns")
    )


def exposure_causes(rank: Rank, paid: Mapping[str, Intervals], *, parts: bool) -> pl.DataFrame:
    """Return PIECES: the causes of each label's exposed time (*paid*, as ``Lanes.exposed`` gives it).

    With *parts* the groups of *paid* are the rank's parts, else all is one group.
    """
    group = rank.part if parts else np.zeros_like(rank.part)
    tables = []
    for label, exposed in paid.items():
        if len(exposed):
            tables.append(_pieces_by_event(rank, label, exposed, group))
    if not tables:
        return PIECES.to_frame()
    pieces = pl.concat(tables)
    pieces = pieces.with_columns(
        _judge(rank, pieces), id=rank.labelled["id"].gather(pieces["event"])
    )
    cause = pl.when("host_waited").then("if_host_waited").otherwise("if_host_ran")
    return cut_where_host_waits(rank, pieces).select(
        pl.col("part").cast(pl.Int64),
        "label",
        cause.alias("cause"),
        "id",
        "start_ns",
        ns=pl.col("end_ns") - pl.col("start_ns"),
    )


def _judge(rank: Rank, pieces: pl.DataFrame) -> list[pl.Series]:
    """Return the cause of each piece if the host ran (``if_host_ran``), and if it waited for the GPU then."""
    if not rank.launched.any():
        unknown = pl.Series("if_host_ran", ["unknown"], PIECES["cause"]).new_from_index(
            0, len(pieces)
        )
        return [unknown, unknown.alias("if_host_waited")]
    evidence = _gather_evidence(
        rank, pieces["start_ns"].to_numpy(), pieces["end_ns"].to_numpy(), pieces["event"].to_numpy()
    )
    return [
        _choose_cause(evidence, host_waited=False).alias("if_host_ran"),
        _choose_cause(evidence, host_waited=True).alias("if_host_waited"),
    ]


def cut_where_host_waits(rank: Rank, pieces: pl.DataFrame) -> pl.DataFrame:
    """Cut pieces where the host began and ended to wait for the GPU, and add whether it waited (``host_waited``).

    Pieces whose cause is the same in both cases stay whole.
    """
    edges = np.stack([rank.blocked.start_ns, rank.blocked.end_ns], axis=1).ravel()
    is_cut = (pieces["if_host_ran"] != pieces["if_host_waited"]).to_numpy()
    cuts = cut_intervals(pieces["start_ns"].to_numpy(), pieces["end_ns"].to_numpy(), edges, is_cut)
    is_behind_a_begin = cuts.edges_before % 2 == 1  # begins and ends alternate
    return pieces[cuts.interval].with_columns(
        start_ns=cuts.start_ns, end_ns=cuts.end_ns, host_waited=pl.Series(is_behind_a_begin)
    )


def _pieces_by_event(rank: Rank, label: str, exposed: Intervals, group: Ints) -> pl.DataFrame:
    """Return a label's *exposed* time, cut where another event begins to carry it.

    Of several events at once the one that ends last of those begun carries it.

    Returns:
        Part, label, start_ns, end_ns and the row of the carrying event of each piece.

    """
    rows = np.flatnonzero(rank.labels(label) & (rank.end_ns > rank.start_ns))
    # All groups lie on one axis, one behind the other: times of group g are moved by g strides.
    origin_ns = int(rank.start_ns[rows].min())
    stride_ns = int(rank.end_ns[rows].max()) - origin_ns + 1
    rows = rows[np.argsort(group[rows] * stride_ns + rank.start_ns[rows], kind="stable")]
    event_shift = group[rows] * stride_ns - origin_ns
    latest_end = np.maximum.accumulate(rank.end_ns[rows] + event_shift)
    ends_last = np.diff(latest_end, prepend=latest_end[0] - 1) > 0
    carriers = rows[ends_last]
    carrier_start = (rank.start_ns[rows] + event_shift)[ends_last]

    exposed_shift = exposed.group * stride_ns - origin_ns
    is_cut = np.ones(len(exposed), np.bool_)
    cuts = cut_intervals(
        exposed.start_ns + exposed_shift, exposed.end_ns + exposed_shift, carrier_start, is_cut
    )
    pieces = pl.DataFrame(
        {
            "part": exposed.group[cuts.interval],
            "start_ns": cuts.start_ns - exposed_shift[cuts.interval],
            "end_ns": cuts.end_ns - exposed_shift[cuts.interval],
            "event": carriers[cuts.edges_before - 1],
        }
    )
    pieces = pieces.filter(pl.col("end_ns") > pl.col("start_ns"))
    return pieces.with_columns(label=pl.lit(label, PIECES["label"]))


class _Cuts(NamedTuple):
    """Pieces of intervals that were cut."""

    interval: Ints
    """Index of the interval that each piece belongs to."""
    start_ns: Ints
    end_ns: Ints
    edges_before: Ints
    """Number of edges up to the piece's start."""


def cut_intervals(start_ns: Ints, end_ns: Ints, edges: Ints, is_cut: Bools) -> _Cuts:
    """Cut those intervals that *is_cut* marks at *edges*, which ascend; the others stay whole."""
    first_edge = np.searchsorted(edges, start_ns, side="right")
    edges_inside = np.searchsorted(edges, end_ns, side="left") - first_edge
    pieces = np.where(is_cut, edges_inside, 0) + 1
    interval = np.repeat(np.arange(len(start_ns)), pieces)
    nth = np.arange(len(interval)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    # The nth piece lies between the edges first_edge + nth - 1 and first_edge + nth. The first one
    # begins where the interval does, and the last one ends there. A 0 is appended because
    # edges[edge] may be one beyond the end.
    edge = first_edge[interval] + nth
    edge_ns = np.append(edges, 0)
    is_first = nth == 0
    is_last = nth == pieces[interval] - 1
    return _Cuts(
        interval=interval,
        start_ns=np.where(is_first, start_ns[interval], edge_ns[edge - 1]),
        end_ns=np.where(is_last, end_ns[interval], edge_ns[edge]),
        edges_before=edge,
    )


class _PieceEvidence(NamedTuple):
    """What is known about each piece of exposed time, as far as this rank alone can tell.

    *Operation* is the event whose time is exposed; *held event* the one that could not start during
    the piece, found by following what the next compute waited for.
    """

    shares_stream_with_compute: Bools
    """The next compute of the part is on the operation's stream; if there is none, the previous one
    is."""
    is_in_branched_graph: Bools
    """The operation is part of a graph that was replayed on several streams: streams say
    nothing."""
    communicates: Bools
    launch_not_recorded: Bools
    """Of the operation, or of the next compute."""
    is_followed_by_compute: Bools
    holder_unknown: Bools
    held_by_launch: Bools
    held_by_operation: Bools
    held_without_being_told: Bools
    """Compute on another stream was held by the operation, although nothing told its stream to
    wait."""
    shares_queue: Bools
    """As above, in a trace that records such waits, and launched behind the operation."""
    step_work_is_done: Bools
    """All forward and backward work of the part had begun."""
    operation_launched_late: Bools
    compute_launched_between: Bools
    """After the operation and before the next compute."""


def _gather_evidence(rank: Rank, start_ns: Ints, end_ns: Ints, operation: Ints) -> _PieceEvidence:
    """Return the evidence about the pieces [start, end) of the rows *operation*."""
    constraints = rank.constraints
    stream = constraints.stream
    next_index = np.searchsorted(rank.start_ns[rank.compute], start_ns)
    next_compute = _take_inside(rank.compute, next_index)
    previous_compute = _take_inside(rank.compute, next_index - 1)
    is_followed = (next_compute >= 0) & (rank.part[next_compute] == rank.part[operation])
    is_preceded = (previous_compute >= 0) & (rank.part[previous_compute] == rank.part[operation])
    is_on_next_stream = stream[next_compute] == stream[operation]
    is_on_previous_stream = is_preceded & (stream[previous_compute] == stream[operation])

    followed_by = np.where(is_followed, next_compute, -1)
    held_event, holder = _find_held_event(rank, followed_by, start_ns, end_ns)
    kind = constraints.kind[held_event]
    is_certain = constraints.is_certain[held_event]
    held_by_operation = is_certain & (holder == operation)
    is_compute_on_other_stream = rank.computes[held_event] & (kind == OTHER_STREAM)
    without_being_told = (
        held_by_operation & is_compute_on_other_stream & ~constraints.may_wait[held_event]
    )
    is_launched_behind = rank.launch_ns[held_event] > rank.launch_ns[operation]
    return _PieceEvidence(
        shares_stream_with_compute=np.where(is_followed, is_on_next_stream, is_on_previous_stream),
        is_in_branched_graph=rank.in_branched_graph[operation],
        communicates=rank.labels(*COMMUNICATION_LABELS)[operation],
        launch_not_recorded=~rank.launched[operation]
        | (is_followed & ~rank.launched[next_compute]),
        is_followed_by_compute=is_followed,
        holder_unknown=(held_event < 0) | ~is_certain | (kind == NOTHING),
        held_by_launch=is_certain & (kind == LAUNCH),
        held_by_operation=held_by_operation,
        held_without_being_told=without_being_told,
        shares_queue=without_being_told & rank.waits_recorded & is_launched_behind,
        step_work_is_done=start_ns >= rank.last_work[rank.part[operation]],
        operation_launched_late=_is_launched_late(rank, operation, end_ns - start_ns),
        compute_launched_between=_is_compute_launched_between(rank, operation, next_compute),
    )


def _is_launched_late(rank: Rank, operation: Ints, exposed_ns: Ints) -> Bools:
    """Return whether each operation would have been hidden, had the host launched it earlier by its exposed time.

    Compute had run long enough beside it, its launch was what it waited for, and the host was free
    to launch it.
    """
    is_held_by_launch = (rank.constraints.kind[operation] == LAUNCH) & rank.constraints.is_certain[
        operation
    ]
    start_ns = rank.start_ns[operation]
    compute_had_run_long_enough = _compute_running_since_ns(rank.runs, start_ns) >= exposed_ns
    earlier_ns = start_ns - exposed_ns
    host_waited_ns = rank.blocked.covered_ns(
        earlier_ns, np.maximum(rank.launch_ns[operation], earlier_ns)
    )
    host_was_free = host_waited_ns * 2 < exposed_ns
    is_late: Bools = is_held_by_launch & compute_had_run_long_enough & host_was_free
    return is_late


def _choose_cause(evidence: _PieceEvidence, *, host_waited: bool) -> pl.Series:
    """Return the cause of each piece if the host was waiting for the GPU at the time, or if it was not."""
    host_was_late = evidence.held_by_launch & (not host_waited)
    was_told_to_wait = evidence.held_by_operation & ~evidence.held_without_being_told
    waits_for_operation = was_told_to_wait | (evidence.held_by_launch & host_waited)
    is_other_work_left = np.ones(len(host_was_late), np.bool_)
    is_after_step_work = evidence.step_work_is_done | ~evidence.is_followed_by_compute
    ends_branched_graph = evidence.is_in_branched_graph & evidence.communicates & is_after_step_work
    cases = [  # the first that holds decides
        ("nothing_to_hide", ends_branched_graph),
        ("unknown", evidence.is_in_branched_graph),
        ("same_stream", evidence.shares_stream_with_compute),
        ("unknown", evidence.launch_not_recorded),
        ("nothing_to_hide", ~evidence.is_followed_by_compute),
        ("unknown", evidence.holder_unknown),
        ("launched_late", host_was_late),
        ("one_queue", evidence.shares_queue),
        ("unknown", evidence.held_without_being_told),
        ("nothing_to_hide", waits_for_operation & evidence.step_work_is_done),
        ("launched_late", waits_for_operation & evidence.operation_launched_late),
        ("nothing_to_hide", waits_for_operation & evidence.compute_launched_between),
        ("compute_waited", waits_for_operation),
        ("nothing_to_hide", is_other_work_left),  # compute was held by other work than this
    ]
    return CategoryColumn.choose(len(host_was_late), cases).series("cause", PIECES["cause"])


def _take_inside(rows: Ints, index: Ints) -> Ints:
    """Return rows[index], -1 where *index* is outside."""
    is_inside = (index >= 0) & (index < len(rows))
    return np.append(rows, -1)[np.where(is_inside, index, -1)]


def _find_held_event(rank: Rank, row: Ints, start_ns: Ints, end_ns: Ints) -> tuple[Ints, Ints]:
    """Return the event held back during each piece and its holder, following the holders back from *row*."""
    held_event = row.copy()
    for _ in range(LONGEST_CHAIN):
        holder = np.where(held_event >= 0, rank.constraints.blocker[held_event], -1)
        # A holder that began after the middle of the piece was itself held back during the piece.
        holder_was_held = (holder >= 0) & (rank.start_ns[holder] * 2 > start_ns + end_ns)
        if not holder_was_held.any():
            return held_event, holder
        held_event = np.where(holder_was_held, holder, held_event)
    return np.where(holder_was_held, -1, held_event), holder


def _compute_running_since_ns(runs: Intervals, time_ns: Ints) -> Ints:
    """Return how long compute had been running without a break at these moments.

    0 where none ran.
    """
    if not len(runs):
        return np.zeros(len(time_ns), np.int64)
    run = np.searchsorted(runs.start_ns, time_ns, side="left") - 1
    has_begun = run >= 0
    run = np.maximum(run, 0)
    is_running = has_begun & (runs.end_ns[run] > time_ns)
    return np.where(is_running, time_ns - runs.start_ns[run], 0)


def _is_compute_launched_between(rank: Rank, operation: Ints, next_compute: Ints) -> Bools:
    """Return whether compute was launched after the operation and before the next compute."""
    launched_until_operation = np.searchsorted(
        rank.launches, rank.launch_ns[operation], side="right"
    )
    launched_before_next = np.searchsorted(rank.launches, rank.launch_ns[next_compute], side="left")
    return launched_before_next > launched_until_operation


def with_peers(pieces: Mapping[int, pl.DataFrame], waited: pl.DataFrame) -> pl.DataFrame:
    """Return exposed time by rank, part, label and cause, waiting for peers included, in that order.

    An operation waits at its beginning; whatever kept compute away then, the peer was late. Where
    the wait is unknown, or only a lower bound (``open``), the rest may have been waiting too: its
    cause is unknown. Copies wait for nobody.

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
    if all_pieces.is_empty():
        return all_pieces.select("rank", "part", "label", "cause", "ns")
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
    if pieces.is_empty():
        return EVENT_CAUSES.to_frame()
    split = _split_waits(pieces, waited).with_columns(pl.col("id").fill_null(-1))
    return split.group_by("id", "cause").agg(pl.col("ns").sum()).sort("id", "cause")


def _split_waits(pieces: pl.DataFrame, waited: pl.DataFrame) -> pl.DataFrame:
    """Return the pieces with those parts of them as pieces of their own in which operations waited for a peer."""
    is_communication = pieces["label"].is_in(COMMUNICATION_LABELS).to_numpy()
    piece_ns = pieces["ns"].to_numpy()
    wait_is_known = waited["wait_ns"].is_not_null()
    wait_is_complete = wait_is_known & ~waited["open"]
    wait_end_ns = waited["start_ns"].to_numpy() + to_int64(waited["wait_ns"], 0)
    # The row of the operation that each piece is a part of. The last element stands for no
    # operation (-1).
    operation = find_ids(to_int64(pieces["id"]), to_int64(waited["id"]))
    has_wait = is_communication & np.append(wait_is_known.to_numpy(), False)[operation]
    is_incomplete = is_communication & ~np.append(wait_is_complete.to_numpy(), False)[operation]
    waited_ns = np.append(wait_end_ns, 0)[operation] - pieces["start_ns"].to_numpy()
    wait_ns = np.where(has_wait, np.clip(waited_ns, 0, piece_ns), 0)

    unknown = pl.lit("unknown", PIECES["cause"])
    peer_late = pl.lit("peer_late", PIECES["cause"])
    cause = pl.when(pl.Series(is_incomplete)).then(unknown).otherwise("cause")
    pieces = pieces.drop("start_ns")
    rest = pieces.with_columns(cause=cause, ns=pl.Series(piece_ns - wait_ns)).filter(
        pl.col("ns") > 0
    )
    waits = pieces.with_columns(cause=peer_late, ns=pl.Series(wait_ns)).filter(pl.col("ns") > 0)
    return pl.concat([rest, waits])
