"""Links between the communications of all ranks: from each one, the next that a walk back along its rank reaches.

Between two communications a walk has no choice (``critical_path.pieces``). One number for each communication is
therefore enough to find the ranks that the critical path runs through; only the pieces of these ranks are then joined
to follow it. A run of a thousand ranks has millions of pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
import numpy as np
import polars as pl

from tracekit._loops.critical_path import NO_LIMIT, UNKNOWN_LINK, find_visited_ranks, link_communications
from tracekit._util.arrays import Bools, Int32s, Ints, as_int64
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
        operation_ranks = operations["rank"].to_numpy()
        with_pieces = tuple(part for part in parts if len(part.path))
        ranks: list[_RankLinks] = []
        rows: list[Int32s] = []
        ends: list[tuple[int | None, StepEnd]] = []
        first = [0]
        for rank_index, part in enumerate(with_pieces):
            rank = part.source.rank
            links = _RankLinks.build(part, clocks, first_comm=first[-1])
            low, high = np.searchsorted(operation_ranks, [rank, rank + 1]).tolist()
            rows.append(_find_rows(links.event_id, operations["id"].slice(low, high - low), low))
            ends += links.find_step_ends(part, rank_index, clocks)
            first.append(first[-1] + len(links.comm))
            ranks.append(links)
        if not ranks:
            return None
        by_step: dict[int | None, list[StepEnd]] = {}
        for step, end in sorted(ends, key=lambda step_end: (step_end[0] is None, step_end[0] or 0)):
            by_step.setdefault(step, []).append(end)
        return cls(
            parts=with_pieces,
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
    def build(cls, part: PathTables, clocks: Clocks, *, first_comm: int) -> _RankLinks:
        """Link the pieces of one rank; *first_comm* is the number of its first communication."""
        path = part.path
        start, end = common_times(part, clocks)
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

    def find_step_ends(self, part: PathTables, rank_index: int, clocks: Clocks) -> Iterator[tuple[int | None, StepEnd]]:
        """Yield the pieces that end steps, each with its step."""
        steps = part.steps["step"].to_list()
        begins = dict(zip(steps, clocks.to_common(part.source.rank, part.steps["start_ns"].to_numpy()), strict=True))
        path = part.path  # of a stored rank each use reads the file
        last_pieces = np.flatnonzero(path["last"].to_numpy())
        for piece, number in zip(last_pieces.tolist(), path["part"].to_numpy()[last_pieces].tolist(), strict=True):
            step = steps[number] if number < len(steps) else None
            yield (
                step,
                StepEnd(
                    rank_index=rank_index,
                    piece=piece,
                    end=int(self.end[piece]),
                    begin=int(begins[step]),
                    next_comm=int(self.next_comm[piece]),
                    earliest_start=int(self.earliest_start[piece]),
                ),
            )


def common_times(part: PathTables, clocks: Clocks) -> tuple[Ints, Ints]:
    """Return start and end of a rank's pieces on the common clock; a start before the trace (negative) stays."""
    path = part.path
    start, end = path["start_ns"].to_numpy(), path["end_ns"].to_numpy()
    rank = part.source.rank
    return as_int64(np.where(start < 0, start, clocks.to_common(rank, start))), as_int64(clocks.to_common(rank, end))


def _find_rows(event_id: Ints, operation_ids: pl.Series, first_row: int) -> Int32s:
    """Return the row of each communication among all operations; -1: none.

    Args:
        event_id: Event of each communication of a rank.
        operation_ids: Events of the rank's operations.
        first_row: Row of the first of them among all operations.

    """
    ids = to_int64(operation_ids)
    if not len(ids):
        return np.full(len(event_id), -1, np.int32)
    order = np.argsort(ids, kind="stable")
    nearest = order[np.minimum(np.searchsorted(ids[order], event_id), len(order) - 1)]
    matches = (event_id >= 0) & (ids[nearest] == event_id)
    return np.where(matches, nearest + first_row, -1).astype(np.int32)
