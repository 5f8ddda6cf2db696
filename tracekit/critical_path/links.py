"""Links between the communications of all ranks: from each one, the next that a walk back along its rank reaches.

Between two communications a walk has no choice (``critical_path.pieces``). One number for each communication is
therefore enough to find the ranks that the critical path runs through; only the pieces of these ranks are then joined
to follow it. A run of a thousand ranks has millions of pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._loops.critical_path import NO_LIMIT, UNKNOWN_LINK, find_visited_ranks, link_communications, walk_steps
from tracekit._util.arrays import Bools, Int32s, Ints, as_int64, find_ids
from tracekit._util.columns import to_int64
from tracekit.align.clocks import Clocks
from tracekit.critical_path.pieces import PIECE_KINDS
from tracekit.schema import Source

COMMUNICATION = PIECE_KINDS.index("communication")


class Measured(Protocol):
    """Measurements over a window that the critical path reads."""

    @property
    def exposed(self) -> pl.DataFrame:
        """Exposed time by cause (``metrics.causes.PIECES``)."""


class PathTables(Protocol):
    """Tables of one rank that the critical path reads; ``analysis.tables.RankTables`` has them."""

    @property
    def source(self) -> Source:
        """Origin of the rank's events."""

    @property
    def steps(self) -> pl.DataFrame:
        """Columns step and start_ns; the row is the part."""

    @property
    def path(self) -> pl.DataFrame:
        """``PATH_PIECES`` of the rank."""

    @property
    def window(self) -> Measured:
        """Measurements over the whole window."""

    @property
    def launches_known(self) -> bool:
        """Whether the file has the launches of GPU events."""


class StepEnd(msgspec.Struct, frozen=True):
    """The piece that ends a step on one rank; times are on the common clock."""

    rank_index: int
    piece: int
    """Row among its rank's pieces."""
    end: int
    begin: int
    """Begin of the step on the rank."""
    next_comm: int
    """First communication on the walk back from the piece, itself included; -1: none."""
    earliest_start: int
    """Earliest start of the pieces before that communication."""


class Links(msgspec.Struct, frozen=True, eq=False):
    """Communications of all ranks, rank by rank, on the common clock, and the ends of all steps.

    A rank index counts the ranks that have pieces.
    """

    parts: tuple[PathTables, ...]
    """Tables of each rank index."""
    first: Ints
    """Number of the first communication of each rank index, and the number of all communications."""
    piece: Int32s
    """Row of each communication among its rank's pieces."""
    row: Int32s
    """Row of each communication among the operations; -1: none."""
    start: Ints
    next_comm: Int32s
    """First communication on the walk back from the piece before this one; -1: none."""
    earliest_start: Ints
    """Earliest start of the pieces between the two."""
    ends: dict[int | None, list[StepEnd]]
    """Ends of each step, in order of steps."""

    @classmethod
    def build(cls, parts: Sequence[PathTables], operations: pl.DataFrame, clocks: Clocks) -> Links | None:
        """Return the links of the ranks that have pieces; None if none has.

        Args:
            parts: Tables of all ranks.
            operations: Operations of all ranks, in order of rank.
            clocks: Clock offsets of the ranks.

        """
        numbers = [part.source.rank for part in parts]
        operation_edges = [*np.searchsorted(operations["rank"].to_numpy(), numbers).tolist(), len(operations)]
        operation_ids = to_int64(operations["id"])
        with_pieces: list[PathTables] = []
        ranks: list[_RankLinks] = []
        rows: list[Int32s] = []
        ends: list[tuple[int | None, StepEnd]] = []
        first = [0]
        for part, rank, (low, high) in zip(parts, numbers, pairwise(operation_edges), strict=True):
            path = part.path  # of a stored rank each use reads the file
            if path.is_empty():
                continue
            links = _RankLinks.build(path, rank, clocks, first_comm=first[-1])
            row = find_ids(links.event_id, operation_ids[low:high])
            rows.append(np.where(row >= 0, row + low, -1).astype(np.int32))
            ends += links.find_step_ends(part, path, len(ranks), clocks)
            first.append(first[-1] + len(links.comm))
            ranks.append(links)
            with_pieces.append(part)
        if not ranks:
            return None
        by_step: dict[int | None, list[StepEnd]] = {}
        for step, end in sorted(ends, key=lambda step_end: (step_end[0] is None, step_end[0] or 0)):
            by_step.setdefault(step, []).append(end)
        return cls(
            parts=tuple(with_pieces),
            first=np.array(first, np.int64),
            piece=np.concatenate([links.comm for links in ranks]).astype(np.int32),
            row=np.concatenate(rows),
            start=np.concatenate([links.start[links.comm] for links in ranks]),
            next_comm=np.concatenate([links.next_before(links.comm) for links in ranks]).astype(np.int32),
            earliest_start=np.concatenate([links.earliest_before(links.comm) for links in ranks]),
            ends=by_step,
        )

    @property
    def ranks(self) -> tuple[int, ...]:
        """Rank of each rank index."""
        return tuple(part.source.rank for part in self.parts)

    @property
    def steps(self) -> tuple[int | None, ...]:
        """Steps in order."""
        return tuple(self.ends)

    def comm_rank_index(self) -> Ints:
        """Return the rank index of each communication."""
        return np.repeat(np.arange(len(self.parts)), np.diff(self.first))

    def step_bounds(self) -> Iterator[tuple[int, StepEnd, list[StepEnd]]]:
        """Yield for each step the begin on its first rank, the last of its ends, and all ends."""
        for ends in self.ends.values():
            yield min(end.begin for end in ends), max(ends, key=lambda end: (end.end, -end.rank_index)), ends

    def visited(self, last_to_arrive: Int32s, last_arrival: Ints) -> Bools:
        """Return the rank indices that the walks of all steps go through.

        Args:
            last_to_arrive: For each communication, that of the peer that arrived last; -1: no other.
            last_arrival: When that peer arrived.

        """
        steps, ranks = len(self.ends), len(self.parts)
        has_step, visited = np.zeros((steps, ranks), np.uint8), np.zeros(ranks, np.uint8)
        step_begin, first_time, first_comm, first_rank = np.zeros((4, steps), np.int64)
        for step, (begin, final, ends) in enumerate(self.step_bounds()):
            has_step[step, [end.rank_index for end in ends]] = 1
            step_begin[step], first_time[step] = begin, min(final.end, final.earliest_start)
            first_comm[step], first_rank[step] = final.next_comm, final.rank_index
        find_visited_ranks(
            start=self.start,
            next_comm=self.next_comm,
            earliest_start=self.earliest_start,
            rank_index=self.comm_rank_index().astype(np.int32),
            last_to_arrive=last_to_arrive,
            last_arrival=last_arrival,
            has_step=has_step,
            step_begin=step_begin,
            first_time=first_time,
            first_comm=first_comm,
            first_rank=first_rank,
            seen=np.full(len(self.start), -1, np.int64),
            visited=visited,
        )
        return visited.astype(np.bool_)


class _RankLinks(msgspec.Struct, frozen=True, eq=False):
    """One rank's pieces, with the first communication on the walk back from each; communications of all ranks count."""

    start: Ints
    end: Ints
    before: Ints
    comm: Ints
    """Rows of the pieces that are communications."""
    event_id: Ints
    """Event of each communication."""
    next_comm: Ints
    """First communication on the walk back from each piece, itself included; -1: none."""
    earliest_start: Ints
    """Earliest start of the pieces before that communication."""

    @classmethod
    def build(cls, path: pl.DataFrame, rank: int, clocks: Clocks, *, first_comm: int) -> _RankLinks:
        """Link the pieces of one rank; *first_comm* is the number of its first communication."""
        start, end = common_times(path, rank, clocks)
        before = as_int64(path["before"].to_numpy())
        comm = np.flatnonzero(path["kind"].to_physical().to_numpy() == COMMUNICATION)
        number = np.full(len(path), -1, np.int64)
        number[comm] = first_comm + np.arange(len(comm))
        next_comm, earliest = np.full(len(path), UNKNOWN_LINK, np.int64), np.full(len(path), NO_LIMIT, np.int64)
        scratch = np.empty(len(path), np.int64)
        link_communications(before, start, number, scratch, next_comm, earliest)
        return cls(start, end, before, comm, to_int64(path["id"][comm]), next_comm, earliest)

    def next_before(self, pieces: Ints) -> Ints:
        """Return ``next_comm`` of the pieces before some *pieces*; -1 if there is none."""
        before = self.before[pieces]
        return np.where(before >= 0, self.next_comm[before], -1)

    def earliest_before(self, pieces: Ints) -> Ints:
        """Return ``earliest_start`` of the pieces before some *pieces*; ``NO_LIMIT`` if there is none."""
        before = self.before[pieces]
        return np.where(before >= 0, self.earliest_start[before], NO_LIMIT)

    def find_step_ends(
        self, part: PathTables, path: pl.DataFrame, rank_index: int, clocks: Clocks
    ) -> Iterator[tuple[int | None, StepEnd]]:
        """Yield the pieces that end steps, each with its step; *path* are the pieces of *part*."""
        steps = part.steps["step"].to_list()
        begins = dict(zip(steps, clocks.to_common(part.source.rank, part.steps["start_ns"].to_numpy()), strict=True))
        last_pieces = np.flatnonzero(path["last"].to_numpy())
        for piece, number in zip(last_pieces.tolist(), path["part"].to_numpy()[last_pieces].tolist(), strict=True):
            step = steps[number] if number < len(steps) else None
            next_comm, earliest_start = int(self.next_comm[piece]), int(self.earliest_start[piece])
            end, begin = int(self.end[piece]), int(begins[step])
            yield step, StepEnd(rank_index, piece, end, begin, next_comm, earliest_start)


def common_times(path: pl.DataFrame, rank: int, clocks: Clocks) -> tuple[Ints, Ints]:
    """Return start and end of a rank's pieces on the common clock; a start before the trace (negative) stays."""
    start, end = path["start_ns"].to_numpy(), path["end_ns"].to_numpy()
    return as_int64(np.where(start < 0, start, clocks.to_common(rank, start))), as_int64(clocks.to_common(rank, end))


# ---- Walks back from the end of every step over all ranks, piece by piece (``_loops.critical_path``).
#
# The pieces of the ranks that the walks go through (``critical_path.links``) lie one after the other in a few
# columns, and each communication knows the communication of the peer that arrived last. A walk starts at the end of a
# step and goes back piece by piece; where a communication waited for another rank, it continues with that rank's
# piece.


SEGMENT_KINDS = (*PIECE_KINDS, "message", "collective")
"""Kinds of a segment of the path; a communication is a message or a collective."""
_UNKNOWN, _MESSAGE, _COLLECTIVE = (SEGMENT_KINDS.index(kind) for kind in ("unknown", "message", "collective"))


class Pieces(msgspec.Struct, frozen=True, eq=False):
    """Pieces of the ranks that the walks go through, rank by rank, on the common clock.

    Columns that are needed only for pieces on the path stay in the ranks' tables.
    """

    links: Links
    first: Ints
    """Number of the first piece of each rank index, and the number of all pieces; an unvisited rank has none."""
    start: Ints
    end: Ints
    before: Int32s
    """Piece that each piece followed; -1: none."""
    kind: npt.NDArray[np.uint8]

    @classmethod
    def build(cls, links: Links, visited: Bools, clocks: Clocks) -> Pieces:
        """Return the pieces of the visited rank indices."""
        columns: dict[str, list[npt.NDArray[Any]]] = {"start": [], "end": [], "before": [], "kind": []}
        first = [0]
        for part, is_visited in zip(links.parts, visited.tolist(), strict=True):
            pieces = 0
            if is_visited:
                path = part.path
                pieces, before = len(path), path["before"].to_numpy()
                start, end = common_times(path, part.source.rank, clocks)
                columns["start"].append(start)
                columns["end"].append(end)
                columns["before"].append(np.where(before >= 0, before + first[-1], -1).astype(np.int32))
                columns["kind"].append(path["kind"].to_physical().to_numpy().astype(np.uint8))
            first.append(first[-1] + pieces)
        # Each list is released before the next is joined, so that never much is in memory twice.
        joined = {name: np.concatenate(columns.pop(name)) for name in tuple(columns)}
        return cls(links, np.array(first, np.int64), **joined)

    def rank_index(self, pieces: Ints) -> Ints:
        """Return the rank index of each of *pieces*."""
        return np.searchsorted(self.first, pieces, side="right") - 1

    def describe(self, pieces: Ints) -> pl.DataFrame:
        """Return the columns label, what, chain, idle_ns and exposed_ns of *pieces*, from the ranks' tables."""
        columns = ("label", "what", "chain", "idle_ns", "exposed_ns")
        rank_index = self.rank_index(pieces)
        order = np.argsort(rank_index, kind="stable")
        tables: list[pl.DataFrame] = []
        for index in np.unique(rank_index).tolist():
            rows = pieces[order[rank_index[order] == index]] - self.first[index]
            tables.append(self.links.parts[index].path.select(columns)[rows])
        # The tables follow each other in *order*: put the rows back into the order of *pieces*.
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        return pl.concat(tables)[position]


class Arrivals(msgspec.Struct, frozen=True, eq=False):
    """For each communication of the links: the peer that arrived last, and arrival times on the common clock."""

    last_to_arrive: Int32s
    """Communication of that peer; -1: unknown, or this one."""
    last_arrival: Ints
    own_arrival: Ints
    is_message: Bools
    is_uncertain: Bools
    """Whether another member may have arrived last: it was earlier by less than the clocks of the two may be off."""

    @classmethod
    def find(cls, links: Links, members: pl.DataFrame, clocks: Clocks) -> Arrivals:
        """Return the arrivals at the matched operations (*members*: ``align.waits.with_waits``)."""
        comms = len(links.row)
        last_to_arrive = np.full(comms, -1, np.int32)
        is_message, is_uncertain = np.zeros((2, comms), np.bool_)
        last_arrival, own_arrival = np.zeros((2, comms), np.int64)
        with_row = np.flatnonzero(links.row >= 0)
        if members.is_empty() or not len(with_row):
            return cls(last_to_arrive, last_arrival, own_arrival, is_message, is_uncertain)
        row, rank = members["row"].to_numpy(), members["rank"].to_numpy()
        arrival = clocks.to_common_each(rank, members["start_ns"].to_numpy())
        match = members["match"].to_numpy()
        last = members["last"].to_numpy()
        may_be_last = arrival[last] - arrival <= clocks.uncertainty_between(rank, rank[last])
        others_may = np.bincount(match, weights=may_be_last & (rank != rank[last])) > 0
        # A kernel of several messages is a member of several matches. It starts to transfer when the last of all its
        # partners has arrived: of an operation's members take the one whose match was complete last.
        rows = int(max(row.max(), links.row.max())) + 1
        complete = np.full(rows, np.iinfo(np.int64).min)
        np.maximum.at(complete, row, arrival[last])
        decisive = np.flatnonzero(arrival[last] == complete[row])
        member_of_row = np.full(rows, -1, np.int64)
        member_of_row[row[decisive]] = decisive
        comm_of_row = np.full(rows, -1, np.int32)
        comm_of_row[links.row[with_row]] = with_row

        matched = with_row[member_of_row[links.row[with_row]] >= 0]
        member = member_of_row[links.row[matched]]
        peer = last[member]
        last_to_arrive[matched] = np.where(rank[peer] != rank[member], comm_of_row[row[peer]], -1)
        last_arrival[matched], own_arrival[matched] = arrival[peer], arrival[member]
        is_message[matched] = members["sends"].is_not_null().to_numpy()[member]
        is_uncertain[matched] = others_may[match[member]]
        return cls(last_to_arrive, last_arrival, own_arrival, is_message, is_uncertain)


class Walks(msgspec.Struct, frozen=True, eq=False):
    """Segments that the walks of all steps went through, each step's from its end back to its start."""

    segments: pl.DataFrame
    """Columns step (index), piece, kind (index in ``SEGMENT_KINDS``), peer (rank index of the peer that arrived last;
    -1: none), start, end and uncertain (the walk may have gone on along another rank)."""
    least_margin: Ints
    """[step, rank index]: least time by which the rank arrived before the last at an operation of the path; -1:
    never."""
    operations: Ints
    """[step, rank index]: number of operations of the path at which it did."""
    stopped: tuple[tuple[int, int] | None, ...]
    """For each step: rank and remaining nanoseconds where the walk could not continue; None if it reached the start."""


def walk_back(links: Links, arrivals: Arrivals, clocks: Clocks) -> tuple[Pieces, Walks]:
    """Walk back from the end of every step; return the walks, and the pieces of the ranks they go through."""
    visited = links.visited(arrivals.last_to_arrive, arrivals.last_arrival)
    pieces = Pieces.build(links, visited, clocks)
    steps, ranks = len(links.ends), links.ranks
    has_step = np.zeros((steps, len(ranks)), np.uint8)
    step_begin, final_piece, final_rank = np.zeros((3, steps), np.int64)
    for step, (begin, final, ends) in enumerate(links.step_bounds()):
        has_step[step, [end.rank_index for end in ends]] = 1
        step_begin[step], final_rank[step] = begin, final.rank_index
        final_piece[step] = pieces.first[final.rank_index] + final.piece
    # Only communications of visited ranks count from here on: number them anew. A peer of -1 stays -1, because the last
    # element of ``new_number`` belongs to no communication.
    rank_index = links.comm_rank_index()
    comms = np.flatnonzero(visited[rank_index])
    new_number = np.full(len(rank_index) + 1, -1, np.int64)
    new_number[comms] = np.arange(len(comms))
    comm_rank = rank_index[comms]

    # Walks of different steps may share pieces, so that the number of segments is not known: double until they fit.
    # The system allocates memory only where it is written.
    max_segments = len(pieces.start) + 2 * steps + 1024
    count = -1
    while count < 0:
        segments = np.zeros((max_segments, 6), np.int64)
        least_margin = np.full((steps, len(ranks)), -1, np.int64)
        operations = np.zeros((steps, len(ranks)), np.int64)
        stopped_rank, stopped_ns = np.full(steps, -1, np.int64), np.zeros(steps, np.int64)
        count = walk_steps(
            start=pieces.start,
            end=pieces.end,
            before=pieces.before,
            kind=pieces.kind,
            communication_kind=COMMUNICATION,
            unknown_kind=_UNKNOWN,
            comm_piece=as_int64(pieces.first[comm_rank] + links.piece[comms]),
            comm_rank=as_int64(comm_rank),
            comm_kind=as_int64(np.where(arrivals.is_message[comms], _MESSAGE, _COLLECTIVE)),
            last_to_arrive=new_number[arrivals.last_to_arrive[comms]],
            last_arrival=arrivals.last_arrival[comms],
            own_arrival=arrivals.own_arrival[comms],
            has_step=has_step,
            step_begin=step_begin,
            final_piece=final_piece,
            final_rank=final_rank,
            stopped_rank=stopped_rank,
            stopped_ns=stopped_ns,
            least_margin=least_margin,
            operations=operations,
            seen=np.full(len(comms), -1, np.int64),
            segments=segments,
        )
        max_segments *= 2
    stopped = tuple(
        (ranks[rank], ns) if rank >= 0 else None
        for rank, ns in zip(stopped_rank.tolist(), stopped_ns.tolist(), strict=True)
    )
    table = pl.DataFrame(segments[:count], schema=["step", "piece", "kind", "peer", "start", "end"])
    uncertain_piece = np.zeros(len(pieces.start), np.bool_)
    uncertain_piece[pieces.first[comm_rank] + links.piece[comms]] = arrivals.is_uncertain[comms]
    return pieces, Walks(_mark_uncertain(table, uncertain_piece), least_margin, operations, stopped)


def _mark_uncertain(segments: pl.DataFrame, uncertain_piece: Bools) -> pl.DataFrame:
    """Return the segments, each step's from its end back, with those that follow an uncertain communication marked.

    From a communication the walk goes on along the rank that arrived last, up to and with the next communication.
    """
    is_communication = pl.col("kind").is_in([_MESSAGE, _COLLECTIVE])
    flags = pl.Series("uncertain", uncertain_piece[segments["piece"].to_numpy()])
    marked = segments.with_columns(flags).with_columns(pl.when(is_communication).then("uncertain").alias("uncertain"))
    return marked.with_columns(pl.col("uncertain").shift(1).forward_fill().over("step").fill_null(False))
