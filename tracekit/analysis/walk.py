"""Walking back along what held each piece of work back, over all ranks at once (``_loops.critical_path``).

The pieces of the ranks that it goes through (``metrics.path``, ``analysis.links``) lie one after the other, as few
columns as the walk needs, and each communication knows the piece of the rank that came last to it. A walk starts at the
end of a step and goes back piece by piece; where a communication waited for another rank, it goes on with that rank's.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._loops import critical_path
from tracekit._util.arrays import as_int64
from tracekit.align.clocks import Clocks
from tracekit.align.matching import last_of_match
from tracekit.analysis.links import COMMUNICATION, Links, on_clock
from tracekit.intervals import Longs
from tracekit.metrics.path import NODE_KINDS

_COMMUNICATION, _UNKNOWN = COMMUNICATION, NODE_KINDS.index("unknown")
KINDS = (*NODE_KINDS, "message", "collective")
"""What a segment can be; a communication is a message or a collective."""
_MESSAGE, _COLLECTIVE = KINDS.index("message"), KINDS.index("collective")

Places = npt.NDArray[np.int32]
Codes = npt.NDArray[np.uint8]


class Pieces(msgspec.Struct, frozen=True, eq=False):
    """The pieces of the ranks that the walks go through, on the common clock.

    What only those on the path are asked for stays with the ranks.
    """

    links: Links
    first: Longs
    """Where each place's pieces begin, and the last one's end; a place that no walk goes through has none."""
    start: Longs
    end: Longs
    before: Places
    kind: Codes

    @classmethod
    def of(cls, links: Links, places: npt.NDArray[np.bool_], clocks: Clocks) -> Pieces:
        """Return the pieces of the ranks at *places*."""
        columns: list[tuple[npt.NDArray[Any], ...]] = []
        first = [0]
        for part, needed in zip(links.parts, places.tolist(), strict=True):
            if needed:
                path = part.path
                before = path["before"].to_numpy()
                columns.append(
                    (
                        *on_clock(path, part.source.rank, clocks),
                        np.where(before >= 0, before + first[-1], -1).astype(np.int32),
                        path["kind"].to_physical().to_numpy().astype(np.uint8),
                    )
                )
            first.append(first[-1] + (len(columns[-1][0]) if needed else 0))
        return cls(links, np.array(first, np.int64), *(_joined(columns, at) for at in range(4)))

    def place(self, pieces: Longs) -> Longs:
        """Return where the rank of each of *pieces* is."""
        return np.searchsorted(self.first, pieces, side="right") - 1

    def about(self, pieces: Longs) -> pl.DataFrame:
        """Return what is known of *pieces*: label, what, idle_ns and exposed_ns."""
        place = self.place(pieces)
        order = np.argsort(place, kind="stable")
        names = ("label", "what", "idle_ns", "exposed_ns")
        found: list[pl.DataFrame] = [
            self.links.parts[at].path.select(names)[pieces[order[place[order] == at]] - self.first[at]]
            for at in np.unique(place).tolist()
        ]
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pl.concat(found)[back]


def _joined(columns: list[tuple[npt.NDArray[Any], ...]], at: int) -> npt.NDArray[Any]:
    """Return one column of all ranks; what was joined is let go, so that never much is there twice."""
    joined = np.concatenate([of_rank[at] for of_rank in columns])
    for place, of_rank in enumerate(columns):
        columns[place] = (*of_rank[:at], _NO_ROWS, *of_rank[at + 1 :])
    return joined


_NO_ROWS = np.zeros(0, np.int64)


class Arrivals(msgspec.Struct, frozen=True, eq=False):
    """Of each communication of the links: who came last to it, and when."""

    late: Places
    """The communication of the last to come; -1: not known, or this one."""
    came: Longs
    """When the last came."""
    own: Longs
    """When this one came."""
    message: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, links: Links, members: pl.DataFrame, clocks: Clocks) -> Arrivals:
        """Return the arrivals at the operations that matched; *members* are their rows, match by match."""
        count = len(links.row)
        late, came, own = np.full(count, -1, np.int32), np.zeros(count, np.int64), np.zeros(count, np.int64)
        message = np.zeros(count, np.bool_)
        known = np.flatnonzero(links.row >= 0)
        if members.is_empty() or not len(known):
            return cls(late, came, own, message)
        row, rank = members["row"].to_numpy(), members["rank"].to_numpy()
        at = clocks.to_common_each(rank, members["start_ns"].to_numpy())
        last = last_of_match(members["match"].to_numpy(), at)
        rows = int(max(row.max(), links.row.max())) + 1
        # A kernel of several messages starts to transfer when the last of all its partners has come.
        latest = np.full(rows, np.iinfo(np.int64).min)
        np.maximum.at(latest, row, at[last])
        chosen = np.flatnonzero(at[last] == latest[row])
        member = np.full(rows, -1, np.int64)
        member[row[chosen]] = chosen
        comm = np.full(rows, -1, np.int32)
        comm[links.row[known]] = known
        here = known[member[links.row[known]] >= 0]
        mine = member[links.row[here]]
        other = last[mine]
        late[here] = np.where(rank[other] != rank[mine], comm[row[other]], -1)
        came[here], own[here] = at[other], at[mine]
        message[here] = members["sends"].is_not_null().to_numpy()[mine]
        return cls(late, came, own, message)


class Walks(msgspec.Struct, frozen=True, eq=False):
    """What the walks of all steps went through, each step's segments from its end back to its start."""

    step: Longs
    """Which step, counted from 0."""
    piece: Longs
    kind: Longs
    peer: Longs
    """Place of the rank that came last; -1: none."""
    start: Longs
    end: Longs
    early: Longs
    """[step, place]: the least that a rank came earlier than the last to an operation of the path; -1: never."""
    operations: Longs
    """[step, place]: to how many it did."""
    ended: tuple[tuple[int, int] | None, ...]
    """Of each step (rank, ns): where it could not go on, and how much of the step lies before."""


def walk_back(links: Links, arrivals: Arrivals, clocks: Clocks) -> tuple[Pieces, Walks]:
    """Return the walks of all steps, and the pieces they go through."""
    places = links.visited(arrivals.late, arrivals.came)
    pieces, ranks, steps = Pieces.of(links, places, clocks), links.ranks, len(links.ends)
    place = links.place()
    there = np.flatnonzero(places[place])  # the communication of these ranks, numbered anew
    number = np.full(len(place) + 1, -1, np.int64)
    number[there] = np.arange(len(there))
    kinds = np.where(arrivals.message[there], _MESSAGE, _COLLECTIVE)
    has_step = np.zeros((steps, len(ranks)), np.uint8)
    step_begin, final_piece, final_rank = np.zeros((3, steps), np.int64)
    for step, (begin, final, ends) in enumerate(links.finals()):
        has_step[step, [end.place for end in ends]] = 1
        step_begin[step], final_rank[step] = begin, final.place
        final_piece[step] = pieces.first[final.place] + final.piece
    room = len(pieces.start) + 2 * steps + 1024  # more than is ever filled: the system gives memory where it is written
    while True:
        rows = np.zeros((room, 6), np.int64)
        early, operations = np.full((steps, len(ranks)), -1, np.int64), np.zeros((steps, len(ranks)), np.int64)
        stopped_rank, stopped_ns = np.full(steps, -1, np.int64), np.zeros(steps, np.int64)
        taken = critical_path.walk_steps(
            start=pieces.start,
            end=pieces.end,
            before=pieces.before,
            kind=pieces.kind,
            communication_kind=_COMMUNICATION,
            unknown_kind=_UNKNOWN,
            comm_piece=as_int64(pieces.first[place[there]] + links.piece[there]),
            comm_rank=as_int64(place[there]),
            comm_kind=as_int64(kinds),
            last_to_arrive=number[arrivals.late[there]],
            last_arrival=arrivals.came[there],
            own_arrival=arrivals.own[there],
            has_step=has_step,
            step_begin=step_begin,
            final_piece=final_piece,
            final_rank=final_rank,
            stopped_rank=stopped_rank,
            stopped_ns=stopped_ns,
            least_margin=early,
            operations=operations,
            seen=np.full(len(there), -1, np.int64),
            segments=rows,
        )
        if taken >= 0:
            break
        room *= 2
    step_of, piece, kind_of, peer, began, ended = (np.ascontiguousarray(rows[:taken, i]) for i in range(6))
    stopped = tuple(
        (ranks[rank], ns) if rank >= 0 else None
        for rank, ns in zip(stopped_rank.tolist(), stopped_ns.tolist(), strict=True)
    )
    return pieces, Walks(step_of, piece, kind_of, peer, began, ended, early, operations, stopped)
