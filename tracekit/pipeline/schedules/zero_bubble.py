"""Zero-bubble schedules with a fixed order: ZB-H1, ZB-H2 (Qi et al.

2023) and ZB-V (Qi et al. 2024).
"""

from itertools import product

from tracekit.pipeline.schedules.ops import (
    Op,
    backward_input,
    backward_weight,
    forward,
    one_by_one,
    passes,
    split_backwards,
)


def zb_h(pp: int, microbatches: int, *, h: int) -> list[list[Op]]:
    """Run ZB-H1 (h=1, memory of 1F1B) or ZB-H2 (h=2, twice the memory, no bubble at F = I = W).

    >>> zb_h(2, 2, h=1)[1]
    [Op(1F0), Op(1I0), Op(1F1), Op(1I1), Op(1W0), Op(1W1)]
    """
    # One forward and one backward in turn after the warm-up; each W runs *delay* backwards later.
    orders = [
        one_by_one(*passes(rank, microbatches), warmup=h * (pp - 1 - rank)) for rank in range(pp)
    ]
    return [split_backwards(order, delay=h * rank) for rank, order in enumerate(orders)]


def zb_v(pp: int, microbatches: int) -> list[list[Op]]:
    """Run ZB-V: rank r holds stages r and 2·pp-1-r, so the model runs down the ranks and up again.

    >>> zb_v(1, 1)
    [[Op(0F0), Op(1F0), Op(1I0), Op(1W0), Op(0I0), Op(0W0)]]
    """
    return [_ZbvRank(pp, rank, microbatches).order() for rank in range(pp)]


class _ZbvRank:
    """One rank of ZB-V.

    It plans for at least 2·pp-1 micro-batches and drops those that do not exist.
    """

    def __init__(self, pp: int, rank: int, microbatches: int) -> None:
        self.pp = pp
        self.rank = rank
        self.microbatches = microbatches
        self.planned = max(2 * pp - 1, microbatches)
        self.stages = (rank, 2 * pp - 1 - rank)
        self.done = dict.fromkeys(product("FIW", (0, 1)), 0)
        self.ops: list[Op] = []

    def run(self, *steps: str) -> None:
        """Append the next op of each step, named by kind and leg of the V, as in F0 or I1."""
        op_of_kind = {"F": forward, "I": backward_input, "W": backward_weight}
        for step in steps:
            kind = step[0]
            chunk = int(step[1])
            microbatch = self.done[kind, chunk]
            self.done[kind, chunk] += 1
            if microbatch < self.microbatches:
                self.ops.append(op_of_kind[kind](self.stages[chunk], microbatch))

    def order(self) -> list[Op]:
        """Return the ops of the rank in seven phases."""
        pp = self.pp
        rank = self.rank
        done = self.done
        # 1. fill the first leg of the V
        for _ in range(2 * (pp - rank) - 1):
            self.run("F0")
        # 2. both legs in turn
        for _ in range(rank):
            self.run("F1", "F0")
        # 3. the second leg turns to backward
        for _ in range(pp - rank):
            self.run("F1", "I1", "W1")
        # 4. steady: both legs forward and backward
        while done["F", 1] < self.planned:
            if done["F", 0] < self.planned:
                self.run("F0")
            self.run("I0", "W0", "F1", "I1", "W1")
        # 5. backwards for input first: other ranks wait for them
        for _ in range(rank):
            self.run("I0", "I1")
        # 6. drain the first leg
        for _ in range(pp - rank):
            self.run("I0", "W0")
        # 7. the W left
        while done["W", 1] < self.planned:
            self.run("W1")
        while done["W", 0] < self.planned:
            self.run("W0")
        return self.ops
