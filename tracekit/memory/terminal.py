"""Memory snapshots in the terminal."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from tracekit.memory import view_snapshots as view
from tracekit.memory.snapshots import SnapshotDiff, SnapshotReport
from tracekit.memory.view_out_of_memory import account_table, remedies_table
from tracekit.report.table import Table
from tracekit.report.terminal.table import Note, render_table, stack
from tracekit.report.text import wrap_text


def render(report: SnapshotReport, width: int) -> RenderableType:
    """Return the answer in one line, what stands out, and tables."""
    document = report.to_document()
    fullest = view.fullest(document)
    parts: list[RenderableType | None] = [
        Text(wrap_text(view.headline(fullest), width), style="bold")
    ]
    parts += [Text(wrap_text(fact, width, first="• ", rest="  ")) for fact in view.facts(document)]
    failure = view.failure(document)
    tables: list[tuple[str, Table | None]] = []
    if failure is not None:
        tables += [
            ("Where the memory was when it ran out", account_table(failure)),
            ("What would have made it fit", remedies_table(failure)),
        ]
    tables += [
        ("What fills each GPU at its peak (GB)", view.contents_table(document)),
        ("The source lines that hold most", view.lines_table(fullest)),
        ("Steps", view.steps_table(fullest)),
    ]
    for heading, table in tables:
        rendered = render_table(table, width)
        if rendered is not None:
            parts += [Text(""), Text(heading, style="bold"), rendered]
    return stack(*parts) or Text("")


def render_diff(changes: SnapshotDiff, width: int) -> RenderableType:
    """Return what changed from one snapshot to another: at the peak, and when each was written."""
    parts: list[RenderableType | None] = []
    for change in changes.changes:
        parts.append(Text(wrap_text(view.change_headline(change), width), style="bold"))
        for heading, moment in (
            ("At the peak", change.peak),
            ("When each was written", change.end),
        ):
            rendered = render_table(view.change_table(moment), width)
            if rendered is not None:
                parts += [Text(""), Text(heading, style="bold"), rendered]
            else:
                parts.append(Note(f"{heading.lower()}: nothing changed"))
    return stack(*parts) or Text("")
