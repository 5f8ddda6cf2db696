"""A schedule as data: per rank, the ops in the order they run, and what each op waits for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tracekit._util.html import html_table
from tracekit.errors import ScheduleError
from tracekit.schedules.ops import KINDS, Op

Ints = npt.NDArray[np.int64]
F, I, W, B, FB = range(len(KINDS))  # codes of the kinds in OpTable  # noqa: E741

SHOWN_OPS = 24


class OpTable(msgspec.Struct, frozen=True, eq=False):
    """The ops of all ranks as columns, rank after rank; ``offsets[r]`` is where rank r begins."""

    rank: Ints
    kind: Ints
    stage: Ints
    microbatch: Ints
    b_stage: Ints  # of B, I and W the same as stage; of FB its backward half; of F -1
    b_microbatch: Ints
    offsets: Ints


class Edges(msgspec.Struct, frozen=True, eq=False):
    """Per op, the index of the op it waits for, -1 for none."""

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
        """Every rank's order in the notation, as lists of strings."""
        return [[str(op) for op in rank] for rank in self.ranks]

    def __repr__(self) -> str:
        return f"<Schedule: {self.name}, {self.pp} ranks × {self.microbatches} micro-batches>"

    def _repr_html_(self) -> str:
        rows = [
            (rank, " ".join(order[:SHOWN_OPS]) + " …" * (len(order) > SHOWN_OPS))
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
        """How many stages the model is cut into."""
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
        b_stage, b_microbatch = (_or_none(column) for column in columns[3:])
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
        """``stage_ranks[stage, microbatch]``: the rank that holds it, in the direction that micro-batch flows."""
        forwards = self._makers[0]
        placement = self.table.rank[forwards]
        placement.flags.writeable = False
        return placement

    @property
    def both_ways(self) -> bool:
        """Whether micro-batches flow through the ranks in both directions, so that a rank holds two stages' weights."""
        return bool((self.stage_ranks != self.stage_ranks[:, :1]).any())

    @cached_property
    def edges(self) -> Edges:
        """What every op waits for. Raises if an op is missing, doubled or on a rank of its own."""
        table = self.table
        makes_f, makes_i, _ = self._makers
        last = makes_f.shape[0] - 1
        none = np.int64(-1)
        f_part = (table.kind == F) | (table.kind == FB)
        b_part = (table.kind == B) | (table.kind == I) | (table.kind == FB)
        w_part = table.kind == W
        previous = np.arange(len(table.kind)) - 1
        first = table.offsets[:-1][np.diff(table.offsets) > 0]
        previous[first] = none
        before = makes_f[table.stage - 1, table.microbatch]
        after = makes_i[np.minimum(table.b_stage + 1, last), table.b_microbatch]
        own = np.where(w_part, makes_i[table.b_stage, table.b_microbatch], makes_f[table.b_stage, table.b_microbatch])
        return Edges(
            previous=previous,
            forward=np.where(f_part & (table.stage > 0), before, none),
            backward=np.where(b_part & (table.b_stage < last), after, none),
            own=np.where(b_part | w_part, own, none),
        )

    @cached_property
    def _makers(self) -> tuple[Ints, Ints, Ints]:
        """Index of the op that makes each (stage, micro-batch)'s output, input gradient and weight gradient."""
        table = self.table
        shape = (int(max(table.stage.max(), table.b_stage.max())) + 1, self.microbatches)
        _check_microbatches(self, max(table.microbatch.max(), table.b_microbatch.max()))
        kind, index = table.kind, np.arange(len(table.kind))
        f_part = (kind == F) | (kind == FB)
        i_part = (kind == B) | (kind == I) | (kind == FB)
        w_part = (kind == B) | (kind == W) | (kind == FB)
        parts = (
            ("F", f_part, table.stage, table.microbatch),
            ("B", i_part, table.b_stage, table.b_microbatch),
            ("W", w_part, table.b_stage, table.b_microbatch),
        )
        made = []
        for letter, part, stage, microbatch in parts:
            if part.sum() < shape[0] * shape[1]:  # a typing slip can name a far stage: do not make a table up to there
                raise _missing(self, letter, *_first_gap(stage[part] * shape[1] + microbatch[part], shape))
            flat = stage[part] * shape[1] + microbatch[part]
            counts = np.bincount(flat, minlength=shape[0] * shape[1])
            _check_once(self, letter, counts.reshape(shape))
            maker = np.empty(len(counts), np.int64)
            maker[flat] = index[part]
            made.append(maker.reshape(shape))
        _check_placement(self, *made)
        return made[0], made[1], made[2]


def _or_none(values: tuple[int | None, ...]) -> Ints:
    """Return the numbers, -1 for None."""
    if values.count(None) == len(values):
        return np.full(len(values), -1, np.int64)
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


def _first_gap(flat: Ints, shape: tuple[int, int]) -> tuple[int, int]:
    """Return the first (stage, micro-batch) that is not among *flat*."""
    there = np.unique(flat)
    gaps = np.flatnonzero(there != np.arange(len(there)))
    return divmod(int(gaps[0]) if len(gaps) else len(there), shape[1])


def _missing(schedule: Schedule, letter: str, stage: int, microbatch: int) -> ScheduleError:
    hint = {
        "F": "every stage needs every micro-batch's forward",
        "B": "every forward needs its backward, as B, as I and W, or inside an FB",
        "W": "every I needs its W",
    }[letter]
    return ScheduleError(f"{schedule.name}: {stage}{letter}{microbatch} is missing", hint=hint)


def _mentions(schedule: Schedule, letter: str, stage: int, microbatch: int) -> list[str]:
    """Return where the ops are that all do this one piece of work."""
    kinds = {"F": ("F",), "B": ("B", "I"), "W": ("B", "W")}[letter]
    mentions = []
    for rank, ops in enumerate(schedule.ranks):
        for op in ops:
            plain = op.kind in kinds and (op.stage, op.microbatch) == (stage, microbatch)
            half = (op.stage, op.microbatch) if letter == "F" else (op.b_stage, op.b_microbatch)
            if plain or (op.kind == "FB" and half == (stage, microbatch)):
                mentions.append(f"{op} on rank {rank}")
    return mentions


def _check_placement(schedule: Schedule, *made: Ints) -> None:
    forward_rank = schedule.table.rank[made[0]]
    for part in made[1:]:
        wrong = np.argwhere(schedule.table.rank[part] != forward_rank)
        if len(wrong):
            stage, microbatch = wrong[0]
            op = schedule.op_at(int(part[stage, microbatch]))
            raise ScheduleError(
                f"{schedule.name}: {op} is on rank {schedule.table.rank[part[stage, microbatch]]}, "
                f"its forward on rank {forward_rank[stage, microbatch]}",
                hint="a backward runs where its forward ran",
            )


def align(schedule: Schedule, values: Any) -> list[Any]:
    """Return one sequence per rank, aligned to ``schedule.ranks``, flattened into the order of ``schedule.table``.

    >>> from tracekit.schedules.ops import parse_orders
    >>> s = Schedule("mine", 2, 1, 1, (parse_orders("0F0 0B0"), parse_orders("1F0 1B0")))
    >>> align(s, [[1, 2], [3, 4]])
    [1, 2, 3, 4]
    """
    wanted = [len(rank) for rank in schedule.ranks]
    given = [len(rank) for rank in values]
    if given != wanted:
        raise ScheduleError(
            f"{schedule.name}: durations for {given} ops per rank, the schedule has {wanted}",
            hint="give one value for each op of schedule.ranks",
        )
    return [value for rank in values for value in (rank.tolist() if hasattr(rank, "tolist") else rank)]
