"""A table that every report shares, as a terminal shows it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit._util.text import terminal
from tracekit.report.terminal.table import fitted, label_name, note
from tracekit.report.view.grid import Column, Grid, Value


def render_grid(
    found: Grid | None, width: int, *, most: int | None = None, notes: Sequence[str] = (), total: str = ""
) -> RenderableType | None:
    """Return the table and its notes, no broader than *width* if it can be; its first *most* rows.

    *total* is the look of rows that sum up others.
    """
    if found is None:
        return None
    shown = found.rows[:most]
    rows = [
        [
            _cell(column, value, total if at in found.totals else "")
            for column, value in zip(found.columns, row, strict=True)
        ]
        for at, row in enumerate(shown)
    ]
    spare = sorted((column for column in found.columns if column.spare), key=lambda column: -column.spare)
    names = next((column.head for column in found.columns if column.kind == "name"), None)
    made = fitted(
        [column.head for column in found.columns],
        rows,
        width,
        left=[column.head for column in found.columns if column.words],
        spare=[[one.head for one in spare if one.spare == rung] for rung in dict.fromkeys(one.spare for one in spare)],
        names=names,
    )
    said = found.remarks([str(column.header) for column in made.columns])
    return Group(made, *(note(text) for text in (*said, *notes)))


def _cell(column: Column, value: Value, style: str) -> Text:
    if column.kind == "label" and isinstance(value, str):
        return label_name(value)
    return Text(terminal(column.bare(value)), style=style)
