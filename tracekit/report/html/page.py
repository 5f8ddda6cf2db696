"""The page: one file that opens offline, its text from templates that escape, its timelines from packed columns."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape

from tracekit._util.text import (
    at_least,
    capitalize,
    counted,
    keep_units_together,
    ms,
    percent,
    signed_ms,
    terminal_lines,
)
from tracekit.analysis import Analysis
from tracekit.report.html.fleet import page_fleet
from tracekit.report.html.kernels import kernel_moments, rows_by_name
from tracekit.report.html.lanes import lanes_data
from tracekit.report.html.path import moments
from tracekit.report.html.schedules import schedule_data
from tracekit.report.names import short_kernel
from tracekit.report.palette import LABEL_COLOURS
from tracekit.report.view import View, grids, view_of
from tracekit.report.view.grid import Grid
from tracekit.report.view.pipeline import paired


def render_html(analysis: Analysis) -> str:
    """Return the whole page as text.

    >>> from tracekit import analyze
    >>> page = render_html(analyze("sample_traces/reload"))
    >>> page.startswith("<!doctype html>"), "http://" in page.split("<main")[1]
    (True, False)
    """
    view = view_of(analysis)
    data: dict[str, Any] = {"schedule": schedule_data(analysis), "lanes": lanes_data(analysis), "asked": view.asked}
    lanes = data["lanes"] or {"steps": ()}
    ranks = [int(rank) for rank in lanes["steps"][0]["ranks"]] if lanes["steps"] else []
    page: str = _template().render(
        nonce=secrets.token_urlsafe(16),
        css=_asset("page.css"),
        charts=_asset("echarts.min.js"),
        script=_asset("boxes.js") + _asset("page.js"),
        data=_inert(data),
        v=view,
        sections=_sections(view, ranks),
        fleet=page_fleet(view.fleet),
        lanes=ranks,
        lane_steps=[one["step"] for one in lanes["steps"]],
        moments=moments(analysis, view.critical),
        kernel_moments=kernel_moments(analysis, view.kernels, [one["step"] for one in lanes["steps"]]),
        explained=rows_by_name(view.kernels),
        grids=_grids(view),
        choices=len(data["schedule"]["choices"]) if data["schedule"] else 0,
        choosing=_choosing(data["schedule"]["choices"]) if data["schedule"] else "",
    )
    return page


def _choosing(choices: Sequence[Mapping[str, Any]]) -> str:
    """Name what the choices differ in.

    >>> _choosing([{"ranks": [0, 1], "step": 2}, {"ranks": [0, 1], "step": 3}])
    'Step'
    """
    pipelines, steps = ({str(one[key]) for one in choices} for key in ("ranks", "step"))
    return "Step" if len(pipelines) < 2 else "Pipeline" if len(steps) < 2 else "Pipeline and step"


def _grids(view: View) -> dict[str, Grid | None]:
    """Return the tables that the page shares with the other reports."""
    return {
        "hiding": grids.hiding(view),
        "idle": grids.idle(view),
        "by": grids.by(view),
        "products": grids.products(view),
        "communication": grids.communication(view),
        "experts": grids.experts(view),
        "reload": grids.reload_lanes(view),
        "copies": grids.copies(view, by_rank=True),
    }


def _sections(view: View, lanes: Collection[Any]) -> set[str]:
    """Return the sections that this page has, for links to lead only to them."""
    there = {
        "budget": view.labels,
        "overlap": view.labels,
        "schedule": view.schedule,
        "lanes": lanes,
        "stragglers": view.stragglers,
        "reload": view.reload,
        "warnings": view.warnings,
    }
    return {name for name, found in there.items() if found}


def _inert(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return (Path(__file__).parent / "assets" / name).read_text(encoding="utf-8")


def _code(text: str) -> Markup:
    """Show what stands between backticks as code; all of it is text.

    >>> print(_code("`--explain other` lists <b>"))
    <code>--explain other</code> lists &lt;b&gt;
    """
    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def _number(count: float) -> str:
    """A mean of counts: whole where it is.

    >>> _number(2.0), _number(0.25), _number(1234.0)
    ('2', '0.2', '1,234')
    """
    return f"{count:,.0f}" if abs(count - round(count)) < 0.05 or count >= 100 else f"{count:,.1f}"


def _shown(value: Any) -> Any:
    """Return text of a trace without what no page can hold; what we wrote ourselves is as it is."""
    return terminal_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _template() -> Any:
    # Everything from a trace is escaped; only our own css and scripts are marked safe in the template.
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_shown)
    environment.filters.update(
        ms=ms,
        percent=percent,
        signed=signed_ms,
        count=counted,
        at_least=at_least,
        number=_number,
        sentence=capitalize,
        whole=keep_units_together,
        code=_code,
        short=short_kernel,
        paired=paired,
    )
    environment.globals["colours"] = LABEL_COLOURS
    return environment.from_string(_asset("page.html.j2"))
