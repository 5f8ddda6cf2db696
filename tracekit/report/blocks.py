"""Blocks: what a report consists of, without its looks. Each medium draws each kind of block in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from tracekit._util.text import percent, short_ms
from tracekit.documents.findings import Finding
from tracekit.documents.page import MemoryCharts
from tracekit.report.notices import NoticeLine
from tracekit.report.table import Table

PartKind = Literal[
    "compute", "exposed", "exposed_copy", "phase", "weight_update", "idle", "unrecorded"
]


class Headline(msgspec.Struct, frozen=True):
    """What ran on what, and how long a step takes; a fact that is not known is empty."""

    name: str
    ranks: str
    steps: str
    device: str
    time: str

    @property
    def text(self) -> str:
        """All facts."""
        facts = (self.name, self.ranks, self.steps, self.device, self.time)
        return " · ".join(fact for fact in facts if fact)


class BarPart(msgspec.Struct, frozen=True):
    """One part of a bar."""

    name: str
    kind: PartKind
    ns: int
    colour: str


class StepBar(msgspec.Struct, frozen=True):
    """A time and its parts; what no part covers is too short to be named."""

    parts: Sequence[BarPart]
    span_ns: int

    @property
    def words(self) -> tuple[str, ...]:
        """The parts with their shares; labels that are exposed share that word.

        What is not recorded is left out of the shares.

        >>> compute = BarPart("compute", "compute", 9_000_000, "")
        >>> StepBar([compute, BarPart("idle", "idle", 1_000_000, "")], 10_000_000).words
        ('compute 90 %', 'idle 10 %')
        >>> StepBar([compute, BarPart("not recorded", "unrecorded", 40_000_000, "")], 50_000_000).words
        ('compute 90 %', 'not recorded +40.0 ms')
        >>> transfers = [BarPart(f"{label} exposed", "exposed", 1_000_000, "") for label in ("dp_comm", "pp_comm")]
        >>> StepBar(transfers, 10_000_000).words
        ('exposed: dp_comm 10 %, pp_comm 10 %',)
        """
        recorded_ns = self.span_ns
        for part in self.parts:
            if part.kind == "unrecorded":
                recorded_ns -= part.ns
        exposed = [part for part in self.parts if part.kind in ("exposed", "exposed_copy")]
        texts: list[str] = []
        unrecorded = []
        for part in self.parts:
            if part.kind == "unrecorded":
                unrecorded.append(f"{part.name} +{short_ms(part.ns)}")
            elif part not in exposed or len(exposed) == 1:
                texts.append(f"{part.name} {percent(part.ns, recorded_ns, digits=0)}")
            elif part is exposed[0]:
                shares = []
                for other in exposed:
                    label = other.name.removesuffix(" exposed")
                    shares.append(f"{label} {percent(other.ns, recorded_ns, digits=0)}")
                texts.append(f"exposed: {', '.join(shares)}")
        return (*texts, *unrecorded)


class Sentence(msgspec.Struct, frozen=True):
    """A sentence without its full stop."""

    text: str
    style: Literal["plain", "heading", "aside"] = "plain"
    """``heading``: what the next blocks are; ``aside``: a remark on the blocks above."""
    command: str = ""
    """A whole command to copy; empty if there is none."""


class FindingItem(msgspec.Struct, frozen=True):
    """One finding: its number, what it would save, what costs the time, and what to do."""

    number: int
    finding: Finding
    remarks: str
    """What is to be known about its saving; empty if nothing is."""
    same_as: int | None = None
    """Number of an earlier finding with the same advice, which is then not repeated."""

    @property
    def advice(self) -> str:
        """What to do."""
        return self.finding.advice if self.same_as is None else f"as for {self.same_as}"


class Warnings(msgspec.Struct, frozen=True):
    """Warnings of which the first is shown, and how many there are."""

    warnings: Sequence[NoticeLine]


Line = Headline | StepBar | Sentence | FindingItem | Warnings
"""Blocks that are lines of text."""


class PageDrawing(msgspec.Struct, frozen=True):
    """What the page alone draws, from data of its own; text leaves it out."""

    template: str
    data: MemoryCharts
    css: str
    script: str


TextBlock = Line | Table
"""Blocks that every medium draws."""
Block = TextBlock | PageDrawing
