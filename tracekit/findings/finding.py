"""The type of a finding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
import polars as pl

from tracekit.documents.analysis import FindingEntry, FindingPlace

Certainty = Literal["measured", "bounded", "possible"]
"""How sure a saving is: measured or replayed; a bound; possible under an assumption that the text
names."""
EvidenceValue = str | int | float | bool | None


class Place(msgspec.Struct, frozen=True):
    """One place in the trace that shows a finding."""

    rank: int
    step: int | None
    start_ns: int
    """On the rank's own clock."""
    end_ns: int
    name: str | None
    """Event or call of the host."""
    source: str | None = None
    """Function and line, where stacks were recorded."""


def places_of(rows: pl.DataFrame) -> tuple[Place, ...]:
    """Return the places in a table with rank, step, start_ns, end_ns, name, and source if it is known.

    >>> rows = pl.DataFrame({"rank": [3], "step": [1], "start_ns": [5], "end_ns": [9], "what": ["all_reduce"]})
    >>> places_of(rows)
    (Place(rank=3, step=1, start_ns=5, end_ns=9, name='all_reduce', source=None),)
    """
    return tuple(Place(*row) for row in rows.iter_rows())


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cost, its evidence, and what removing it would save.

    >>> finding = Finding(code="data_loading", case="no_workers", cost_ns=48_000_000, share=0.72, evidence={"ms": 48})
    >>> finding.certain, finding.saves_ns
    ('measured', None)
    """

    code: str
    case: str = ""
    """Variant of the code that its texts are chosen by; empty if it has one."""
    cost_ns: int
    """Time per step."""
    cost_bytes: int | None = None
    """Memory that it costs; None if it is about time."""
    share: float
    """The time as a share of the step time."""
    ranks: tuple[int, ...] = ()
    """Ranks that it is about; empty: all alike."""
    steps: tuple[int, ...] = ()
    """Steps that it is about; empty: all alike."""
    where: tuple[Place, ...] = ()
    evidence: Mapping[str, EvidenceValue] = {}
    """Figures that it rests on, by name."""
    change: str | None = None
    """The what-if change that does what is advised; None if no change can be replayed."""
    saves_ns: int | None = None
    """Predicted saving per step; None if it cannot be predicted."""
    saves_range_ns: tuple[int, int] | None = None
    certain: Certainty = "measured"

    def to_entry(self) -> FindingEntry:
        """Return the finding as documents show it."""
        return FindingEntry(
            code=self.code,
            case=self.case,
            cost_ns=self.cost_ns,
            cost_bytes=self.cost_bytes,
            share=self.share,
            ranks=list(self.ranks),
            steps=list(self.steps),
            where=[FindingPlace(*msgspec.structs.astuple(example)) for example in self.where],
            evidence=self.evidence,
            text=self.text,
            advice=self.advice,
            change=self.change,
            saves_ns=self.saves_ns,
            saves_range_ns=self.saves_range_ns,
            certain=self.certain,
        )

    @property
    def text(self) -> str:
        """What costs time and why, in one sentence."""
        from tracekit.report.findings import finding_text

        return finding_text(self)

    @property
    def advice(self) -> str:
        """What to do about it, in one sentence."""
        from tracekit.report.findings import finding_advice

        return finding_advice(self)
