"""HTML page of a diff, in the style of the analysis' page; it needs nothing from the network."""

from collections.abc import Mapping
from typing import Any

from tracekit.analysis import Analysis
from tracekit.documents.page import DiffData, DiffSide
from tracekit.report.ci import words
from tracekit.report.html.charts import PageClock, schedule_data, timeline_data
from tracekit.report.html.page import TIMELINE_SCRIPTS
from tracekit.report.html.templates import render_page
from tracekit.report.view import input_path
from tracekit.report.view.pipeline import Rung, waterfall

Data = Mapping[str, Any]
MIN_CHANGE_SHARE = 0.02
"""Changes below this share of the whole difference are summed as smaller changes."""


def render(result: Data, *, analyses: tuple[Analysis, Analysis] | None = None) -> str:
    """Return the page of a diff's plain data, with a timeline of both runs where their analyses are at hand."""
    sides = [side for analysis in analyses or () for side in _timeline_side(analysis)]
    sides = sides if len(sides) == 2 else []
    changes = result.get("waterfall")
    return render_page(
        "diff.html.j2",
        css=["page.css", "diff.css"],
        scripts=[*TIMELINE_SCRIPTS, "diff.js"],
        data=DiffData(sides, result["comparable_cells"]),
        lanes=bool(sides),
        left_out=[sentence for side in sides for sentence in side.timeline.left_out],
        result=result,
        waterfall=changes,
        bars=diff_waterfall(changes) if changes else [],
        words=words,
    )


def _timeline_side(analysis: Analysis) -> list[DiffSide]:
    """Return the timeline of one run and its schedule, at whose step it is aligned; nothing without GPU events."""
    timeline = timeline_data(analysis, PageClock(analysis))
    return [DiffSide(timeline, schedule_data(analysis), input_path(analysis))] if timeline else []


def diff_waterfall(result: Data) -> tuple[Rung, ...]:
    """Return the bars of a waterfall from before to after; all changes sum to the difference.

    >>> changes = [{"part": "x", "change_ms": 4}, {"part": "y", "change_ms": -1}, {"part": "z", "change_ms": 0}]
    >>> bars = diff_waterfall({"before_ms": 10, "after_ms": 13, "changes": changes})
    >>> [(bar.name, bar.ns) for bar in bars]
    [('before', 10000000), ('x', 4000000), ('y', -1000000), ('after', 13000000)]
    """
    before_ns, after_ns = round(1e6 * result["before_ms"]), round(1e6 * result["after_ms"])
    difference = abs(after_ns - before_ns) or 1
    changes = [(row["part"], round(1e6 * row["change_ms"])) for row in result["changes"]]
    changes = [(part, ns) for part, ns in changes if abs(ns) >= MIN_CHANGE_SHARE * difference]
    rest_ns = after_ns - before_ns - sum(ns for _, ns in changes)
    if abs(rest_ns) > len(changes):  # more than what rounding leaves
        changes.append(("smaller changes", rest_ns))
    return waterfall(("before", before_ns), ("after", after_ns), changes)
