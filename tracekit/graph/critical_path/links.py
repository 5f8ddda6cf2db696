"""Walks back from the end of every step over the pieces of all ranks (``critical_path.pieces``).

The pieces of all ranks lie one after the other in a few columns, and each communication knows the
communication of the peer that arrived last. A walk starts at the end of a step and goes back piece
by piece (``_loops.critical_path``); where a communication waited for another rank, it continues
with that rank's piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._loops.critical_path import walk_steps
from tracekit._util.arrays import Bools, Int32s, Ints, as_int64, find_ids
from tracekit._util.columns import to_int64
from tracekit.align.clocks import Clocks
from tracekit.graph.critical_path.pieces import PIECE_KINDS, PathTables, is_followed

_COLUMNS_OF_WALKS = ("kind", "part", "start_ns", "end_ns", "before", "id", "first", "last")
"""Columns of pieces that walks need; the others tell what the pieces on the path are."""
_COMMUNICATION_PIECE = PIECE_KINDS.index("communication")
SEGMENT_KINDS = (*PIECE_KINDS, "message", "collective")
"""Kinds of a segment of the path; a communication is a message or a collective."""
_UNKNOWN_SEGMENT = SEGMENT_KINDS.index("unknown")
_MESSAGE_SEGMENT = SEGMENT_KINDS.index("message")
_COLLECTIVE_SEGMENT = SEGMENT_KINDS.index("collective")


class Pieces(msgspec.Struct, frozen=True, eq=False):
    """Pieces of all ranks that have some, rank by rank, on the common clock.

    A rank index counts these ranks.

    Columns that are needed only for pieces on the path stay in the ranks' tables.
    """

    parts: tuple[PathTables, ...]
    """Tables of each rank index."""
    first: Ints
    """Number of the first piece of each rank index, and the number of all pieces."""
    start: Ints
    end: Ints
    before: Int32s
    """Piece that each piece followed; -1: none."""
    kind: npt.NDArray[np.uint8]
    comm: Ints
    """Pieces that are communications."""
    row: Int32s
    """Row of each communication among the operations; -1: none."""
    step_ends: pl.DataFrame
    """Where each step ends on each rank: step, its begin on the rank, rank_index, the piece to walk
    back from, and end. In order of steps, and of ends in a step the last one first."""

    @classmethod
    def build(cls, parts: Sequence[PathTables], operations: pl.DataFrame, clocks: Clocks) -> Pieces:
        """Return the pieces of all ranks, of which one at least has some.

        Args:
            parts: Tables of all ranks.
            operations: Operations of all ranks, in order of rank.
            clocks: Clock offsets of the ranks.

        """
        edges = _operation_edges(operations, parts)
        operation_ids = to_int64(operations["id"])
        with_pieces: list[PathTables] = []
        columns: dict[str, list[npt.NDArray[Any]]] = {}
        edges_of_steps: list[pl.DataFrame] = []
        first_pieces = [0]
        for part, (first_operation, end_of_operations) in zip(parts, edges, strict=True):
            path = part.path.load(_COLUMNS_OF_WALKS)
            if path.is_empty():
                continue
            first_piece = first_pieces[-1]
            rank_columns = _rank_columns(
                path,
                clocks,
                rank=part.source.rank,
                first_piece=first_piece,
                operation_ids=operation_ids[first_operation:end_of_operations],
                first_operation=first_operation,
            )
            for name, column in rank_columns.items():
                columns.setdefault(name, []).append(column)
            rank_index = len(with_pieces)
            edges_of_steps.append(_edges_of_steps(path, rank_index, first_piece))
            first_pieces.append(first_piece + len(path))
            with_pieces.append(part)
        # Each list is released before the next is joined, so that never much is in memory twice.
        joined = {name: np.concatenate(columns.pop(name)) for name in tuple(columns)}
        return cls(
            parts=tuple(with_pieces),
            first=np.array(first_pieces, np.int64),
            start=joined["start"],
            end=joined["end"],
            before=joined["before"],
            kind=joined["kind"],
            comm=joined["comm"],
            row=joined["row"],
            step_ends=_step_ends(with_pieces, pl.concat(edges_of_steps), clocks),
        )

    @property
    def ranks(self) -> tuple[int, ...]:
        """Rank of each rank index."""
        return tuple(part.source.rank for part in self.parts)

    @property
    def steps(self) -> pl.Series:
        """Steps in order."""
        return self.step_ends["step"].unique(maintain_order=True)

    def rank_index(self, pieces: Ints) -> Ints:
        """Return the rank index of each of *pieces*."""
        return np.searchsorted(self.first, pieces, side="right") - 1

    def describe(self, pieces: Ints) -> pl.DataFrame:
        """Return what *pieces* are: columns of ``PATH_PIECES`` from the ranks' tables."""
        columns = ("label", "what", "chain", "launched", "idle_ns", "exposed_ns")
        rank_index = self.rank_index(pieces)
        order = np.argsort(rank_index, kind="stable")
        tables: list[pl.DataFrame] = []
        for index in np.unique(rank_index).tolist():
            rows = pieces[order[rank_index[order] == index]] - self.first[index]
            tables.append(self.parts[index].path.load().select(columns)[rows])
        # The tables follow each other in *order*: put the rows back into the order of *pieces*.
        return pl.concat(tables)[np.argsort(order)]


def _operation_edges(
    operations: pl.DataFrame, parts: Sequence[PathTables]
) -> list[tuple[int, int]]:
    """Return for each of *parts*, which are in order of rank, its first operation and the one after its last."""
    ranks = [part.source.rank for part in parts]
    firsts = np.searchsorted(operations["rank"].to_numpy(), ranks).tolist()
    return list(pairwise([*firsts, len(operations)]))


def _rank_columns(
    path: pl.DataFrame,
    clocks: Clocks,
    *,
    rank: int,
    first_piece: int,
    operation_ids: Ints,
    first_operation: int,
) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of ``Pieces`` for the pieces of one rank.

    Args:
        path: Pieces of the rank; they count from 0 there.
        clocks: Clock offsets of the ranks.
        rank: The rank.
        first_piece: Number of its first piece among those of all ranks.
        operation_ids: Ids of its operations.
        first_operation: Row of the first of them among the operations of all ranks.
    """
    start = path["start_ns"].to_numpy()
    kind = path["kind"].to_physical().to_numpy().astype(np.uint8)
    communications = np.flatnonzero(kind == _COMMUNICATION_PIECE)
    operation_rows = find_ids(to_int64(path["id"][communications]), operation_ids)
    return {
        # A negative start stands for one before the trace, which no clock moves.
        "start": np.where(start < 0, start, clocks.to_common(rank, start)),
        "end": clocks.to_common(rank, path["end_ns"].to_numpy()),
        "before": _shift_known(path["before"].to_numpy(), first_piece),
        "kind": kind,
        "comm": communications + first_piece,
        "row": _shift_known(operation_rows, first_operation),
    }


def _shift_known(index: Ints, offset: int) -> Int32s:
    """Return *index* + *offset*, where -1, which means none, stays.

    >>> _shift_known(np.array([0, -1, 2]), 10).tolist()
    [10, -1, 12]
    """
    return np.where(index >= 0, index + offset, -1).astype(np.int32)


def _edges_of_steps(path: pl.DataFrame, rank_index: int, first_piece: int) -> pl.DataFrame:
    """Return the pieces of a rank that are the first or the last of their step."""
    first = path["first"].to_numpy()
    last = path["last"].to_numpy()
    piece = np.flatnonzero(first | last)
    return pl.DataFrame(
        {
            "rank_index": np.full(len(piece), rank_index),
            "part": path["part"].to_numpy()[piece],
            "piece": piece + first_piece,
            "first": first[piece],
            "last": last[piece],
            "end_ns": path["end_ns"].to_numpy()[piece],
        }
    )


def _step_ends(parts: Sequence[PathTables], edges: pl.DataFrame, clocks: Clocks) -> pl.DataFrame:
    """Return where each step begins and ends on each rank, and the piece that a walk back starts from (``step_ends``).

    A step ends where the next one begins: the walk starts from the first piece of that one. Other
    steps end with their last piece.

    Args:
        parts: Tables of the ranks.
        edges: The first and last pieces of their steps (``_edges_of_steps``).
        clocks: Clock offsets of the ranks.
    """
    key = ["rank_index", "part"]
    first = edges.filter("first").select(*key, first_piece="piece")
    last = edges.filter("last").select(*key, last_piece="piece", last_end_ns="end_ns")
    steps = pl.concat([part.steps for part in parts])
    counts = [part.steps.height for part in parts]
    rank_index = pl.Series(np.repeat(np.arange(len(parts)), counts))
    # The last step of a rank is not followed by the first one of the next.
    of_same_rank = (rank_index.shift(-1) == rank_index).fill_null(False)
    has_time = steps["time_ns"].is_not_null()
    numbered = steps.with_columns(
        rank_index=rank_index,
        part=np.concatenate([np.arange(count) for count in counts]),
        followed=is_followed(steps) & of_same_rank & has_time,
    )
    with_pieces = numbered.join(last, on=key, maintain_order="left").with_columns(
        next_part=pl.col("part") + 1
    )
    with_pieces = with_pieces.join(
        first,
        left_on=["rank_index", "next_part"],
        right_on=key,
        how="left",
        maintain_order="left",
    )
    walks_from_next = pl.col("followed") & pl.col("first_piece").is_not_null()
    ends = with_pieces.select(
        "step",
        "rank_index",
        begin=pl.when(pl.col("time_ns").is_not_null())
        .then("interval_start_ns")
        .otherwise("start_ns"),
        piece=pl.when(walks_from_next).then("first_piece").otherwise("last_piece"),
        end=pl.when(walks_from_next).then("interval_end_ns").otherwise("last_end_ns"),
    )
    ranks = np.array([part.source.rank for part in parts])[ends["rank_index"].to_numpy()]
    on_common_clock = {
        name: pl.Series(clocks.to_common_each(ranks, ends[name].to_numpy()))
        for name in ("begin", "end")
    }
    return ends.with_columns(**on_common_clock).sort(
        "step", "end", descending=[False, True], nulls_last=True, maintain_order=True
    )


class OperationArrivals(msgspec.Struct, frozen=True, eq=False):
    """For each communication: the peer that arrived last, and arrival times on the common clock."""

    last_to_arrive: Int32s
    """Communication of that peer; -1: unknown, or this one."""
    last_arrival: Ints
    own_arrival: Ints
    is_message: Bools
    is_uncertain: Bools
    """Whether another member may have arrived last: it was earlier by less than the clocks of the
    two may be off."""

    @classmethod
    def find(
        cls, operation_row: Int32s, members: pl.DataFrame, clocks: Clocks
    ) -> OperationArrivals:
        """Return the arrivals at the matched operations (*members*: ``align.waits.with_waits``).

        *operation_row* is the operation that each communication is; -1: none.
        """
        comms = len(operation_row)
        last_to_arrive = np.full(comms, -1, np.int32)
        is_message, is_uncertain = np.zeros((2, comms), np.bool_)
        last_arrival, own_arrival = np.zeros((2, comms), np.int64)
        with_row = np.flatnonzero(operation_row >= 0)
        if members.is_empty() or not len(with_row):
            return cls(last_to_arrive, last_arrival, own_arrival, is_message, is_uncertain)
        row = members["row"].to_numpy()
        rank = members["rank"].to_numpy()
        arrival = clocks.to_common_each(rank, members["start_ns"].to_numpy())
        match = members["match"].to_numpy()
        last = members["last"].to_numpy()
        may_be_last = arrival[last] - arrival <= clocks.uncertainty_between(rank, rank[last])
        others_may = np.bincount(match, weights=may_be_last & (rank != rank[last])) > 0
        # A kernel of several messages is a member of several matches. It starts to transfer when
        # the last of all its partners has arrived: of an operation's members take the one whose
        # match was complete last.
        size = int(max(row.max(), operation_row.max())) + 1
        complete = np.full(size, np.iinfo(np.int64).min)
        np.maximum.at(complete, row, arrival[last])
        decisive = np.flatnonzero(arrival[last] == complete[row])
        member_of_row = np.full(size, -1, np.int64)
        member_of_row[row[decisive]] = decisive
        comm_of_row = np.full(size, -1, np.int32)
        comm_of_row[operation_row[with_row]] = with_row

        matched = with_row[member_of_row[operation_row[with_row]] >= 0]
        member = member_of_row[operation_row[matched]]
        peer = last[member]
        last_to_arrive[matched] = np.where(rank[peer] != rank[member], comm_of_row[row[peer]], -1)
        last_arrival[matched] = arrival[peer]
        own_arrival[matched] = arrival[member]
        is_message[matched] = members["sends"].is_not_null().to_numpy()[member]
        is_uncertain[matched] = others_may[match[member]]
        return cls(last_to_arrive, last_arrival, own_arrival, is_message, is_uncertain)


class Walks(msgspec.Struct, frozen=True, eq=False):
    """Segments that the walks of all steps went through, each step's from its end back to its start."""

    segments: pl.DataFrame
    """Columns step (index), piece, kind (index in ``SEGMENT_KINDS``), peer (rank index of the peer that arrived last;
    -1: none), start, end and uncertain (the walk may have gone on along another rank)."""
    least_margin: Ints
    """[step, rank index]: least time by which the rank arrived before the last at an operation of
    the path; -1: never."""
    operations: Ints
    """[step, rank index]: number of operations of the path at which it did."""
    stopped: tuple[tuple[int, int] | None, ...]
    """For each step: rank and remaining nanoseconds where the walk could not continue; None if it
    reached the start."""


def walk_back(pieces: Pieces, arrivals: OperationArrivals) -> Walks:
    """Walk back from the end of every step."""
    ends = pieces.step_ends
    by_step = ends.group_by("step", maintain_order=True).agg(
        pl.col("rank_index", "piece", "end").first()
    )
    steps = len(by_step)
    ranks = pieces.ranks
    has_step = np.zeros((steps, len(ranks)), np.uint8)
    begin = np.zeros((steps, len(ranks)), np.int64)
    step_and_rank = ends["step"].rle_id().to_numpy(), ends["rank_index"].to_numpy()
    has_step[step_and_rank] = 1
    begin[step_and_rank] = ends["begin"].to_numpy()
    # Walks of different steps may share pieces, so that the number of segments is not known: double
    # until they fit. The system allocates memory only where it is written.
    max_segments = len(pieces.start) + 2 * steps + 1024
    count = -1
    while count < 0:
        segments = np.zeros((max_segments, 6), np.int64)
        least_margin = np.full((steps, len(ranks)), -1, np.int64)
        operations = np.zeros((steps, len(ranks)), np.int64)
        stopped_rank = np.full(steps, -1, np.int64)
        stopped_ns = np.zeros(steps, np.int64)
        count = walk_steps(
            start=pieces.start,
            end=pieces.end,
            before=pieces.before,
            kind=pieces.kind,
            communication_kind=_COMMUNICATION_PIECE,
            unknown_kind=_UNKNOWN_SEGMENT,
            comm_piece=pieces.comm,
            comm_rank=as_int64(pieces.rank_index(pieces.comm)),
            comm_kind=as_int64(
                np.where(arrivals.is_message, _MESSAGE_SEGMENT, _COLLECTIVE_SEGMENT)
            ),
            last_to_arrive=as_int64(arrivals.last_to_arrive),
            last_arrival=arrivals.last_arrival,
            own_arrival=arrivals.own_arrival,
            has_step=has_step,
            step_begin=begin,
            final_time=as_int64(by_step["end"].to_numpy()),
            final_piece=as_int64(by_step["piece"].to_numpy()),
            final_rank=as_int64(by_step["rank_index"].to_numpy()),
            stopped_rank=stopped_rank,
            stopped_ns=stopped_ns,
            least_margin=least_margin,
            operations=operations,
            seen=np.full(len(pieces.comm), -1, np.int64),
            visited=np.full(len(pieces.start), -1, np.int64),
            segments=segments,
        )
        max_segments *= 2
    stops = [
        (ranks[rank], ns) if rank >= 0 else None
        for rank, ns in zip(stopped_rank.tolist(), stopped_ns.tolist(), strict=True)
    ]
    table = pl.DataFrame(segments[:count], schema=["step", "piece", "kind", "peer", "start", "end"])
    uncertain_piece = np.zeros(len(pieces.start), np.bool_)
    uncertain_piece[pieces.comm] = arrivals.is_uncertain
    return Walks(_mark_uncertain(table, uncertain_piece), least_margin, operations, tuple(stops))


def _mark_uncertain(segments: pl.DataFrame, uncertain_piece: Bools) -> pl.DataFrame:
    """Return the segments, each step's from its end back, with those that follow an uncertain communication marked.

    From a communication the walk goes on along the rank that arrived last, up to and with the next
    communication.
    """
    is_communication = pl.col("kind").is_in([_MESSAGE_SEGMENT, _COLLECTIVE_SEGMENT])
    flags = pl.Series("uncertain", uncertain_piece[segments["piece"].to_numpy()])
    marked = segments.with_columns(flags).with_columns(
        pl.when(is_communication).then("uncertain").alias("uncertain")
    )
    return marked.with_columns(
        pl.col("uncertain").shift(1).forward_fill().over("step").fill_null(False)
    )
