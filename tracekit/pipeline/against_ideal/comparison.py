"""Results of the comparison of a run with its ideal."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit.documents import analysis as documents
from tracekit.documents.analysis import RankBubble, WhatIf
from tracekit.documents.coding import rows
from tracekit.errors import Notice
from tracekit.pipeline.against_ideal.identify import Match
from tracekit.pipeline.against_ideal.replay import StepReplays
from tracekit.pipeline.reconstruct.pipeline import Pipeline
from tracekit.pipeline.reconstruct.rank_pipeline import RankPipeline
from tracekit.schema import CELLS, conform

_IDEAL_COLUMNS = ("ideal_start_ns", "ideal_end_ns", "shift_ns")
CELLS_WITH_IDEAL = pl.Schema({**CELLS, **dict.fromkeys(_IDEAL_COLUMNS, pl.Int64())})
"""Cells with their ideal times from the start of the step's first cell; shift = measured start −
ideal start."""

MIN_SLOW_CELL_FACTOR = 1.25
"""Work of a cell over the median of its op and stage above which it is listed as slow."""
MAX_SLOW_CELLS = 10


class StepComparison(msgspec.Struct, frozen=True, eq=False):
    """One pipeline in one step, compared with its ideal."""

    pipeline: Pipeline
    match: Match
    replays: StepReplays
    ideal_ns: int
    ideal_bubble: float  # share of ranks × ideal makespan outside cells
    gap_ns: Mapping[str, int] | None  # by cause; None if ranks are missing or the split is doubtful
    bubbles: tuple[RankBubble, ...]
    ideal_times: tuple[Ints, Ints]  # ideal start and end of every cell
    # Cells of the ideal, if it has another order than the run.
    ideal_cells: pl.DataFrame | None = None
    notices: tuple[Notice, ...] = ()

    @property
    def cells(self) -> pl.DataFrame:
        """Cells with their ideal times (``CELLS_WITH_IDEAL``)."""
        return cells_with_ideal([self])

    @property
    def measured_ns(self) -> int:
        """Makespan: from the first cell's start to the last cell's end."""
        return self.replays.makespan

    @property
    def measured_bubble(self) -> float:
        """Share of ranks × makespan outside cells."""
        idle_ns = sum(sum(bubble.measured_ns.values()) for bubble in self.bubbles)
        total_ns = len(self.bubbles) * self.measured_ns
        return idle_ns / total_ns if total_ns else 0.0

    def orders(self) -> list[list[str]]:
        """Return the ops of each rank of the pipeline in the notation.

        None for a rank without a trace.
        """
        orders: list[list[str]] = []
        for position in range(len(self.pipeline.ranks)):
            ops = self.pipeline.orders.get(position, [])
            orders.append([str(op) for op in ops])
        return orders

    def measure_imbalance(self) -> documents.Factors:
        """Return how unequal stages and cells were."""
        replays = self.replays
        table = self.replays.graph.table
        typical = np.bincount(table.stage, replays.typical)
        balanced = np.bincount(table.stage, replays.balanced)
        stages = {
            int(stage): float(typical[stage] / max(1, balanced[stage]))
            for stage in np.unique(table.stage)
        }
        factor = replays.work / np.maximum(replays.typical, 1)
        columns = {"op": replays.graph.op, "stage": table.stage, "microbatch": table.microbatch}
        cells = pl.DataFrame({"rank": self.pipeline.detail["rank"], **columns, "factor": factor})
        slow_cells = cells.filter(pl.col("factor") > MIN_SLOW_CELL_FACTOR)
        slowest = slow_cells.sort("factor", descending=True, maintain_order=True)
        return documents.Factors(
            stage=stages,
            spread=float(np.median(np.abs(factor - 1))) if len(factor) else 0.0,
            slow_cells=rows(slowest.head(MAX_SLOW_CELLS), documents.SlowCell),
        )

    def with_profiler(self, free_shares: Mapping[str, float]) -> "StepComparison":
        """Return the step with what the profiler adds to its gap as a part of its own.

        Args:
            free_shares: Of parts of the gap: what of them is left without the profiler.
        """
        if self.gap_ns is None:
            return self
        without = {
            cause: round(part_ns * free_shares.get(cause, 1.0)) if part_ns > 0 else part_ns
            for cause, part_ns in self.gap_ns.items()
        }
        profiler_ns = sum(self.gap_ns.values()) - sum(without.values())
        unexplained_ns = without.pop("unexplained")
        gap_ns = {**without, "profiler": profiler_ns, "unexplained": unexplained_ns}
        return msgspec.structs.replace(self, gap_ns=gap_ns)

    def to_document(self) -> documents.PipelineStep:
        """Return the step as the ``pipelines`` of the document list it."""
        return documents.PipelineStep(
            ranks=list(self.pipeline.ranks),
            step=self.pipeline.step,
            name=self.match.schedule.name,
            exact=self.match.exact,
            measured_ns=self.measured_ns,
            ideal_ns=self.ideal_ns,
            gap_ns=self.gap_ns,
        )


def cells_with_ideal(steps: Sequence[StepComparison]) -> pl.DataFrame:
    """Return the cells of several steps with their ideal times (``CELLS_WITH_IDEAL``)."""
    tables = []
    for step in steps:
        ideal_start, ideal_end = step.ideal_times
        cells = step.pipeline.detail.with_columns(
            ideal_start_ns=pl.Series(ideal_start),
            ideal_end_ns=pl.Series(ideal_end),
            shift_ns=pl.Series(step.replays.start - ideal_start),
        )
        tables.append(cells)
    return conform(pl.concat(tables), CELLS_WITH_IDEAL)


class ScheduleComparison(msgspec.Struct, frozen=True, eq=False):
    """Every pipeline and step compared with its ideal.

    ``head`` is the step that the figures describe: of the slowest pipeline, or of the one that was
    chosen, the step with the median makespan.
    """

    head: StepComparison
    all: tuple[StepComparison, ...]
    lanes: pl.DataFrame
    positions: Mapping[int, Mapping[str, int]]  # of each rank in each kind of process group
    head_ranks: Mapping[int, RankPipeline]  # tables of the recorded ranks of the head's pipeline
    what_if: tuple[WhatIf, ...] = ()  # predictions of other schedules, if they were asked for
    # Why other schedules cannot be predicted; None if they can.
    no_prediction_reason: str | None = None
    # Imbalance of stages and cells in the head.
    factors: documents.Factors = documents.Factors(stage={}, spread=0.0, slow_cells=[])
    chosen: bool = False  # whether the user chose the pipeline

    @property
    def pipelines(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of each pipeline; a pipeline's number is its index here."""
        return tuple(dict.fromkeys(comparison.pipeline.ranks for comparison in self.all))

    @property
    def name(self) -> str:
        """Name of the schedule that ran; the nearest one if none is exactly it."""
        return (self.head.match.ran or self.head.match.schedule).name

    @property
    def ambiguous_with(self) -> tuple[str, ...]:
        """Names of other schedules that have this order on the ranks at hand."""
        return self.head.match.ambiguous_with

    @property
    def possible_names(self) -> str:
        """The name, with those of other schedules that have this order on the ranks at hand."""
        return " or ".join([self.name, *self.ambiguous_with])

    @property
    def compared_with(self) -> str:
        """Name of the schedule whose ideal the run is compared with."""
        return self.head.match.schedule.name

    @property
    def pp(self) -> int:
        """Number of ranks in the pipeline."""
        return len(self.head.pipeline.ranks)

    @property
    def microbatches(self) -> int:
        """Number of micro-batches per step."""
        return (self.head.match.ran or self.head.match.schedule).microbatches

    @property
    def virtual(self) -> int:
        """Number of chunks per rank."""
        return (self.head.match.ran or self.head.match.schedule).virtual

    @property
    def exact(self) -> bool:
        """Whether the order is exactly that of the schedule named."""
        return self.head.match.exact or self.head.match.ran is not None

    @property
    def gap_ns(self) -> Mapping[str, int] | None:
        """Parts of measured − ideal makespan by cause; they sum to it."""
        return self.head.gap_ns

    @property
    def measured(self) -> documents.Makespan:
        """The pipeline as it ran: its makespan, and the share of ranks × makespan outside of cells."""
        return documents.Makespan(self.head.measured_ns, self.head.measured_bubble)

    @property
    def ideal(self) -> documents.Makespan:
        """The ideal, simulated from the durations of the run's own cells."""
        return documents.Makespan(self.head.ideal_ns, self.head.ideal_bubble)

    @property
    def cells(self) -> pl.DataFrame:
        """Cells of all pipelines and steps with their ideal times (``CELLS_WITH_IDEAL``)."""
        return cells_with_ideal(self.all)

    def with_profiler(self, free_shares: Mapping[str, float]) -> "ScheduleComparison":
        """Return the comparison with what the profiler adds to each gap as a part of its own."""
        steps = tuple(step.with_profiler(free_shares) for step in self.all)
        head = steps[next(i for i, step in enumerate(self.all) if step is self.head)]
        return msgspec.structs.replace(self, head=head, all=steps)

    def to_document(self) -> documents.ComparedSchedule:
        """Return the ``schedule`` of the document."""
        head = self.head
        match = head.match
        confidence: Any = head.cells["confidence"].min()
        return documents.ComparedSchedule(
            name=self.name,
            compared_with=self.compared_with,
            pp=self.pp,
            microbatches=self.microbatches,
            virtual=self.virtual,
            ranks=head.orders(),
            measured=self.measured,
            ideal=self.ideal,
            gap_ns=head.gap_ns,
            exact=self.exact,
            ambiguous_with=self.ambiguous_with,
            distance=match.distance,
            differences=tuple(match.differences),
            fb_run_apart=match.blocks_run_apart,
            step=head.pipeline.step,
            pipeline_ranks=list(head.pipeline.ranks),
            stages_from=head.pipeline.stages_from,
            confidence=None if confidence is None else round(float(confidence), 3),
            by_rank=head.bubbles,
            factors=self.factors,
            lanes=rows(self.lanes, documents.Lane),
            positions=self.positions,
            what_if=list(self.what_if),
            pipelines=[step.to_document() for step in self.all],
        )
