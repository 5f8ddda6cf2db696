"""The timeline of all ranks, which only pages have."""

from tracekit.report.blocks import PageDrawing
from tracekit.report.section import Section

TIMELINE_SECTION = Section(
    id="timeline",
    tab="Timeline",
    title="Timeline",
    name="Timeline",
    about="every event of every rank",
    media=("page",),
    build=lambda _analysis: [PageDrawing("timeline.html.j2")],
)
