"""Tables, lists and folds in Markdown; all text is escaped."""

from collections.abc import Iterable, Sequence

from tracekit._util.text import capitalize, counted, markdown, markdown_code
from tracekit.report.table import Column, Table, Value

VERDICT_ICONS = {"pass": "✅", "improved": "🚀", "regressed": "❌", "inconclusive": "⚠️", "error": "⛔"}
MAX_VISIBLE_ROWS = 16
"""Rows of a table that are visible; the rest is folded."""


def render_table(table: Table, *, fold: bool = True) -> str:
    r"""Return a table as Markdown with its notes; if *fold*, rows after the first are folded.

    >>> print(render_table(Table((Column("a"), Column("b", "count")), (("x|y", 1),), ("from the trace",))))
    | a | b |
    | --- | ---: |
    | x\|y | 1 |
    <BLANKLINE>
    From the trace.
    """
    visible = table.rows[:MAX_VISIBLE_ROWS] if fold else table.rows
    parts = [_lines(table, visible)]
    rest = table.rows[len(visible) :]
    if rest:
        parts.append(folded(counted(len(rest), "more row"), _lines(table, rest)))
    parts += [markdown(f"{capitalize(remark)}.") for remark in table.remarks()]
    return "\n\n".join(parts)


def simple_table(heads: Sequence[str], rows: Iterable[Sequence[Value]], *, words: int, fold: bool = False) -> str:
    """Return a table of text that is formatted already.

    Args:
        heads: Headings.
        rows: Cells.
        words: Columns at the beginning that are words; the others are numbers, aligned to the right.
        fold: Whether rows after the first are folded.
    """
    columns = tuple(Column(head, "word" if i < words else "figure") for i, head in enumerate(heads))
    return render_table(Table(columns, tuple(map(tuple, rows))), fold=fold)


def _lines(table: Table, rows: Iterable[Sequence[Value]]) -> str:
    heads = [column.name for column in table.columns]
    rule = ["---" if column.words else "---:" for column in table.columns]
    cells = [[_cell(column, value) for column, value in zip(table.columns, row, strict=True)] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *cells))


def _cell(column: Column, value: Value) -> str:
    text = column.shown(value)
    if column.kind == "verdict":
        text = f"{VERDICT_ICONS[text]} {text}"
    return markdown_code(text) if column.kind == "code" else markdown(text)


def bullets(lines: Iterable[object]) -> str:
    """Return a list; empty if there are no lines."""
    return "\n".join(f"- {markdown(line)}" for line in lines)


def folded(summary: str, inside: str) -> str:
    """Return a part that is shown only on a click."""
    return f"<details><summary>{summary}</summary>\n\n{inside}\n\n</details>"
