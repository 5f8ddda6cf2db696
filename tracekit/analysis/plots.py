"""The pictures of an analysis, one method each; each returns a matplotlib ``Figure``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tracekit.analysis.result import Analysis


class Plots:
    """The pictures of one analysis: ``Analysis.plot``. A picture draws on *ax* where one is given.

    >>> from tracekit import analyze
    >>> figure = analyze("sample_traces/reload", schedule="none").plot.budget()
    >>> figure.axes[0].get_title(loc="left")
    'Where the time of each rank went'
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis

    def schedule(self, *, show: Literal["both", "measured", "ideal"] = "both", ax: Axes | None = None) -> Figure:
        """The pipeline as it ran above its ideal, or one of them."""
        return self._draw("schedule", show=show, ax=ax)

    def budget(self, *, ax: Axes | None = None) -> Figure:
        """Where the time of each rank went: compute, exposed communication and copies, idle."""
        return self._draw("budget", ax=ax)

    def overlap(self, *, ax: Axes | None = None) -> Figure:
        """Which compute hides how much of each communication and copy label."""
        return self._draw("overlap", ax=ax)

    def gap(self, *, ax: Axes | None = None) -> Figure:
        """From the ideal makespan to the measured one, cause by cause."""
        return self._draw("gap", ax=ax)

    def lanes(self, *, rank: int | None = None, step: int | None = None, ax: Axes | None = None) -> Figure:
        """One rank's compute, communication and copies in one step; by default the first rank's."""
        return self._draw("lanes", rank=rank, step=step, ax=ax)

    def timeline(
        self,
        *,
        ranks: Iterable[int] | None = None,
        start_ms: float | None = None,
        end_ms: float | None = None,
        ax: Axes | None = None,
    ) -> Figure:
        """Several ranks' lanes between two times after the step's first event; by default from its middle."""
        return self._draw("timeline", ranks=ranks, start_ms=start_ms, end_ms=end_ms, ax=ax)

    def curve(self, *, ax: Axes | None = None) -> Figure:
        """Time per micro-batch over their number, predicted; needs ``analyze(..., what_if=True)``."""
        return self._draw("curve", ax=ax)

    def __repr__(self) -> str:
        names = [name for name in vars(type(self)) if not name.startswith("_")]
        return f"<Plots: {', '.join(names)}>"

    def _draw(self, name: str, **options: Any) -> Figure:
        from tracekit.report.plot import draw

        return draw(self._analysis, name, **options)
