"""Jinja templates of the pages: everything is escaped, except markup, styles and scripts of tracekit itself."""

import json
import re
import secrets
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from tracekit._util.text import counted, ms, percent, short_ms, terminal_lines
from tracekit.report.html.finding_links import figure_of, search_of, share_words
from tracekit.report.html.source_paths import shorten_source_paths
from tracekit.report.palette import LABEL_COLOURS
from tracekit.report.table import Table
from tracekit.report.text import at_least, capitalize, keep_units_together, signed_ms
from tracekit.report.view.stragglers import name_straggler, when_late, why_late
from tracekit.report.words import WORDS, short_kernel

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
        "at_least": at_least, "sentence": capitalize, "whole": keep_figures_together,
        "number": format_mean_count, "code": markup_code, "short": short_kernel,
        "figure_of": figure_of, "share_words": share_words, "search_of": search_of, "short_ms": short_ms,
        "row_search": row_search, "kind": lambda block: type(block).__name__,
        "name_straggler": name_straggler, "when_late": when_late, "why_late": why_late,
    }  # fmt: skip
    environment.globals |= {
        "colours": LABEL_COLOURS,
        "because": WORDS.exposure_causes,
        "meanings": WORDS.exposure_meanings,
    }
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


def format_mean_count(count: float) -> str:
    """Return a mean of counts, with one decimal where it is small and not whole.

    >>> format_mean_count(2.0), format_mean_count(0.25), format_mean_count(1234.0)
    ('2', '0.2', '1,234')
    """
    return f"{count:,.0f}" if abs(count - round(count)) < 0.05 or count >= 100 else f"{count:,.1f}"


def row_search(table: Table, row: int) -> str:
    """Return the search of the timeline that a row leads to; empty if there is none.

    >>> from tracekit.report.table import Column
    >>> table = Table((Column("rank", "rank"), Column("in", "label")), ((2, "dp_comm"),))
    >>> row_search(table, 0)
    'label:=dp_comm rank:2'
    """
    if table.searches:
        return table.searches[row]
    label = rank = None
    for column, value in zip(table.columns, table.rows[row], strict=True):
        if column.kind == "label" and value in LABEL_COLOURS:
            label = value
        if column.kind == "rank" and isinstance(value, int):
            rank = value
    if label is None:
        return ""
    return f"label:={label}" if rank is None else f"label:={label} rank:{rank}"
