"""The peers of messages, where the recording does not name them as ranks of the run.

NCCL numbers peers inside a communicator: the ranks that share its ID are its members, in an order that the messages
themselves must bear out. Without payloads only the direction is known. Then the work around a message tells what it
carries (activations go on, gradients go back), the k-th send on an edge meets the k-th receive, and the two must have
run at the same time: that check decides which ranks form a pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MESSAGES = pl.Schema(
    {
        "rank": pl.Int32(),
        "step": pl.Int64(),
        "group": pl.String(),  # the communicator
        "send": pl.Boolean(),
        "peer": pl.Int32(),  # as recorded: in ranks of the communicator, or null
        "made": pl.String(),  # of a send: F or B, the work whose result it carries; null where nothing tells
        "stream": pl.Int64(),  # a communicator of two ranks has a stream of its own
        "launch_ns": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
    }
)
"""What is asked of every message, in the order it was issued on its rank."""

MOST_MEMBERS = 7
"""Communicators of more members are taken to be in order of rank where that fits, and not tried in any other."""
MET = 0.5
"""Share of messages whose two sides must have run at the same time for an order of ranks to be believed.

A message may lie in a buffer until it is asked for, so its send may end before the receive begins.
"""
EARLIER, NEVER = 4.0, 1e15
"""Weight of a receive that ends before its send does, and what one costs that ends before its send began."""
EARLY = 0.05
"""Share of messages that may seem to arrive before they were sent, as clocks differ a little."""


@dataclass(frozen=True)
class Named:
    """``peer`` of every message in ranks of the run, null where not known; and the pipelines it came from."""

    peer: pl.Series
    lines: tuple[tuple[int, ...], ...] = ()
    met: float = 0.0  # share of the messages whose two sides ran at the same time


def by_communicator(messages: pl.DataFrame) -> pl.Series:
    """Return the peers as ranks of the run, where *messages* (``MESSAGES``) number them inside their communicator.

    >>> rows = {"rank": [2, 6], "group": "77", "send": [True, False], "peer": [1, 0], "launch_ns": [0, 0]}
    >>> by_communicator(pl.DataFrame(rows)).to_list()
    [6, 2]
    """
    table = messages.select("rank", "group", "send", "peer").with_row_index("at")
    peers = np.full(len(table), -1, np.int64)
    for part in table.drop_nulls("peer").partition_by("group", maintain_order=True):
        members = sorted(part["rank"].unique().to_list())
        order = _member_order(part, members)
        if order is not None:
            peers[part["at"].to_numpy()] = np.array(order)[part["peer"].to_numpy()]
    return pl.Series("peer", peers, dtype=pl.Int32).replace(-1, None)


def _member_order(part: pl.DataFrame, members: list[int]) -> Sequence[int] | None:
    """Return the members of one communicator in NCCL's order; None where those recorded are not all or fit none."""
    highest = part["peer"].max()
    if not isinstance(highest, int) or highest >= len(members):
        return None
    position_of_rank = {rank: i for i, rank in enumerate(members)}
    who = part["rank"].replace_strict(position_of_rank, return_dtype=pl.Int64).to_numpy()
    peer, send = part["peer"].to_numpy().astype(np.int64), part["send"].to_numpy()
    count = len(members)
    sent = np.bincount(who[send] * count + peer[send], minlength=count * count).reshape(count, count)
    received = np.bincount(who[~send] * count + peer[~send], minlength=count * count).reshape(count, count)

    def fits(order: tuple[int, ...]) -> bool:
        """Return whether everyone receives as much as was sent, and nobody writes to themselves."""
        number_of_member = np.empty(count, np.int64)  # of each member: its number
        number_of_member[list(order)] = np.arange(count)
        # n is number_of_member: sent[a, n[b]] went from a to b, and received[b, n[a]] is what b says it had from a.
        return bool(
            (sent[:, number_of_member] == received[:, number_of_member].T).all()
            and not sent[np.arange(count), number_of_member].any()
        )

    first = tuple(range(count))
    orders = permutations(first) if count <= MOST_MEMBERS else iter([first])
    chosen = next((order for order in orders if fits(order)), None)
    return None if chosen is None else [members[i] for i in chosen]


def along_pipelines(messages: pl.DataFrame, lines: Sequence[Sequence[int]] | None = None) -> Named:
    """Return the peers of messages that only show their direction, by their order along a pipeline.

    *lines* are the pipelines, ranks in stage order; without them the ways to lay out all ranks are tried, and the one
    whose messages meet best is taken.
    """
    nobody = pl.repeat(None, len(messages), dtype=pl.Int32, eager=True).alias("peer")
    ranks = sorted(messages["rank"].unique().to_list())
    best = Named(nobody)
    for tried in [lines] if lines is not None else _layouts(ranks):
        peers, share = _along(messages, tried)
        if share > best.met:
            best = Named(pl.Series("peer", peers, dtype=pl.Int32), tuple(tuple(line) for line in tried), share)
    return best if best.met >= MET else Named(nobody, met=best.met)


def _layouts(ranks: list[int]) -> Iterator[list[list[int]]]:
    """Yield the ways to cut the ranks into pipelines of equal length, the longest first: every so many, or in a row."""
    for length in range(len(ranks), 1, -1):
        if len(ranks) % length:
            continue
        apart = len(ranks) // length
        yield [ranks[i::apart] for i in range(apart)]
        if apart > 1:
            yield [ranks[i : i + length] for i in range(0, len(ranks), length)]


def _along(messages: pl.DataFrame, lines: Sequence[Sequence[int]]) -> tuple[Ints, float]:
    """Return each message's peer if *lines* are the pipelines, and the share of messages that then meet."""
    view = _View.of(messages)
    peer = np.full(len(messages), -1, np.int64)
    together_all, early = 0, 0
    for line in lines:
        after = dict(zip(line, [*line[1:], line[0]], strict=True))
        before = {b: a for a, b in after.items()}
        for rank in line:
            sends = view.sends.get(rank, view.none)
            peer[sends] = np.where(view.forward[sends], after[rank], before[rank])
        if not all((peer[view.sends.get(a, view.none)] == b).any() for a, b in pairwise(line)):
            return peer, 0.0  # ranks that never speak to each other are two pipelines
        for rank in line:
            for step in view.steps:
                receives = view.received(rank, step)
                sources = dict.fromkeys((before[rank], after[rank]))
                queues = [view.sent(source, step)[peer[view.sent(source, step)] == rank] for source in sources]
                if sum(map(len, queues)) != len(receives):
                    return peer, 0.0
                chosen = _by_stream(view, rank, receives, [*sources], peer)
                if chosen is None or any((chosen == i).sum() != len(queue) for i, queue in enumerate(queues)):
                    chosen = _merge(view, receives, queues)
                peer[receives] = np.array([*sources])[chosen]
                together, late = _meetings(view, receives, queues, chosen)
                together_all, early = together_all + together, early + late
    count = len(messages) / 2
    return peer, together_all / count if early <= EARLY * count else 0.0


class _View(msgspec.Struct, frozen=True, eq=False):
    """Messages as arrays, and the rows of each rank's sends and receives in the order they were issued."""

    step: Ints
    start: Ints
    end: Ints
    stream: Ints
    forward: Bools
    sends: dict[int, Ints]
    receives: dict[int, Ints]
    steps: list[int]
    none: Ints

    @classmethod
    def of(cls, messages: pl.DataFrame) -> _View:
        rank, send = messages["rank"].to_numpy(), messages["send"].to_numpy()
        order = np.argsort(messages["launch_ns"].to_numpy(), kind="stable")
        step = messages["step"].fill_null(-1).to_numpy()
        rows = {r: order[rank[order] == r] for r in np.unique(rank).tolist()}
        return cls(
            step,
            messages["start_ns"].to_numpy(),
            messages["end_ns"].to_numpy(),
            messages["stream"].fill_null(-1).to_numpy(),
            (messages["made"] == "F").fill_null(False).to_numpy(),
            {r: indices[send[indices]] for r, indices in rows.items()},
            {r: indices[~send[indices]] for r, indices in rows.items()},
            np.unique(step).tolist(),
            np.zeros(0, np.int64),
        )

    def sent(self, rank: int, step: int) -> Ints:
        return self._of(self.sends, rank, step)

    def received(self, rank: int, step: int) -> Ints:
        return self._of(self.receives, rank, step)

    def _of(self, rows_by_rank: dict[int, Ints], rank: int, step: int) -> Ints:
        rows = rows_by_rank.get(rank, self.none)
        in_step: Ints = rows[self.step[rows] == step]
        return in_step


def _by_stream(view: _View, rank: int, receives: Ints, sources: list[int], peer: Ints) -> Ints | None:
    """Return, for each receive, the place of its source where all messages with one peer share a stream; else None."""
    sends = view.sends.get(rank, view.none)
    pairs = np.unique(np.stack([view.stream[sends], peer[sends]]), axis=1)
    if len(pairs[0]) < 2 or len(np.unique(pairs[0])) < len(pairs[0]) or (pairs[0] < 0).any():
        return None
    peer_of_stream = dict(zip(pairs[0].tolist(), pairs[1].tolist(), strict=True))
    source_of = [peer_of_stream.get(stream) for stream in view.stream[receives].tolist()]
    return None if None in source_of else np.array([sources.index(source) for source in source_of], np.int64)  # type: ignore[arg-type]


def _merge(view: _View, receives: Ints, queues: list[Ints]) -> Ints:
    """Return, for each receive in turn, which queue of sends it takes from, so that all fit as well as can be."""
    if len(queues) == 1 or not len(queues[1]):
        return np.zeros(len(receives), np.int64)
    first, second = queues
    # least[i, j]: the first i + j receives took i of the first queue's and j of the second's.
    places = np.arange(len(first) + 1)[:, None] + np.arange(len(second) + 1)[None, :]
    padded = np.append(receives, receives[-1:])
    of_first = _misfit(view, padded[places[:-1]], first[:, None])  # receive i + j takes first[i]
    of_second = _misfit(view, padded[places[:, :-1]], second[None, :])
    least = np.full(places.shape, np.inf)
    least[0] = np.concatenate([[0], np.cumsum(of_second[0])])
    for i in range(1, len(first) + 1):
        down = least[i - 1] + of_first[i - 1]
        # Going along the row adds up of_second: the best place to have come down is a running minimum.
        along = np.concatenate([[0], np.cumsum(of_second[i])])
        least[i] = np.minimum.accumulate(down - along) + along
    chosen, i, j = np.zeros(len(receives), np.int64), len(first), len(second)
    while i or j:
        back = i and (not j or least[i - 1, j] + of_first[i - 1, j] <= least[i, j - 1] + of_second[i, j - 1])
        i, j = (i - 1, j) if back else (i, j - 1)
        chosen[i + j] = 0 if back else 1
    return chosen


def _misfit(view: _View, receives: Ints, sent: Ints) -> npt.NDArray[np.float64]:
    """Return how badly each receive fits each send: it ends soon after both are there, never before its message was."""
    late = np.maximum(0, view.end[receives] - np.maximum(view.end[sent], view.start[receives]))
    early = np.maximum(0, view.end[sent] - view.end[receives])
    misfit: npt.NDArray[np.float64] = (
        late + EARLIER * early + np.where(view.end[receives] < view.start[sent], NEVER, 0.0)
    )
    return misfit


def _meetings(view: _View, receives: Ints, queues: list[Ints], chosen: Ints) -> tuple[int, int]:
    """Return how many receives ran at the same time as their send, and how many ended before it began."""
    together, early = 0, 0
    for position, queue in enumerate(queues):
        taken = receives[chosen == position]
        after = view.start[queue] < view.end[taken]
        together += int((after & (view.start[taken] < view.end[queue])).sum())
        early += int((~after).sum())
    return together, early
