"""The result: who joins collectives late over a whole run, and hangs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from tracekit._version import __version__
from tracekit.align.recorded_clocks import RecordedClock
from tracekit.align.recorded_steps import RecordedSteps
from tracekit.documents import coding
from tracekit.documents.late import (
    FORMAT,
    GroupWaiting,
    Hang,
    LateClockEntry,
    LateDocument,
    LateRanks,
    PipelineOrder,
    RankDistribution,
    RecordedStepsEntry,
    RecordingEntry,
    SlowLink,
    TransferEntry,
)
from tracekit.errors import Notice
from tracekit.schema import Recording
from tracekit.whole_run.arrivals import Arrivals, Basis
from tracekit.whole_run.late_ranks import StepLateness, lost_time


@dataclass(frozen=True, eq=False)
class WholeRun:
    """Who joins collectives late over a whole run, and hangs, as data."""

    sources: tuple[Recording, ...]
    records: tuple[RecordingEntry, ...]
    collectives: pl.DataFrame
    """Operations as recorded (``COLLECTIVES``)."""
    members: pl.DataFrame
    """Collectives matched across ranks and recorders, with ``step`` and ``place``."""
    arrivals: Arrivals
    lateness: StepLateness
    steps: RecordedSteps
    clocks: Mapping[int, RecordedClock]
    late: tuple[LateRanks, ...]
    hang: Hang | None
    distributions: tuple[RankDistribution, ...]
    groups: tuple[GroupWaiting, ...]
    transfers: tuple[TransferEntry, ...]
    transfer_times: pl.DataFrame
    """Every transfer (``transfers.TRANSFERS``)."""
    slow_links: tuple[SlowLink, ...]
    pipelines: tuple[PipelineOrder, ...]
    world_size: int | None = None
    notices: tuple[Notice, ...] = field(default=())

    @property
    def basis(self) -> Basis | None:
        """What lateness rests on; None if nothing can be compared."""
        return self.arrivals.basis

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks with a record."""
        return tuple(sorted({source.rank for source in self.sources if source.rank is not None}))

    @property
    def operations(self) -> int:
        """Number of collectives matched across ranks."""
        return int(self.members["op_id"].n_unique())

    @property
    def compared(self) -> int:
        """Number of those of which it is known who joined last."""
        return int(self.arrivals.members["op_id"].n_unique())

    def to_document(self) -> LateDocument:
        """Return the result as a document."""
        numbers = self.lateness.steps.tolist() if self.steps.count else []
        lost_ns = lost_time(self.late, self.lateness)
        duration_ns = self.lateness.duration_ns
        lost_share = None
        if lost_ns is not None and duration_ns:
            lost_share = round(lost_ns / duration_ns, 6)
        clocks = [
            LateClockEntry(clock.rank, clock.offset_ns, clock.uncertainty_ns)
            for _, clock in sorted(self.clocks.items())
        ]
        return LateDocument(
            tracekit=__version__,
            format=FORMAT,
            paths=tuple(source.path for source in self.sources),
            records=self.records,
            ranks=self.ranks,
            world_size=self.world_size,
            operations=self.operations,
            compared=self.compared,
            basis=self.basis,
            steps=RecordedStepsEntry(
                count=self.steps.count,
                first=numbers[0] if numbers else None,
                last=numbers[-1] if numbers else None,
                numbered_from=self.steps.numbered_from,
                time_ns=None if self.lateness.step_ns is None else round(self.lateness.step_ns),
                operations=self.steps.ops_per_step,
            ),
            clocks=tuple(clocks),
            hang=self.hang,
            late=self.late,
            distributions=self.distributions,
            groups=self.groups,
            transfers=self.transfers,
            slow_links=self.slow_links,
            pipelines=self.pipelines,
            warnings=self.notices,
            lost_ns=lost_ns,
            lost_share=lost_share,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, with the keys of ``tracekit late --json``."""
        return coding.to_plain(self.to_document())

    def to_json(self) -> str:
        """Return the result as JSON."""
        return coding.encode(self.to_document())
