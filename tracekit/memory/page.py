"""HTML pages of memory snapshots and of their differences: each is one file that opens offline."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.documents.memory import MemoryDocument
from tracekit.documents.page import MemoryCharts, MemoryPageData
from tracekit.errors import Notice
from tracekit.memory import view_snapshots as view
from tracekit.memory.page_charts import (
    MAX_GPUS_ON_PAGE,
    GpuHistory,
    charts_of_snapshots,
    memory_charts,
)
from tracekit.memory.snapshots import SnapshotDiff, SnapshotReport
from tracekit.memory.view_out_of_memory import account_table, remedies_table
from tracekit.report.html.templates import render_page
from tracekit.report.table import Table

MEMORY_SCRIPTS = ("columns.js", "chart.js", "tables.js", "memory.js")
"""Scripts of every page with memory charts, beside its own."""


def render_memory(report: SnapshotReport) -> str:
    """Return the page of memory snapshots as text.

    >>> from tracekit import memory
    >>> page = render_memory(memory("sample_traces/memory-snapshot", ranks=[0]))
    >>> page.startswith("<!doctype html>"), "http://" in page.split("<main")[1]
    (True, False)
    """
    document = report.to_document()
    fullest = view.fullest(document)
    failure = view.failure(document)
    first_tables: list[tuple[str, Table | None]] = []
    if failure is not None:
        first_tables += [
            ("Where the memory was when it ran out (GB)", account_table(failure)),
            ("What would have made it fit", remedies_table(failure)),
        ]
    tables = [
        ("What fills each GPU at its peak (GB)", view.contents_table(document)),
        ("The source lines that hold most at the peak", view.lines_table(fullest)),
        ("Steps", view.steps_table(fullest)),
    ]
    return _page(
        title="GPU memory",
        paths=_paths(document),
        headlines=[view.headline(fullest)],
        facts=view.facts(document),
        first_tables=first_tables,
        tables=tables,
        charts=charts_of_snapshots(report.snapshots, view.names(document)),
        notices=report.notices,
    )


def render_memory_diff(changes: SnapshotDiff) -> str:
    """Return the page of what changed from one snapshot to another."""
    headlines = []
    tables: list[tuple[str, Table | None]] = []
    several = len(changes.changes) > 1
    for change in changes.changes:
        headlines.append(view.change_headline(change))
        of_rank = f", rank {change.rank}" if several and change.rank is not None else ""
        moments = ((f"At the peak{of_rank}", change.peak), (f"When written{of_rank}", change.end))
        for heading, moment in moments:
            tables.append((f"{heading}: by purpose", view.category_change_table(moment)))
            tables.append((f"{heading}: by line", view.change_table(moment)))
    pairs = changes.pairs[: MAX_GPUS_ON_PAGE // 2]
    before = []
    after = []
    for first, second in pairs:
        of_rank = f" rank {second.rank}" if several and second.rank is not None else ""
        before.append(GpuHistory(f"before{of_rank}", first.contents))
        after.append(GpuHistory(f"after{of_rank}", second.contents))
    paths = [f"{change.before_path} → {change.after_path}" for change in changes.changes]
    return _page(
        title="GPU memory: what changed",
        paths=paths,
        headlines=headlines,
        facts=[],
        first_tables=[],
        tables=tables,
        charts=memory_charts([*before, *after], compares=True),
        notices=changes.notices,
    )


def _paths(document: MemoryDocument) -> list[str]:
    """Return the files, each once."""
    return list(dict.fromkeys(snapshot.path for snapshot in document.snapshots))


def _page(
    *,
    title: str,
    paths: Sequence[str],
    headlines: Sequence[str],
    facts: Sequence[str],
    first_tables: Sequence[tuple[str, Table | None]],
    tables: Sequence[tuple[str, Table | None]],
    charts: MemoryCharts | None,
    notices: Sequence[Notice],
) -> str:
    assert charts is not None, "there is a snapshot"
    return render_page(
        "memory.html.j2",
        css=["page.css", "memory.css"],
        scripts=[*MEMORY_SCRIPTS, "memory_page.js"],
        data=MemoryPageData(charts),
        title=title,
        paths=paths,
        headlines=headlines,
        facts=facts,
        first_tables=first_tables,
        tables=tables,
        has_charts=True,
        chart_heading="What changed, stack by stack" if charts.compares else "Memory over time",
        notices=notices,
    )
