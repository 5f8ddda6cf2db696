"""Tables in the terminal: no box, numbers to the right, notes below."""

from collections.abc import Sequence
from typing import Literal

import msgspec
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from tracekit._util.text import terminal
from tracekit.report.palette import BAD, GOOD, LABEL_COLOURS, UNSURE
from tracekit.report.table import Bar, Column, Table, Value, cause_words
from tracekit.report.terminal.bars import draw_bar, legend_of
from tracekit.report.text import shorten_distinct, wrap_text

MAX_ROWS_LISTED = 12
"""Up to this number of rows, a table that names those that matter most lists all of them …"""
MIN_BAR_LENGTH = 10
MAX_BAR_LENGTH = 72
HISTOGRAM_BARS = " ▁▂▃▄▅▆▇█"
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
    table: Table | None, width: int, *, max_rows: int | None = None, notes: Sequence[str] = ()
) -> RenderableType | None:
    """Return a table and its notes, no wider than *width* if that is possible.

    None if there is no table.

    Args:
        table: The table.
        width: Columns of the terminal.
        max_rows: Rows that are shown at most.
        notes: Further notes, after those of the table.
    """
    if table is None:
        return None
    numbers = list(range(len(table.rows)))[:max_rows]
    is_shortened = bool(table.short) and len(numbers) > MAX_ROWS_LISTED
    if is_shortened:
        numbers = sorted(table.short)
    rows = [table.rows[i] for i in numbers]
    cells = []
    for i, row in zip(numbers, rows, strict=True):
        style = "bold" if i in table.totals else ""
        cells.append(_cells_of_row(table.columns, row, style))
    shown = fitting_columns(table.columns, cells, width)
    columns = [table.columns[i] for i in shown]
    shown_cells = []
    for row_cells in cells:
        shown_cells.append([row_cells[i] for i in shown])
    _draw_bars(columns, shown_cells, [[row[i] for i in shown] for row in rows], width)
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
    for i, texts in zip(numbers, shown_cells, strict=True):
        lines.add_row(*texts, style=f"bold {BAD}" if i in table.loud else None)
    remarks = table.remarks([column.heading for column in columns])
    short_note = [table.short_note] if is_shortened and table.short_note else []
    all_notes = [Note(text) for text in (*short_note, *remarks, *notes)]
    legend = legend_of(value for row in rows for value in row if isinstance(value, Bar))
    return stack(lines if table.rows else None, legend, *all_notes)


def _draw_bars(
    columns: Sequence[Column],
    cells: list[list[Text]],
    rows: Sequence[Sequence[Value]],
    width: int,
) -> None:
    """Draw the bars into their cells, as long as the other columns leave room."""
    widths = _column_widths(columns, cells)
    for i, column in enumerate(columns):
        if column.kind != "bar":
            continue
        room = width - _total_width([*widths[:i], 0, *widths[i + 1 :]])
        length = max(MIN_BAR_LENGTH, min(room, MAX_BAR_LENGTH))
        for row, row_cells in zip(rows, cells, strict=True):
            row_cells[i] = draw_bar(row[i], length) if row[i] is not None else Text()


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


def histogram(counts: Sequence[int]) -> str:
    """Return the bins as one line of bars; a bin with anything in it is never blank.

    >>> histogram((0, 1, 99, 100))
    ' ▁██'
    """
    fullest = max(counts)
    highest_bar = len(HISTOGRAM_BARS) - 1
    bars = []
    for count in counts:
        height = max(1, round(count / fullest * highest_bar)) if count else 0
        bars.append(HISTOGRAM_BARS[height])
    return "".join(bars)


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
        if column.kind in (*NAME_KINDS, "word", "causes"):  # a name is shortened, words wrap
            widths[i] = min(widths[i], MIN_NAME_LENGTH_WITH_ALL_COLUMNS)
    shown = []
    for i, column in enumerate(columns):
        is_drawn = column.kind == "bar" or not cells or any(len(row[i]) for row in cells)
        if is_drawn and column.kind != "command":
            shown.append(i)
    for level in sorted({column.expendable for column in columns} - {0}, reverse=True):
        if _total_width([widths[i] for i in shown]) > width:
            shown = [i for i in shown if columns[i].expendable != level]
    return shown


def _column_widths(columns: Sequence[Column], cells: Sequence[Sequence[Text]]) -> list[int]:
    widths = []
    for i, column in enumerate(columns):
        least = MIN_BAR_LENGTH if column.kind == "bar" else 0
        widths.append(max([len(column.heading), least, *(_longest_line(row[i]) for row in cells)]))
    return widths


def _longest_line(text: Text) -> int:
    return max(map(len, text.plain.split("\n")))


def _total_width(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _cell(column: Column, value: Value, style: str) -> Text:
    match column.kind:
        case "bar":  # drawn when the room for it is known
            return Text()
        case "causes":
            # A line for each cause, so that no line break separates a number from its unit.
            return Text("\n".join(cause_words(share, words) for share, words, _ in value))
        case "histogram":
            return Text(histogram(value))
        case "label" if isinstance(value, str):
            cell = Text.assemble(("■ ", LABEL_COLOURS.get(value, "")), value)
        case "verdict":
            cell = Text(value, style=VERDICT_STYLES[value])
        case "change":
            cell = Text(value, style=BAD if value.startswith("+") else GOOD)
        case _:
            cell = Text(terminal(column.bare(value)), style=style)
    return cell
