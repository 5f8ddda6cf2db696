"""The page: one file that opens offline, its text from templates that escape, its timelines from packed columns."""

from __future__ import annotations

import json
import secrets
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment

from tracekit.analysis import Analysis
from tracekit.report.page_data import lanes_data, schedule_data
from tracekit.report.page_tables import page_tables
from tracekit.report.summary import ms, percent, sentences


def render_html(analysis: Analysis) -> str:
    """Return the whole page as text.

    >>> from tracekit import analyze
    >>> page = render_html(analyze("sample_traces/reload"))
    >>> page.startswith("<!doctype html>"), "http://" in page.split("<main")[1]
    (True, False)
    """
    data = {"schedule": schedule_data(analysis), "lanes": lanes_data(analysis)}
    page: str = _template().render(
        nonce=secrets.token_urlsafe(16),
        css=_asset("page.css"),
        charts=_asset("echarts.min.js"),
        script=_asset("page.js"),
        data=_inert(data),
        answer=sentences(analysis),
        **page_tables(analysis),
    )
    return page


def _inert(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return resources.files("tracekit.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _template() -> Any:
    # Everything from a trace is escaped; only our own css and scripts are marked safe in the template.
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(ms=ms, percent=percent)
    return environment.from_string(_asset("page.html.j2"))
