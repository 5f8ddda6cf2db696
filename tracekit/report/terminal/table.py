"""Tables in the house style: no box, numbers to the right, remarks below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.table import Column, Table
from rich.text import Text

from tracekit._util.text import shorten_distinct, terminal, wrap_text
from tracekit.report.palette import LABEL_COLOURS

MANY = 12
"""Ranks above which only the worst, the median and the best are listed."""
SHOWN = 5
LEAST_NAME = 24
"""Letters a name keeps, however narrow the terminal …"""
WHOLE_NAME = 36
"""… and how many it keeps as long as there are columns to spare."""


class Lines(Table):
    """A table that writes its lines itself where each cell fits on one: rich measures and wraps every cell anew.

    What it writes is what rich would. It has no box, and cells are plain text.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = 1 if self.show_header else 0
        columns = [[column.header, *column.cells][1 - shown :] for column in self.columns]
        widths = [max((_width(cell) for cell in cells), default=0) for cells in columns]
        gaps = [self.padding[1]] * (len(columns) - 1) + [0]
        if not all(map(_simple, self.columns, columns)) or sum(widths) + sum(gaps) > options.max_width:
            yield from super().__rich_console__(console, options)
            return
        for at, row in enumerate(zip(*columns, strict=True), -shown):
            style = console.get_style(self.header_style if at < 0 else self.get_row_style(console, at))
            for cell, column, width, gap in zip(row, self.columns, widths, gaps, strict=True):
                room = " " * (width - _width(cell))
                if isinstance(cell, Text):
                    own = style + console.get_style(cell.style)
                    text = [Segment(words, own + (inner or Style.null())) for words, inner, _ in cell.render(console)]
                else:
                    own, text = style, [Segment(str(cell), style)]
                yield from [Segment(room, own), *text] if column.justify == "right" else [*text, Segment(room, own)]
                yield Segment(" " * gap, style)
            yield Segment.line()


def _width(cell: object) -> int:
    return cell_len(cell.plain if isinstance(cell, Text) else str(cell))


def _simple(column: Column, cells: Sequence[object]) -> bool:
    """Return whether all cells of a column are text on one line, and stand to one side."""
    texts = [cell.plain if isinstance(cell, Text) else cell for cell in cells]
    known = all(isinstance(text, str) and text.isprintable() for text in texts)
    stripped = column.justify == "left" or not any(str(text).endswith(" ") for text in texts)
    return known and stripped and column.justify in ("left", "right") and any(texts)


def table(*columns: str, left: Sequence[str] = ()) -> Table:
    """Return an empty table; the columns in *left* are words and may wrap."""
    made = Lines(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    for name in columns:
        whole = name not in left or name == "label"  # a label is one word, whatever its mark is made of
        made.add_column(name, justify="left" if name in left else "right", no_wrap=whole)
    return made


def fitted(
    columns: Sequence[str],
    rows: Sequence[Sequence[Text | str]],
    width: int,
    *,
    left: Sequence[str],
    spare: Sequence[str | Sequence[str]] = (),
    names: str | None = None,
) -> Table:
    """Return a filled table no broader than *width* if it can be, in which no two names are cut alike.

    Columns in *spare* go first, in order; several that only say something together go together. Then the column *names*
    is shortened, to what still tells its rows apart. A column that is empty in every row is never there.

    >>> made = fitted(("name", "ms", "peak"), [("a" * 9, "1.0", "3")], 16, left=("name",), spare=("peak",))
    >>> [column.header for column in made.columns]
    ['name', 'ms']
    >>> [column.header for column in fitted(("name", "ms", "peak"), [("a", "1.0", "")], 80, left=("name",)).columns]
    ['name', 'ms']
    """
    broad = {name: max([len(name), *(len(row[at]) for row in rows)]) for at, name in enumerate(columns)}
    least = broad | ({names: min(broad[names], WHOLE_NAME)} if names else {})
    kept = [name for at, name in enumerate(columns) if not rows or any(len(row[at]) for row in rows)]
    for group in spare:
        if _breadth(kept, least) > width:
            kept = [name for name in kept if name not in ([group] if isinstance(group, str) else group)]
    made = table(*kept, left=left)
    room = max(LEAST_NAME, width - _breadth(kept, broad | ({names: 0} if names else {})))
    told = shorten_distinct((str(row[columns.index(names)]) for row in rows), most=room) if names else [""] * len(rows)
    for column in made.columns:
        column.no_wrap = column.no_wrap or column.header == names or _breadth(kept, broad) <= width
    for row, short in zip(rows, told, strict=True):
        cells = {name: short if name == names else cell for name, cell in zip(columns, row, strict=True)}
        made.add_row(*(cells[name] for name in kept))
    return made


def _breadth(columns: Sequence[str], broad: Mapping[str, int]) -> int:
    return sum(broad[name] + 2 for name in columns) - 2


class Note(msgspec.Struct, frozen=True):
    """A remark under a table: indented where it wraps too, numbers on one line with their units."""

    text: str
    style: str = "dim"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(wrap_text(self.text, options.max_width, first="  ", rest="  "), style=self.style)


def note(text: str, style: str = "dim") -> Note:
    """Return a remark under a table."""
    return Note(text, style)


def command_line(words: str) -> Text:
    """Return a command to copy: on one line, however long it is."""
    return Text(f"     {terminal(words)}", style="cyan", no_wrap=True, overflow="ignore")


def label_name(label: str) -> Text:
    """Return a label with its colour."""
    return Text.assemble(("■ ", LABEL_COLOURS.get(label, "")), label)
