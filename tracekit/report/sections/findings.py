"""All findings, with which a page begins and the long report of the terminal ends."""

from tracekit.report.findings import finding_items
from tracekit.report.section import Section

FINDINGS_SECTION = Section(
    id="findings",
    title="What to do next",
    media=("terminal",),
    build=finding_items,
)
