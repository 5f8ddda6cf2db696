"""Blocks: what a report consists of, without its looks. Each medium draws each kind of block with one function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from tracekit._util.text import percent, short_ms
from tracekit.analysis.combine.spread import Spread
from tracekit.documents.findings import Finding
from tracekit.documents.page import MemoryCharts
from tracekit.pipeline.against_ideal import ScheduleComparison
from tracekit.report.notices import NoticeLine
from tracekit.report.table import Bar, BarPart, PlacedValue, Table


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


class StepBar(msgspec.Struct, frozen=True):
    """A time and its parts; what no part covers is too short to be named."""

    parts: Sequence[BarPart]
    span_ns: int

    @property
    def bar(self) -> Bar:
        """The parts alone."""
        return Bar(self.parts, self.span_ns)

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
        recorded_ns: float = self.span_ns
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
    style: Literal["plain", "heading", "aside", "fact"] = "plain"
    """``heading``: what the next blocks are; ``aside``: a remark on the blocks above; ``fact``: facts, no sentence."""
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


class FactList(msgspec.Struct, frozen=True):
    """Names with what they are."""

    rows: Sequence[tuple[str, str]]


class Notices(msgspec.Struct, frozen=True):
    """All warnings."""

    lines: Sequence[NoticeLine]


class Listing(msgspec.Struct, frozen=True):
    """Sentences of one kind, of which a medium shows as many as it has room for."""

    lines: Sequence[str]


class Folded(msgspec.Struct, frozen=True):
    """Blocks that are shown on a click; a terminal shows them below their title."""

    title: str
    blocks: Sequence[Block]
    is_open: bool = False


class PipelineChart(msgspec.Struct, frozen=True):
    """The cells of a pipeline as they ran, above its ideal."""

    comparison: ScheduleComparison


class MeshMap(msgspec.Struct, frozen=True):
    """One figure of every rank, at its place in the mesh, coloured by how far it is from the median."""

    spread: Spread


class StepMap(msgspec.Struct, frozen=True):
    """A time of each rank (rows) in each step (columns): only pages draw it."""

    steps: Sequence[int | None]
    rows: Sequence[tuple[int, Sequence[int | None]]]
    """A rank, and its times in ns by step; None where one is not known."""
    least_ns: int
    """Time that is drawn faint."""
    most_ns: int
    what: str
    """What a time is: ``busy`` or ``waited for``."""
    note: str
    """What it shows, and what is left out."""


class Box(msgspec.Struct, frozen=True):
    """A box from one time to another."""

    start: float
    end: float
    colour: str
    tip: str
    text: str = ""
    """Written into the box if it fits."""
    top: float = 0.0
    """Its edges within the row, as shares of the row's height."""
    bottom: float = 1.0


class Row(msgspec.Struct, frozen=True):
    """A row of boxes; time that no box covers is drawn as idle."""

    name: str
    boxes: list[Box]
    begins_group: bool = False
    """Whether it is farther from the row above."""


class RowChart(msgspec.Struct, frozen=True):
    """Rows of boxes on one time axis: only pages draw it."""

    title: str
    rows: Sequence[Row]
    start_ns: float
    end_ns: float
    has_times: bool = True
    """Whether they are times; else shares."""
    marks: Sequence[int] = ()
    """Times that get a line."""
    legend: Sequence[tuple[str, str]] = ()
    """Name and colour of each kind of box."""
    heading: PlacedValue | None = None
    """Its heading, and where the timeline has it."""


class PageDrawing(msgspec.Struct, frozen=True):
    """What a template of the page draws, with its script."""

    template: str
    data: MemoryCharts | None = None
    css: str = ""
    script: str = ""


TextBlock = Line | Table | FactList | Notices | Listing | Folded | PipelineChart | MeshMap
"""Blocks that every medium draws."""
PageBlock = StepMap | RowChart | PageDrawing
"""Blocks that only a page draws."""
Block = TextBlock | PageBlock
