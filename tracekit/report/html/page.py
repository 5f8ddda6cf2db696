"""HTML page of an analysis: one file that opens offline, with tables from a template and charts from packed data."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from tracekit.analysis import Analysis
from tracekit.analysis.spread import FIGURES
from tracekit.documents.page import PageData, ScheduleChoice
from tracekit.report.html.heat_map import heat_map, step_heat_map
from tracekit.report.html.roles import phase_drawing, update_drawings
from tracekit.report.html.schedules import schedule_data
from tracekit.report.html.templates import asset, render_template, script_json
from tracekit.report.html.timeline import LANES, PageClock, role_timelines
from tracekit.report.table import Table
from tracekit.report.view import view_of
from tracekit.report.view.lateness import UNKNOWN_CAUSE
from tracekit.report.view.path import changed_lanes

TIMELINE_SCRIPTS = tuple(
    f"{name}.js" for name in ("columns", "tracks", "chart", "events", "timeline", "details", "search", "tables")
)
"""Scripts of every page with a timeline."""
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
    clock = PageClock(analysis)
    schedule, timelines = schedule_data(analysis), role_timelines(analysis, clock)
    choices = schedule.choices if schedule else []
    ranks = sorted({track.rank for role in timelines for track in role.timeline.ranks})
    return render_template(
        "page.html.j2",
        nonce=secrets.token_urlsafe(16),
        css=asset("page.css"),
        script=asset(*TIMELINE_SCRIPTS, "page.js"),
        data=script_json(PageData(schedule, timelines, view.input_path)),
        v=view,
        heat=heat_map(view.fleet),
        changed_lanes=changed_lanes(analysis),
        unknown_cause=UNKNOWN_CAUSE,
        step_heat=step_heat_map(analysis),
        figure_titles=FIGURES,
        max_different=MAX_DIFFERENT_RANKS,
        lanes=ranks,
        left_out=[sentence for role in timelines for sentence in role.timeline.left_out],
        clock=clock,
        iterations={
            str(iteration.index): clock.moment(iteration.start_ns, iteration.end_ns)
            for iteration in analysis.role_results.iterations
        },
        compute_labels=",".join(LANES["compute"]),
        host_finds=_host_finds(view.instead),
        role_finds=[f'role:"={role.name}"' for role in analysis.role_results.roles],
        phase_drawing=phase_drawing(analysis),
        update_drawings=update_drawings(analysis, clock) if view.roles is not None else None,
        choices=len(choices),
        choice_name=_choice_name(choices),
    )


def _choice_name(choices: Sequence[ScheduleChoice]) -> str:
    """Return what the choices of the schedule chart differ in."""
    pipelines, steps = {tuple(choice.ranks) for choice in choices}, {choice.step for choice in choices}
    return "Step" if len(pipelines) < 2 else "Pipeline" if len(steps) < 2 else "Pipeline and step"


def _host_finds(table: Table | None) -> list[str]:
    """Return for each row of the host's activity the search for its operator or range; empty for other activity."""
    if table is None:
        return []
    names = [column.name for column in table.columns]
    rows = [dict(zip(names, row, strict=True)) for row in table.rows]
    searched = [row["what"].replace('"', "") if row["doing"] in ("operator", "annotation") else "" for row in rows]
    return [f'"{name}"' if name else "" for name in searched]
