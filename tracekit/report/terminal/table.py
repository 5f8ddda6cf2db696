"""Tables in the terminal: no box, numbers to the right, notes below."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from tracekit._util.text import terminal
from tracekit.report.palette import BAD, GOOD, LABEL_COLOURS, UNSURE
from tracekit.report.table import Column, Table, Value
from tracekit.report.text import shorten_distinct, wrap_text

MAX_RANKS_LISTED = 12
"""Up to this number of ranks, a table lists all of them …"""
WORST_RANKS_SHOWN = 5
"""… and of more ranks, this many."""
NAME_KINDS = ("name", "code")
"""Kinds of columns whose texts are shortened where they do not fit."""
MIN_NAME_LENGTH = 24
"""Characters that a name keeps, however narrow the terminal is …"""
MIN_NAME_LENGTH_WITH_ALL_COLUMNS = 36
"""… and that it keeps as long as there are expendable columns to leave out."""
VERDICT_STYLES = {
    "pass": GOOD,
    "improved": GOOD,
    "regressed": f"bold {BAD}",
    "inconclusive": UNSURE,
    "error": f"bold {BAD}",
}
GAP = 2
"""Spaces between two columns."""


class Note(msgspec.Struct, frozen=True):
    """A remark under a table: every line is indented, and numbers stay with their units."""

    text: str
    style: str = "dim"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(wrap_text(self.text, options.max_width, first="  ", rest="  "), style=self.style)


def render_table(
    table: Table | None,
    width: int,
    *,
    max_rows: int | None = None,
    notes: Sequence[str] = (),
    total_style: str = "",
    row_styles: Mapping[int, str] | None = None,
) -> RenderableType | None:
    """Return a table and its notes, no wider than *width* if that is possible.

    None if there is no table.

    Args:
        table: The table.
        width: Columns of the terminal.
        max_rows: Rows that are shown at most.
        notes: Further notes, after those of the table.
        total_style: Style of the cells in rows that sum up others.
        row_styles: Styles of whole rows, by their index.
    """
    if table is None:
        return None
    cells = []
    for i, row in enumerate(table.rows[:max_rows]):
        style = total_style if i in table.totals else ""
        cells.append(_cells_of_row(table.columns, row, style))
    shown = fitting_columns(table.columns, cells, width)
    columns = [table.columns[i] for i in shown]
    shown_cells = []
    for row_cells in cells:
        shown_cells.append([row_cells[i] for i in shown])
    fits = _total_width(_column_widths(columns, shown_cells)) <= width
    _shorten_names(columns, shown_cells, width)
    lines = RichTable(
        box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_edge=False, header_style="dim"
    )
    lines.show_header = any(column.heading for column in columns)
    for column in columns:
        # Words may wrap, but a label is one word: only its coloured mark is separated by a space.
        no_wrap = fits or not column.words or column.kind in NAME_KINDS or column.heading == "label"
        justify: Literal["left", "right"] = "left" if column.words else "right"
        lines.add_column(column.heading, justify=justify, no_wrap=no_wrap)
    for i, texts in enumerate(shown_cells):
        lines.add_row(*texts, style=(row_styles or {}).get(i))
    remarks = table.remarks([column.heading for column in columns])
    all_notes = [Note(text) for text in (*remarks, *notes)]
    return stack(lines if table.rows else None, *all_notes)


def _cells_of_row(columns: Sequence[Column], row: Sequence[Value], style: str) -> list[Text]:
    """Return the texts of one row."""
    return [_cell(column, value, style) for column, value in zip(columns, row, strict=True)]


def _shorten_names(columns: Sequence[Column], cells: list[list[Text]], width: int) -> None:
    """Shorten the names in *cells* to the room that the other columns leave, so that they still differ."""
    widths = _column_widths(columns, cells)
    for i, column in enumerate(columns):
        if column.kind not in NAME_KINDS:
            continue
        room = max(MIN_NAME_LENGTH, width - _total_width([*widths[:i], 0, *widths[i + 1 :]]))
        names = shorten_distinct((str(row[i]) for row in cells), most=room)
        for row, name in zip(cells, names, strict=True):
            row[i] = Text(name)


def stack(*parts: RenderableType | None) -> RenderableType | None:
    """Return the parts that are there one below the other; None if there is none."""
    present = [part for part in parts if part is not None]
    return Group(*present) if present else None


def fitting_columns(
    columns: Sequence[Column], cells: Sequence[Sequence[Text]], width: int
) -> list[int]:
    """Return the indices of the columns to show in a terminal of *width* columns.

    Columns that are empty in every row are left out. While the rest is too wide, so are the
    expendable ones, those with the highest number first and those with the same number together.
    """
    widths = _column_widths(columns, cells)
    for i, column in enumerate(columns):
        if column.kind in (*NAME_KINDS, "word"):  # a name is shortened, words wrap
            widths[i] = min(widths[i], MIN_NAME_LENGTH_WITH_ALL_COLUMNS)
    shown = []
    for i in range(len(columns)):
        if not cells or any(len(row[i]) for row in cells):
            shown.append(i)
    for level in sorted({column.expendable for column in columns} - {0}, reverse=True):
        if _total_width([widths[i] for i in shown]) > width:
            shown = [i for i in shown if columns[i].expendable != level]
    return shown


def _column_widths(columns: Sequence[Column], cells: Sequence[Sequence[Text]]) -> list[int]:
    widths = []
    for i, column in enumerate(columns):
        widths.append(max([len(column.heading), *(len(row[i]) for row in cells)]))
    return widths


def _total_width(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _cell(column: Column, value: Value, style: str) -> Text:
    if isinstance(value, Text):
        return value
    if column.kind == "label" and isinstance(value, str):
        return Text.assemble(("■ ", LABEL_COLOURS.get(value, "")), value)
    if column.kind == "verdict":
        return Text(value, style=VERDICT_STYLES[value])
    if column.kind == "change":
        return Text(value, style=BAD if value.startswith("+") else GOOD)
    return Text(terminal(column.bare(value)), style=style)


def stacked_bar(parts: Iterable[tuple[float, str, str]], length: int) -> Text:
    """Draw parts one after the other, each as long as its share of *length*.

    Ends are rounded, not lengths, so that the parts together are as long as their sum.

    Args:
        parts: Share, character and colour of each part.
        length: Characters of the whole.

    >>> stacked_bar([(0.55, "█", ""), (0.25, "▒", ""), (0.2, "░", "")], 10).plain
    '██████▒▒░░'
    """
    bar = Text(no_wrap=True)
    reached = 0.0
    for share, character, colour in parts:
        reached += share
        bar.append(character * (round(length * reached) - len(bar)), style=colour)
    return bar
