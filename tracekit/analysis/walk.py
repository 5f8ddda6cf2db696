"""Walking back along what held each piece of work back, over all ranks at once, in native code.

The pieces of all ranks (``metrics.path``) lie one after the other, as few columns as the walk needs, and each
communication knows the piece of the rank that came last to it. A walk starts at the end of a step and goes back piece
by piece; where a communication waited for another rank, it goes on with that rank's piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.native import native, whole
from tracekit._util.records import dataclass
from tracekit.align.clocks import Clocks
from tracekit.analysis.tables import RankTables
from tracekit.intervals import Longs
from tracekit.metrics.path import NODE_KINDS

_COMMUNICATION, _UNKNOWN = NODE_KINDS.index("communication"), NODE_KINDS.index("unknown")
KINDS = (*NODE_KINDS, "message", "collective")
"""What a segment can be; a communication is a message or a collective."""
_MESSAGE, _COLLECTIVE = KINDS.index("message"), KINDS.index("collective")

Places = npt.NDArray[np.int32]
Codes = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Pieces:
    """All ranks' pieces on the common clock, and where the walk of each step starts.

    A thousand ranks have millions of pieces: what only those on the path are asked for stays with the ranks.
    """

    parts: tuple[RankTables, ...]
    """The ranks that have pieces; a rank's place counts from 0."""
    first: Longs
    """Where each place's pieces begin, and the last one's end."""
    start: Longs
    end: Longs
    before: Places
    kind: Codes
    comm: Longs
    """The pieces that are communication, in order …"""
    comm_place: Longs
    """… the place of each …"""
    comm_id: pl.Series
    """… and its event."""
    steps: tuple[int | None, ...]
    ends: tuple[tuple[int, ...], ...]
    """Of each step, the pieces that end it on a rank."""
    begin: tuple[int, ...]
    """Of each step, when its first rank's GPU work began."""

    @classmethod
    def of(cls, parts: Sequence[RankTables], clocks: Clocks) -> Pieces | None:
        """Return the pieces of the ranks that have any; None where none has."""
        there: list[RankTables] = []
        columns: list[tuple[npt.NDArray[Any], ...]] = []
        ids, ends, first = [], [], [0]
        began = _begun(parts, clocks)
        for part in parts:
            path = part.path
            if not len(path):
                continue
            start, end = (path[name].to_numpy() for name in ("start_ns", "end_ns"))
            since = start < 0  # since ever, on every clock
            before = path["before"].to_numpy()
            kind = path["kind"].to_physical().to_numpy()
            columns.append(
                (
                    np.where(since, start, clocks.to_common(part.source.rank, start)),
                    clocks.to_common(part.source.rank, end),
                    np.where(before >= 0, before + first[-1], -1).astype(np.int32),
                    kind.astype(np.uint8),
                )
            )
            ids.append(path["id"].filter(kind == _COMMUNICATION))
            ends += _ends(part, path, first[-1], began)
            first.append(first[-1] + len(path))
            there.append(part)
        if not there:
            return None
        start, end, before, kind = (_joined(columns, at) for at in range(4))
        by_step: dict[int | None, list[tuple[int, int]]] = {}
        for step, piece, ns in ends:
            by_step.setdefault(step, []).append((piece, ns))
        steps = sorted(by_step, key=lambda step: (step is None, step or 0))
        comm = np.flatnonzero(kind == _COMMUNICATION)
        return cls(
            tuple(there),
            np.array(first, np.int64),
            whole(start),
            whole(end),
            before,
            kind,
            comm,
            np.searchsorted(first, comm, side="right") - 1,
            pl.concat(ids),
            tuple(steps),
            tuple(tuple(piece for piece, _ in by_step[step]) for step in steps),
            tuple(min(ns for _, ns in by_step[step]) for step in steps),
        )

    @property
    def ranks(self) -> tuple[int, ...]:
        """The rank at each place."""
        return tuple(part.source.rank for part in self.parts)

    def place(self, pieces: Longs) -> Longs:
        """Return where the rank of each of *pieces* is."""
        return np.searchsorted(self.first, pieces, side="right") - 1

    def about(self, pieces: Longs) -> pl.DataFrame:
        """Return what is known of *pieces*: label, what, idle_ns and exposed_ns."""
        place = self.place(pieces)
        order = np.argsort(place, kind="stable")
        names = ("label", "what", "idle_ns", "exposed_ns")
        found: list[pl.DataFrame] = [
            self.parts[at].path.select(names)[pieces[order[place[order] == at]] - self.first[at]]
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


def _begun(parts: Sequence[RankTables], clocks: Clocks) -> dict[tuple[int, int | None], int]:
    """Return when each rank began each of its steps, on the common clock."""
    table = clocks.align(pl.concat(part.steps.select("step", "start_ns", "rank") for part in parts), "start_ns")
    rank, step, start = (table[name].to_list() for name in ("rank", "step", "start_ns"))
    return dict(zip(zip(rank, step, strict=True), start, strict=True))


def _ends(
    part: RankTables, path: pl.DataFrame, first: int, began: dict[tuple[int, int | None], int]
) -> list[tuple[int | None, int, int]]:
    """Return the pieces that end a rank's steps: the step, the piece, and when the rank began it."""
    numbers = part.steps["step"].to_list()
    last = np.flatnonzero(path["last"].to_numpy())
    steps = [numbers[at] if at < len(numbers) else None for at in path["part"].gather(last).to_list()]
    pairs = zip(steps, last.tolist(), strict=True)
    return [(step, first + piece, began[part.source.rank, step]) for step, piece in pairs]


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Of each communication: who came last to it, and when."""

    late: Longs
    """The communication of the last to come; -1: not known, or this one."""
    came: Longs
    """When the last came."""
    own: Longs
    """When this one came."""
    message: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, pieces: Pieces, members: pl.DataFrame, clocks: Clocks) -> Arrivals:
        """Return the arrivals at the operations that matched; *members* are their events."""
        count = len(pieces.comm)
        late, came, own = np.full(count, -1, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)
        message = np.zeros(count, np.bool_)
        if members.is_empty():
            return cls(late, came, own, message)
        moved = clocks.align(members.select("match", "rank", "id", "start_ns", "sends"), "start_ns")
        latest = moved.sort("start_ns", "rank").group_by("match", maintain_order=True).last()
        named = latest.select("match", last_rank="rank", last_id="id", last_ns="start_ns")
        # A kernel of several messages starts to transfer when the last of all its partners has come.
        arrivals = moved.join(named, on="match").sort("last_ns").group_by("rank", "id", maintain_order=True).last()
        rank = pl.Series("rank", np.array(pieces.ranks)[pieces.comm_place], pl.Int32)
        known = pl.DataFrame([rank, pieces.comm_id.alias("id")]).with_row_index("piece")
        known = known.filter(pl.col("id").is_not_null())
        last = known.group_by("rank", "id").last().select(last_rank="rank", last_id="id", last_piece="piece")
        found = known.join(arrivals, on=["rank", "id"]).join(last, on=["last_rank", "last_id"], how="left")
        at = found["piece"].to_numpy()
        other = (found["last_rank"] != found["rank"]).to_numpy()
        late[at] = np.where(other, found["last_piece"].cast(pl.Int64).fill_null(-1).to_numpy(), -1)
        came[at], own[at] = found["last_ns"].to_numpy(), found["start_ns"].to_numpy()
        message[at] = found["sends"].is_not_null().to_numpy()
        return cls(late, came, own, message)


@dataclass(frozen=True, eq=False)
class Walks:
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


def walk_back(pieces: Pieces, arrivals: Arrivals) -> Walks:
    """Return the walks of all steps."""
    steps, ranks = len(pieces.steps), pieces.ranks
    kinds = whole(np.where(arrivals.message, _MESSAGE, _COLLECTIVE))
    here = np.zeros((steps, len(ranks)), np.int64)
    state = np.zeros((steps, 5), np.int64)
    for step, (ends, begin) in enumerate(zip(pieces.ends, pieces.begin, strict=True)):
        place = dict(zip(ends, pieces.place(np.array(ends)).tolist(), strict=True))
        here[step, list(place.values())] = 1
        final = max(ends, key=lambda piece: (pieces.end[piece], -ranks[place[piece]]))
        state[step] = begin, -1, 0, final, place[final]
    room = len(pieces.start) + 2 * steps + 1024  # more than is ever filled: the system gives memory where it is written
    while True:
        rows = np.zeros((room, 6), np.int64)
        early, operations = np.full((steps, len(ranks)), -1, np.int64), np.zeros((steps, len(ranks)), np.int64)
        seen = np.full(len(kinds), -1, np.int64)
        taken = _walk_all(
            pieces.start, pieces.end, pieces.before, pieces.kind, pieces.comm, pieces.comm_place, kinds, arrivals.late,
            arrivals.came, arrivals.own, here, state, early, operations, seen, rows,
        )  # fmt: skip
        if taken >= 0:
            break
        room *= 2
    step_of, piece, kind_of, peer, began, ended = (np.ascontiguousarray(rows[:taken, i]) for i in range(6))
    stopped = tuple((ranks[row[1]], row[2]) if row[1] >= 0 else None for row in state.tolist())
    return Walks(step_of, piece, kind_of, peer, began, ended, early, operations, stopped)


@native(
    "int64(int64[::1], int64[::1], int32[::1], uint8[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1],"
    " int64[::1], int64[:,::1], int64[:,::1], int64[:,::1], int64[:,::1], int64[::1], int64[:,::1])"
)
def _walk_all(  # noqa: PLR0917 - compiled code takes no keywords
    start: Longs,
    end: Longs,
    before: Places,
    kind: Codes,
    comm: Longs,
    comm_place: Longs,
    comm_kind: Longs,
    late: Longs,
    came: Longs,
    own: Longs,
    here: Longs,
    state: Longs,
    early: Longs,
    operations: Longs,
    seen: Longs,
    rows: Longs,
) -> int:
    """Walk every step back; return how many segments there are, or -1 where *rows* has no room for them."""
    taken = 0
    for step in range(len(state)):
        begin, row, place = state[step, 0], state[step, 3], state[step, 4]
        at = end[row]
        while at > begin:
            until, peer, further, is_a = start[row], -1, row, np.int64(kind[row])
            goes = place
            if is_a == _COMMUNICATION:
                c, high = 0, len(comm)
                while c < high:  # which communication it is
                    middle = (c + high) // 2
                    if comm[middle] < row:
                        c = middle + 1
                    else:
                        high = middle
                is_a = comm_kind[c]
                seen[c] = step  # clocks that disagree could send the walk in a circle: each is gone to once
                last = late[c]
                if last >= 0 and here[step, comm_place[last]] > 0 and seen[last] != step:
                    seen[last] = step
                    margin = max(came[c] - own[c], 0)
                    if operations[step, place] == 0 or margin < early[step, place]:
                        early[step, place] = margin
                    operations[step, place] += 1
                    goes = comm_place[last]
                    peer, until, further = goes, came[c], comm[last]
            if taken + 2 > len(rows):
                return -1
            until = min(max(until, begin), at)
            if until < at:
                rows[taken, 0], rows[taken, 1], rows[taken, 2] = step, row, is_a
                rows[taken, 3], rows[taken, 4], rows[taken, 5] = peer, until, at
                taken += 1
            at, place = until, goes
            row = np.int64(before[further])
            if row < 0 and at > begin:
                state[step, 1], state[step, 2] = place, at - begin
                rows[taken, 0], rows[taken, 1], rows[taken, 2] = step, further, _UNKNOWN
                rows[taken, 3], rows[taken, 4], rows[taken, 5] = -1, begin, at
                taken += 1
                at = begin
    return taken
