"""GPipe and 1F1B: one stage per rank.

GPipe: Huang et al. 2019. 1F1B: PipeDream-Flush, Narayanan et al. 2021.
"""

from __future__ import annotations

from tracekit.schedules.ops import Op, backward, forward


def gpipe(pp: int, microbatches: int) -> list[list[Op]]:
    """All forwards, then all backwards, first in, first out.

    >>> gpipe(1, 2)
    [[Op(0F0), Op(0F1), Op(0B0), Op(0B1)]]
    """
    batches = range(microbatches)
    return [[*(forward(rank, i) for i in batches), *(backward(rank, i) for i in batches)] for rank in range(pp)]


def one_f_one_b(pp: int, microbatches: int) -> list[list[Op]]:
    """Warm up with one forward for each rank behind, then alternate, then drain.

    >>> one_f_one_b(2, 2)[1]
    [Op(1F0), Op(1B0), Op(1F1), Op(1B1)]
    """
    return [_one_f_one_b(rank, min(pp - 1 - rank, microbatches), microbatches) for rank in range(pp)]


def _one_f_one_b(rank: int, warmup: int, microbatches: int) -> list[Op]:
    order = [forward(rank, i) for i in range(warmup)]
    for k in range(microbatches - warmup):
        order += [forward(rank, warmup + k), backward(rank, k)]
    return order + [backward(rank, k) for k in range(microbatches - warmup, microbatches)]
