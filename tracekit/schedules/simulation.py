"""The results of a simulated schedule: cells, makespan, three bubbles, memory, idle by phase."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.above import above
from tracekit._util.html import html_table
from tracekit._util.text import percent
from tracekit.schedules import schedule as s
from tracekit.schedules.ops import KINDS
from tracekit.schedules.schedule import Schedule
from tracekit.schedules.times import Times

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Numbers = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Simulation:
    """A schedule with its clock; ``start`` and ``end`` are aligned to ``schedule.table``.

    >>> from tracekit.schedules import generate, simulate
    >>> done = simulate(generate("1f1b", pp=4, microbatches=8))
    >>> done.makespan, done.bubble, done.peak_activations
    (33, [9, 9, 9, 9], [4, 3, 2, 1])
    >>> round(done.bubble_fraction, 4), done.bubble_over_work
    (0.2727, 0.375)
    """

    schedule: Schedule
    times: Times
    start: Numbers
    end: Numbers

    @cached_property
    def cells(self) -> pl.DataFrame:
        """One row per op: rank, op, stage, microbatch, b_stage, b_microbatch (of FB), start, end."""
        table = self.schedule.table
        pair = table.kind == s.FB
        return pl.DataFrame(
            {
                "rank": table.rank.astype(np.int32),
                "op": pl.Series(np.array(KINDS)[table.kind], dtype=pl.Enum(KINDS)),
                "stage": table.stage.astype(np.int32),
                "microbatch": table.microbatch.astype(np.int32),
                "b_stage": _only(pair, table.b_stage),
                "b_microbatch": _only(pair, table.b_microbatch),
                "start": self.start,
                "end": self.end,
            }
        )

    @property
    def makespan(self) -> Any:
        """From 0 to the end of the last op."""
        return self.end.max().item()

    @cached_property
    def busy(self) -> list[Any]:
        """Work of each rank."""
        return _by_rank(self.end - self.start, self.schedule)

    @property
    def span(self) -> list[Any]:
        """From the start of each rank's first op to the end of its last."""
        return [(self.end[rows][-1] - self.start[rows][0]).item() if _some(rows) else 0 for rows in self._rows()]

    @property
    def bubble(self) -> list[Any]:
        """Makespan − work, of each rank."""
        return [self.makespan - work for work in self.busy]

    @property
    def bubble_fraction(self) -> float:
        """Idle share of ranks × makespan."""
        return _ratio(sum(self.bubble), self.makespan * self.schedule.pp)

    @property
    def bubble_rate_zb(self) -> float:
        """The zero-bubble papers' rate: 1 − mean work of a rank / the longest span, first start to last end."""
        return _ratio(max(self.span) - sum(self.busy) / self.schedule.pp, max(self.span))

    @property
    def bubble_over_work(self) -> float:
        """Megatron's: bubble / work."""
        return _ratio(sum(self.bubble), sum(self.busy))

    @cached_property
    def peak_activations(self) -> list[int]:
        """Most chunks' activations each rank holds at once: from F's start to the end of B or W."""
        return self._most_held(s.B, s.W, s.FB)

    @cached_property
    def least_activations(self) -> list[int]:
        """The same if I freed all of a chunk: with W to come, what is held lies between the two."""
        return self._most_held(s.B, s.I, s.FB)

    def _most_held(self, *freeing: int) -> list[int]:
        kind = self.schedule.table.kind
        taken = (kind == s.F).astype(np.int64) + (kind == s.FB)
        freed = np.isin(kind, freeing).astype(np.int64)
        peaks = []
        for rows in self._rows():
            before = np.concatenate([[0], np.cumsum(taken[rows] - freed[rows])[:-1]]) if _some(rows) else [0]
            peaks.append(int((before + taken[rows]).max(initial=0)))
        return peaks

    @cached_property
    def idle_by_phase(self) -> pl.DataFrame:
        """Idle time of each rank before its first backward, after its last forward, and between.

        >>> from tracekit.schedules import generate, simulate
        >>> simulate(generate("1f1b", pp=2, microbatches=4)).idle_by_phase.rows()
        [(0, 2, 0, 1), (1, 1, 0, 2)]
        """
        rows = [(rank, *phases) for rank, phases in enumerate(self.idle_phases)]
        return pl.DataFrame(rows, schema=["rank", "warm_up", "steady", "cool_down"], orient="row")

    @cached_property
    def idle_phases(self) -> list[tuple[Any, Any, Any]]:
        """The same without a table: idle time of each rank as it warms up, in between, and as it cools down."""
        table = self.schedule.table
        some = np.flatnonzero(np.diff(table.offsets))  # ranks that work
        first = table.offsets[some]
        at = np.arange(len(table.kind))
        back = np.minimum.reduceat(np.where(table.kind != s.F, at, len(at)), first) if len(some) else first
        forth = np.where((table.kind == s.F) | (table.kind == s.FB), at, -1)
        last = np.maximum.reduceat(forth, first) if len(some) else first
        steady = self.start[np.where(back < len(at), back, first)]
        cool = np.where(last >= 0, np.maximum(steady, self.end[last]), steady)
        edges = np.zeros((4, len(table.offsets) - 1), self.end.dtype)
        edges[1:, :] = self.makespan  # who does not work warms up all the time
        edges[1, some], edges[2, some] = steady, cool
        lower, upper = edges[:-1, table.rank], edges[1:, table.rank]
        worked = (np.minimum(self.end, upper) - np.maximum(self.start, lower)).clip(0)
        idle = np.diff(edges, axis=0)
        if len(some):
            idle[:, some] -= np.add.reduceat(worked, first, axis=1)
        return [tuple(phases) for phases in idle.T.tolist()]

    def __repr__(self) -> str:
        plan = self.schedule
        size = f"{plan.pp} ranks × {plan.microbatches} micro-batches"
        return f"<Simulation: {plan.name}, {size}, makespan {self.makespan:g}>"

    def _repr_html_(self) -> str:
        columns = zip(self.busy, self.bubble, self.peak_activations, strict=True)
        rows = [(rank, f"{busy:g}", f"{idle:g}", peak) for rank, (busy, idle, peak) in enumerate(columns)]
        heads = ("rank", "work", "idle", "most activations held")
        return html_table(f"{repr(self)[1:-1]}, {percent(self.bubble_fraction)} idle", heads, rows)

    def plot(self) -> Figure:
        """Return its picture.

        >>> from tracekit.schedules import generate, simulate
        >>> simulate(generate("1f1b", pp=2, microbatches=2)).plot().axes[0].get_xlabel()
        'time (units of the given times)'
        """
        figure: Figure = above("draw_schedule")(self)
        return figure

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to *path* as its extension says: .svg .png .html .json .txt (orders), .trace.json (Perfetto)."""
        above("write_schedule")(self, path)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the JSON of ``tracekit schedule --json``, format tracekit.schedule/1."""
        plan = self.schedule
        return {
            "format": "tracekit.schedule/1",
            "name": plan.name,
            "pp": plan.pp,
            "microbatches": plan.microbatches,
            "virtual": plan.virtual,
            "group": plan.group,
            "time": self.times.scalars(),
            "ranks": plan.orders(),
            "cells": self.cells.to_dicts(),
            "makespan": self.makespan,
            "bubble": self.bubble,
            "bubble_fraction": self.bubble_fraction,
            "bubble_rate_zb": self.bubble_rate_zb,
            "bubble_over_work": self.bubble_over_work,
            "peak_activations": self.peak_activations,
            "idle_by_phase": self.idle_by_phase.to_dicts(),
        }

    def _rows(self) -> list[slice]:
        offsets = self.schedule.table.offsets.tolist()
        return [slice(a, b) for a, b in itertools.pairwise(offsets)]


def _ratio(part: Any, whole: Any) -> float:
    """Return the ratio; a schedule that takes no time has no idle time either."""
    return float(part / whole) if whole else 0.0


def _some(rows: slice) -> bool:
    return bool(rows.stop > rows.start)


def _only(rows: npt.NDArray[np.bool_], values: npt.NDArray[np.int64]) -> pl.Series:
    return pl.Series(np.where(rows, values, 0), dtype=pl.Int32).set(pl.Series(~rows), None)


def _by_rank(values: Numbers, schedule: Schedule) -> list[Any]:
    sums = np.zeros(len(schedule.ranks), values.dtype)
    np.add.at(sums, schedule.table.rank, values)
    return list(sums.tolist())
