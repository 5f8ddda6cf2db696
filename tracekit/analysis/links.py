"""The communication of all ranks as links: from each operation, the one that a walk back along its rank comes to next.

Between two communications a walk has no choice (``metrics.path``). So one number for each of them is enough to find the
ranks that the critical path runs through, and only these ranks' pieces need to be there to follow it: a thousand ranks
have millions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._loops import critical_path
from tracekit._util.arrays import as_int64
from tracekit._util.columns import to_int64
from tracekit.align.clocks import Clocks
from tracekit.analysis.tables import RankTables
from tracekit.intervals import Longs
from tracekit.metrics.path import NODE_KINDS

COMMUNICATION = NODE_KINDS.index("communication")
_NEVER = critical_path.NO_LIMIT

Places = npt.NDArray[np.int32]


class End(NamedTuple):
    """What ends a step on a rank."""

    place: int
    piece: int
    """Which of its rank's pieces."""
    end: int
    begin: int
    """When the rank began the step."""
    next: int
    """The communication that a walk from here comes to first (it may be this one); -1: none."""
    low: int
    """The earliest start of what lies between."""


class Links(msgspec.Struct, frozen=True, eq=False):
    """Every rank's communication on the common clock, and what ends the ranks' steps."""

    parts: tuple[RankTables, ...]
    """The ranks that have pieces; a rank's place counts from 0."""
    first: Longs
    """Where each place's communication begins, and the last one's ends."""
    piece: Places
    """Which of its rank's pieces each is."""
    row: Places
    """Which of the operations; -1: none."""
    start: Longs
    next: Places
    """The communication that a walk back from what came before it comes to first; -1: none."""
    low: Longs
    """The earliest start of what lies between."""
    ends: dict[int | None, list[End]]
    """What ends each step."""

    @classmethod
    def of(cls, parts: Sequence[RankTables], operations: pl.DataFrame, clocks: Clocks) -> Links | None:
        """Return the links of the ranks that have pieces; None where none has."""
        began = _begun(parts, clocks)
        ranks = operations["rank"].to_numpy()
        there: list[RankTables] = []
        columns: list[tuple[npt.NDArray[Any], ...]] = []
        first, ends = [0], []
        for part in parts:
            path = _Path.of(part, clocks)
            if path is None:
                continue
            rank = part.source.rank
            a, b = np.searchsorted(ranks, [rank, rank + 1]).tolist()
            columns.append(
                (path.comm.astype(np.int32), _rows(path, operations["id"].slice(a, b - a), a), *path.links(first[-1]))
            )
            for last, step in path.steps(part):
                link = path.from_piece(last, first[-1])
                ends.append((step, End(len(there), last, int(path.end[last]), began[rank, step], *link)))
            first.append(first[-1] + len(path.comm))
            there.append(part)
        if not there:
            return None
        by_step: dict[int | None, list[End]] = {}
        for step, end in sorted(ends, key=lambda one: (one[0] is None, one[0] or 0)):
            by_step.setdefault(step, []).append(end)
        piece, row, start, next_, low = (np.concatenate([of_rank[at] for of_rank in columns]) for at in range(5))
        return cls(tuple(there), np.array(first, np.int64), piece, row, start, next_, low, by_step)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The rank at each place."""
        return tuple(part.source.rank for part in self.parts)

    @property
    def steps(self) -> tuple[int | None, ...]:
        """The steps, in order."""
        return tuple(self.ends)

    def place(self) -> Longs:
        """Return the place of each communication."""
        return np.repeat(np.arange(len(self.parts)), np.diff(self.first))

    def finals(self) -> Iterator[tuple[int, End, list[End]]]:
        """Yield of each step when its first rank began it, what ends it last, and all that ends it."""
        for ends in self.ends.values():
            yield min(end.begin for end in ends), max(ends, key=lambda end: (end.end, -end.place)), ends

    def visited(self, late: Places, came: Longs) -> npt.NDArray[np.bool_]:
        """Return the places that the walks of all steps go through; *late* is who came last to each, and when."""
        steps, ranks = len(self.ends), len(self.parts)
        has_step, visited = np.zeros((steps, ranks), np.uint8), np.zeros(ranks, np.uint8)
        step_begin, first_time, first_comm, first_rank = np.zeros((4, steps), np.int64)
        for step, (begin, final, ends) in enumerate(self.finals()):
            has_step[step, [end.place for end in ends]] = 1
            step_begin[step], first_time[step] = begin, min(final.end, final.low)
            first_comm[step], first_rank[step] = final.next, final.place
        critical_path.find_visited_ranks(
            start=self.start,
            next_comm=self.next,
            earliest_start=self.low,
            rank_index=self.place().astype(np.int32),
            last_to_arrive=late,
            last_arrival=came,
            has_step=has_step,
            step_begin=step_begin,
            first_time=first_time,
            first_comm=first_comm,
            first_rank=first_rank,
            seen=np.full(len(self.start), -1, np.int64),
            visited=visited,
        )
        return visited.astype(np.bool_)


class _Path(msgspec.Struct, frozen=True, eq=False):
    """One rank's pieces, and of each the communication that a walk from it comes to first."""

    start: Longs
    end: Longs
    before: Longs
    comm: Longs
    id: Longs
    last: Longs
    part: Longs
    """Which part of the rank each of the last is in."""
    next: Longs
    low: Longs

    @classmethod
    def of(cls, part: RankTables, clocks: Clocks) -> _Path | None:
        path = part.path
        if not len(path):
            return None
        start, end = on_clock(path, part.source.rank, clocks)
        kind, before = path["kind"].to_physical().to_numpy(), as_int64(path["before"].to_numpy())
        comm = np.flatnonzero(kind == COMMUNICATION)
        number = np.full(len(path), -1, np.int64)
        number[comm] = np.arange(len(comm))
        next_, low = np.full(len(path), critical_path.UNKNOWN_LINK, np.int64), np.full(len(path), _NEVER, np.int64)
        critical_path.link_communications(before, start, number, np.empty(len(path), np.int64), next_, low)
        last = np.flatnonzero(path["last"].to_numpy())
        ids = np.nan_to_num(path["id"].to_numpy()[comm], nan=-1).astype(np.int64)  # counts events: exact as a float
        part_of = path["part"].to_numpy()[last]
        return cls(start, end, before, comm, ids, last, part_of, next_, low)

    def links(self, first: int) -> tuple[Longs, Places, Longs]:
        """Return start, next and low of each communication; *first* is the number of the rank's first one."""
        before = self.before[self.comm]
        next_ = np.where(before >= 0, self.next[before], -1)
        low = np.where(before >= 0, self.low[before], _NEVER)
        return self.start[self.comm], np.where(next_ >= 0, next_ + first, -1).astype(np.int32), low

    def from_piece(self, piece: int, first: int) -> tuple[int, int]:
        """Return next and low of one piece."""
        next_ = int(self.next[piece])
        return (next_ + first if next_ >= 0 else -1), int(self.low[piece])

    def steps(self, part: RankTables) -> Iterator[tuple[int, int | None]]:
        """Yield the pieces that end steps, and which steps these are."""
        numbers = part.steps["step"].to_list()
        for piece, at in zip(self.last.tolist(), self.part.tolist(), strict=True):
            yield piece, numbers[at] if at < len(numbers) else None


def on_clock(path: pl.DataFrame, rank: int, clocks: Clocks) -> tuple[Longs, Longs]:
    """Return start and end of a rank's pieces on the common clock; what began since ever did so on every clock."""
    start, end = (path[name].to_numpy() for name in ("start_ns", "end_ns"))
    return as_int64(np.where(start < 0, start, clocks.to_common(rank, start))), as_int64(clocks.to_common(rank, end))


def _rows(path: _Path, ids: pl.Series, first: int) -> Places:
    """Return which of the rank's operations (*ids*, from row *first* on) each communication is; -1: none."""
    known = to_int64(ids)
    if not len(known):
        return np.full(len(path.comm), -1, np.int32)
    order = np.argsort(known, kind="stable")
    at = order[np.minimum(np.searchsorted(known[order], path.id), len(order) - 1)]
    return np.where((path.id >= 0) & (known[at] == path.id), at + first, -1).astype(np.int32)


def _begun(parts: Sequence[RankTables], clocks: Clocks) -> dict[tuple[int, int | None], int]:
    """Return when each rank began each of its steps, on the common clock."""
    return {
        (part.source.rank, step): start
        for part in parts
        for step, start in zip(
            part.steps["step"].to_list(),
            clocks.to_common(part.source.rank, part.steps["start_ns"].to_numpy()).tolist(),
            strict=True,
        )
    }
