"""V-Half and V-Min: V-shaped schedules with controllable memory (Qi et al. 2024).

A block of F, F, I, I on both legs of the V repeats every six time slots; W takes the first free
slot. The shape of the block determines how long an activation lives, and so the memory. Then gaps
at both ends are filled without more memory.
"""

from tracekit.pipeline.schedules.ops import Kind, Op

PERIOD = 6
"""Time slots from one micro-batch to the next."""
MAX_LOOKAHEAD = 32
"""Ops to look ahead for one that fits into a gap; more never helped, and costs time."""

_SPLIT_KINDS: tuple[Kind, ...] = ("F", "I", "W")
_F, _I, _W = range(len(_SPLIT_KINDS))
_NO_OP_COST = 9
"""Higher than the cost of any op."""


def v_half(pp: int, microbatches: int) -> list[list[Op]]:
    """Run V-Half, with about half of 1F1B's memory: (pp+2)//2 micro-batches.

    >>> " ".join(map(str, v_half(1, 1)[0]))
    '0F0 1F0 1I0 0I0 1W0 0W0'
    """
    shift = 3 if pp % 2 == 0 else 0
    blocks = [
        (2 * i, 3 * pp - i - 2, 3 * pp + shift + 2 * i - 1, 6 * pp + shift - i - 2)
        for i in range(pp)
    ]
    return fill_gaps(_repeat_block(blocks, microbatches), limit=2 * ((pp + 2) // 2))


def v_min(pp: int, microbatches: int) -> list[list[Op]]:
    """Run V-Min, with about a third of 1F1B's memory: (pp+4)//3 micro-batches.

    >>> " ".join(map(str, v_min(1, 1)[0]))
    '0F0 1F0 1I0 0I0 1W0 0W0'
    """
    shift = 2 if pp % 3 == 0 else 0
    blocks = [(i, 2 * pp - i - 1, 2 * pp + shift + i, 4 * pp + shift - i - 1) for i in range(pp)]
    return fill_gaps(_repeat_block(blocks, microbatches), limit=2 * ((pp + 4) // 3))


_CodedOp = tuple[int, int, int]
"""Number of the kind, stage and micro-batch."""


def _repeat_block(
    blocks: list[tuple[int, int, int, int]], microbatches: int
) -> list[list[_CodedOp]]:
    """Return the order of each rank: a block repeated for each micro-batch, with each W in the first free slot.

    *blocks* holds for each rank the slots of the first micro-batch's F and F (down, up), I and I
    (up, down).
    """
    pp = len(blocks)
    orders = []
    for rank, block in enumerate(blocks):
        down = rank
        up = 2 * pp - 1 - rank
        slots: dict[int, _CodedOp] = {}
        for kind, stage, slot in zip(
            (_F, _F, _I, _I),
            (down, up, up, down),
            block,
            strict=True,
        ):
            slots |= {slot + PERIOD * i: (kind, stage, i) for i in range(microbatches)}
        free = 0  # no slot before is free for a W
        for slot in sorted(slots):
            kind, stage, i = slots[slot]
            if kind == _I:
                free = max(free, slot + 1)
                while free in slots:
                    free += 1
                slots[free] = (_W, stage, i)
        orders.append([slots[slot] for slot in sorted(slots)])
    return orders


def fill_gaps(orders: list[list[_CodedOp]], *, limit: int) -> list[list[Op]]:
    """Return the orders of the shorter of two ways to fill gaps.

    *limit* is in activations of a chunk.
    """
    late_slots, late_orders = _fill_gaps_one_way(orders, limit, eager=False)
    eager_slots, eager_orders = _fill_gaps_one_way(orders, limit, eager=True)
    filled = []
    for order in eager_orders if eager_slots < late_slots else late_orders:
        filled.append([Op(_SPLIT_KINDS[kind], stage, i) for kind, stage, i in order])
    return filled


class _GapFiller:
    """One rank while gaps are filled: the ops that are left, and the activations it holds."""

    def __init__(self, ops: list[_CodedOp]) -> None:
        self.left = ops.copy()
        self.forwards_left = sum(kind == _F for kind, _, _ in ops)
        self.activations = 0
        self.order: list[_CodedOp] = []

    def run(self, position: int) -> _CodedOp:
        """Run the op at a *position* of those that are left."""
        op = self.left.pop(position)
        if op[0] == _F:
            self.activations += 1
            self.forwards_left -= 1
        elif op[0] == _W:
            self.activations -= 1
        self.order.append(op)
        return op


def _fill_gaps_one_way(
    orders: list[list[_CodedOp]], limit: int, *, eager: bool
) -> tuple[int, list[list[_CodedOp]]]:
    """Run all ranks slot by slot; return how many slots they take, and the order of each.

    A rank whose next op is not ready runs a later one, if memory allows. While it has forwards to
    run, it leaves its order only to fill a gap (*eager*: also to run I before W). Without any it
    runs I before W, because other ranks wait only for I.

    Raises:
        ValueError: None of the ops that are left can ever run.

    """
    ranks = [_GapFiller(order) for order in orders]
    last_stage = 2 * len(ranks) - 1
    window = min(2 * limit, MAX_LOOKAHEAD)
    done_at: dict[_CodedOp, int] = {}  # slot from which the result of an op can be used
    ops_left = sum(len(order) for order in orders)
    now = 0
    while ops_left:
        ops_left_before = ops_left
        for rank in ranks:
            position = _find_best_op(
                rank, done_at, now, last_stage, limit=limit, window=window, eager=eager
            )
            if position is not None:
                done_at[rank.run(position)] = now + 1
                ops_left -= 1
        # No result is outstanding, so that the next slot would be the same.
        if ops_left == ops_left_before:
            raise ValueError(f"none of the {ops_left} ops that are left can run")
        now += 1
    return now, [rank.order for rank in ranks]


def _find_best_op(
    rank: _GapFiller,
    done_at: dict[_CodedOp, int],
    now: int,
    last_stage: int,
    *,
    limit: int,
    window: int,
    eager: bool,
) -> int | None:
    """Return the position of the ready op that costs least, among equals the first; None if none is ready."""
    best = None
    best_cost = _NO_OP_COST
    # After the ops looked at so far, run in their order.
    activations_in_order = peak_in_order = rank.activations
    for position, op in enumerate(rank.left[:window]):
        kind = op[0]
        # A forward that is run early adds an activation to all that the skipped ops will hold.
        may_run = kind != _F or position == 0 or peak_in_order < limit
        if may_run and _is_ready(op, done_at, now, last_stage):
            cost = _cost(kind, position, rank, eager=eager)
            if cost < best_cost:
                best = position
                best_cost = cost
            # The head at no cost is run at once. Behind it the search ends at a cost of 1: it goes
            # through the ops in their order, and leaving the order further than needed delays what
            # was to come first.
            if best_cost == 0 or (position > 0 and best_cost == 1):
                break
        if kind == _F:
            activations_in_order += 1
        elif kind == _W:
            activations_in_order -= 1
        peak_in_order = max(peak_in_order, activations_in_order)
    return best


def _is_ready(op: _CodedOp, done_at: dict[_CodedOp, int], now: int, last_stage: int) -> bool:
    """Return whether the results that an op needs can be used."""
    kind, stage, i = op
    never = now + 1
    if kind == _F:
        return stage == 0 or done_at.get((_F, stage - 1, i), never) <= now
    if kind == _W:
        return done_at.get((_I, stage, i), never) <= now
    return done_at.get((_F, stage, i), never) <= now and (
        stage == last_stage or done_at.get((_I, stage + 1, i), never) <= now
    )


def _cost(kind: int, position: int, rank: _GapFiller, *, eager: bool) -> int:
    """Return how much running a ready op costs.

    | mode                           | 0                          | 1           | 2           | 3           |
    |--------------------------------|----------------------------|-------------|-------------|-------------|
    | eager                          | head if F or I; I before W | F           | I           | W           |
    | not eager, forwards left       | head                       | I           | F           | W           |
    | not eager, no forwards left    | I                          |             | W           |             |
    """
    is_head = position == 0
    if eager:
        head_kind = rank.left[0][0]
        costs_nothing = (is_head and kind != _W) or (kind == _I and head_kind == _W)
        return 0 if costs_nothing else 1 + kind
    if not rank.forwards_left:
        return 0 if kind == _I else 2
    if is_head:
        return 0
    return {_I: 1, _F: 2, _W: 3}[kind]
