"""Memory in the reports of an analysis: one section of the page, and one for each of its tables in text."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.memory.page_charts import charts_of_analysis
from tracekit.memory.view import contents_table, lines_table, memory_line, memory_table
from tracekit.memory.view_out_of_memory import account_table_of, remedies_table_of
from tracekit.report.blocks import Block, PageDrawing
from tracekit.report.sections import TEXT_MEDIA, Section
from tracekit.report.view import View


def _memory_on_page(view: View) -> Sequence[Block | None]:
    """Return the tables of memory, those of a failed request first, and the chart of all allocations."""
    analysis = view.analysis
    charts = charts_of_analysis(analysis)
    drawing = None
    if charts is not None:
        drawing = PageDrawing(
            "memory_view.html.j2", data=charts, css="memory.css", script="memory.js"
        )
    return (
        account_table_of(analysis),
        remedies_table_of(analysis),
        drawing,
        memory_table(analysis),
        contents_table(analysis),
        lines_table(analysis),
    )


MEMORY_SECTIONS = (
    Section(
        id="memory", tab="Memory", title="Memory", name="Memory", media=("page",), build=_memory_on_page,
        on_first_screen=lambda view: [memory_line(view.analysis)],
    ),
    Section(
        id="memory-ranks", title="Memory: the most each rank held (GB)",
        part_of="memory", media=TEXT_MEDIA, build=lambda view: [memory_table(view.analysis)],
    ),
    Section(
        id="memory-contents", title="Memory: what fills each rank at its peak (GB)",
        part_of="memory", media=TEXT_MEDIA, build=lambda view: [contents_table(view.analysis)],
    ),
    Section(
        id="memory-lines", title="Memory: the source lines that hold most",
        part_of="memory", media=TEXT_MEDIA, build=lambda view: [lines_table(view.analysis)],
    ),
    Section(
        id="memory-account", title="Memory: where it was when it ran out",
        part_of="memory", media=TEXT_MEDIA, build=lambda view: [account_table_of(view.analysis)],
    ),
    Section(
        id="memory-remedies", title="Memory: what would have made it fit",
        part_of="memory", media=TEXT_MEDIA, build=lambda view: [remedies_table_of(view.analysis)],
    ),
)  # fmt: skip
