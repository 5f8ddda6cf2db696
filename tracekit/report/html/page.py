"""HTML page of an analysis: one file that opens offline, with tables from a template and charts from packed data."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from tracekit.analysis import Analysis
from tracekit.analysis.spread import FIGURES
from tracekit.report.html.heat_map import heat_map
from tracekit.report.html.lane_links import explaining_rows, kernel_moments, path_moments
from tracekit.report.html.lanes import lanes_data
from tracekit.report.html.roles import phase_drawing, update_drawings
from tracekit.report.html.schedules import schedule_data
from tracekit.report.html.templates import asset, render_template
from tracekit.report.table import Table
from tracekit.report.view import View, view_of
from tracekit.report.view import tables as grids

MAX_DIFFERENT_RANKS = 20
"""Ranks that differ from those they should be like which are listed."""


def render_html(analysis: Analysis) -> str:
    """Return the page as text.

    >>> from tracekit import analyze
    >>> page = render_html(analyze("sample_traces/reload"))
    >>> page.startswith("<!doctype html>"), "http://" in page.split("<main")[1]
    (True, False)
    """
    view = view_of(analysis)
    schedule, lanes = schedule_data(analysis), lanes_data(analysis)
    choices = schedule["choices"] if schedule else []
    steps = lanes["steps"] if lanes else []
    ranks = [int(rank) for rank in steps[0]["ranks"]] if steps else []
    lane_steps = [entry["step"] for entry in steps]
    return render_template(
        "page.html.j2",
        nonce=secrets.token_urlsafe(16),
        css=asset("page.css"),
        charts=asset("echarts.min.js"),
        script=asset("boxes.js") + asset("timeline.js") + asset("page.js"),
        data=_script_json({"schedule": schedule, "lanes": lanes, "asked": view.asked}),
        v=view,
        sections=_linked_sections(view, ranks),
        heat=heat_map(view.fleet),
        figure_titles=FIGURES,
        max_different=MAX_DIFFERENT_RANKS,
        lanes=ranks,
        lane_steps=lane_steps,
        path_moments=path_moments(analysis, view.critical),
        kernel_moments=kernel_moments(analysis, view.kernels, lane_steps),
        explaining_rows=explaining_rows(view.kernels),
        grids=_shared_tables(view),
        phase_drawing=phase_drawing(analysis),
        update_drawings=update_drawings(analysis) if view.roles is not None else None,
        choices=len(choices),
        choice_name=_choice_name(choices),
    )


def _choice_name(choices: Sequence[Mapping[str, Any]]) -> str:
    """Return what the choices of the schedule chart differ in.

    >>> _choice_name([{"ranks": [0, 1], "step": 2}, {"ranks": [0, 1], "step": 3}])
    'Step'
    """
    pipelines, steps = ({str(choice[key]) for choice in choices} for key in ("ranks", "step"))
    return "Step" if len(pipelines) < 2 else "Pipeline" if len(steps) < 2 else "Pipeline and step"


def _shared_tables(view: View) -> dict[str, Table | None]:
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


def _linked_sections(view: View, lane_ranks: Sequence[int]) -> set[str]:
    """Return the ids of the sections that the answer may link to: those this page has."""
    contents = {
        "budget": view.labels,
        "overlap": view.labels,
        "schedule": view.schedule,
        "lanes": lane_ranks,
        "stragglers": view.stragglers,
        "reload": view.reload,
        "iterations": view.roles and view.roles.iterations,
        "weight-updates": view.roles and view.roles.updates,
        "warnings": view.warnings,
    }
    return {name for name, content in contents.items() if content}


def _script_json(data: dict[str, Any]) -> Markup:
    """Return JSON that cannot end the script element it is written into."""
    return Markup(json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"))
