"""Tables and folds in Markdown; everything in a cell is text unless it says it is code."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tracekit._util.text import counted, markdown, markdown_code

MOST_ROWS = 16
"""Rows of a table that stay in sight; the rest is folded away."""


class Code(msgspec.Struct, frozen=True):
    """A cell to be shown as code."""

    text: str


def table(head: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = ()) -> str:
    r"""Return a Markdown table; the columns in *right* are numbers.

    >>> print(table(("a", "b"), [("x|y", "1")], right=(1,)))
    | a | b |
    | --- | ---: |
    | x\|y | 1 |
    """
    rule = ["---:" if i in right else "---" for i in range(len(head))]
    lines = [[*head], rule, *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: object) -> str:
    return markdown_code(value.text) if isinstance(value, Code) else markdown(value)


def long_table(head: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = ()) -> str:
    """Return a table of which the first rows are in sight."""
    shown = table(head, rows[:MOST_ROWS], right=right)
    if len(rows) <= MOST_ROWS:
        return shown
    rest = table(head, rows[MOST_ROWS:], right=right)
    return f"{shown}\n\n{folded(counted(len(rows) - MOST_ROWS, 'more row'), rest)}"


def folded(summary: str, inside: str) -> str:
    """Return what is shown only when asked for."""
    return f"<details><summary>{summary}</summary>\n\n{inside}\n\n</details>"
