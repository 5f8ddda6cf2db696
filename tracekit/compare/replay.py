"""Replay of a measured pipeline: its cells run again in the same order with other durations and delays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._loops import replay
from tracekit._util.arrays import Ints, as_int64
from tracekit._util.columns import to_int64
from tracekit.reconstruct.pipeline import Pipeline
from tracekit.schedules.ops import KINDS, Op
from tracekit.schedules.schedule import FB, B, Edges, OpTable, W, find_running_order

Shares = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CellGraph:
    """Cells of a pipeline as columns, rank after rank in the order run, and their dependencies.

    ``waits[cell, k]`` is a cell that a cell waits for, -1 for none. k = 0: the cell before it on its rank; 1: the
    forward of the stage before (its input); 2: the backward of the stage after (its gradient); 3: its own forward, or
    the I of a W.
    """

    table: OpTable  # ranks are positions in the pipeline
    waits: Ints  # cells × 4
    order: Ints  # all cells, each after those it waits for
    broken: int  # dependencies that formed a ring and were dropped

    @classmethod
    def of(cls, cells: pl.DataFrame) -> CellGraph:
        """Build the graph of a table with position, op, stage, microbatch, b_stage and b_microbatch.

        The table is sorted by position, then by the order run.

        >>> cells = pl.DataFrame({"position": [0, 0, 1, 1], "op": ["F", "B", "F", "B"], "stage": [0, 0, 1, 1],
        ...     "microbatch": [0] * 4, "b_stage": [None] * 4, "b_microbatch": [None] * 4},
        ...     schema_overrides={"b_stage": pl.Int32, "b_microbatch": pl.Int32})
        >>> start, end = CellGraph.of(cells).run(np.array([1, 2, 1, 2]))
        >>> end.tolist()
        [1, 6, 2, 4]
        """
        position, kind = to_int64(cells["position"]), to_int64(cells["op"].cast(pl.Enum(KINDS)).to_physical())
        numbers = (to_int64(cells[name], 0) for name in Op._fields[1:])
        table = OpTable.of(position, kind, numbers, ranks=int(position.max(initial=-1)) + 1)
        waits = np.stack(table.find_edges(), axis=1)
        # An FB whose halves are of one micro-batch is its own forward.
        waits[waits == np.arange(len(kind))[:, None]] = -1
        broken = 0
        order, stuck = find_running_order(Edges(*waits.T), table.offsets)
        while stuck:  # all ranks wait for each other: let the cell of the first of them run
            cell, awaited = next(iter(stuck.values()))
            is_awaited = waits[cell] == awaited
            waits[cell, is_awaited] = -1
            broken += int(is_awaited.sum())
            order, stuck = find_running_order(Edges(*waits.T), table.offsets)
        return cls(table, waits, order, broken)

    def run(self, duration: Ints, delay: Ints | None = None, early: Shares | None = None) -> tuple[Ints, Ints]:
        """Return start and end of every cell if it starts as soon as its dependencies allow, plus its delay.

        Args:
            duration: Duration of each cell.
            delay: Delay of each cell; none if None.
            early: [cell, k]: share of dependency k's duration by which the cell may start before its end.
        """
        delay = np.zeros(len(duration), np.int64) if delay is None else delay
        early = np.zeros(self.waits.shape) if early is None else early
        _, end = self._run_rows(duration[None], delay[None], early, first_early=0)
        return end - duration, end

    def makespans(self, durations: Ints, delays: Ints, early: Shares, *, first_early: int) -> list[int]:
        """Return the makespan of each row of *durations* and *delays*; *early* counts from row *first_early* on."""
        makespans, _ = self._run_rows(durations, delays, early, first_early=first_early)
        return [int(makespan) for makespan in makespans]

    def _run_rows(self, durations: Ints, delays: Ints, early: Shares, *, first_early: int) -> tuple[Ints, Ints]:
        """Return the makespan of each row, and the ends of all cells in the last."""
        ends, makespans = np.zeros(durations.shape[1], np.int64), np.zeros(len(durations), np.int64)
        early = np.ascontiguousarray(early, np.float64)
        rows = as_int64(durations), as_int64(delays)
        replay.measure_makespans(self.order, self.waits, *rows, early, first_early, ends, makespans)
        return makespans, ends

    def find_ready_times(self, start: Ints, end: Ints) -> tuple[Ints, Shares]:
        """Return the time at which each cell could start, and by what share of a dependency it started before its end.

        A cell that started before a dependency had ended got its input early: it was ready when it started.

        Args:
            start: Measured start of each cell.
            end: Measured end of each cell.
        """
        origin = start.min() if len(start) else 0
        # -1 in waits selects the appended values: no dependency ends at the first start and takes no time.
        dependency_end = np.append(end, origin)[self.waits]
        dependency_duration = np.append(end - start, 0)[self.waits]
        lead = np.where(self.waits >= 0, np.maximum(dependency_end - start[:, None], 0), 0)
        lead = np.minimum(lead, dependency_duration)
        ready = np.maximum((dependency_end - lead).max(axis=1, initial=origin), origin)
        return ready, lead / np.maximum(dependency_duration, 1)

    @cached_property
    def op(self) -> npt.NDArray[np.str_]:
        """Kind of each cell."""
        return np.array(KINDS)[self.table.kind]

    @cached_property
    def peak_activations(self) -> list[int]:
        """Largest number of forwards that each position holds at once, each until its B or W."""
        return self.table.count_peak_activations(B, W, FB)

    def average(self, work: Ints) -> tuple[Ints, Ints]:
        """Return for each cell the median work of its op on its stage, and the mean of these medians over stages."""
        group_of_cell, first, size, kind = self._groups
        # Sorted by group, then by work: the median is the mean of the two values in the middle of a group.
        work_sorted = work[np.lexsort((work, group_of_cell))]
        below, above = work_sorted[first + (size - 1) // 2], work_sorted[first + size // 2]
        medians = np.rint((below + above) / 2).astype(np.int64)
        sums = np.bincount(kind, weights=medians)
        means = np.rint(sums / np.maximum(np.bincount(kind), 1)).astype(np.int64)
        return medians[group_of_cell], means[kind[group_of_cell]]

    @cached_property
    def _groups(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Groups of cells with equal op, stage and b_stage.

        The group of each cell; and of each group its first cell if cells are sorted by group, its size, and the code of
        its op.
        """
        keys = np.stack([self.table.kind, self.table.stage, self.table.b_stage], axis=1)
        distinct, group, size = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
        return group.reshape(-1), np.cumsum(size) - size, size, distinct[:, 0]


GraphCache = dict[bytes, CellGraph]
"""Graphs by the names of their cells: pipelines and steps that ran the same order share one."""


def cell_graph(pipeline: Pipeline, cache: GraphCache) -> CellGraph:
    """Return the graph of a pipeline's cells."""
    key = pipeline.numbers.tobytes()
    if key not in cache:
        cache[key] = CellGraph.of(pipeline.detail)
    return cache[key]
