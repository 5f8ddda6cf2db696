"""A schedule as data: the order of ops on every rank, and the ops that each op waits for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np

from tracekit._loops import simulation
from tracekit._util.arrays import Ints, as_int64
from tracekit._util.html import html_table
from tracekit.errors import DeadlockError, ScheduleError
from tracekit.schedules.ops import KINDS, Op

F, I, W, B, FB = range(len(KINDS))  # codes of the kinds in OpTable  # noqa: E741

MAX_OPS_IN_NOTEBOOK = 24
"""Ops of a rank shown in a notebook."""


class OpTable(msgspec.Struct, frozen=True, eq=False):
    """The ops of all ranks as columns, rank after rank; the ops of rank r begin at row ``offsets[r]``."""

    rank: Ints
    kind: Ints
    stage: Ints
    microbatch: Ints
    b_stage: Ints  # of B, I and W the same as stage; of FB its backward half; of F -1
    b_microbatch: Ints
    offsets: Ints


class Edges(msgspec.Struct, frozen=True, eq=False):
    """For each op the indices of the ops it waits for; -1: none."""

    previous: Ints  # the op before it on its rank
    forward: Ints  # F of the stage before: what an F or FB receives
    backward: Ints  # B or I of the stage after: what a B, I or FB receives
    own: Ints  # own F of a B, I or FB; own I of a W


@dataclass(frozen=True, repr=False)
class Schedule:
    """A named order of ops for every rank.

    >>> from tracekit.schedules.ops import parse_orders
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
        return [[str(op) for op in rank] for rank in self.ranks]

    def __repr__(self) -> str:
        return f"<Schedule: {self.name}, {self.pp} ranks × {self.microbatches} micro-batches>"

    def _repr_html_(self) -> str:
        rows = [
            (rank, " ".join(order[:MAX_OPS_IN_NOTEBOOK]) + " …" * (len(order) > MAX_OPS_IN_NOTEBOOK))
            for rank, order in enumerate(self.orders())
        ]
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
        ops = [op for rank in self.ranks for op in rank]
        if not ops:
            raise ScheduleError(f"{self.name}: has no ops", hint="write at least one forward and its backward")
        columns = list(zip(*ops, strict=True))
        codes = {kind: code for code, kind in enumerate(KINDS)}
        kind = np.array([codes[name] for name in columns[0]], np.int64)
        stage, microbatch = (np.array(column, np.int64) for column in columns[1:3])
        b_stage, b_microbatch = (_as_ints(column) for column in columns[3:])
        backward = (kind == B) | (kind == I) | (kind == W)
        lengths = [len(rank) for rank in self.ranks]
        return OpTable(
            rank=np.repeat(np.arange(len(lengths)), lengths),
            kind=kind,
            stage=stage,
            microbatch=microbatch,
            b_stage=np.where(backward, stage, b_stage),
            b_microbatch=np.where(backward, microbatch, b_microbatch),
            offsets=np.concatenate([[0], np.cumsum(lengths)]),
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
        """The ops that every op waits for. Raises if an op is missing, doubled or not on the rank of its forward."""
        table = self.table
        forwards, backwards, _ = self._producers  # by stage and micro-batch
        last_stage = forwards.shape[0] - 1
        has_forward = (table.kind == F) | (table.kind == FB)
        has_backward = (table.kind == B) | (table.kind == I) | (table.kind == FB)
        is_weight = table.kind == W
        previous = np.arange(len(table.kind)) - 1
        previous[table.offsets[:-1][np.diff(table.offsets) > 0]] = -1  # first op of each rank that has any
        # Indices outside the table (before the first stage, behind the last) are replaced by -1 below.
        before = forwards[table.stage - 1, table.microbatch]
        after = backwards[np.minimum(table.b_stage + 1, last_stage), table.b_microbatch]
        own_forward = forwards[table.b_stage, table.b_microbatch]
        own_backward = backwards[table.b_stage, table.b_microbatch]
        own = np.where(is_weight, own_backward, own_forward)
        return Edges(
            previous=previous,
            forward=np.where(has_forward & (table.stage > 0), before, -1),
            backward=np.where(has_backward & (table.b_stage < last_stage), after, -1),
            own=np.where(has_backward | is_weight, own, -1),
        )

    @cached_property
    def running_order(self) -> Ints:
        """Indices of all ops, each behind those it depends on; raises if ranks wait for each other."""
        return find_running_order(self)

    @cached_property
    def _producers(self) -> tuple[Ints, Ints, Ints]:
        """Index of the op that produces output, input gradient and weight gradient of each stage and micro-batch."""
        table, kind = self.table, self.table.kind
        stages, microbatches = int(max(table.stage.max(), table.b_stage.max())) + 1, self.microbatches
        _check_microbatches(self, max(table.microbatch.max(), table.b_microbatch.max()))
        producers = []
        for letter, kinds in (("F", (F, FB)), ("B", (B, I, FB)), ("W", (B, W, FB))):
            ops = np.flatnonzero(np.isin(kind, kinds))
            stage, microbatch = (
                (table.stage, table.microbatch) if letter == "F" else (table.b_stage, table.b_microbatch)
            )
            key = stage[ops] * microbatches + microbatch[ops]
            if len(ops) < stages * microbatches:  # a typing error can name a far stage: make no table up to there
                raise _missing(self, letter, *divmod(_first_absent(key), microbatches))
            counts = np.bincount(key, minlength=stages * microbatches)
            _check_once(self, letter, counts.reshape(stages, microbatches))
            producer = np.empty(len(counts), np.int64)
            producer[key] = ops
            producers.append(producer.reshape(stages, microbatches))
        _check_ranks(self, *producers)
        return producers[0], producers[1], producers[2]


def _as_ints(values: tuple[int | None, ...]) -> Ints:
    """Return the numbers, -1 for None."""
    return np.array([-1 if value is None else value for value in values], np.int64)


def _check_microbatches(schedule: Schedule, largest: np.int64) -> None:
    if largest >= schedule.microbatches:
        raise ScheduleError(
            f"{schedule.name}: micro-batch {largest} is beyond the {schedule.microbatches} of the schedule",
            hint="count micro-batches from 0",
        )


def _check_once(schedule: Schedule, letter: str, counts: Ints) -> None:
    doubled = np.argwhere(counts > 1)
    if len(doubled):
        stage, microbatch = (int(n) for n in doubled[0])
        where = ", ".join(_mentions(schedule, letter, stage, microbatch))
        raise ScheduleError(
            f"{schedule.name}: {stage}{letter}{microbatch} appears {counts[stage, microbatch]} times ({where})",
            hint="every op runs once",
        )
    absent = np.argwhere(counts == 0)
    if len(absent):
        raise _missing(schedule, letter, int(absent[0][0]), int(absent[0][1]))


def _first_absent(numbers: Ints) -> int:
    """Return the smallest number from 0 that does not occur."""
    distinct = np.unique(numbers)
    gaps = np.flatnonzero(distinct != np.arange(len(distinct)))
    return int(gaps[0]) if len(gaps) else len(distinct)


def _missing(schedule: Schedule, letter: str, stage: int, microbatch: int) -> ScheduleError:
    hint = {
        "F": "every stage needs every micro-batch's forward",
        "B": "every forward needs its backward, as B, as I and W, or inside an FB",
        "W": "every I needs its W",
    }[letter]
    return ScheduleError(f"{schedule.name}: {stage}{letter}{microbatch} is missing", hint=hint)


def _mentions(schedule: Schedule, letter: str, stage: int, microbatch: int) -> list[str]:
    """Return the ops that do this piece of work, with their ranks."""
    kinds = {"F": ("F",), "B": ("B", "I"), "W": ("B", "W")}[letter]
    mentions = []
    for rank, ops in enumerate(schedule.ranks):
        for op in ops:
            plain = op.kind in kinds and (op.stage, op.microbatch) == (stage, microbatch)
            half = (op.stage, op.microbatch) if letter == "F" else (op.b_stage, op.b_microbatch)
            if plain or (op.kind == "FB" and half == (stage, microbatch)):
                mentions.append(f"{op} on rank {rank}")
    return mentions


def _check_ranks(schedule: Schedule, forwards: Ints, *others: Ints) -> None:
    """Raise if a backward is not on the rank of its forward."""
    ranks = schedule.table.rank
    for producers in others:
        wrong = np.argwhere(ranks[producers] != ranks[forwards])
        if len(wrong):
            stage, microbatch = wrong[0]
            op = int(producers[stage, microbatch])
            raise ScheduleError(
                f"{schedule.name}: {schedule.op_at(op)} is on rank {ranks[op]}, "
                f"its forward on rank {ranks[forwards[stage, microbatch]]}",
                hint="a backward runs where its forward ran",
            )


def find_running_order(schedule: Schedule) -> Ints:
    """Return the indices of all ops, each behind those it depends on; raise if ranks wait for each other."""
    edges, offsets = schedule.edges, as_int64(schedule.table.offsets)
    dependencies = as_int64(np.stack([edges.forward, edges.backward, edges.own]))
    ops, ranks = len(edges.own), len(offsets) - 1
    next_op = offsets[:-1].copy()
    first_waiting, next_waiting = np.full(ops, -1, np.int64), np.full(ranks, -1, np.int64)
    order = np.empty(ops, np.int64)
    placed = simulation.find_running_order(dependencies, offsets[1:], next_op, first_waiting, next_waiting, order)
    if placed < ops:
        # The op at which each rank is stuck, and an op it depends on that has not run.
        stuck = {rank: op for rank, op in enumerate(next_op.tolist()) if op < offsets[rank + 1]}
        missing = {
            rank: next(op for op in dependencies[:, op].tolist() if op >= 0 and first_waiting[op] != simulation.DONE)
            for rank, op in stuck.items()
        }
        raise _deadlock(schedule, stuck, missing)
    return order


def _deadlock(schedule: Schedule, stuck: dict[int, int], missing: dict[int, int]) -> DeadlockError:
    """Return an error that names the ranks that wait for each other in a ring.

    Args:
        schedule: The schedule that cannot run.
        stuck: By rank, the op it cannot run.
        missing: By rank, the op that its op waits for.

    """
    ring: list[int] = []
    rank = next(iter(missing))
    while rank not in ring:
        ring.append(rank)
        rank = int(schedule.table.rank[missing[rank]])
    waits = [
        f"rank {rank} at {schedule.op_at(stuck[rank])} waits for {schedule.op_at(missing[rank])}"
        f" of rank {schedule.table.rank[missing[rank]]}"
        for rank in ring[ring.index(rank) :]
    ]
    return DeadlockError(
        f"{schedule.name}: deadlock: " + "; ".join(waits),
        hint="move one of the awaited ops before the op its rank is stuck at",
    )
