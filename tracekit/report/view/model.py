"""What every report shows, typed: numbers and words, never how they look. ``view_of`` builds it once from an analysis.

Times are nanoseconds, shares are of what the field's name or docstring says, unknown is None. ``per rank`` figures are
means over ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tracekit.analysis import Analysis
from tracekit.analysis.spread import Spread
from tracekit.errors import Notice
from tracekit.report.view.answer import Advice, Line
from tracekit.report.view.budget import Beside, BudgetView, LabelRow, Matrix
from tracekit.report.view.by import ByView
from tracekit.report.view.memory import MemoryView
from tracekit.report.view.path import PathView
from tracekit.report.view.pipeline import PhaseRow, ScheduleView
from tracekit.report.view.ranks import BubbleRow, Steps, Straggler
from tracekit.report.view.rates import RatesView
from tracekit.report.view.why import Hiding, Instead
from tracekit.report.view.work import Copies, Kernel, ReloadView, kernels


@dataclass(frozen=True, eq=False)
class View:
    """Everything a report shows, in the order it is read."""

    title: str
    ranks: str
    """``8 ranks``, or ``4 of 8 ranks``."""
    steps_named: str
    devices: tuple[str, ...]
    reader: str
    paths: tuple[str, ...]
    asked: str | None
    """The input again, short: one path, or the folder that holds them all."""
    has_gpu: bool
    pipelined: bool
    """A run without a pipeline has no bubble: it has idle."""
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
    """What a rank that overlaps micro-batches hid in each phase, where no schedule could be named."""
    critical: PathView | None
    """The critical path, where it was asked for."""
    by: ByView | None
    """The step by layer, module, annotation or shape, where that was asked for."""
    rates: RatesView | None
    instead: Instead | None
    """What the host did while the GPU waited for its next launch."""
    hiding: Hiding | None
    """What hiding communication costs the compute beside it."""
    memory: MemoryView | None
    stragglers: tuple[Straggler, ...]
    clock_note: str
    steps: Steps | None
    copies: Copies | None
    reload: ReloadView | None
    fleet: Spread | None
    """How figures are spread over many ranks."""
    warnings: tuple[Notice, ...]
    definitions: tuple[tuple[str, str], ...]
    analysis: Analysis
    """The result itself, for what draws timelines."""

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """The longest kernels, and why they have their labels."""
        return kernels(self.analysis, self.asked)

    @property
    def exposure(self) -> tuple[LabelRow, ...]:
        """Communication and copies, the most exposed first."""
        rows = [row for row in self.labels if row.kind != "compute"]
        return tuple(sorted(rows, key=lambda row: -row.exposed_ns))
