"""The result: who joins collectives late over a whole run, and hangs."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tracekit.align.recorded_steps import RecordedSteps
from tracekit.documents.coding import HasDocument
from tracekit.documents.late import LateDocument
from tracekit.late.arrivals import Arrivals
from tracekit.late.late_ranks import StepLateness
from tracekit.schema import Recording


@dataclass(frozen=True, eq=False)
class WholeRun(HasDocument):
    """Who joins collectives late over a whole run, and hangs: the document, and the tables that it was made from."""

    document: LateDocument
    """The answers."""
    sources: tuple[Recording, ...]
    collectives: pl.DataFrame
    """Operations as recorded (``COLLECTIVES``)."""
    members: pl.DataFrame
    """Collectives matched across ranks and recorders, with ``step`` and ``place``."""
    arrivals: Arrivals
    lateness: StepLateness
    steps: RecordedSteps
    transfer_times: pl.DataFrame
    """Every transfer (``transfers.TRANSFERS``)."""

    def to_document(self) -> LateDocument:
        """Return the JSON document (``format: tracekit.late/1``)."""
        return self.document
