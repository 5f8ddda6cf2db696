"""Lateness over a whole run as people get it: it prints itself."""

from __future__ import annotations

import dataclasses

from tracekit.documents.late import Hang, LateRanks, PipelineOrder
from tracekit.errors import Notice
from tracekit.late.result import WholeRun
from tracekit.late.terminal import render, render_text
from tracekit.late.view import headline
from tracekit.report.notebook import NOTEBOOK_WIDTH, screen_html


class LateResult(WholeRun):
    """Who joins collectives late over a whole run, and hangs; ``print`` shows it.

    >>> from tracekit import late
    >>> "Rank 1" in str(late("sample_traces/always-on/late"))
    True
    """

    @classmethod
    def of(cls, run: WholeRun) -> LateResult:
        """Return the result of a whole run as people get it."""
        fields = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
        return cls(**fields)

    @property
    def late(self) -> tuple[LateRanks, ...]:
        """Ranks that join late, the most expensive first."""
        return self.document.late

    @property
    def hang(self) -> Hang | None:
        """The operation that did not complete, if there is one."""
        return self.document.hang

    @property
    def pipelines(self) -> tuple[PipelineOrder, ...]:
        """Pipelines recognised from messages."""
        return self.document.pipelines

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What was left out or is not certain."""
        return self.document.warnings

    def __str__(self) -> str:
        return render_text(self)

    def __repr__(self) -> str:
        return f"<Late: {headline(self.document)}>"

    def _repr_html_(self) -> str:
        return screen_html(render(self, NOTEBOOK_WIDTH))
