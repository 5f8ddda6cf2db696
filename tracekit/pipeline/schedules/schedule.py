"""A schedule as data: the order of ops on every rank, and the ops that each op waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tracekit._util.arrays import Ints
from tracekit._util.notebook import html_table
from tracekit.errors import DeadlockError, ScheduleError
from tracekit.pipeline.schedules.ops import OP_KINDS, Op

Numbers = npt.NDArray[Any]

F, I, W, B, FB = range(len(OP_KINDS))  # codes of the kinds in OpTable  # noqa: E741

MAX_OPS_IN_NOTEBOOK = 24
"""Ops of a rank shown in a notebook."""


class Edges(NamedTuple):
    """For each op the indices of the ops it waits for; -1: none."""

    previous: Ints  # the op before it on its rank
    forward: Ints  # F of the stage before: what an F or FB receives
    backward: Ints  # B or I of the stage after: what a B, I or FB receives
    own: Ints  # own F of a B, I or FB; own I of a W


class OpTable(msgspec.Struct, frozen=True, eq=False):
    """The ops of all ranks as columns, rank after rank.

    The ops of rank r begin at row ``offsets[r]``.
    """

    rank: Ints
    kind: Ints  # index in OP_KINDS
    stage: Ints
    microbatch: Ints
    b_stage: Ints  # of B, I and W the same as stage; of FB its backward half; of F -1
    b_microbatch: Ints
    offsets: Ints

    @classmethod
    def of(cls, rank: Ints, kind: Ints, numbers: Iterable[Ints], *, ranks: int) -> OpTable:
        """Return the table of the ops of some *ranks*.

        *numbers* are the fields of ``Op`` behind its kind.
        """
        stage, microbatch, b_stage, b_microbatch = numbers
        is_backward = np.isin(kind, (B, I, W))
        b_stage = np.where(is_backward, stage, b_stage)
        b_microbatch = np.where(is_backward, microbatch, b_microbatch)
        return cls(
            rank,
            kind,
            stage,
            microbatch,
            b_stage,
            b_microbatch,
            np.searchsorted(rank, np.arange(ranks + 1)),
        )

    def find_edges(self) -> Edges:
        """Return the ops that every op waits for, as far as the table has them."""
        op = np.arange(len(self.kind))
        has_forward = np.isin(self.kind, (F, FB))
        has_input_grad = np.isin(self.kind, (B, I, FB))
        is_weight = np.isin(self.kind, W)
        # Ops that compute each (stage, micro-batch)'s output and input gradient. There is one stage
        # more than the table has: the first stage looks for its input there (index -1), and the
        # last for its gradient.
        stages = int(max(self.stage.max(initial=0), self.b_stage.max(initial=0))) + 2
        microbatches = (
            int(max(self.microbatch.max(initial=0), self.b_microbatch.max(initial=0))) + 1
        )
        outputs, input_grads = np.full((2, stages, microbatches), -1, np.int64)
        outputs[self.stage[has_forward], self.microbatch[has_forward]] = op[has_forward]
        input_grads[self.b_stage[has_input_grad], self.b_microbatch[has_input_grad]] = op[
            has_input_grad
        ]
        own_forward = outputs[self.b_stage, self.b_microbatch]
        own_input_grad = input_grads[self.b_stage, self.b_microbatch]
        return Edges(
            previous=np.where(np.diff(self.rank, prepend=-1) == 0, op - 1, -1),
            forward=np.where(has_forward, outputs[self.stage - 1, self.microbatch], -1),
            backward=np.where(has_input_grad, input_grads[self.b_stage + 1, self.b_microbatch], -1),
            own=np.where(has_input_grad, own_forward, np.where(is_weight, own_input_grad, -1)),
        )

    def count_peak_activations(self, *freeing: int) -> list[int]:
        """Return how many chunks' activations each rank holds at most, if ops of the kinds *freeing* free one each."""
        taken = np.isin(self.kind, (F, FB)).astype(np.int64)
        freed = np.isin(self.kind, freeing).astype(np.int64)
        peaks = []
        for first, end in pairwise(self.offsets.tolist()):
            chunks_held = np.cumsum(taken[first:end] - freed[first:end])
            # An FB takes its activations before it frees others.
            peaks.append(int((chunks_held + freed[first:end]).max(initial=0)))
        return peaks

    def idle_by_phase(self, start: Numbers, end: Numbers) -> list[tuple[Any, Any, Any]]:
        """Return the idle time of each rank in warm-up, steady phase and cool-down if ops run at these times, from 0.

        Warm-up ends with the start of a rank's first backward, the steady phase with the end of its
        last forward.
        """
        makespan = end.max(initial=0)
        rank = self.rank
        is_backward = self.kind != F
        is_forward = ~is_backward | (self.kind == FB)
        # Arrays with one value per rank.
        begin = np.zeros(len(self.offsets) - 1, end.dtype)
        steady = np.full_like(begin, makespan)
        cool_down = begin.copy()
        np.minimum.at(steady, rank[is_backward], start[is_backward])
        np.maximum.at(cool_down, rank[is_forward], end[is_forward])
        # A row for each edge between phases, and a column for each rank.
        edges = np.stack(
            [begin, steady, np.maximum(steady, cool_down), np.full_like(begin, makespan)]
        )
        # Length of each phase, less the parts of ops inside it.
        edges_of_ops = edges[:, rank]
        inside = np.minimum(end, edges_of_ops[1:]) - np.maximum(start, edges_of_ops[:-1])
        has_ops = np.diff(self.offsets) > 0
        work = np.zeros_like(edges[1:])
        work[:, has_ops] = np.add.reduceat(
            np.maximum(inside, 0), self.offsets[:-1][has_ops], axis=1
        )
        idle = np.maximum(np.diff(edges, axis=0) - work, 0)
        return [(first, second, third) for first, second, third in idle.T.tolist()]


@dataclass(frozen=True, repr=False)
class Schedule:
    """A named order of ops for every rank.

    >>> from tracekit.pipeline.schedules.ops import parse_orders
    >>> s = Schedule("mine", 2, 1, 1, (parse_orders("0F0 0B0"), parse_orders("1F0 1B0")))
    >>> s
    <Schedule: mine, 2 ranks × 1 micro-batches>
    >>> s.orders()
    [['0F0', '0B0'], ['1F0', '1B0']]
    >>> int(s.stage_ranks[1, 0])
    1
    """

    name: str
    pp: int
    microbatches: int
    virtual: int
    ranks: tuple[tuple[Op, ...], ...]
    group: int | None = None

    def orders(self) -> list[list[str]]:
        """Return the order of every rank in the notation, as lists of strings."""
        orders = []
        for rank in self.ranks:
            orders.append([str(op) for op in rank])
        return orders

    def __repr__(self) -> str:
        return f"<Schedule: {self.name}, {self.pp} ranks × {self.microbatches} micro-batches>"

    def _repr_html_(self) -> str:
        rows = []
        for rank, order in enumerate(self.orders()):
            ellipsis = " …" if len(order) > MAX_OPS_IN_NOTEBOOK else ""
            rows.append((rank, " ".join(order[:MAX_OPS_IN_NOTEBOOK]) + ellipsis))
        title = f"{self.name}: {self.pp} ranks, {self.microbatches} micro-batches"
        return html_table(title, ("rank", "order"), rows)

    def op_at(self, index: int) -> Op:
        """Return the op at *index* of the table."""
        rank = int(self.table.rank[index])
        return self.ranks[rank][index - int(self.table.offsets[rank])]

    @property
    def stages(self) -> int:
        """Number of stages of the model."""
        return int(self.table.stage.max()) + 1

    @cached_property
    def table(self) -> OpTable:
        """The ops as columns."""
        ops = list(chain.from_iterable(self.ranks))
        if not ops:
            raise ScheduleError(
                f"{self.name}: has no ops", hint="write at least one forward and its backward"
            )
        kinds, *numbers = zip(*ops, strict=True)
        kind = np.array([OP_KINDS.index(name) for name in kinds], np.int64)
        rank = np.repeat(np.arange(len(self.ranks)), [len(order) for order in self.ranks])
        return OpTable.of(
            rank, kind, (np.array(column, np.int64) for column in numbers), ranks=len(self.ranks)
        )

    @cached_property
    def stage_ranks(self) -> Ints:
        """``stage_ranks[stage, microbatch]``: the rank that runs it."""
        ranks = self.table.rank[self._producers[0]]
        ranks.flags.writeable = False
        return ranks

    @property
    def both_ways(self) -> bool:
        """Whether micro-batches flow through the ranks both ways, so that a rank holds weights of two stages."""
        return bool((self.stage_ranks != self.stage_ranks[:, :1]).any())

    @cached_property
    def edges(self) -> Edges:
        """The ops that every op waits for.

        Raises if an op is missing, doubled or not on the rank of its forward.
        """
        _ = self._producers  # raises
        return self.table.find_edges()

    @cached_property
    def running_order(self) -> Ints:
        """Indices of all ops, each behind those it depends on.

        Raises if ranks wait for each other.
        """
        order, stuck = find_running_order(self.edges, self.table.offsets)
        if stuck:
            raise _deadlock(self, stuck)
        return order

    @cached_property
    def _producers(self) -> tuple[Ints, Ints, Ints]:
        """Index of the op that produces output, input gradient and weight gradient of each stage and micro-batch."""
        table = self.table
        microbatches = self.microbatches
        stages = int(max(table.stage.max(), table.b_stage.max())) + 1
        largest = max(table.microbatch.max(), table.b_microbatch.max())
        if largest >= microbatches:
            problem = (
                f"{self.name}: micro-batch {largest} is beyond the {microbatches} of the schedule"
            )
            raise ScheduleError(problem, hint="count micro-batches from 0")
        forwards = (F, FB), table.stage, table.microbatch
        input_grads = ((B, I, FB), table.b_stage, table.b_microbatch)
        weight_grads = ((B, W, FB), table.b_stage, table.b_microbatch)
        producers = []
        for letter, (kinds, stage, microbatch) in zip(
            "FBW", (forwards, input_grads, weight_grads), strict=True
        ):
            ops = np.flatnonzero(np.isin(table.kind, kinds))
            key = stage[ops] * microbatches + microbatch[ops]
            distinct, first, count = np.unique(key, return_index=True, return_counts=True)
            # A typing error can name a far stage: make no table up to there.
            if len(ops) < stages * microbatches:
                gaps = np.flatnonzero(distinct != np.arange(len(distinct)))
                raise _missing(
                    self,
                    letter,
                    *divmod(int(gaps[0]) if len(gaps) else len(distinct), microbatches),
                )
            if len(distinct) < len(ops):
                doubled = int(distinct[count > 1][0])
                raise _doubled(self, letter, *divmod(doubled, microbatches), ops[key == doubled])
            producers.append(ops[first].reshape(stages, microbatches))
        _check_ranks(self, *producers)
        return producers[0], producers[1], producers[2]


def _missing(schedule: Schedule, letter: str, stage: int, microbatch: int) -> ScheduleError:
    hint = {
        "F": "every stage needs every micro-batch's forward",
        "B": "every forward needs its backward, as B, as I and W, or inside an FB",
        "W": "every I needs its W",
    }[letter]
    return ScheduleError(f"{schedule.name}: {stage}{letter}{microbatch} is missing", hint=hint)


def _doubled(
    schedule: Schedule, letter: str, stage: int, microbatch: int, ops: Ints
) -> ScheduleError:
    """Return an error that names the *ops* which do the same piece of work."""
    places = ", ".join(
        f"{schedule.op_at(op)} on rank {schedule.table.rank[op]}" for op in ops.tolist()
    )
    problem = f"{schedule.name}: {stage}{letter}{microbatch} appears {len(ops)} times ({places})"
    return ScheduleError(problem, hint="every op runs once")


def _check_ranks(schedule: Schedule, forwards: Ints, *others: Ints) -> None:
    """Raise if a backward is not on the rank of its forward."""
    ranks = schedule.table.rank
    for producers in others:
        wrong = np.argwhere(ranks[producers] != ranks[forwards])
        if len(wrong):
            stage, microbatch = wrong[0]
            op = int(producers[stage, microbatch])
            places = (
                f"on rank {ranks[op]}, its forward on rank {ranks[forwards[stage, microbatch]]}"
            )
            problem = f"{schedule.name}: {schedule.op_at(op)} is {places}"
            raise ScheduleError(problem, hint="a backward runs where its forward ran")


def find_running_order(edges: Edges, offsets: Ints) -> tuple[Ints, dict[int, tuple[int, int]]]:
    """Find an order in which all ops can run.

    Returns:
        The indices of the ops, each behind those it depends on; and for every rank that is stuck
        its next op, and an op that this one waits for.
    """
    dependencies = np.stack([edges.forward, edges.backward, edges.own], axis=1).tolist()
    # Each rank runs its ops in sequence until one has to wait for an op of another rank. It then
    # joins the ranks that wait for this op, and continues when the op has run. So every op is looked
    # at once, or once for each wait.
    rank_end = offsets[1:].tolist()
    next_op = offsets[:-1].tolist()
    has_run = [False] * len(dependencies)
    waiting_ranks: dict[int, list[int]] = {}
    order: list[int] = []
    for first_rank in range(len(next_op)):
        runnable = [first_rank]
        while runnable:
            rank = runnable.pop()
            while next_op[rank] < rank_end[rank]:
                op = next_op[rank]
                missing = [d for d in dependencies[op] if d >= 0 and not has_run[d]]
                if missing:
                    waiting_ranks.setdefault(missing[-1], []).append(rank)
                    break
                order.append(op)
                next_op[rank] += 1
                has_run[op] = True
                runnable += reversed(waiting_ranks.pop(op, []))
    stuck = {}
    for rank, op in enumerate(next_op):
        if op < rank_end[rank]:
            awaited = next(d for d in dependencies[op] if d >= 0 and not has_run[d])
            stuck[rank] = (op, awaited)
    return np.array(order, np.int64), stuck


def _deadlock(schedule: Schedule, stuck: Mapping[int, tuple[int, int]]) -> DeadlockError:
    """Return an error that names the ranks that wait for each other in a ring.

    Args:
        schedule: The schedule that cannot run.
        stuck: By rank, the op it cannot run, and the op that this one waits for.

    """
    owner = schedule.table.rank
    ring: list[int] = []
    rank = next(iter(stuck))
    while rank not in ring:
        ring.append(rank)
        rank = int(owner[stuck[rank][1]])
    waits = []
    for waiting_rank in ring[ring.index(rank) :]:
        op, awaited = stuck[waiting_rank]
        waits.append(
            f"rank {waiting_rank} at {schedule.op_at(op)} waits for "
            f"{schedule.op_at(awaited)} of rank {owner[awaited]}"
        )
    problem = f"{schedule.name}: deadlock: " + "; ".join(waits)
    return DeadlockError(
        problem, hint="move one of the awaited ops before the op its rank is stuck at"
    )
