"""Tables in the house style: no box, numbers to the right, remarks below."""

from __future__ import annotations

from collections.abc import Sequence

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tracekit._util.text import terminal
from tracekit.report.palette import LABEL_COLOURS

MANY = 12
"""Ranks above which only the worst, the median and the best are listed."""
SHOWN = 5


def table(*columns: str, left: Sequence[str] = ()) -> Table:
    """Return an empty table; the columns in *left* are words and may wrap."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    for name in columns:
        made.add_column(name, justify="left" if name in left else "right", no_wrap=name not in left)
    return made


def note(text: str, style: str = "dim") -> Padding:
    """Return a remark under a table, indented where it wraps too."""
    return Padding(Text(terminal(text), style=style), (0, 0, 0, 2), expand=False)


def label_name(label: str) -> Text:
    """Return a label with its colour."""
    return Text.assemble(("■ ", LABEL_COLOURS.get(label, "")), label)
