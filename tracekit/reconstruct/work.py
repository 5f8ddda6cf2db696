"""The chunks and messages of several pipelines' steps, side by side: what a step looks like, whenever it ran.

Steps of a run are alike: the same chunks in the same order, the same messages between them. Where they are, whatever
was found about one holds for the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.columns import to_int64
from tracekit.reconstruct.chunks import COUNTED, POSITION
from tracekit.reconstruct.messages import MESSAGES
from tracekit.reconstruct.rank import CHUNKS, RankPipeline

Ints = npt.NDArray[np.int64]
Line = Sequence[int]

_OPS = pl.Enum(("F", "I", "W", "B"))
_WEIGHTS = 2
_NOWHERE = np.iinfo(np.int64).min


class Work(msgspec.Struct, frozen=True, eq=False):
    """Chunks and messages, step by step of each pipeline (a *turn*), position by position."""

    lines: Sequence[Line]
    turns: list[tuple[int, int]]
    """Which of the lines, and which step."""
    by_order: list[bool]
    """Of each line: nothing recorded says to whom its messages went."""
    turn: Ints
    """Of each rank in each turn: the turn …"""
    at: Ints
    """… and its position."""
    chunks: pl.DataFrame
    first: Ints
    """Where the chunks of each rank in each turn begin, and the last one's end."""
    messages: pl.DataFrame
    """Their peers are positions."""
    first_message: Ints
    peers: Ints
    """Of each message, as a number; -1: not known."""
    cells: Ints
    """What each chunk is, and which in the order of their last launches."""
    sends: Ints
    """Of each message that is sent, in the order of launches: how many chunks were launched, and to whom."""
    first_send: Ints

    @classmethod
    def of(cls, ranks: Mapping[int, RankPipeline], lines: Sequence[tuple[Line, Sequence[int]]]) -> Work:
        """Return the work of *lines*, each with its steps, ascending."""
        turns = [(i, step) for i, (_, steps) in enumerate(lines) for step in steps]
        begin = np.cumsum([0, *(len(steps) for _, steps in lines)]).tolist()
        there = [(i, at, ranks[r]) for i, (line, _) in enumerate(lines) for at, r in enumerate(line) if r in ranks]
        wide = max((len(line) for line, _ in lines), default=1)
        steps = [np.array(of_line, np.int64) for _, of_line in lines]
        own = [(begin[i], steps[i], wide, at) for i, at, _ in there]
        chunks, place = _in_turns([rank.chunks for _, _, rank in there], own, CHUNKS)
        messages, of_message = _in_turns([rank.messages for _, _, rank in there], own, MESSAGES)
        line_of = np.array([line for line, _ in turns], np.int64)[of_message // wide]
        peers = _positions(to_int64(messages["peer"], -1), line_of, [line for line, _ in lines])
        messages = messages.with_columns(
            pl.when(pl.Series(peers >= 0)).then(pl.Series(peers, dtype=pl.Int32)).alias("peer")
        )
        first = np.flatnonzero(np.diff(place, prepend=-1))
        group = np.repeat(np.arange(len(first)), np.diff(first, append=len(place)))
        cells, done = _looks(chunks, group)
        sends, of_send = _sends(messages, of_message, place[first], done)
        edges = np.arange(len(first) + 1)
        by_order = [any(ranks[r].peers_by_order for r in line if r in ranks) for line, _ in lines]
        return cls(
            [line for line, _ in lines],
            turns,
            by_order,
            place[first] // wide,
            place[first] % wide,
            chunks,
            np.append(first, len(place)),
            messages,
            np.append(np.searchsorted(of_message, place[first]), len(of_message)),
            peers,
            cells,
            sends,
            np.searchsorted(of_send, edges),
        )

    def ranks_in(self, turn: int) -> range:
        """Return which of the ranks in turns are those of *turn*."""
        return range(*np.searchsorted(self.turn, [turn, turn + 1]).tolist())

    def chunks_of(self, one: int) -> pl.DataFrame:
        """Return the chunks of one rank in one turn."""
        return self.chunks.slice(self.first[one], self.first[one + 1] - self.first[one])

    def messages_of(self, one: int) -> pl.DataFrame:
        """Return the messages of one rank in one turn."""
        return self.messages.slice(self.first_message[one], self.first_message[one + 1] - self.first_message[one])

    def look(self, turn: int) -> Hashable:
        """Return what a step looks like: equal looks, equal stages, micro-batches and traffic."""
        pp = len(self.lines[self.turns[turn][0]])
        return pp, *(
            (
                int(self.at[one]),
                self.cells[self.first[one] : self.first[one + 1]].tobytes(),
                self.sends[self.first_send[one] : self.first_send[one + 1]].tobytes(),
                bool((self.peers[self.first_message[one] : self.first_message[one + 1]] == pp - 1).any()),
            )
            for one in self.ranks_in(turn)
        )


def _positions(peers: Ints, line_of: Ints, lines: Sequence[Line]) -> Ints:
    """Return the positions of peers in their own lines; -1 where a peer is not in it."""
    if not len(peers):
        return peers
    ranks = np.array([rank for line in lines for rank in line], np.int64)
    at = np.array([at for line in lines for at in range(len(line))], np.int64)
    most = int(max(ranks.max(), peers.max())) + 2
    key = np.repeat(np.arange(len(lines)), [len(line) for line in lines]) * most + ranks + 1
    order = np.argsort(key, kind="stable")
    asked = line_of * most + peers + 1
    found = order[np.minimum(np.searchsorted(key[order], asked), len(order) - 1)]
    return np.where(key[found] == asked, at[found], -1)


def _in_turns(
    tables: Sequence[pl.DataFrame], own: Sequence[tuple[int, Ints, int, int]], schema: pl.Schema
) -> tuple[pl.DataFrame, Ints]:
    """Return the rows of all ranks turn by turn, position by position, and of each its turn and position as one."""
    if not tables:
        return schema.to_frame(), np.zeros(0, np.int64)
    places = []
    for table, (begin, steps, wide, at) in zip(tables, own, strict=True):
        step = to_int64(table["step"], _NOWHERE)
        turn = np.searchsorted(steps, step)
        known = steps[np.minimum(turn, len(steps) - 1)] == step if len(steps) else np.zeros(len(step), np.bool_)
        places.append(np.where(known, (begin + turn) * wide + at, -1))
    place = np.concatenate(places)
    order = np.argsort(place, kind="stable")[int((place < 0).sum()) :]
    return pl.concat(tables)[order], place[order]


def _looks(chunks: pl.DataFrame, group: Ints) -> tuple[Ints, tuple[Ints, Ints]]:
    """Return the columns of ``Work.cells``, and when each chunk was last launched, in that order (weights left out)."""
    op = chunks["op"].cast(_OPS).to_physical().to_numpy().astype(np.int64)
    last = chunks["last_ns"].to_numpy()
    sure = chunks["confidence"].fill_null(2.0).to_numpy()
    works = np.flatnonzero(op != _WEIGHTS)
    works = works[np.lexsort((last[works], group[works]))]
    nth = np.full(len(op), -1, np.int64)
    nth[works] = np.arange(len(works))
    start = np.flatnonzero(np.diff(group[works], prepend=-1))
    nth[works] -= np.repeat(start, np.diff(start, append=len(works)))
    numbers = [to_int64(chunks[name], -1) for name in ("pair", "beside", "stage", "microbatch")]
    doubt = (sure <= COUNTED).astype(np.int64) + (sure <= POSITION)
    return np.stack([op, nth, doubt, *numbers], axis=1), (group[works], last[works])


def _sends(messages: pl.DataFrame, place: Ints, places: Ints, done: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Return ``Work.sends``, and of each which rank in which turn it is."""
    rows = np.flatnonzero(messages["send"].to_numpy() & np.isin(place, places))
    launch, group = messages["launch_ns"].to_numpy()[rows], np.searchsorted(places, place[rows])
    order = np.lexsort((launch, group))
    rows, launch, group = rows[order], launch[order], group[order]
    of_work, last = done
    # Both in one line of time, a chunk before what is launched with it: how many chunks came before each message.
    merged = np.lexsort((np.repeat([0, 1], [len(last), len(rows)]), np.append(last, launch), np.append(of_work, group)))
    before = np.cumsum(merged < len(last))
    count = np.empty(len(merged), np.int64)
    count[merged] = before
    count = count[len(last) :] - np.searchsorted(of_work, group)
    return np.stack([count, to_int64(messages["peer"].gather(rows), -1)], axis=1), group
