"""Assignment of stages and micro-batches to chunks, from the destinations of their messages.

A forward that sends to the next rank and a forward that sends back to the one before it belong to
different stages. Messages between two ranks arrive in the order they were sent, so the k-th forward
of a stage on one rank is the k-th on the next, and counting is enough once each forward's stage on
its rank is known:

- every forward goes to the next rank, the last rank sends none: one stage per rank ("line");
- the last rank sends some back to the first: several stages per rank ("loop");
- forwards go both ways: two stages per rank, either the legs of a V ("V") or two pipelines in
  opposite directions ("two-way"). The last rank tells: in a V it begins with what it received, else
  with micro-batches of its own.

Without sequence numbers, backwards are paired with forwards first in, first out, which is right for
one stage per rank. In a loop the backwards of the last chunk run first. The first rank tells the
order (``pair_by_messages``): of its backwards only those of the first stage send nothing. Every
rank runs its backwards in the same order.

A *position* is the index of a rank in its pipeline; a *pair* is the index of a forward, shared by
its backward.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Literal

import msgspec
import numpy as np
import polars as pl

from tracekit.pipeline.reconstruct.messages import batch_sends, find_senders
from tracekit.pipeline.reconstruct.segment import CONFIDENCE_COUNTED, CONFIDENCE_POSITION
from tracekit.pipeline.schedules.interleaved import chunk_order

Place = tuple[int, int]
"""Stage and micro-batch."""
_Destinations = Mapping[int, list[int | None]]
"""By position: for each forward, in launch order, the position its output is sent to; None: it is
not sent."""


StagesUnknown = Literal[
    "peers_unnamed",  # the trace does not say who the messages went to
    "loop_without_last_rank",  # chunks of a loop cannot be told apart
    "v_without_last_rank",  # a V cannot be told from two opposite pipelines
    "uneven_sends",  # the last rank's sends do not divide into chunks
    "unknown_chunk_order",
    "uneven_forwards",  # the ranks ran different numbers of forwards
]
"""Why stages are not known; the cases of the notice ``stages-unknown``."""


class StagePlacement(msgspec.Struct, frozen=True):
    """``places[position][pair]``: stage and micro-batch.

    Empty, with a reason, where they are not known.
    """

    shape: str  # "line", "loop", "V", "two-way" or "unknown"
    virtual: int  # stages per rank
    places: Mapping[int, Mapping[int, Place]]
    reason: StagesUnknown | None = None


def assign_stages(
    chunks: Mapping[int, pl.DataFrame], messages: Mapping[int, pl.DataFrame], pp: int
) -> StagePlacement:
    """Return stage and micro-batch of every pair.

    Args:
        chunks: Chunks of each position that has a trace.
        messages: Messages of each of these positions; their peers are positions, not ranks.
        pp: Number of ranks in the pipeline.

    """
    destinations = {
        position: forward_destinations(chunks[position], messages[position]) for position in chunks
    }
    if pp == 1:
        return _assign_line(destinations, chunks)
    if any(table.filter("send")["peer"].null_count() for table in messages.values()):
        return StagePlacement("unknown", 1, {}, "peers_unnamed")
    if _goes_both_ways(destinations, pp):
        return _assign_both_ways(destinations, pp)
    if 0 in destinations.get(pp - 1, ()):
        return _assign_loop(destinations, pp)
    if pp > 2 and 0 in messages and pp - 1 in messages[0]["peer"].to_list():
        return StagePlacement("unknown", 1, {}, "loop_without_last_rank")
    return _assign_line(destinations, chunks)


def forward_destinations(chunks: pl.DataFrame, messages: pl.DataFrame) -> list[int | None]:
    """Return for each forward, in launch order, the position its output is sent to.

    None: it is not sent.

    A message carries the output of the chunk launched last before it. Where a batch of messages
    follows a forward and a backward and goes to different ranks, the direction of unambiguous
    forwards tells which message is the forward's.
    """
    # What has an output to send.
    work = chunks.filter(pl.col("op") != "W").sort("last_ns", maintain_order=True)
    sends = messages.filter("send").sort("launch_ns", maintain_order=True)
    launched = work.select("op", "pair").rows()
    peers = sends["peer"].to_list()
    destination: dict[int, int] = {}  # by pair
    # Pairs of the forwards, and the peers, of each such batch.
    ambiguous: list[tuple[list[int], list[int]]] = []
    for batch in batch_sends(work, sends):
        last_chunks = batch.chunks[-len(batch.sends) :]  # at most one chunk per message
        carried = [launched[chunk] for chunk in last_chunks]
        receivers = [peers[send] for send in batch.sends]
        if len(carried) == 1 or len(set(receivers)) == 1:
            for (op, pair), peer in zip(carried, receivers, strict=False):
                if op == "F":
                    destination[pair] = peer
        else:
            ambiguous.append(([pair for op, pair in carried if op == "F"], receivers))
    usual = set(destination.values())
    for forwards, receivers in ambiguous:
        remaining = [peer for peer in receivers if peer in usual] or list(receivers)
        for pair in forwards:
            destination[pair] = remaining.pop(0) if remaining else receivers[0]
    forward_pairs = chunks.filter(pl.col("op") == "F")["pair"].to_list()
    return [destination.get(pair) for pair in forward_pairs]


def _goes_both_ways(destinations: _Destinations, pp: int) -> bool:
    """Return whether forwards run through the ranks in both directions."""
    goes_back = any(position - 1 in destinations.get(position, ()) for position in range(1, pp - 1))
    # Of two ranks none is inner: the first one sends some of its forwards on and ends others
    # itself.
    first = destinations.get(0, [])
    return goes_back or (pp == 2 and None in first and 1 in first)


def _number_microbatches(
    stages: list[int], first_number: Mapping[int, int] | None = None
) -> dict[int, Place]:
    """Return stage and micro-batch by pair: micro-batches are counted within each stage, from 0 unless given."""
    next_number = Counter(first_number or {})
    places = {}
    for pair, stage in enumerate(stages):
        places[pair] = stage, next_number[stage]
        next_number[stage] += 1
    return places


def _assign_line(destinations: _Destinations, chunks: Mapping[int, pl.DataFrame]) -> StagePlacement:
    """Assign one stage per rank.

    Backwards whose forward is not in the trace are numbered behind the others.
    """
    places = {}
    for position, forwards in destinations.items():
        pairs = max(len(forwards), chunks[position]["pair"].n_unique())
        places[position] = _number_microbatches([position] * pairs)
    return StagePlacement("line", 1, places)


def _assign_both_ways(destinations: _Destinations, pp: int) -> StagePlacement:
    """Assign two stages per rank: the legs of a V, or two pipelines in opposite directions."""
    last = destinations.get(pp - 1)
    if not last:
        return StagePlacement("unknown", 2, {}, "v_without_last_rank")
    is_opposite = last[0] is not None
    places = {}
    for position, peers in destinations.items():
        # A forward on its way down goes to the next rank, and ends at the last one.
        next_position = None if position == pp - 1 else position + 1
        mirrored = pp - 1 - position
        upward_stage = mirrored if is_opposite else pp + mirrored
        stages = [position if peer == next_position else upward_stage for peer in peers]
        first_number = {}
        if is_opposite and position != mirrored:
            # The second half of the micro-batches enters at the last rank.
            first_number = {mirrored: len(peers) // 2}
        places[position] = _number_microbatches(stages, first_number)
    return StagePlacement("two-way" if is_opposite else "V", 2, places)


def _assign_loop(destinations: _Destinations, pp: int) -> StagePlacement:
    """Assign several stages per rank.

    Every rank runs its forwards in the same order, so the last rank's tell.
    """
    is_last_stage = [peer is None for peer in destinations[pp - 1]]
    total = len(is_last_stage)
    microbatches = sum(is_last_stage)
    if not microbatches or total % microbatches:
        return StagePlacement("unknown", 1, {}, "uneven_sends")
    virtual = total // microbatches
    order = find_chunk_order(is_last_stage, virtual, pp)
    if order is None:
        return StagePlacement("unknown", virtual, {}, "unknown_chunk_order")
    if any(len(peers) != total for peers in destinations.values()):
        return StagePlacement("unknown", virtual, {}, "uneven_forwards")
    places = {}
    for position in destinations:
        places[position] = _number_microbatches([chunk * pp + position for chunk in order])
    return StagePlacement("loop", virtual, places)


def find_chunk_order(is_last_chunk: list[bool], virtual: int, pp: int) -> list[int] | None:
    """Return the chunk of each forward of a loop, from those of the last chunk.

    None if no order explains them.

    With more than two chunks per rank, an order of groups of micro-batches must give the same last
    chunks.

    >>> find_chunk_order([False, False, True, True], 2, 2)
    [0, 0, 1, 1]
    """
    microbatches = sum(is_last_chunk)
    if not microbatches or len(is_last_chunk) != virtual * microbatches:
        return None
    if virtual == 2:
        return [int(is_last) for is_last in is_last_chunk]
    # Groups of pp are usual: they come first.
    group_sizes = sorted(range(1, microbatches + 1), key=lambda size: (size != pp, size))
    for group_size in group_sizes:
        order = [chunk for chunk, _ in chunk_order(microbatches, virtual, group_size)]
        if [chunk == virtual - 1 for chunk in order] == is_last_chunk:
            return order
    return None


_IS_BACKWARD = pl.col("op").is_in(("B", "I"))


def pair_by_messages(
    chunks: Mapping[int, pl.DataFrame],
    messages: Mapping[int, pl.DataFrame],
    placement: StagePlacement,
    pp: int,
) -> Mapping[int, pl.DataFrame]:
    """Return the chunks of all positions, with backwards paired by messages if only their position paired them.

    Arguments are those of ``assign_stages``, and the *placement* it returned.
    """
    if (
        placement.shape != "loop"
        or 0 not in chunks
        or not all(map(_is_paired_by_position, chunks.values()))
    ):
        return chunks
    work = chunks[0].filter(pl.col("op") != "W").sort("last_ns")
    senders = find_senders(work, messages[0].filter("send"))
    backwards = np.flatnonzero(work.select(_IS_BACKWARD).to_series().to_numpy())
    is_first_stage = ~np.isin(backwards, senders)
    order = find_chunk_order(is_first_stage.tolist(), placement.virtual, pp)
    if order is None:
        return chunks
    paired = {}
    for position, table in chunks.items():
        # Backwards take the chunks from the last to the first.
        stages = [(placement.virtual - 1 - chunk) * pp + position for chunk in order]
        with_pairs = _pair_in_order(table, stages, placement.places[position])
        if with_pairs is None:
            return chunks
        paired[position] = with_pairs
    return paired


def _is_paired_by_position(chunks: pl.DataFrame) -> bool:
    confidence = chunks.filter(_IS_BACKWARD)["confidence"]
    return len(confidence) > 0 and bool((confidence <= CONFIDENCE_POSITION).all())


def _pair_in_order(
    chunks: pl.DataFrame, stages: list[int], places: Mapping[int, Place]
) -> pl.DataFrame | None:
    """Pair one rank's backwards, in launch order, with the forwards of these *stages*.

    None if they do not fit.
    """
    old_pairs = chunks.filter(_IS_BACKWARD).sort("launch_ns")["pair"].to_list()
    if len(old_pairs) != len(stages):
        return None
    pair_of_place = dict(zip(places.values(), places.keys(), strict=True))
    microbatches: Counter[int] = Counter()  # seen of each stage
    new_pairs: dict[int, int] = {}  # by the old pair
    for old_pair, stage in zip(old_pairs, stages, strict=True):
        new_pair = pair_of_place.get((stage, microbatches[stage]))
        if new_pair is None:
            return None
        new_pairs[old_pair] = new_pair
        microbatches[stage] += 1
    if len(new_pairs) != len(stages):
        return None
    is_paired = pl.col("op") != "F"
    return chunks.with_columns(
        pair=pl.when(is_paired).then(pl.col("pair").replace(new_pairs)).otherwise("pair"),
        confidence=pl.when(is_paired).then(pl.lit(CONFIDENCE_COUNTED)).otherwise("confidence"),
    )
