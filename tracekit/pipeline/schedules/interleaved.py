"""Interleaved schedules: a rank holds every pp-th stage, so it holds ``virtual`` chunks of the model.

Interleaved 1F1B: Narayanan et al. 2021 (Megatron's virtual pipeline). With overlap: Kimi K2 and
Megatron's MoE overlap. Looped BFS: Lamy-Poirier 2023. Interleaved zero bubble: PyTorch's
combination with Qi et al. 2023.
"""

from tracekit.pipeline.schedules.ops import (
    Op,
    backward,
    forward,
    one_by_one,
    overlapped,
    split_backwards,
)


def default_group(pp: int, microbatches: int) -> int | None:
    """Return the micro-batches per group: pp if it divides them, else groups of equal size, else None.

    >>> default_group(4, 8), default_group(4, 10), default_group(2, 5)
    (4, 5, None)
    """
    if microbatches % pp == 0:
        return pp
    rounds = max(1, microbatches // pp)
    return microbatches // rounds if microbatches % rounds == 0 else None


def chunk_order(microbatches: int, virtual: int, group: int) -> list[tuple[int, int]]:
    """Return (chunk, micro-batch) in the order in which forwards run: group by group, in each group chunk by chunk.

    >>> order = chunk_order(5, 2, 3)
    >>> "".join(str(i) for _, i in order), "".join(str(c) for c, _ in order)
    ('0120123434', '0001110011')
    """
    order = []
    for first in range(0, microbatches, group):
        for chunk in range(virtual):
            order += [(chunk, i) for i in range(first, min(first + group, microbatches))]
    return order


def interleaved(
    pp: int, microbatches: int, virtual: int, group: int, *, overlap: bool = False
) -> list[list[Op]]:
    """Run a warm-up of forwards, then forwards and backwards in turn, then the backwards left.

    With *overlap* the warm-up has one forward more, so that forward and backward of a steady pair
    are independent and run as one FB.

    >>> interleaved(2, 2, 2, 2)[1]
    [Op(1F0), Op(1F1), Op(3F0), Op(3B0), Op(3F1), Op(3B1), Op(1B0), Op(1B1)]
    >>> interleaved(2, 2, 1, 2, overlap=True)
    [[Op(0F0), Op(0F1), Op(0B0), Op(0B1)], [Op(1F0), Op((1F1;1B0)), Op(1B1)]]
    """
    orders = []
    for rank in range(pp):
        forwards, backwards = _passes(pp, rank, microbatches, virtual, group)
        warmup = min(2 * (pp - 1 - rank) + (virtual - 1) * group + overlap, len(forwards))
        if overlap:
            steady = len(forwards) - warmup
            pairs = map(overlapped, forwards[warmup:], backwards)
            orders.append([*forwards[:warmup], *pairs, *backwards[steady:]])
        else:
            orders.append(one_by_one(forwards, backwards, warmup=warmup))
    return orders


def looped_bfs(pp: int, microbatches: int, virtual: int) -> list[list[Op]]:
    """Run all forwards, chunk by chunk, then all backwards in the reverse order.

    >>> looped_bfs(1, 2, 2)
    [[Op(0F0), Op(0F1), Op(1F0), Op(1F1), Op(1B1), Op(1B0), Op(0B1), Op(0B0)]]
    """
    orders = []
    for rank in range(pp):
        forwards = []
        for chunk in range(virtual):
            forwards += [forward(chunk * pp + rank, i) for i in range(microbatches)]
        orders.append(forwards + [backward(f.stage, f.microbatch) for f in reversed(forwards)])
    return orders


def interleaved_zero_bubble(pp: int, microbatches: int, virtual: int, group: int) -> list[list[Op]]:
    """Run the interleaved order with split backwards; rank r runs each W r backwards later.

    >>> interleaved_zero_bubble(2, 2, 1, 2)[1]
    [Op(1F0), Op(1I0), Op(1F1), Op(1I1), Op(1W0), Op(1W1)]
    """
    orders = []
    for rank in range(pp):
        warmup = (virtual - 1) * group + (pp - 1 - rank)
        order = one_by_one(*_passes(pp, rank, microbatches, virtual, group), warmup=warmup)
        orders.append(split_backwards(order, delay=rank))
    return orders


def _passes(
    pp: int, rank: int, microbatches: int, virtual: int, group: int
) -> tuple[list[Op], list[Op]]:
    """Return a rank's forwards and backwards, each in the order they run.

    Backwards take the chunks from the last.
    """
    order = chunk_order(microbatches, virtual, group)
    forwards = [forward(chunk * pp + rank, i) for chunk, i in order]
    backwards = [backward((virtual - 1 - chunk) * pp + rank, i) for chunk, i in order]
    return forwards, backwards
