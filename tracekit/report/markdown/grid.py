"""A table that every report shares, as Markdown."""

from __future__ import annotations

from tracekit._util.text import capitalize, markdown
from tracekit.report.markdown.table import long_table
from tracekit.report.view.grid import Grid


def grid_section(title: str, found: Grid | None) -> str:
    """Return a section with the table and its notes; nothing where there is no table."""
    if found is None:
        return ""
    heads = [column.name for column in found.columns]
    rows = [[column.shown(value) for column, value in zip(found.columns, row, strict=True)] for row in found.rows]
    right = [at for at, column in enumerate(found.columns) if not column.words]
    said = [f"{capitalize(text)}." for text in found.remarks()]
    return "\n\n".join([f"### {markdown(title)}", long_table(heads, rows, right=right), *map(markdown, said)])
