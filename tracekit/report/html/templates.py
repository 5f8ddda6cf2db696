"""Jinja templates of the pages: everything is escaped, except markup, styles and scripts of tracekit itself."""

import json
import re
import secrets
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from tracekit._util.text import counted, ms, percent, short_ms, terminal_lines
from tracekit.report.blocks import Row, RowChart
from tracekit.report.html.finding_links import figure_of, search_of, share_words
from tracekit.report.html.source_paths import shorten_source_paths
from tracekit.report.palette import IDLE_COLOUR, LABEL_COLOURS
from tracekit.report.table import Bar, BarPart, Column, PlacedValue, Table
from tracekit.report.text import capitalize, keep_units_together, signed_ms

SIZES = {"rows": (760, 120), "rows narrow": (364, 110)}
"""Width of a drawing of rows, and of the names at its left, by class: on a desk, and on a phone."""
BOX_ROW_HEIGHT = 12
ROW_GAP = 2
GROUP_GAP = 10
"""Distance in pixels between two groups of rows."""
ASSETS = Path(__file__).parent / "assets"


def render_template(name: str, **values: Any) -> str:
    """Return the template *name* of the assets filled with *values*."""
    return _environment().get_template(name).render(**values)


def render_page(
    name: str, *, css: Sequence[str], scripts: Sequence[str], data: msgspec.Struct, **values: Any
) -> str:
    """Return a page with scripts, which run by a random number of their own (nonce), and the *data* that they read."""
    code = {"nonce": secrets.token_urlsafe(16), "css": asset(*css), "script": asset(*scripts)}
    return render_template(name, **code, data=script_json(data), **values)


def asset(*names: str) -> Markup:
    """Return style sheets or scripts of the assets, one after the other, not to be escaped.

    Indentation and lines of comments are left out: a twelfth of a page of few events.
    """
    kept: list[str] = []
    for name in names:
        for line in (ASSETS / name).read_text(encoding="utf-8").splitlines():
            stripped = line.strip()
            if stripped and not stripped.startswith("//"):
                kept.append(stripped)
    return Markup("\n".join(kept))


def script_json(data: msgspec.Struct) -> Markup:
    """Return JSON that cannot end the script element it is written into.

    It is ASCII, because the name of a file may hold bytes that are not UTF-8, which
    ``msgspec.json`` does not encode.
    """
    return Markup(
        json.dumps(msgspec.to_builtins(data, str_keys=True), separators=(",", ":")).replace(
            "<", "\\u003c"
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_fit_to_share,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "ms": ms, "percent": percent, "signed": signed_ms, "count": counted,
        "sentence": capitalize, "whole": keep_figures_together, "code": markup_code,
        "figure_of": figure_of, "share_words": share_words, "search_of": search_of, "short_ms": short_ms,
        "row_search": row_search, "bar_legend": bar_legend, "is_waterfall": is_waterfall,
        "bar_words": bar_words, "cell_attributes": cell_attributes, "is_plain": is_plain,
        "draw_row_chart": draw_row_chart, "kind": lambda block: type(block).__name__,
    }  # fmt: skip
    environment.globals["colours"] = LABEL_COLOURS
    return environment


def _fit_to_share(value: Any) -> Any:
    """Return text of a trace without control characters and absolute source paths.

    Markup and other values are unchanged.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return shorten_source_paths(terminal_lines(value))


def markup_code(source: str) -> Markup:
    """Return escaped text with words between backticks as code; long names may break behind dots and underscores.

    >>> print(markup_code("`--explain other` lists <b>"))
    <code>--explain other</code> lists &lt;b&gt;
    >>> print(markup_code("call `torch.compile`"))
    call <code>torch.<wbr>compile</code>
    """
    escaped = str(escape(shorten_source_paths(source)))
    return Markup(re.sub("`([^`]*)`", _code_that_breaks, escaped))


def _code_that_breaks(match: re.Match[str]) -> str:
    breakable = re.sub(r"(?<=[a-z])([._])(?=[a-z])", r"\1<wbr>", match[1])
    return f"<code>{breakable}</code>"


def keep_figures_together(text: str) -> str:
    r"""Return text with no-break spaces before units, those of seconds and bytes too.

    >>> keep_figures_together("2 GB/s, 1.5 ms").replace("\N{NO-BREAK SPACE}", "~")
    '2~GB/s, 1.5~ms'
    """
    return re.sub(r"(?<=\d) (?=s\b|[kMGT]B)", "\N{NO-BREAK SPACE}", keep_units_together(text))


def row_search(table: Table, row: int) -> str:
    """Return the search of the timeline that a row leads to; empty if there is none, or if it leads to a moment.

    >>> from tracekit.report.table import Column
    >>> table = Table((Column("rank", "rank"), Column("in", "label")), ((2, "dp_comm"),))
    >>> row_search(table, 0)
    'label:=dp_comm rank:2'
    """
    if table.searches:
        return table.searches[row]
    label = rank = None
    for column, value in zip(table.columns, table.rows[row], strict=True):
        if isinstance(value, PlacedValue) and value.start_ns is not None:
            return ""
        if column.kind == "label" and value in LABEL_COLOURS:
            label = value
        if column.kind == "rank" and isinstance(value, int):
            rank = value
    if label is None:
        return ""
    return f"label:={label}" if rank is None else f"label:={label} rank:{rank}"


BAR_PART_ORDER = (
    "compute",
    "exposed",
    "exposed_copy",
    "phase",
    "weight_update",
    "idle",
    "unrecorded",
)
"""Kinds of parts in the order of a legend."""


def _bars(table: Table) -> Iterator[Bar]:
    for row in table.rows:
        yield from (value for value in row if isinstance(value, Bar))


PLAIN_KINDS = ("word", "count", "ms", "MB", "share", "heat", "rate", "figure", "change", "verdict")
"""Kinds of columns whose values are shown as their text alone."""
CLASSES_OF_KINDS = {
    "bar": "wide",
    "causes": "word wrap",
    "code": "word kernel",
    "name": "word kernel",
    "heat": "heated",
    "command": "hands",
}
"""Classes of the cells of some kinds of columns."""
CLASSES_OF_HEADS = {"bar": "wide", "command": "hands"}
MIN_LONG_LENGTH = 41
"""Letters from which words may be broken into lines."""


def is_plain(column: Column, value: Any) -> bool:
    """Return whether a value is shown as its text alone."""
    return column.kind in PLAIN_KINDS and not isinstance(value, PlacedValue)


def cell_attributes(column: Column, value: Any, *, is_head: bool = False) -> Markup:
    """Return class and style of a cell, by the kind of its column."""
    classes = "word" if column.words else ""
    classes = (CLASSES_OF_HEADS if is_head else CLASSES_OF_KINDS).get(column.kind, classes)
    if column.kind == "word" and isinstance(value, str) and len(value) >= MIN_LONG_LENGTH:
        classes += " long"
    attributes = f' class="{classes}"' if classes else ""
    if column.kind == "heat" and isinstance(value, float | int):
        attributes += f' style="--heat:{value:.3f}"'
    return Markup(attributes)


def bar_legend(table: Table) -> list[tuple[str, str]]:
    """Return the names and colours of the parts of the bars in a table; empty if these are no parts of a whole."""
    parts: dict[str, BarPart] = {}
    for bar in _bars(table):
        for part in bar.parts:
            if part.kind in BAR_PART_ORDER and (part.ns or part.kind == "idle"):
                parts.setdefault(part.name, part)
    in_order = sorted(parts.values(), key=lambda part: BAR_PART_ORDER.index(part.kind))
    return [(part.name, part.colour) for part in in_order]


def is_waterfall(table: Table) -> bool:
    """Return whether the bars of a table begin where those above them end."""
    return any(part.kind == "before" for bar in _bars(table) for part in bar.parts)


def bar_words(bar: Bar) -> str:
    """Return the parts of a bar with their shares."""
    return ", ".join(f"{name} {percent(share)}" for name, share in bar.shares.items())


def draw_rows(rows: Sequence[Row], title: str, **options: Any) -> Markup:
    """Return rows as an SVG element.

    *options* are ``start`` and ``end`` of the time axis, its ``ticks`` (texts by time) and
    ``marks`` (times that get a line), ``width``, ``name_width`` and ``row_height`` in pixels, and
    further ``attributes`` of the element.
    """
    gaps = [GROUP_GAP if row.begins_group else ROW_GAP for row in rows]
    drawn = render_template(
        "rows.svg.j2", rows=rows, gaps=gaps, title=title, idle_colour=IDLE_COLOUR, **options
    )
    return Markup(drawn.rstrip())


def draw_row_chart(chart: RowChart) -> Markup:
    """Return a chart in both sizes, of which the page shows one, with the times of its start, middle and end.

    One without times is drawn once.
    """
    middle_ns = (chart.start_ns + chart.end_ns) // 2
    times = (chart.start_ns, middle_ns, chart.end_ns) if chart.has_times else ()
    drawings = []
    sizes = SIZES if chart.has_times else {"lanes": SIZES["rows"]}
    for name, (width, name_width) in sizes.items():
        drawings.append(
            draw_rows(
                chart.rows,
                chart.title,
                start=chart.start_ns,
                end=chart.end_ns,
                ticks={time: ms(time - chart.start_ns) for time in times},
                marks=chart.marks,
                row_height=BOX_ROW_HEIGHT,
                width=width,
                name_width=name_width,
                attributes=Markup(f'class="{name}"'),
            )
        )
    return Markup().join(drawings)
