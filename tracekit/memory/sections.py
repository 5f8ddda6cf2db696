"""Memory in the reports of an analysis: its chart, and a section for each of its tables."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.analysis import Analysis
from tracekit.memory.page_charts import charts_of_analysis
from tracekit.memory.view import contents_table, lines_table, memory_line, memory_table
from tracekit.memory.view_out_of_memory import account_table_of, remedies_table_of
from tracekit.report.blocks import Block, PageDrawing, Sentence
from tracekit.report.section import Section


def _chart(analysis: Analysis) -> Sequence[Block | None]:
    """Return the chart of all allocations, and where the timeline has those of each rank."""
    charts = charts_of_analysis(analysis)
    if charts is not None:
        return [
            PageDrawing("memory_view.html.j2", data=charts, css="memory.css", script="memory.js")
        ]
    if analysis.memory is None:
        return []
    return [Sentence("the line of each rank stands under its lanes on the timeline", "aside")]


MEMORY_SECTIONS = (
    Section(
        id="memory",
        tab="Memory",
        title="Memory",
        name="Memory",
        media=("page",),
        build=_chart,
        on_first_screen=lambda analysis: [memory_line(analysis)],
    ),
    Section(
        id="memory-account",
        title="Memory: where it was when it ran out",
        part_of="memory",
        build=lambda analysis: [account_table_of(analysis)],
    ),
    Section(
        id="memory-remedies",
        title="Memory: what would have made it fit",
        part_of="memory",
        build=lambda analysis: [remedies_table_of(analysis)],
    ),
    Section(
        id="memory-ranks",
        title="Memory: the most each rank held (GB)",
        part_of="memory",
        build=lambda analysis: [memory_table(analysis)],
    ),
    Section(
        id="memory-contents",
        title="Memory: what fills each rank at its peak (GB)",
        part_of="memory",
        build=lambda analysis: [contents_table(analysis)],
    ),
    Section(
        id="memory-lines",
        title="Memory: the source lines that hold most",
        part_of="memory",
        build=lambda analysis: [lines_table(analysis)],
    ),
)
