"""HTML of results in a notebook: escaped text, and small tables."""

import html as _html
from collections.abc import Iterable, Sequence

from tracekit._util.text import terminal_lines

MAX_ROWS = 16
"""Rows of a table that a notebook shows."""


def html(text: object) -> str:
    r"""Return text for HTML or XML: markup is escaped, and characters that UTF-8 cannot encode are replaced.

    >>> html('<b> "x"\ud800')
    '&lt;b&gt; &quot;x&quot;\ufffd'
    """
    return _html.escape(terminal_lines(text))


def html_table(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[object]], *, notes: Iterable[str] = ()
) -> str:
    """Return a table with its title, the first ``MAX_ROWS`` rows and notes below it.

    All text is escaped.

    >>> html_table("a < b", ["rank"], [[0]])
    '<p><b>a &lt; b</b></p><table><thead><tr><th>rank</th></tr></thead><tbody><tr><td>0</td></tr></tbody></table>'
    >>> '<td style="text-align:left">0F0 0F1 0B0</td>' in html_table("orders", ["order"], [["0F0 0F1 0B0"]])
    True
    """
    head = "".join(f"<th>{html(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows[:MAX_ROWS])
    if len(rows) > MAX_ROWS:
        body += f'<tr><td colspan="{len(heads)}">… and {len(rows) - MAX_ROWS} more</td></tr>'
    items = "".join(f"<li>{html(note)}</li>" for note in notes)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if heads else ""
    heading = f"<p><b>{html(title)}</b></p>" if title else ""
    return f"{heading}{table}" + (f"<ul>{items}</ul>" if items else "")


def _cell(value: object) -> str:
    text = str(value)
    # Notebooks align cells to the right, which suits numbers but not sentences and lists of
    # operations.
    style = ' style="text-align:left"' if text.count(" ") > 1 else ""
    return f"<td{style}>{html(text)}</td>"
