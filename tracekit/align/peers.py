"""The peers of messages, where the recording does not name them as ranks of the run.

NCCL numbers peers inside a communicator: the ranks that share its ID are its members, in an order
that the messages themselves must bear out. Without payloads only the direction is known. Then the
work around a message tells what it carries (activations go on, gradients go back), the k-th send on
an edge meets the k-th receive, and the two must have run at the same time: that check decides which
ranks form a pipeline.

A few messages may be missing. One that was launched and not recorded keeps its place in the order.
Of others the times tell where they are missing, and receives that may be another source's then keep
their peer unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import cast

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints
from tracekit.align.pairing import NO_END_NS, OperationSequence, choose_sources

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
"""Columns of messages, which come in the order they were issued on their rank."""

MAX_MEMBERS_TO_PERMUTE = 7
"""Members up to which every order of a communicator is tried; larger ones are in order of rank, or
not known."""
MIN_MET_SHARE = 0.5
"""Share of messages whose two sides must have run at the same time for an order of ranks to be believed.

A message may lie in a buffer until it is received, so its send may end before the receive begins.
"""
MAX_EARLY_SHARE = 0.05
"""Share of messages that may seem to arrive before they were sent, as clocks differ a little."""
MAX_MISSING_SHARE = 0.05
"""Share of all messages that may lack their other side."""
MAX_MISSING = 8
"""Messages of one rank in one step that may lack their other side."""


@dataclass(frozen=True)
class PipelinePeers:
    """``peer`` of every message in ranks of the run, null where not known.

    And the pipelines it came from.
    """

    peer: pl.Series
    pipelines: tuple[tuple[int, ...], ...] = ()
    met_share: float = 0.0  # of the messages: their two sides ran at the same time


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
    """Return the members of one communicator in NCCL's order.

    None where those recorded are not all or fit none.

    Of orders in which everyone receives as much as was sent, the first; else the one in which the
    fewest messages lack their other side, if these are few and in no other order as few.
    """
    highest = part["peer"].max()
    if not isinstance(highest, int) or highest >= len(members):
        return None
    traffic = _Traffic.count(part, members)
    first = tuple(range(len(members)))
    orders = permutations(first) if len(members) <= MAX_MEMBERS_TO_PERMUTE else iter([first])
    best = first
    fewest_missing = len(part)
    is_only_best = False
    for order in orders:
        missing = traffic.count_missing(order)
        if missing < fewest_missing:
            best = order
            fewest_missing = missing
            is_only_best = True
        elif missing == fewest_missing:
            is_only_best = False
        if not fewest_missing:
            break
    is_believable = is_only_best and fewest_missing <= MAX_MISSING_SHARE * len(part)
    return [members[i] for i in best] if is_believable else None


class _Traffic(msgspec.Struct, frozen=True, eq=False):
    """Messages between the members of a communicator: [member, number that it gives its peer]."""

    sent: Ints
    received: Ints

    @classmethod
    def count(cls, messages: pl.DataFrame, members: list[int]) -> _Traffic:
        """Count the *messages* of each member by the number that it gives its peer."""
        size = len(members)
        position_of_rank = {rank: position for position, rank in enumerate(members)}
        own = messages["rank"].replace_strict(position_of_rank, return_dtype=pl.Int64).to_numpy()
        pair = own * size + messages["peer"].to_numpy().astype(np.int64)
        is_send = messages["send"].to_numpy()
        sent = np.bincount(pair[is_send], minlength=size * size)
        received = np.bincount(pair[~is_send], minlength=size * size)
        return cls(sent.reshape(size, size), received.reshape(size, size))

    def count_missing(self, order: tuple[int, ...]) -> int:
        """Return how many messages lack their other side if *order* has the members by number.

        All of them lack it if a member would write to itself.
        """
        size = len(order)
        number = np.empty(size, np.int64)  # of each member: its number
        number[list(order)] = np.arange(size)
        # sent[a, number[b]] went from a to b, and received[b, number[a]] is what b says it had from
        # a.
        if self.sent[np.arange(size), number].any():
            return int(self.sent.sum() + self.received.sum())
        return int(np.abs(self.sent[:, number] - self.received[:, number].T).sum())


def along_pipelines(
    messages: pl.DataFrame, pipelines: Sequence[Sequence[int]] | None = None
) -> PipelinePeers:
    """Return the peers of messages that only show their direction, by their order along a pipeline.

    *pipelines* holds the ranks of each in stage order; without it the ways to lay out all ranks are
    tried, and the one whose messages meet best is taken.
    """
    no_peers = pl.repeat(None, len(messages), dtype=pl.Int32, eager=True).alias("peer")
    ranks = sorted(messages["rank"].unique().to_list())
    arrays = _MessageArrays.of(messages)
    best = PipelinePeers(no_peers)
    for layout in [pipelines] if pipelines is not None else _layouts(ranks):
        peer = np.full(len(messages), -1, np.int64)
        met_share = _assign_peers_along(arrays, layout, peer)
        if met_share is not None and met_share > best.met_share:
            peers = pl.Series("peer", peer, dtype=pl.Int32).replace(-1, None)
            best = PipelinePeers(peers, tuple(tuple(pipeline) for pipeline in layout), met_share)
    return (
        best
        if best.met_share >= MIN_MET_SHARE
        else PipelinePeers(no_peers, met_share=best.met_share)
    )


def _layouts(ranks: list[int]) -> Iterator[list[list[int]]]:
    """Yield the ways to cut the ranks into pipelines of equal length, the longest first: strided, then consecutive."""
    for length in range(len(ranks), 1, -1):
        if len(ranks) % length:
            continue
        count = len(ranks) // length
        yield [ranks[i::count] for i in range(count)]
        if count > 1:
            yield [ranks[i : i + length] for i in range(0, len(ranks), length)]


def _with_possible_times(messages: pl.DataFrame) -> pl.DataFrame:
    """Return messages with ``recorded``, the earliest possible ``start`` and ``end``, and the ``latest_end``.

    One that was launched and not recorded began after its launch. If the rank's messages share a
    stream, it ran between the one launched before it and the next.
    """
    is_recorded = pl.col("end_ns").is_not_null()
    has_one_stream = pl.col("stream").filter(is_recorded).n_unique().over("rank") == 1
    earliest_ns = pl.coalesce("end_ns", "launch_ns").cum_max().over("rank", order_by="launch_ns")
    next_start_ns = pl.col("start_ns").backward_fill().over("rank", order_by="launch_ns")
    latest_ns = pl.when(has_one_stream).then(next_start_ns).fill_null(NO_END_NS)
    earliest_ns = pl.when(has_one_stream).then(earliest_ns).otherwise("launch_ns")
    return messages.with_columns(
        recorded=is_recorded,
        start=pl.coalesce("start_ns", earliest_ns),
        end=pl.coalesce("end_ns", earliest_ns),
        latest_end=pl.coalesce("end_ns", latest_ns),
    )


class _MessageArrays(msgspec.Struct, frozen=True, eq=False):
    """Messages as arrays, and the rows of each rank's sends and receives in the order they were issued."""

    step: Ints
    start: Ints
    """Of a message that was not recorded the earliest possible start."""
    end: Ints
    """Of a message that was not recorded the earliest possible end."""
    latest_end: Ints
    """The end; of a message that was not recorded the latest possible one."""
    has_own_kernel: Bools
    recorded: Bools
    stream: Ints
    carries_activation: Bools
    carries_gradient: Bools
    """Of a send of which nothing tells what it carries neither is true."""
    rows: dict[tuple[int, bool], Ints]
    """By rank: rows of its sends (True), and of its receives."""
    rows_of_steps: dict[tuple[int, bool, int], Ints]
    """The same by rank, sends and step."""

    @classmethod
    def of(cls, messages: pl.DataFrame) -> _MessageArrays:
        timed = _with_possible_times(messages)
        timed = timed.with_columns(
            pl.col("step").fill_null(-1),
            pl.col("stream").fill_null(-1),
            has_own_kernel=pl.len().over("rank", "launch_ns") == 1,
            carries_activation=pl.col("made").eq_missing("F"),
            carries_gradient=pl.col("made").eq_missing("B"),
        )
        by_launch = timed.select("rank", "send", "step", "launch_ns", row=pl.int_range(pl.len()))
        by_launch = by_launch.sort("launch_ns", maintain_order=True)
        rows = {
            (cast("int", rank), bool(send)): group["row"].to_numpy()
            for (rank, send), group in by_launch.group_by("rank", "send", maintain_order=True)
        }
        rows_of_steps = {
            (cast("int", rank), bool(send), cast("int", step)): group["row"].to_numpy()
            for (rank, send, step), group in by_launch.group_by(
                "rank", "send", "step", maintain_order=True
            )
        }
        columns = [name for name in cls.__struct_fields__ if name not in ("rows", "rows_of_steps")]
        return cls(
            **{name: timed[name].to_numpy() for name in columns},
            rows=rows,
            rows_of_steps=rows_of_steps,
        )

    def of_rank(self, rank: int, *, sends: bool, step: int | None = None) -> Ints:
        """Return the rows of a rank's sends or receives, in one step or in all."""
        nothing = np.zeros(0, np.int64)
        if step is None:
            return self.rows.get((rank, sends), nothing)
        return self.rows_of_steps.get((rank, sends, step), nothing)

    def sequence(self, rows: Ints, *, sends: bool) -> OperationSequence:
        """Return sends or receives as a sequence to be paired.

        Nothing is known about their sizes.
        """
        unknown = np.full(len(rows), -1)
        return OperationSequence(
            start=self.start[rows],
            end=self.end[rows],
            latest_end=self.latest_end[rows],
            size=unknown,
            others=unknown,
            has_own_kernel=self.has_own_kernel[rows],
            sends=int(sends),
        )


def _assign_peers_along(
    messages: _MessageArrays, pipelines: Sequence[Sequence[int]], peer: Ints
) -> float | None:
    """Write each message's *peer* if these are the pipelines, and return the share of messages that then meet.

    Returns None if they cannot be the pipelines: neighbours never speak to each other, too many
    messages lack their other side, or too many arrive before they were sent.
    """
    met_count = 0
    early_count = 0
    missing_count = 0
    for pipeline in pipelines:
        # Closed to a ring: with interleaved stages the last rank sends to the first.
        next_rank = dict(zip(pipeline, [*pipeline[1:], pipeline[0]], strict=True))
        previous_rank = {after: rank for rank, after in next_rank.items()}
        for rank in pipeline:
            _assign_send_peers(messages, rank, next_rank[rank], previous_rank[rank], peer)
        if not all(
            (peer[messages.of_rank(rank, sends=True)] == next_rank[rank]).any()
            for rank in pipeline[:-1]
        ):
            return None  # ranks that never speak to each other are two pipelines
        for rank, step in product(pipeline, np.unique(messages.step).tolist()):
            # Of two ranks both are the same.
            sources = [*dict.fromkeys((previous_rank[rank], next_rank[rank]))]
            missing, met, early = _assign_receive_peers(messages, rank, step, sources, peer)
            missing_count += missing
            met_count += met
            early_count += early
            if missing > MAX_MISSING or missing_count > MAX_MISSING_SHARE * len(peer):
                return None
    message_count = max(int(messages.recorded.sum()), 1) / 2  # every message has two sides
    return met_count / message_count if early_count <= MAX_EARLY_SHARE * message_count else None


def _assign_send_peers(
    messages: _MessageArrays, rank: int, next_rank: int, previous_rank: int, peer: Ints
) -> None:
    """Write the *peer* of a rank's sends: activations go on, gradients go back.

    Of others only a sole neighbour's.
    """
    sends = messages.of_rank(rank, sends=True)
    carried = [messages.carries_activation[sends], messages.carries_gradient[sends]]
    peer[sends] = np.select(
        carried, [next_rank, previous_rank], next_rank if next_rank == previous_rank else -1
    )


def _assign_receive_peers(
    messages: _MessageArrays, rank: int, step: int, sources: list[int], peer: Ints
) -> tuple[int, int, int]:
    """Write the *peer* of a rank's receives in one step, unless too many messages are missing.

    Returns:
        How many messages lack their other side, how many receives met their send, and how many
        ended before it began.

    """
    receives = messages.of_rank(rank, sends=False, step=step)
    queues = [messages.of_rank(source, sends=True, step=step) for source in sources]
    queues = [queue[peer[queue] == rank] for queue in queues]
    missing = abs(sum(map(len, queues)) - len(receives))
    if missing > MAX_MISSING:
        return missing, 0, 0
    chosen = _match_by_stream(messages, rank, receives, sources, peer)
    # Streams that give a neighbour more or fewer receives than it sent tell nothing: then times
    # decide.
    if chosen is None or (
        not missing and np.bincount(chosen, minlength=len(queues)).tolist() != [*map(len, queues)]
    ):
        chosen = _choose_by_times(messages, receives, queues)
    # -1, where the queue is not certain, takes the -1 at the end.
    peer[receives] = np.array([*sources, -1])[chosen]
    return missing, *_meetings(messages, receives, queues, chosen)


def _match_by_stream(
    messages: _MessageArrays, rank: int, receives: Ints, sources: list[int], peer: Ints
) -> Ints | None:
    """Return the index of each receive's source, if all messages with one peer share a stream of their own."""
    sends = messages.of_rank(rank, sends=True)
    sends = sends[messages.recorded[sends] & (peer[sends] >= 0)]
    streams, peers = np.unique(np.stack([messages.stream[sends], peer[sends]]), axis=1)
    has_stream_of_own = (
        len(streams) > 1 and len(np.unique(streams)) == len(streams) and (streams >= 0).all()
    )
    if not has_stream_of_own:
        return None
    # Nothing tells the stream of a kernel that was not recorded.
    if not messages.recorded[receives].all():
        return None
    source_of_stream = {
        stream: sources.index(rank)
        for stream, rank in zip(streams.tolist(), peers.tolist(), strict=True)
    }
    chosen = [source_of_stream.get(stream, -1) for stream in messages.stream[receives].tolist()]
    return None if -1 in chosen else np.array(chosen, np.int64)


def _choose_by_times(messages: _MessageArrays, receives: Ints, queues: list[Ints]) -> Ints:
    """Return the index of each receive's queue as times tell it.

    -1 where another one fits nearly as well.
    """
    if len(queues) == 1:
        return np.zeros(len(receives), np.int64)
    first, second = (messages.sequence(queue, sends=True) for queue in queues)
    return choose_sources(messages.sequence(receives, sends=False), (first, second))


def _meetings(
    messages: _MessageArrays, receives: Ints, queues: list[Ints], chosen: Ints
) -> tuple[int, int]:
    """Return how many receives ran at the same time as their send, and how many ended before it began.

    Where sends or receives of a queue are missing, a receive has that many neighbours of its send
    to meet as well.
    """
    met = 0
    early = 0
    for position, queue in enumerate(queues):
        taken = receives[chosen == position]
        sends_left = len(queue) - len(taken)
        shifts = np.arange(min(sends_left, 0), max(sends_left, 0) + 1)
        if len(queue):
            partner = queue[np.clip(np.arange(len(taken))[:, None] + shifts, 0, len(queue) - 1)]
            after = messages.start[partner] < messages.end[taken][:, None]
            meets = (
                after
                & (messages.start[taken][:, None] < messages.latest_end[partner])
                & messages.recorded[partner]
            )
            met += int((meets.any(axis=1) & messages.recorded[taken]).sum())
            early += int((~after.any(axis=1) & messages.recorded[taken]).sum())
    return met, early
