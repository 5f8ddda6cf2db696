"""GPipe, 1F1B and Chimera: one stage per rank and direction, whole backwards.

GPipe: Huang et al. 2019. 1F1B: PipeDream-Flush, Narayanan et al. 2021. Chimera: Li and Hoefler
2021.
"""

from tracekit.pipeline.schedules.ops import Op, backward, forward, one_by_one, passes


def gpipe(pp: int, microbatches: int) -> list[list[Op]]:
    """Run all forwards, then all backwards, first in, first out.

    >>> gpipe(1, 2)
    [[Op(0F0), Op(0F1), Op(0B0), Op(0B1)]]
    """
    return [one_by_one(*passes(rank, microbatches), warmup=microbatches) for rank in range(pp)]


def one_f_one_b(pp: int, microbatches: int) -> list[list[Op]]:
    """Run one forward for each rank behind, then forwards and backwards in turn, then the backwards left.

    >>> one_f_one_b(2, 2)[1]
    [Op(1F0), Op(1B0), Op(1F1), Op(1B1)]
    """
    return [one_by_one(*passes(rank, microbatches), warmup=pp - 1 - rank) for rank in range(pp)]


def chimera(pp: int, microbatches: int) -> list[list[Op]]:
    """Run two pipelines through the same ranks, one down and one up.

    Micro-batches are taken in units of pp, half of them each way. Every op has its time slot; ranks
    run in the order of the slots.

    >>> " ".join(map(str, chimera(2, 2)[0]))
    '0F0 1F1 1B1 0B0'
    """
    slots: list[list[tuple[int, Op]]] = [[] for _ in range(pp)]
    for unit in range(microbatches // pp):
        for i in range(pp // 2):
            down = unit * pp + i
            up = unit * pp + pp // 2 + i
            first_slot = 2 * pp * unit + 2 * i
            for stage in range(pp):
                for rank, microbatch in ((stage, down), (pp - 1 - stage, up)):
                    slots[rank].append((first_slot + stage, forward(stage, microbatch)))
                    slots[rank].append(
                        (first_slot + 2 * pp - 1 - stage, backward(stage, microbatch))
                    )
    orders = []
    for ops in slots:
        in_time = sorted(ops, key=lambda slot_and_op: slot_and_op[0])
        orders.append([op for _, op in in_time])
    return orders
