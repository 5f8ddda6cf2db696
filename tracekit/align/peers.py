"""The peers of messages, where the recording does not name them as ranks of the run.

NCCL numbers peers inside a communicator: the ranks that share its ID are its members, in an order that the messages
themselves must bear out. Without payloads only the direction is known. Then the work around a message tells what it
carries (activations go on, gradients go back), the k-th send on an edge meets the k-th receive, and the two must have
run at the same time: that check decides which ranks form a pipeline.

A few messages may be missing. One that was launched and not recorded keeps its place in the order. Of others the times
tell where they are missing, and receives that may be another source's then keep their peer unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.align.clock_bounds import MAX_ACKNOWLEDGE_NS

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

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
        "start_ns": pl.Int64(),  # null, as is the end: launched, but the kernel was not recorded
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
"""Weight of a receive that ends before its send does, if that has its kernel for itself, and what one costs that ends
before its send began."""
NEVER_NS = 2**62
"""Latest end of a message that was not recorded, where nothing bounds it."""
EARLY = 0.05
"""Share of messages that may seem to arrive before they were sent, as clocks differ a little."""
MAX_MISSING_SHARE = 0.05
"""Share of all messages that may lack their other side."""
MAX_MISSING = 8
"""Messages of one rank in one step that may lack their other side."""


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
    table = messages.select("rank", "group", "send", "peer").with_row_index("row")
    peers = np.full(len(table), -1, np.int64)
    for part in table.drop_nulls("peer").partition_by("group", maintain_order=True):
        members = sorted(part["rank"].unique().to_list())
        order = _member_order(part, members)
        if order is not None:
            peers[part["row"].to_numpy()] = np.array(order)[part["peer"].to_numpy()]
    return pl.Series("peer", peers, dtype=pl.Int32).replace(-1, None)


def _member_order(part: pl.DataFrame, members: list[int]) -> Sequence[int] | None:
    """Return the members of one communicator in NCCL's order; None where those recorded are not all or fit none.

    Of orders in which everyone receives as much as was sent, the first; else the one in which the fewest messages lack
    their other side, if these are few and in no other order as few.
    """
    highest = part["peer"].max()
    if not isinstance(highest, int) or highest >= len(members):
        return None
    position_of_rank = {rank: i for i, rank in enumerate(members)}
    who = part["rank"].replace_strict(position_of_rank, return_dtype=pl.Int64).to_numpy()
    peer, send = part["peer"].to_numpy().astype(np.int64), part["send"].to_numpy()
    count = len(members)
    sent = np.bincount(who[send] * count + peer[send], minlength=count * count).reshape(count, count)
    received = np.bincount(who[~send] * count + peer[~send], minlength=count * count).reshape(count, count)

    def missing(order: tuple[int, ...]) -> int:
        """Return how many messages lack their other side; all of them if someone would write to themselves."""
        number_of_member = np.empty(count, np.int64)  # of each member: its number
        number_of_member[list(order)] = np.arange(count)
        # n is number_of_member: sent[a, n[b]] went from a to b, and received[b, n[a]] is what b says it had from a.
        if sent[np.arange(count), number_of_member].any():
            return len(part)
        return int(np.abs(sent[:, number_of_member] - received[:, number_of_member].T).sum())

    first = tuple(range(count))
    orders = permutations(first) if count <= MOST_MEMBERS else iter([first])
    chosen, fewest, is_only = first, len(part), False
    for order in orders:
        lacking = missing(order)
        is_only = lacking < fewest or (is_only and lacking > fewest)
        if lacking < fewest:
            chosen, fewest = order, lacking
        if not fewest:
            break
    believed = is_only and fewest <= MAX_MISSING_SHARE * len(part)
    return [members[i] for i in chosen] if believed else None


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
            named = pl.Series("peer", peers, dtype=pl.Int32).replace(-1, None)
            best = Named(named, tuple(tuple(line) for line in tried), share)
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
    together_all, early, missing_all = 0, 0, 0
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
                missing = abs(sum(map(len, queues)) - len(receives))
                missing_all += missing
                if missing > MAX_MISSING or missing_all > MAX_MISSING_SHARE * len(messages):
                    return peer, 0.0
                chosen = _by_stream(view, rank, receives, [*sources], peer)
                if chosen is None or (not missing and _counts(chosen, len(queues)) != [*map(len, queues)]):
                    chosen = _merge(view, receives, queues)
                peer[receives] = np.array([*sources, -1])[chosen]
                together, late = _meetings(view, receives, queues, chosen)
                together_all, early = together_all + together, early + late
    count = view.recorded.sum() / 2
    return peer, together_all / count if early <= EARLY * count else 0.0


def _counts(chosen: Ints, length: int) -> list[int]:
    """Return how many receives take from each queue."""
    counts: list[int] = np.bincount(chosen[chosen >= 0], minlength=length).tolist()
    return counts


class _View(msgspec.Struct, frozen=True, eq=False):
    """Messages as arrays, and the rows of each rank's sends and receives in the order they were issued."""

    step: Ints
    start: Ints
    """Of a message that was not recorded the earliest possible start."""
    end: Ints
    """Of a message that was not recorded the earliest possible end."""
    latest_end: Ints
    """The end; of a message that was not recorded the latest possible one."""
    alone: Bools
    """Whether it has its kernel for itself."""
    recorded: Bools
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
        recorded = messages["end_ns"].is_not_null().to_numpy()
        stream = messages["stream"].fill_null(-1).to_numpy()
        start, end, latest_end = (
            messages[name].fill_null(other).to_numpy(writable=True)
            for name, other in (
                ("start_ns", messages["launch_ns"]),
                ("end_ns", messages["launch_ns"]),
                ("end_ns", NEVER_NS),
            )
        )
        for indices in rows.values():
            lost = indices[~recorded[indices]]
            if len(lost) and len(np.unique(stream[indices[recorded[indices]]])) == 1:
                # On one stream it ran between the one launched before it and the next.
                start[lost] = end[lost] = np.maximum.accumulate(end[indices])[~recorded[indices]]
                next_start = np.where(recorded[indices], start[indices], NEVER_NS)
                latest_end[lost] = np.minimum.accumulate(next_start[::-1])[::-1][~recorded[indices]]
        alone = messages.select(pl.len().over("rank", "launch_ns") == 1).to_series().to_numpy()
        return cls(
            step,
            start,
            end,
            latest_end,
            alone,
            recorded,
            stream,
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
    sends = sends[view.recorded[sends]]
    pairs = np.unique(np.stack([view.stream[sends], peer[sends]]), axis=1)
    if len(pairs[0]) < 2 or len(np.unique(pairs[0])) < len(pairs[0]) or (pairs[0] < 0).any():
        return None
    if not view.recorded[receives].all():  # nothing tells the stream of a kernel that was not recorded
        return None
    peer_of_stream = dict(zip(pairs[0].tolist(), pairs[1].tolist(), strict=True))
    source_of = [peer_of_stream.get(stream) for stream in view.stream[receives].tolist()]
    return None if None in source_of else np.array([sources.index(source) for source in source_of], np.int64)  # type: ignore[arg-type]


def _merge(view: _View, receives: Ints, queues: list[Ints]) -> Ints:
    """Return, for each receive in turn, which queue of sends it takes from, so that all fit as well as can be.

    -1 where messages are missing and it may take from either, or from none.
    """
    if len(queues) == 1 or not len(queues[1]):
        return np.zeros(len(receives), np.int64)
    first, second = queues
    sends_left = len(first) + len(second) - len(receives)
    before = _least_misfits(view, receives, first, second)
    if sends_left:
        return _certain_sources(view, receives, (first, second), before)
    # Go back from the end along the cheapest way: the receive behind i others takes from the first queue or the second.
    chosen, j = np.zeros(len(receives), np.int64), len(first)
    for i in range(len(receives) - 1, -1, -1):
        k = i - j  # taken of the second queue before this receive, if it takes from the second
        takes_first = j > 0 and (
            k < 0
            or before[i, 0, j - 1] + _misfit(view, receives[i], first[j - 1])
            <= before[i, 0, j] + _misfit(view, receives[i], second[k])
        )
        chosen[i], j = (0, j - 1) if takes_first else (1, j)
    return chosen


def _least_misfits(view: _View, receives: Ints, first: Ints, second: Ints) -> Floats:
    """Return in [i, s, j] the least misfit of i receives, j sends of the first queue and i + shift - j of the second.

    The shifts, of index s, are the sends without a receive less the receives without a send, from 0 to what is left
    over in the end. Only the side that has too many is left out of pairs.
    """
    sends_left = len(first) + len(second) - len(receives)
    shifts = np.arange(min(sends_left, 0), max(sends_left, 0) + 1)
    j = np.arange(len(first) + 1)
    least = np.full((len(receives) + 1, len(shifts), len(first) + 1), np.inf)
    least[0, shifts == 0, 0] = 0.0
    for i in range(len(receives) + 1):
        k = i + shifts[:, None] - j
        least[i][(k < 0) | (k > len(second))] = np.inf
        for s in range(1, len(shifts)) if sends_left > 0 else ():  # a send of either queue is left out
            least[i, s] = np.minimum(least[i, s], least[i, s - 1])
            least[i, s, 1:] = np.minimum(least[i, s, 1:], least[i, s - 1, :-1])
            least[i, s][(k[s] < 0) | (k[s] > len(second))] = np.inf
        if i == len(receives):
            break
        least[i + 1, :, 1:] = least[i, :, :-1] + _misfit(view, receives[i], first)
        of_second = _misfit(view, receives[i], second[np.clip(k, 0, len(second) - 1)])
        least[i + 1] = np.minimum(least[i + 1], least[i] + of_second)
        if sends_left < 0:  # the receive is left out
            least[i + 1, :-1] = np.minimum(least[i + 1, :-1], least[i, 1:])
    return least


def _certain_sources(view: _View, receives: Ints, queues: tuple[Ints, Ints], before: Floats) -> Ints:
    """Return the queue of each receive; -1 if it has none, or if another way for it is little worse."""
    first, second = queues
    sends_left = len(first) + len(second) - len(receives)
    shifts = np.arange(min(sends_left, 0), max(sends_left, 0) + 1)
    # From behind, what is left after a receive is what came before it.
    after = _least_misfits(view, receives[::-1], first[::-1], second[::-1])[::-1, ::-1, ::-1]
    ways = np.full((3, len(receives)), np.inf)
    for i, receive in enumerate(receives):
        ways[0, i] = (before[i, :, :-1] + _misfit(view, receive, first) + after[i + 1, :, 1:]).min(initial=np.inf)
        k = np.clip(i + shifts[:, None] - np.arange(len(first) + 1), 0, len(second) - 1)
        ways[1, i] = (before[i] + _misfit(view, receive, second[k]) + after[i + 1]).min()
        if sends_left < 0:
            ways[2, i] = (before[i, 1:] + after[i + 1, :-1]).min()
    chosen = ways.argmin(axis=0)
    lowest, next_lowest = np.partition(ways, 1, axis=0)[:2]
    return np.where((chosen < 2) & (next_lowest - lowest > MAX_ACKNOWLEDGE_NS), chosen, -1)


def _misfit(view: _View, receives: Ints, sent: Ints) -> Floats:
    """Return how badly each receive fits each send: it ends soon after both are there, never before its message was.

    One that was not recorded ended when it fits best, within its bounds.
    """
    late = np.maximum(0, view.end[receives] - np.maximum(view.latest_end[sent], view.start[receives]))
    early = np.maximum(0, view.end[sent] - view.latest_end[receives])
    early = np.where(view.alone[sent], EARLIER, 1.0) * early
    misfit: Floats = late + early + np.where(view.latest_end[receives] < view.start[sent], NEVER, 0.0)
    return misfit


def _meetings(view: _View, receives: Ints, queues: list[Ints], chosen: Ints) -> tuple[int, int]:
    """Return how many receives ran at the same time as their send, and how many ended before it began.

    Where sends or receives of a queue are missing, a receive has that many neighbours of its send to meet as well.
    """
    together, early = 0, 0
    for position, queue in enumerate(queues):
        taken = receives[chosen == position]
        sends_left = len(queue) - len(taken)
        shifts = np.arange(min(sends_left, 0), max(sends_left, 0) + 1)
        if len(queue):
            partner = queue[np.clip(np.arange(len(taken))[:, None] + shifts, 0, len(queue) - 1)]
            after = view.start[partner] < view.end[taken][:, None]
            meets = after & (view.start[taken][:, None] < view.latest_end[partner]) & view.recorded[partner]
            together += int((meets.any(axis=1) & view.recorded[taken]).sum())
            early += int((~after.any(axis=1) & view.recorded[taken]).sum())
    return together, early
