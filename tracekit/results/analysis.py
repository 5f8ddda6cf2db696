"""The analysis of a run as people get it: with its findings, JSON, pictures, files and notebook display."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tracekit.analysis.result import Analysis
from tracekit.analysis.saved import read_saved
from tracekit.documents.analysis import AnalysisDocument, ChangedStep
from tracekit.documents.coding import HasDocument, to_plain
from tracekit.documents.findings import Finding
from tracekit.report.findings import findings_of
from tracekit.report.notebook import NOTEBOOK_WIDTH, analysis_html, findings_html, screen_html
from tracekit.report.sections.changed_steps import change_table
from tracekit.report.terminal.table import render_table
from tracekit.report.write import document_of
from tracekit.results.write import write
from tracekit.rooms import side_rooms

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Findings(tuple[Finding, ...]):
    """The findings of a run, which a notebook shows as a table.

    >>> Findings()._repr_html_()
    '<p><b>No findings</b></p>'
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        return findings_html(self)


class PredictedStep(ChangedStep, frozen=True):
    """The step with changes, which a notebook shows as a table.

    >>> step = PredictedStep("links x2", ("links x2",), 100_000_000, 90_000_000, saves_ns=10_000_000)
    >>> "links x2" in step._repr_html_()
    True
    """

    def _repr_html_(self) -> str:
        table = change_table(self)
        shown = None if table is None else render_table(table, NOTEBOOK_WIDTH)
        return "" if shown is None else screen_html(shown)


class AnalysisResult(Analysis, HasDocument):
    """The analysis of a run: where the step's time went on every rank. ``to_dict`` is its JSON.

    >>> from tracekit import analyze
    >>> analysis = analyze("sample_traces/reload", schedule="none")
    >>> analysis
    <Analysis: 4 ranks, 1 step, step time 105.362 ms>
    >>> analysis.ranks[0].whole.budget.span_ns
    104587652
    >>> analysis.to_dict()["source"]["ranks"]
    [0, 1, 2, 3]
    """

    rooms = side_rooms()

    @property
    def findings(self) -> Findings:
        """What costs time, why, what to do and what it would save, those with the largest saving first."""
        return Findings(findings_of(self))

    def to_document(self, *, show: Collection[str] = ()) -> AnalysisDocument:
        """Return the JSON document (``format: tracekit.analysis/2``).

        With ``show=["critical-path"]`` it has the critical path.
        """
        return document_of(self, show)

    def to_dict(self, *, show: Collection[str] = ()) -> dict[str, Any]:
        """Return the document as plain data."""
        return to_plain(self.to_document(show=show))

    def what_if(self, *changes: str) -> PredictedStep:
        """Return the predicted step with all *changes* at once, such as ``rank 2 like others`` or ``dp_comm x0.5``.

        >>> from tracekit import analyze
        >>> step = analyze("sample_traces/reload", schedule="none").what_if("broadcast x0.5")
        >>> step.measured_ns > step.predicted_ns
        True
        """
        return PredictedStep(**msgspec.structs.asdict(super().what_if(*changes)))

    @property
    def plot(self) -> Plots:
        """Its pictures: ``analysis.plot.schedule()`` and others, each a matplotlib ``Figure``."""
        return Plots(self)

    def save(
        self,
        path: str | PathLike[str],
        *,
        plot: str | None = None,
        show: Collection[str] = (),
    ) -> None:
        """Write it to *path*.

        The extension selects the format: .html .json .md .parquet .csv .png .svg .pdf.

        *plot* names the content of a picture; by default the schedule if there is one, else the
        budget. *show* are sections to add: ``critical-path`` to the JSON, and to a page the lanes
        of ``changes``.

        >>> import tempfile
        >>> from tracekit import analyze, read_analysis
        >>> file = tempfile.mkdtemp() + "/reload.json"
        >>> analyze("sample_traces/reload", schedule="none").save(file)
        >>> read_analysis(file).ranks[0].whole.budget.span_ns
        104587652
        """
        write(self, path, plot=plot, show=show)

    def _repr_html_(self) -> str:
        return analysis_html(self)


def read_analysis(path: str | PathLike[str]) -> AnalysisResult:
    """Return the analysis that ``save`` or ``analyze -o`` wrote as ``.json`` (or that file gzipped).

    It holds the figures, findings and small tables of the run, and none of the events behind them:
    timelines, the pipeline's cells and what-if need the traces or a store.

    >>> import tempfile
    >>> from tracekit import analyze
    >>> file = tempfile.mkdtemp() + "/run.json"
    >>> run = analyze("sample_traces/1f1b")
    >>> run.save(file)
    >>> saved = read_analysis(file)
    >>> saved.schedule.name, saved.to_dict() == run.to_dict()
    ('1f1b', True)
    """
    analysis = read_saved(path, AnalysisResult)
    assert isinstance(analysis, AnalysisResult)
    return analysis


class Plots:
    """The pictures of an analysis (``Analysis.plot``), one method each.

    A picture is drawn on *ax* if it is given.

    >>> from tracekit import analyze
    >>> figure = analyze("sample_traces/reload", schedule="none").plot.budget()
    >>> figure.axes[0].get_title(loc="left")
    'Where the time of each rank went'
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis

    def schedule(
        self, *, show: Literal["both", "measured", "ideal"] = "both", ax: Axes | None = None
    ) -> Figure:
        """Draw the pipeline as it ran above its ideal, or one of them."""
        return self._draw("schedule", show=show, ax=ax)

    def budget(self, *, ax: Axes | None = None) -> Figure:
        """Draw where the time of each rank went: compute, exposed communication and copies, idle."""
        return self._draw("budget", ax=ax)

    def overlap(self, *, ax: Axes | None = None) -> Figure:
        """Draw which compute hides how much of each communication and copy label."""
        return self._draw("overlap", ax=ax)

    def gap(self, *, ax: Axes | None = None) -> Figure:
        """Draw the way from the ideal makespan to the measured one, cause by cause."""
        return self._draw("gap", ax=ax)

    def lanes(
        self, *, rank: int | None = None, step: int | None = None, ax: Axes | None = None
    ) -> Figure:
        """Draw one rank's compute, communication and copies in one step.

        By default the first rank's.
        """
        return self._draw("lanes", rank=rank, step=step, ax=ax)

    def timeline(
        self,
        *,
        ranks: Iterable[int] | None = None,
        start_ms: float | None = None,
        end_ms: float | None = None,
        ax: Axes | None = None,
    ) -> Figure:
        """Draw several ranks' lanes between two times after the step's first event.

        By default from its middle.
        """
        return self._draw("timeline", ranks=ranks, start_ms=start_ms, end_ms=end_ms, ax=ax)

    def memory(self, *, ax: Axes | None = None) -> Figure:
        """Draw the ranks' memory over time above the pipeline's cells."""
        return self._draw("memory", ax=ax)

    def flame(self, *, rank: int | None = None, ax: Axes | None = None) -> Figure:
        """Draw what allocated the memory at the peak, by stack.

        By default that of the fullest rank.
        """
        return self._draw("flame", rank=rank, ax=ax)

    def curve(self, *, ax: Axes | None = None) -> Figure:
        """Draw the predicted time per micro-batch over their number.

        Needs ``analyze(..., what_if=True)``.
        """
        return self._draw("curve", ax=ax)

    def __repr__(self) -> str:
        names = [name for name in vars(type(self)) if not name.startswith("_")]
        return f"<Plots: {', '.join(names)}>"

    def _draw(self, name: str, **options: Any) -> Figure:
        from tracekit.results.plots import draw

        return draw(self._analysis, name, **options)
