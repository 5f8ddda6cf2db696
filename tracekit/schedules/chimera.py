"""Chimera (Li and Hoefler 2021): two pipelines through the same ranks, one down and one up."""

from __future__ import annotations

from tracekit.schedules.ops import Op, backward, forward


def chimera(pp: int, microbatches: int) -> list[list[Op]]:
    """Units of pp micro-batches, half of them each way, every op in its slot; sort by slot.

    >>> " ".join(map(str, chimera(2, 2)[0]))
    '0F0 1F1 1B1 0B0'
    """
    slots: list[list[tuple[int, Op]]] = [[] for _ in range(pp)]
    for unit in range(microbatches // pp):
        for i in range(pp // 2):
            down, up = unit * pp + i, unit * pp + pp // 2 + i
            for stage in range(pp):
                at = 2 * pp * unit + 2 * i
                for rank, microbatch in ((stage, down), (pp - 1 - stage, up)):
                    slots[rank].append((at + stage, forward(stage, microbatch)))
                    slots[rank].append((at + 2 * pp - 1 - stage, backward(stage, microbatch)))
    return [[op for _, op in sorted(rank, key=lambda slot: slot[0])] for rank in slots]
