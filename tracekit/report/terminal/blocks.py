"""Blocks in the terminal: one function per kind."""

from collections.abc import Iterable
from functools import singledispatch

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit.report.blocks import (
    FactList,
    FindingItem,
    Folded,
    Headline,
    Line,
    Listing,
    MeshMap,
    Notices,
    PipelineChart,
    Sentence,
    StepBar,
    TextBlock,
    Warnings,
)
from tracekit.report.palette import UNSURE
from tracekit.report.section import text_blocks
from tracekit.report.table import Column, Table
from tracekit.report.terminal.first_screen import block_lines
from tracekit.report.terminal.mesh import draw_mesh
from tracekit.report.terminal.schedule import (
    MAX_RANKS_IN_CHART,
    MAX_RANKS_IN_SHORT_CHART,
    gantt,
)
from tracekit.report.terminal.table import Note, render_table, stack
from tracekit.report.text import capitalize, wrap_text

MAX_LINES_LISTED = 3
"""Sentences of a listing that are shown."""


def draw_blocks(
    blocks: Iterable[TextBlock], width: int, *, short: bool = False
) -> RenderableType | None:
    """Return blocks one below the other; None if there are none."""
    return stack(*(draw_block(block, width, short=short) for block in blocks))


@singledispatch
def draw_block(block: TextBlock, width: int, *, short: bool = False) -> RenderableType | None:
    """Return a block of a section; *short* if the report leaves out what is not asked for."""
    raise NotImplementedError(f"a terminal draws no {type(block).__name__}")


@draw_block.register(Headline | StepBar | FindingItem | Warnings)
def _(block: Line, width: int, *, short: bool = False) -> RenderableType:
    return Group(*block_lines(block, width))


@draw_block.register
def _(block: Sentence, width: int, *, short: bool = False) -> RenderableType:
    return (
        Note(block.text, style="") if block.style == "fact" else Group(*block_lines(block, width))
    )


@draw_block.register
def _(block: Table, width: int, *, short: bool = False) -> RenderableType | None:
    return render_table(block, width)


@draw_block.register
def _(block: FactList, width: int, *, short: bool = False) -> RenderableType | None:
    return render_table(Table((Column(""), Column("")), tuple(block.rows)), width)


@draw_block.register
def _(block: Notices, width: int, *, short: bool = False) -> RenderableType:
    messages = []
    for notice in block.lines:
        messages.append(wrap_text(notice.message, max(40, width), first="  ! ", rest="    "))
    return Group(*(Text(message, style=UNSURE) for message in messages))


@draw_block.register
def _(block: Listing, width: int, *, short: bool = False) -> RenderableType | None:
    lines = list(block.lines[:MAX_LINES_LISTED])
    more = len(block.lines) - len(lines)
    if more:
        lines.append(f"… and {more} more")
    return stack(*map(Note, lines))


@draw_block.register
def _(block: Folded, width: int, *, short: bool = False) -> RenderableType | None:
    inside = draw_blocks(text_blocks(block.blocks), width, short=short)
    return None if inside is None else stack(Note(capitalize(block.title)), inside)


@draw_block.register
def _(block: PipelineChart, width: int, *, short: bool = False) -> RenderableType:
    max_ranks = MAX_RANKS_IN_SHORT_CHART if short else MAX_RANKS_IN_CHART
    return gantt(block.comparison.head, width, max_ranks=max_ranks)


@draw_block.register
def _(block: MeshMap, width: int, *, short: bool = False) -> RenderableType:
    return draw_mesh(block, width)
