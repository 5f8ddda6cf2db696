"""The content of every report, typed: numbers and words without their looks. ``view_of`` builds it from an analysis.

Times are nanoseconds, shares are 0 to 1 of what the field's docstring says, None is unknown. Figures *per rank* are
means over ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tracekit.analysis import Analysis
from tracekit.analysis.spread import Spread
from tracekit.errors import Notice
from tracekit.report.advice import Advice
from tracekit.report.table import Table
from tracekit.report.view.answer import Line
from tracekit.report.view.breakdown import ByView
from tracekit.report.view.budget import Beside, BudgetView, LabelRow, Matrix
from tracekit.report.view.copies import Copies, ReloadView
from tracekit.report.view.kernels import Kernel, kernels
from tracekit.report.view.lateness import LatenessMap
from tracekit.report.view.memory import MemoryView
from tracekit.report.view.path import PathView
from tracekit.report.view.pipeline import PhaseRow, ScheduleView
from tracekit.report.view.ranks import BubbleRow, HostActivity, Steps, Straggler
from tracekit.report.view.rates import RatesView
from tracekit.report.view.roles import RolesView
from tracekit.report.view.what_if import ChangesView


@dataclass(frozen=True, eq=False)
class View:
    """The content of a report, in the order it is read."""

    title: str
    ranks: str
    """``8 ranks``, or ``4 of 8 ranks``, with those that are missing or damaged."""
    steps_named: str
    devices: tuple[str, ...]
    reader: str
    paths: tuple[str, ...]
    input_path: str | None
    """The input as one path: the only one, or the folder of all; None if there is none."""
    has_gpu: bool
    pipelined: bool
    """Whether the run has a pipeline; without one it has idle time and no bubble."""
    answer: tuple[Line, ...]
    advice: tuple[Advice, ...]
    budget: BudgetView
    labels: tuple[LabelRow, ...]
    matrix: Matrix | None
    beside: tuple[Beside, ...]
    bubbles: tuple[BubbleRow, ...]
    more_bubbles: int
    schedule: ScheduleView | None
    phases: tuple[PhaseRow, ...]
    """Hidden shares by phase for a run that overlaps micro-batches, if its schedule was not recognised."""
    critical: PathView | None
    """The critical path, if it was asked for."""
    changes: ChangesView | None
    """Predicted step times with changes, if they were asked for."""
    by: ByView | None
    """The step by layer, module, annotation or shape, if it was asked for."""
    rates: RatesView | None
    instead: HostActivity | None
    """Activities of the host while the GPU waited for its next launch."""
    hiding: Table | None
    """Slowdown of compute that runs beside communication."""
    memory: MemoryView | None
    stragglers: tuple[Straggler, ...]
    lateness: LatenessMap | None
    imbalance: Table | None
    slowdown: Table | None
    clock_note: str
    steps: Steps | None
    copies: Copies | None
    reload: ReloadView | None
    roles: RolesView | None
    """Roles, iterations and weight updates of a run whose ranks have several processes."""
    fleet: Spread | None
    """Distribution of figures over ranks, for a run of many ranks."""
    warnings: tuple[Notice, ...]
    definitions: tuple[tuple[str, str], ...]
    analysis: Analysis
    """The result itself, for timelines and counts."""

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """The longest kernels, and the evidence for their labels."""
        return kernels(self.analysis, self.input_path)

    @property
    def exposure(self) -> tuple[LabelRow, ...]:
        """Communication and copies, the most exposed first."""
        rows = [row for row in self.labels if row.kind != "compute"]
        return tuple(sorted(rows, key=lambda row: -row.exposed_ns))
