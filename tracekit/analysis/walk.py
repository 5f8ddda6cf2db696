"""Walking back along what held each piece of work back, over all ranks at once, in native code.

The pieces of all ranks (``metrics.path``) lie in one table, and each communication knows the piece of the rank that
came last to it. A walk starts at the end of a step and goes back piece by piece; where a communication waited for
another rank, it goes on with that rank's piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.native import native, whole
from tracekit.align.clocks import Clocks
from tracekit.analysis.tables import RankTables
from tracekit.intervals import Longs
from tracekit.metrics.path import NODE_KINDS

_COMMUNICATION, _UNKNOWN = NODE_KINDS.index("communication"), NODE_KINDS.index("unknown")
KINDS = (*NODE_KINDS, "message", "collective")
"""What a segment can be; a communication is a message or a collective."""
_MESSAGE, _COLLECTIVE = KINDS.index("message"), KINDS.index("collective")


@dataclass(frozen=True, eq=False)
class Pieces:
    """All ranks' pieces on the common clock, and where the walk of each step starts."""

    table: pl.DataFrame
    """NODES of all ranks, with ``place``: which rank it is of, counted from 0."""
    ranks: tuple[int, ...]
    start: Longs
    end: Longs
    before: Longs
    steps: tuple[int | None, ...]
    ends: tuple[tuple[int, ...], ...]
    """Of each step, the pieces that end it on a rank."""
    begin: tuple[int, ...]
    """Of each step, when its first rank's GPU work began."""

    @classmethod
    def of(cls, parts: Sequence[RankTables], clocks: Clocks) -> Pieces:
        """Return the pieces of the ranks that have any."""
        sized = np.cumsum([0, *(len(part.path) for part in parts)])
        table = pl.concat(
            part.path.with_columns(
                place=pl.lit(at, pl.Int64),
                rank=pl.lit(part.source.rank, pl.Int32),
                before=pl.when(pl.col("before") >= 0).then(pl.col("before") + int(sized[at])).otherwise(-1),
            )
            for at, part in enumerate(parts)
        )
        since = table["start_ns"].to_numpy()
        moved = clocks.align(table.select("rank", "start_ns", "end_ns"), "start_ns", "end_ns")
        start = np.where(since < 0, since, moved["start_ns"].to_numpy())  # since ever, on every clock
        end = moved["end_ns"].to_numpy()
        last = np.flatnonzero(table["last"].to_numpy())
        first = pl.concat(part.steps.select("step", "start_ns", "rank") for part in parts)
        began = dict(zip(*_keyed(clocks.align(first, "start_ns")), strict=True))
        numbers = [part.steps["step"].to_list() for part in parts]
        places, halves = table["place"].gather(last).to_list(), table["part"].gather(last).to_list()
        ends: dict[int | None, list[tuple[int, int]]] = {}
        for piece, place, part in zip(last.tolist(), places, halves, strict=True):
            step = numbers[place][part] if part < len(numbers[place]) else None
            ends.setdefault(step, []).append((piece, began[parts[place].source.rank, step]))
        steps = sorted(ends, key=lambda step: (step is None, step or 0))
        return cls(
            table,
            tuple(part.source.rank for part in parts),
            whole(start),
            whole(end),
            whole(table["before"].to_numpy()),
            tuple(steps),
            tuple(tuple(piece for piece, _ in ends[step]) for step in steps),
            tuple(min(ns for _, ns in ends[step]) for step in steps),
        )


def _keyed(first: pl.DataFrame) -> tuple[list[tuple[int, int | None]], list[int]]:
    return list(zip(first["rank"].to_list(), first["step"].to_list(), strict=True)), first["start_ns"].to_list()


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Of each piece that is a communication: who came last to it, and when."""

    late: Longs
    """The piece of the last to come; -1: not known, or this one."""
    came: Longs
    """When the last came."""
    own: Longs
    """When this one came."""
    message: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, pieces: Pieces, members: pl.DataFrame, clocks: Clocks) -> Arrivals:
        """Return the arrivals at the operations that matched; *members* are their events."""
        count = len(pieces.table)
        late, came, own = np.full(count, -1, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)
        message = np.zeros(count, np.bool_)
        if members.is_empty():
            return cls(late, came, own, message)
        moved = clocks.align(members.select("match", "rank", "id", "start_ns", "sends"), "start_ns")
        latest = moved.sort("start_ns", "rank").group_by("match", maintain_order=True).last()
        named = latest.select("match", last_rank="rank", last_id="id", last_ns="start_ns")
        # A kernel of several messages starts to transfer when the last of all its partners has come.
        arrivals = moved.join(named, on="match").sort("last_ns").group_by("rank", "id", maintain_order=True).last()
        known = pieces.table.select("rank", "id").with_row_index("piece").filter(pl.col("id").is_not_null())
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
    steps, ranks = len(pieces.steps), len(pieces.ranks)
    kind = pieces.table["kind"].to_physical().to_numpy()
    waits = np.where(arrivals.message, _MESSAGE, _COLLECTIVE)
    kinds = whole(np.where(kind == _COMMUNICATION, waits, kind))
    place = whole(pieces.table["place"].to_numpy())
    here = np.zeros((steps, ranks), np.int64)
    state = np.zeros((steps, 4), np.int64)
    for step, (ends, begin) in enumerate(zip(pieces.ends, pieces.begin, strict=True)):
        here[step, place[list(ends)]] = 1
        final = max(ends, key=lambda piece: (pieces.end[piece], -pieces.ranks[place[piece]]))
        state[step] = begin, -1, 0, final
    room = len(kinds) + 2 * steps + 1024
    while True:
        rows = np.zeros((room, 6), np.int64)
        early, operations = np.full((steps, ranks), -1, np.int64), np.zeros((steps, ranks), np.int64)
        seen = np.full(len(kinds), -1, np.int64)
        taken = _walk_all(
            place, kinds, pieces.start, pieces.end, pieces.before, arrivals.late, arrivals.came, arrivals.own, here,
            state, early, operations, seen, rows,
        )  # fmt: skip
        if taken >= 0:
            break
        room *= 2
    step_of, piece, kind_of, peer, began, ended = (np.ascontiguousarray(rows[:taken, i]) for i in range(6))
    stopped = tuple((pieces.ranks[row[1]], row[2]) if row[1] >= 0 else None for row in state.tolist())
    return Walks(step_of, piece, kind_of, peer, began, ended, early, operations, stopped)


@native(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1],"
    " int64[:,::1], int64[:,::1], int64[:,::1], int64[:,::1], int64[::1], int64[:,::1])"
)
def _walk_all(  # noqa: PLR0917 - compiled code takes no keywords
    place: Longs,
    kind: Longs,
    start: Longs,
    end: Longs,
    before: Longs,
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
        begin, row = state[step, 0], state[step, 3]
        at = end[row]
        while at > begin:
            until, peer, further = start[row], -1, row
            if kind[row] >= _MESSAGE:
                seen[row] = step  # clocks that disagree could send the walk in a circle: each is gone to once
                last = late[row]
                if last >= 0 and here[step, place[last]] > 0 and seen[last] != step:
                    seen[last] = step
                    margin = max(came[row] - own[row], 0)
                    rank = place[row]
                    if operations[step, rank] == 0 or margin < early[step, rank]:
                        early[step, rank] = margin
                    operations[step, rank] += 1
                    peer, until, further = place[last], came[row], last
            if taken + 2 > len(rows):
                return -1
            until = min(max(until, begin), at)
            if until < at:
                rows[taken, 0], rows[taken, 1], rows[taken, 2] = step, row, kind[row]
                rows[taken, 3], rows[taken, 4], rows[taken, 5] = peer, until, at
                taken += 1
            at = until
            row = before[further]
            if row < 0 and at > begin:
                state[step, 1], state[step, 2] = place[further], at - begin
                rows[taken, 0], rows[taken, 1], rows[taken, 2] = step, further, _UNKNOWN
                rows[taken, 3], rows[taken, 4], rows[taken, 5] = -1, begin, at
                taken += 1
                at = begin
    return taken
