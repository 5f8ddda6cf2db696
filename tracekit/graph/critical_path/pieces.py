"""One rank's part of the critical path: pieces of work, and the piece that each one followed.

Following start constraints (``metrics.start_constraints``) back from an event is a walk without
choices. Only events on a walk from a communication (where a walk may arrive from another rank) or
from a step's last event can be on the path. Of those, compute that follows compute of the same
label on its stream forms one piece. An event that waited for its launch continues with the host:
from the launch call back to the last call in which the host waited for the GPU, and from there with
the GPU event whose end released the host.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import polars as pl

from tracekit._loops.critical_path import mark_walks, number_pieces
from tracekit._util.arrays import Bools, Ints, as_int64
from tracekit._util.columns import present, to_int64, with_nulls
from tracekit.intervals import Intervals
from tracekit.metrics.causes import Rank
from tracekit.metrics.start_constraints import END_TOLERANCE_NS, LAUNCH, NOTHING, STREAM
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS, LABELS, Source

PIECE_KINDS = ("kernel", "copy", "communication", "launch", "host", "unknown")
_KERNEL, _COPY, _COMMUNICATION, _LAUNCH, _HOST, _UNKNOWN = range(len(PIECE_KINDS))
_STRING_TYPE = pl.String()
BEFORE_TRACE_NS = np.iinfo(np.int64).min // 4
"""Start of host work that nothing in the trace precedes."""

PATH_PIECES = pl.Schema(
    {
        "kind": pl.Enum(PIECE_KINDS),
        "label": pl.Enum(LABELS),
        "what": pl.String(),  # name of the longest kernel; of launches and host work: the operator around the launch
        "chain": pl.Categorical(),  # operators around the launch of that kernel, outermost first
        "part": pl.Int64(),
        "start_ns": pl.Int64(),  # end of the piece before it
        "end_ns": pl.Int64(),
        "idle_ns": pl.Int64(),  # time within the piece in which none of its events, or for the host no event, ran
        "exposed_ns": pl.Int64(),  # of communication and copies: exposed time as in the budget
        "before": pl.Int64(),  # row of the piece that it followed; -1: the walk ends
        "id": pl.Int64(),  # event of a communication
        "launched": pl.Categorical(),  # of launches and host work: name of the GPU event that was launched
        "first": pl.Boolean(),  # begins its step on this rank
        "last": pl.Boolean(),  # ends its step on this rank
    }
)


def find_path_pieces(
    rank: Rank, exposed: Mapping[str, Intervals], *, steps: pl.DataFrame, busy: Intervals
) -> pl.DataFrame:
    """Return ``PATH_PIECES`` of one rank.

    Args:
        rank: GPU events of the rank with their start constraints.
        exposed: Exposed time by label over the whole window.
        steps: Its steps (``align.steps.STEPS``); the row is the part.
        busy: Time in which any GPU event runs.

    """
    if not len(rank.start_ns):
        return PATH_PIECES.to_frame()
    chains = _find_chains(rank)
    gpu = _gpu_pieces(rank, chains, exposed)
    between, before = _pieces_between(rank, chains)
    pieces = (
        pl.concat([gpu, between]).with_columns(before=pl.Series(before)).select(PATH_PIECES.names())
    )
    return _with_idle_gpu(_with_host_tails(pieces, steps), steps, busy)


def is_followed(steps: pl.DataFrame) -> pl.Series:
    """Return for each part whether the next part is the next step, so that it ends where that one begins."""
    return (steps["step"].shift(-1) == steps["step"] + 1).fill_null(False)


def _with_host_tails(pieces: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the pieces with the host's work behind the GPU's last in steps that no selected step follows."""
    tails = (
        steps.select(
            "end_ns",
            "interval_end_ns",
            "time_ns",
            followed=is_followed(steps),
            part=pl.int_range(pl.len()),
        )
        .filter(
            ~pl.col("followed")
            & (pl.col("interval_end_ns") > pl.col("end_ns"))
            & pl.col("time_ns").is_not_null()
        )
        .join(pieces.select("part", "last").with_row_index("before").filter("last"), on="part")
    )
    if tails.is_empty():
        return pieces
    tail_pieces = tails.select(
        kind=pl.lit("host", PATH_PIECES["kind"]),
        part=pl.col("part").cast(pl.Int64),
        start_ns="end_ns",
        end_ns="interval_end_ns",
        idle_ns=pl.lit(0, pl.Int64),
        exposed_ns=pl.lit(0, pl.Int64),
        before=pl.col("before").cast(pl.Int64),
        first=pl.lit(False),
        last=pl.lit(True),
    )
    has_tail = pl.int_range(pl.len()).is_in(tails["before"].implode())
    without_last = pieces.with_columns(last=pl.col("last") & ~has_tail)
    return pl.concat([without_last, tail_pieces], how="diagonal").select(PATH_PIECES.names())


def _with_idle_gpu(pieces: pl.DataFrame, steps: pl.DataFrame, busy: Intervals) -> pl.DataFrame:
    """Return the pieces.

    Launches and host work with the time in which the GPU ran nothing, within their step.
    """
    begin = steps["interval_start_ns"].gather(pieces["part"].clip(upper_bound=steps.height - 1))
    start = np.maximum(pieces["start_ns"].to_numpy(), begin.fill_null(BEFORE_TRACE_NS).to_numpy())
    end = np.maximum(pieces["end_ns"].to_numpy(), start)
    idle_ns = end - start - busy.covered_ns(start, end)
    is_host = pl.col("kind").is_in(["launch", "host"])
    return pieces.with_columns(
        idle_ns=pl.when(is_host).then(pl.Series(idle_ns)).otherwise("idle_ns")
    )


class LoadableTable:
    """A table that is loaded when it is needed: in memory (``TableInMemory``) or in a file of a store."""

    def load(self, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return the table, or at least some of its *columns*."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class TableInMemory(LoadableTable):
    """A table that is in memory."""

    frame: pl.DataFrame

    def load(self, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return the table."""
        return self.frame


@dataclass(frozen=True, eq=False, kw_only=True)
class PathTables:
    """Tables of one rank that the critical path and the graph of events are built from."""

    source: Source
    steps: pl.DataFrame
    """``align.steps.STEPS``; the row is the part."""
    path: LoadableTable
    """Pieces that the critical path may run through (``PATH_PIECES``)."""
    launches_known: bool
    """False if no GPU event has its launch in the file."""
    graph_events: LoadableTable | None
    """Its GPU events with what each waited for (``whatif.rank_events.RANK_EVENTS``); None if not
    asked for, or without GPU events."""
    graph_host_work: LoadableTable | None = None
    """What its host did between launches (``whatif.rank_events.HOST_WORK``); None if not asked
    for."""


class Release(NamedTuple):
    """For each event: the GPU event whose end released the host before the launch, and when."""

    event: Ints
    """-1 if the host had not waited for the GPU."""
    time_ns: Ints


class _Chains(msgspec.Struct, frozen=True, eq=False):
    """Events that may be on the path, the event that each followed, and the pieces that they form."""

    followed: Ints
    """Of each event: the event that it followed; -1: none."""
    on_walk: Bools
    """Whether the event is on some walk."""
    is_communication: Bools
    is_first: Bools
    """Whether the event begins its part on this rank."""
    is_last: Bools
    """Whether the event ends its part on this rank."""
    release: Release
    piece: Ints
    """Of each event: its piece; -1 if it is on no walk."""
    first: Ints
    """Of each piece: its first event."""
    last: Ints
    longest: Ints


def _find_chains(rank: Rank) -> _Chains:
    """Follow start constraints back from communications, first and last events, and group the events on the way."""
    constraints = rank.constraints
    count = len(rank.start_ns)
    is_communication = rank.labels(*COMMUNICATION_LABELS)
    is_first = _begins_part(rank)
    is_last = _ends_part(rank)
    release = find_release(rank)
    followed = np.where(constraints.kind == LAUNCH, release.event, constraints.blocker)
    # Overlapping events may name one that starts later, and impossible times the event itself: a walk
    # must go back in time.
    order = as_int64(rank.order)
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    followed = as_int64(np.where((followed >= 0) & (position[followed] >= position), -1, followed))
    marked = (is_communication | is_first | is_last).astype(np.int64)
    mark_walks(order, followed, marked)
    on_walk = marked > 0

    # An event joins the piece of the event it followed if nothing else followed that one and both
    # are alike.
    followers = np.bincount(followed[on_walk & (followed >= 0)], minlength=count)
    joins = (
        on_walk
        & (constraints.kind == STREAM)
        & constraints.is_certain
        & ~is_communication
        & (followed >= 0)
    )
    joins &= (followers[followed] == 1) & (rank.label[followed] == rank.label)
    joins &= (rank.part[followed] == rank.part) & ~is_last[followed]
    piece = np.full(count, -1, np.int64)
    first, last, longest = np.empty((3, count), np.int64)
    duration = as_int64(rank.end_ns - rank.start_ns)
    pieces = number_pieces(
        order, followed, marked, joins.astype(np.int64), duration, piece, first, last, longest
    )
    return _Chains(
        followed=followed,
        on_walk=on_walk,
        is_communication=is_communication,
        is_first=is_first,
        is_last=is_last,
        release=release,
        piece=piece,
        first=first[:pieces],
        last=last[:pieces],
        longest=longest[:pieces],
    )


def _gpu_pieces(rank: Rank, chains: _Chains, exposed: Mapping[str, Intervals]) -> pl.DataFrame:
    """Return the pieces of GPU work, without ``before``."""
    constraints = rank.constraints
    first = chains.first
    last = chains.last
    pieces = len(chains.first)
    rows = np.flatnonzero(chains.on_walk)
    piece = chains.piece[rows]
    # A piece starts where what held it back ended; after a launch, or where that is not certain,
    # with its first event.
    is_direct = constraints.is_certain[first] & (constraints.kind[first] != LAUNCH)
    start = np.where(is_direct, constraints.since_ns[first], rank.start_ns[first])
    end = rank.end_ns[last]
    busy = np.bincount(piece, weights=(rank.end_ns - rank.start_ns)[rows], minlength=pieces).astype(
        np.int64
    )
    is_communication = chains.is_communication[first]
    kind = np.where(
        is_communication, _COMMUNICATION, np.where(rank.labels(*COPY_LABELS)[first], _COPY, _KERNEL)
    )
    return pl.DataFrame(
        {
            "kind": pl.Series(PIECE_KINDS, dtype=PATH_PIECES["kind"])[kind],
            "label": pl.Series(LABELS, dtype=PATH_PIECES["label"])[rank.label[first]],
            "what": _text(rank, "name", chains.longest),
            "chain": _text(rank, "chain", chains.longest, PATH_PIECES["chain"]),
            "part": rank.part[first],
            "start_ns": start,
            "end_ns": end,
            "idle_ns": np.maximum(end - start - busy, 0),
            "exposed_ns": _exposed_ns(rank, rows, piece, pieces, exposed),
            "id": with_nulls(rank.labelled["id"].to_numpy()[first], is_communication),
            "launched": pl.repeat(None, pieces, dtype=PATH_PIECES["launched"], eager=True),
            "first": chains.is_first[first],
            "last": chains.is_last[last],
        }
    )


def _pieces_between(rank: Rank, chains: _Chains) -> tuple[pl.DataFrame, Ints]:
    """Return launches, host work and unexplained time between GPU pieces.

    And ``before`` of all pieces.

    Rows are numbered behind the GPU pieces: first the launches and the unexplained time right
    before a GPU piece (from its launch call, or from when it could have started), then the host
    work before the launches.
    """
    constraints = rank.constraints
    first = chains.first
    pieces = len(chains.first)
    is_launched = constraints.kind[first] == LAUNCH
    is_unexplained = ~constraints.is_certain[first] & (constraints.kind[first] != NOTHING)
    followed = chains.followed[first]
    followed_piece = np.where(followed >= 0, chains.piece[followed], -1)
    gaps = np.flatnonzero(is_launched | is_unexplained)
    hosts = np.flatnonzero(is_launched)
    # A GPU piece follows its gap if it has one; a gap follows its host work if there is some.
    before_gpu = followed_piece.copy()
    before_gap = followed_piece.copy()
    before_gpu[gaps] = pieces + np.arange(len(gaps))
    before_gap[hosts] = pieces + len(gaps) + np.arange(len(hosts))
    gap_event = first[gaps]
    host_event = first[hosts]
    host_start = np.where(followed[hosts] >= 0, chains.release.time_ns[host_event], BEFORE_TRACE_NS)
    kind = np.concatenate(
        [np.where(is_unexplained[gaps], _UNKNOWN, _LAUNCH), np.full(len(hosts), _HOST)]
    )
    event = np.concatenate([gap_event, host_event])
    op = _text(rank, "op", event)
    annotation = _text(rank, "annotation", event)
    table = pl.DataFrame(
        {
            "kind": pl.Series(PIECE_KINDS, dtype=PATH_PIECES["kind"])[kind],
            "label": pl.repeat(None, len(event), dtype=PATH_PIECES["label"], eager=True),
            "what": op.fill_null(annotation),
            "chain": _text(rank, "chain", event, PATH_PIECES["chain"]),
            "part": rank.part[event],
            "start_ns": np.concatenate([constraints.since_ns[gap_event], host_start]),
            "end_ns": np.concatenate([rank.start_ns[gap_event], constraints.since_ns[host_event]]),
            "idle_ns": np.zeros(len(event), np.int64),
            "exposed_ns": np.zeros(len(event), np.int64),
            "id": pl.repeat(None, len(event), dtype=pl.Int64, eager=True),
            "launched": _text(rank, "name", event, PATH_PIECES["launched"]),
            "first": np.zeros(len(event), np.bool_),
            "last": np.zeros(len(event), np.bool_),
        }
    )
    return table, np.concatenate([before_gpu, before_gap[gaps], followed_piece[hosts]])


def _text(rank: Rank, column: str, rows: Ints, dtype: pl.DataType = _STRING_TYPE) -> pl.Series:
    """Return a text column of the labelled table at some rows."""
    return rank.labelled[column][rows].cast(dtype)


def _begins_part(rank: Rank) -> Bools:
    """Return which events start first in their part."""
    order = np.lexsort((rank.start_ns, rank.part))
    first_of_part = np.concatenate([[0], np.flatnonzero(np.diff(rank.part[order])) + 1])
    is_first = np.zeros(len(order), np.bool_)
    is_first[order[first_of_part]] = True
    return is_first


def _ends_part(rank: Rank) -> Bools:
    """Return which events end last in their part."""
    order = np.lexsort((rank.end_ns, rank.part))
    last_of_part = np.append(np.flatnonzero(np.diff(rank.part[order])), len(order) - 1)
    is_last = np.zeros(len(order), np.bool_)
    is_last[order[last_of_part]] = True
    return is_last


def _exposed_ns(
    rank: Rank, rows: Ints, piece: Ints, pieces: int, exposed: Mapping[str, Intervals]
) -> Ints:
    """Return the exposed time of the communication and copies of each piece.

    *piece* is of each of *rows*.
    """
    exposed_ns = np.zeros(pieces, np.int64)
    for label, lane in exposed.items():
        has_label = rank.label[rows] == LABELS.index(label)
        events = rows[has_label]
        np.add.at(
            exposed_ns,
            piece[has_label],
            lane.covered_ns(rank.start_ns[events], rank.end_ns[events]),
        )
    return exposed_ns


class ReleasingCalls(NamedTuple):
    """The calls in which a rank's host waits for the GPU, in the order in which they return."""

    start_ns: Ints
    end_ns: Ints
    event: Ints
    """The GPU event whose end released the host: the last one that ended during the call; -1: none
    did, the host did not have to wait."""


def find_releasing_calls(rank: Rank) -> ReleasingCalls:
    """Return the calls in which the threads that launch GPU work wait for it."""
    calls = rank.calls
    blocks = calls["blocks"].to_numpy()
    # Threads that launch GPU work, if recorded.
    threads = rank.labelled["launch_tid"].unique().drop_nulls().to_numpy()
    if len(threads):
        blocks = blocks & (np.isin(to_int64(calls["tid"]), threads) | ~present(calls["tid"]))
    rows = np.flatnonzero(blocks)
    rows = rows[np.argsort(calls["end_ns"].to_numpy()[rows], kind="stable")]
    start = calls["start_ns"].to_numpy()[rows]
    end = calls["end_ns"].to_numpy()[rows]
    # The GPU event that ended last before each call returned, if it ended during the call.
    by_end = np.argsort(rank.end_ns, kind="stable")
    event_end = rank.end_ns[by_end]
    latest = np.searchsorted(event_end, end + END_TOLERANCE_NS, side="right") - 1
    if not len(event_end):
        return ReleasingCalls(start, end, np.full(len(rows), -1, np.int64))
    has_waited = (latest >= 0) & (event_end[np.maximum(latest, 0)] >= start)
    return ReleasingCalls(start, end, np.where(has_waited, by_end[latest], -1))


def find_release(rank: Rank) -> Release:
    """Return, for each event, the GPU event whose end let the host continue to the event's launch, and when.

    The host was released by the last blocking call before the launch during which some GPU event
    ended.
    """
    nothing = np.full(len(rank.start_ns), -1, np.int64)
    calls = find_releasing_calls(rank)
    has_waited = calls.event >= 0
    if not has_waited.any():
        return Release(nothing, nothing)
    releasing_event = calls.event[has_waited]
    # For each launch, the last of these calls that returned before it.
    call = np.searchsorted(calls.end_ns[has_waited], rank.launch_ns, side="right") - 1
    is_released = rank.launched & (call >= 0)
    event = np.where(is_released, releasing_event[np.maximum(call, 0)], -1)
    return Release(event, np.where(is_released, np.minimum(rank.end_ns[event], rank.launch_ns), -1))
