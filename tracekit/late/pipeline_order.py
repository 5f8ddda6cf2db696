"""Pipelines from messages alone: order of sends and receives per rank, and the schedules that have this order.

On a stage, a send to the next stage ends a forward and a send to the previous one ends a backward;
the last stage knows a forward by what it receives for it, and the first one a backward. Weight
gradients send nothing, so that schedules that differ only in these have the same order of messages:
all of them are named. Pipelines whose stages do not form one chain (several chunks per rank, two
directions) are not recognised.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

import polars as pl

from tracekit.documents.late import PipelineOrder
from tracekit.errors import ScheduleError
from tracekit.pipeline.schedules import Schedule, generate, names
from tracekit.pipeline.schedules.registry import searched_names

MIN_MESSAGES_OF_A_STAGE = 4
"""Messages of a rank from which on it may be a stage of a pipeline."""


def find_pipelines(collectives: pl.DataFrame) -> tuple[PipelineOrder, ...]:
    """Return the pipelines whose schedule follows from the order of their messages.

    Args:
        collectives: Operations of all ranks, of one recorder (``COLLECTIVES``).

    """
    messages = collectives.filter(
        pl.col("op").cast(pl.String).is_in(["send", "recv"]) & pl.col("peer").is_not_null()
    )
    if messages.is_empty():
        return ()
    # Activations and their gradients are the messages that recur; others exchange shapes once, or
    # flags.
    sizes = (
        messages.group_by("bytes")
        .agg(count=pl.len())
        .sort("count", "bytes", descending=True, nulls_last=True)
    )
    messages = messages.filter(pl.col("bytes") == sizes["bytes"][0])
    orders = _message_orders(messages)
    pipelines: list[PipelineOrder] = []
    for chain in _chains(orders):
        is_known = any(set(pipeline.ranks) == set(chain) for pipeline in pipelines)
        pipeline = None if is_known else _recognise(chain, orders)
        if pipeline is not None:
            pipelines.append(pipeline)
    return tuple(pipelines)


def _message_orders(messages: pl.DataFrame) -> dict[int, list[tuple[str, int]]]:
    """Return the messages of each rank in order, as direction and peer.

    Of a batch, sends come first: they carry what was computed before it, receives what is computed
    after it.
    """
    # The Inspector writes an operation when it has completed, and numbers messages in the order of
    # their calls.
    is_numbered = messages["source"][0] == "nccl_inspector"
    batch = (
        pl.col("sequence") if is_numbered else pl.col("id").min().over("rank", "group", "sequence")
    )
    ordered = messages.with_columns(batch=batch, is_recv=pl.col("op") == "recv").sort(
        "rank", "batch", "is_recv", "id"
    )
    orders: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for rank, op, peer in ordered.select("rank", pl.col("op").cast(pl.String), "peer").iter_rows():
        orders[rank].append((op, peer))
    return {rank: order for rank, order in orders.items() if len(order) >= MIN_MESSAGES_OF_A_STAGE}


def _chains(orders: Mapping[int, Sequence[tuple[str, int]]]) -> list[list[int]]:
    """Return ranks that exchange messages in a chain, from either end.

    First those that send first.
    """
    peers: dict[int, set[int]] = {}
    for rank, order in orders.items():
        peers[rank] = {peer for _, peer in order}
    ends = [rank for rank in peers if len(peers[rank]) == 1]
    chains = []
    for rank in sorted(ends, key=lambda rank: (orders[rank][0][0] != "send", rank)):
        chain = _follow_chain(rank, peers)
        ends_here = len(peers[chain[-1]]) == 1
        is_whole = all(peers[member] <= set(chain) for member in chain)
        if len(chain) > 1 and ends_here and is_whole:
            chains.append(chain)
    return chains


def _follow_chain(rank: int, peers: Mapping[int, set[int]]) -> list[int]:
    """Return the ranks from *rank* on, as long as each has one peer that was not visited yet."""
    chain = [rank]
    while True:
        following = peers[chain[-1]] - set(chain)
        if len(following) != 1 or not following <= peers.keys():
            return chain
        chain += following


def _recognise(
    chain: Sequence[int], orders: Mapping[int, Sequence[tuple[str, int]]]
) -> PipelineOrder | None:
    """Return the pipeline of a chain of ranks, None if no schedule has its order in all steps."""
    works = [
        _forwards_and_backwards(chain, stage, orders[rank]) for stage, rank in enumerate(chain)
    ]
    microbatches = _count_microbatches(works[0])
    if microbatches is None:
        return None
    step_length = 2 * microbatches
    # A ring may have lost the beginning of the record, on each rank another part of it: whole steps
    # at the end count.
    steps = min(len(work) // step_length for work in works)
    if not steps:
        return None
    step_orders = []
    for work in works:
        whole_steps = work[len(work) - steps * step_length :]
        order_of_step = whole_steps[:step_length]
        if whole_steps != order_of_step * steps:
            return None
        step_orders.append(order_of_step)
    schedules = [
        name for name in _candidates() if _orders_of(name, len(chain), microbatches) == step_orders
    ]
    if not schedules:
        return None
    return PipelineOrder(tuple(chain), microbatches, steps, tuple(schedules))


def _forwards_and_backwards(
    chain: Sequence[int], stage: int, order: Sequence[tuple[str, int]]
) -> str:
    """Return the forwards (F) and backwards (B) of a stage in order, as far as its messages tell them."""
    next_rank = chain[stage + 1] if stage + 1 < len(chain) else None
    previous_rank = chain[stage - 1] if stage else None
    forward = ("send", next_rank) if next_rank is not None else ("recv", previous_rank)
    backward = ("send", previous_rank) if previous_rank is not None else ("recv", next_rank)
    works = {forward: "F", backward: "B"}
    return "".join(works.get(message, "") for message in order)


def _count_microbatches(work: str) -> int | None:
    """Return the micro-batches of a step, from the first stage: at its end every forward has had its backward."""
    level = 0
    levels = []
    for op in work:
        level += 1 if op == "F" else -1
        levels.append(level)
    if not levels:
        return None
    drained = min(levels)
    ends = [position for position, level in enumerate(levels) if level == drained]
    if ends[-1] != len(work) - 1:
        return None  # the record ends within a step
    lengths = {end - before for before, end in pairwise(ends)}
    if levels[0] > drained and drained == 0:
        lengths.add(ends[0] + 1)  # the record begins with a step
    return lengths.pop() // 2 if len(lengths) == 1 else None


def _candidates() -> list[str]:
    """Return the schedules that may be recognised: those whose order does not depend on times."""
    return [name for name in names() if name not in searched_names()]


def _orders_of(name: str, stages: int, microbatches: int) -> list[str] | None:
    """Return the forwards and backwards of every stage of a schedule with one stage per rank.

    None if it has others.
    """
    try:
        schedule = generate(name, pp=stages, microbatches=microbatches)
    except ScheduleError:
        return None
    if not isinstance(schedule, Schedule) or schedule.virtual != 1:
        return None
    orders = []
    for rank, ops in enumerate(schedule.ranks):
        own_stages = {op.stage for op in ops}
        backward_stages = {op.b_stage for op in ops}
        if not own_stages <= {rank} or not backward_stages <= {rank, -1}:
            return None
        orders.append("".join(_KINDS_AS_MESSAGES[op.kind] for op in ops))
    return orders


_KINDS_AS_MESSAGES = {"F": "F", "I": "B", "B": "B", "W": "", "FB": "FB"}
"""What messages show of an op."""
