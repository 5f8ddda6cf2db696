"""HTML pages of an analysis and of a diff: each is one file that opens offline, with charts from packed data."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import msgspec

from tracekit._util.text import counted
from tracekit.analysis import Analysis
from tracekit.analysis.combine.spread import FIGURES, Figure, Spread, by_rank
from tracekit.documents.analysis import Figures
from tracekit.documents.diff import DiffDocument, Waterfall
from tracekit.documents.page import DiffData, DiffSide, PageData, RankRemark, ScheduleChoice
from tracekit.report.blocks import FindingItem, Headline, Line, PageDrawing, Sentence
from tracekit.report.ci import finding_words, words
from tracekit.report.first_screen import first_screen, further_findings
from tracekit.report.html.charts import (
    TIMELINE_LANES,
    PageClock,
    role_timelines,
    schedule_data,
    timeline_data,
)
from tracekit.report.html.drawings import phase_drawing, update_drawings
from tracekit.report.html.finding_links import section_of
from tracekit.report.html.places import PathNames, busiest_rank, different_ranks, places_on_page
from tracekit.report.html.templates import render_page
from tracekit.report.sections import all_sections, page_headings, page_sections, page_tabs
from tracekit.report.view import input_path, view_of
from tracekit.report.view.changed_steps import changed_lanes
from tracekit.report.view.pipeline import Rung, waterfall
from tracekit.report.view.stragglers import UNKNOWN_CAUSE, StepMap

TIMELINE_SCRIPTS = tuple(
    f"{name}.js"
    for name in ("columns", "tracks", "chart", "events", "timeline", "details", "search", "tables")
)
"""Scripts of every page with a timeline."""
MAX_HEAT_ROWS = 64
"""Ranks in the heat map of ranks and steps."""
HEAT_MAP_COLUMNS = 64
"""Columns of the heat map side by side; a broader mesh continues below."""
MAX_DIFFERENT_RANKS = 20
"""Ranks that differ from those they should be like which are listed."""
MIN_CHANGE_SHARE = 0.02
"""Changes below this share of the whole difference are summed as smaller changes."""


def render_html(analysis: Analysis, show: Collection[str] = ()) -> str:
    """Return the page as text, with the drawings of changes if *show* asks for ``changes``.

    >>> from tracekit import analyze
    >>> page = render_html(analyze("sample_traces/reload"))
    >>> page.startswith("<!doctype html>"), "http://" in page.split("<main")[1]
    (True, False)
    """
    view = view_of(analysis, show)
    clock = PageClock(analysis)
    schedule = schedule_data(analysis)
    choices = schedule.choices if schedule else []
    timelines = role_timelines(analysis, clock)
    ranks_of_roles: set[int] = set()
    left_out: list[str] = []
    for role_timeline in timelines:
        ranks_of_roles.update(track.rank for track in role_timeline.timeline.ranks)
        left_out += role_timeline.timeline.left_out
    ranks = sorted(ranks_of_roles)
    iterations = {
        str(iteration.index): clock.moment(iteration.start_ns, iteration.end_ns)
        for iteration in analysis.role_results.iterations
    }
    busiest = busiest_rank(analysis.schedule)
    places = places_on_page(view.findings, clock, ranks, busiest=busiest)
    facts, blocks = _arrange(first_screen(view))
    paths = PathNames(analysis.paths or view.paths)
    sections = all_sections(view)
    blocks_of = {section.id: section.blocks(view) for section in page_sections(sections)}
    drawings = []
    for blocks_of_section in blocks_of.values():
        drawings += [block for block in blocks_of_section if isinstance(block, PageDrawing)]
    return render_page(
        "page.html.j2",
        css=["page.css", *(drawing.css for drawing in drawings)],
        scripts=[*TIMELINE_SCRIPTS, *(drawing.script for drawing in drawings), "page.js"],
        data=PageData(
            schedule,
            timelines,
            path=view.input_path and paths.shorten(view.input_path),
            findings=places,
            different=different_ranks(view.findings, view.fleet, busiest=busiest),
            memory=next((drawing.data for drawing in drawings), None),
        ),
        v=view,
        headings=page_headings(view),
        section_ids=list(blocks_of),
        blocks_of=blocks_of,
        tabs=partial(page_tabs, sections),
        places={finding.number: finding.places for finding in places},
        facts=facts,
        blocks=blocks,
        further=further_findings(view),
        section_of=section_of,
        shared=paths.shorten,
        heat=heat_map(view.fleet),
        changed_lanes=changed_lanes(analysis) if view.changes_asked else (),
        unknown_cause=UNKNOWN_CAUSE,
        step_heat=step_heat_map(analysis),
        figure_titles=FIGURES,
        max_different=MAX_DIFFERENT_RANKS,
        lanes=ranks,
        left_out=left_out,
        clock=clock,
        iterations=iterations,
        compute_labels=",".join(TIMELINE_LANES["compute"]),
        phase_drawing=phase_drawing(analysis),
        update_drawings=update_drawings(analysis, clock)
        if blocks_of.get("weight-updates")
        else None,
        choices=len(choices),
        choice_name=_choice_name(choices),
    )


class FirstBlocks(msgspec.Struct, frozen=True):
    """The blocks of the first screen, by where the page has them."""

    step: Sequence[Line]
    """Above the findings and the picture: the bar and what is to be said of the step."""
    heading: Sentence
    findings: Sequence[FindingItem]
    certainty: Sequence[Line]
    """Below the findings: how sure the figures are, and warnings."""


def _arrange(blocks: Sequence[Line]) -> tuple[Headline, FirstBlocks]:
    """Return the headline, which the page has in its header, and the other blocks of the first screen."""
    headline = next(block for block in blocks if isinstance(block, Headline))
    heading = next(
        block for block in blocks if isinstance(block, Sentence) and block.style == "heading"
    )
    findings = [block for block in blocks if isinstance(block, FindingItem)]
    start = blocks.index(heading)
    return headline, FirstBlocks(
        step=[block for block in blocks[:start] if block != headline],
        heading=heading,
        findings=findings,
        certainty=blocks[start + 1 + len(findings) :],
    )


def _choice_name(choices: Sequence[ScheduleChoice]) -> str:
    """Return what the choices of the schedule chart differ in."""
    pipelines = {tuple(choice.ranks) for choice in choices}
    steps = {choice.step for choice in choices}
    if len(pipelines) < 2:
        return "Step"
    return "Pipeline" if len(steps) < 2 else "Pipeline and step"


def step_heat_map(analysis: Analysis) -> StepMap | None:
    """Return the busy time of ranks by step; None for one rank, one step or unnumbered steps."""
    ranks = analysis.rank_results[:MAX_HEAT_ROWS]
    busy_ns: dict[tuple[int, int | None], int] = {}  # by rank and step
    for rank in ranks:
        for scope in rank.per_step:
            busy_ns[rank.rank, scope.step] = _busy_without_waits_ns(scope)
    all_steps = sorted({step for _, step in busy_ns if step is not None})
    steps = all_steps[:HEAT_MAP_COLUMNS]
    if len(ranks) < 2 or len(steps) < 2:
        return None
    rows = []
    for rank in ranks:
        rows.append((rank.rank, [busy_ns.get((rank.rank, step)) for step in steps]))
    left_out = []
    if len(ranks) < len(analysis.rank_results):
        left_out.append(counted(len(analysis.rank_results) - len(ranks), "more rank"))
    if len(steps) < len(all_steps):
        left_out.append(counted(len(all_steps) - len(steps), "more step"))
    notes = [f"Not shown: {' and '.join(left_out)}."] if left_out else []
    return StepMap(
        steps, rows, least_ns=min(busy_ns.values()), most_ns=max(busy_ns.values()), notes=notes
    )


def _busy_without_waits_ns(scope: Figures) -> int:
    """Return how long a rank's GPU worked in a step, without the waits inside communication."""
    wait_ns = 0
    for ns in scope.wait_ns.values():
        wait_ns += ns or 0
    return scope.budget.span_ns - scope.budget.idle_ns - wait_ns


class MeshMap(msgspec.Struct, frozen=True):
    """Heat map of the ranks of a mesh."""

    bands: Sequence[tuple[range, Sequence[tuple[str, Sequence[int | None]]]]]
    """Columns that stand side by side, and the name and ranks of each row."""
    figure: Figure
    """The figure that colours the cells: bubble or idle."""
    figures: Mapping[int, Mapping[str, float | None]]
    """All figures of each rank."""
    column: str
    """What a column is: replica or rank."""
    different: Collection[int]
    """Ranks that differ from those they should be like."""


def heat_map(spread: Spread | None) -> MeshMap | None:
    """Return the heat map of the mesh.

    None for runs of few ranks, which have a bar each, and without such a figure.
    """
    if spread is None or spread.heat is None:
        return None
    mesh = spread.mesh
    bands = []
    for start in range(0, mesh.width, HEAT_MAP_COLUMNS):
        rows = []
        column_count = 0
        for name, ranks in zip(mesh.rows, mesh.cells, strict=True):
            cells = ranks[start : start + HEAT_MAP_COLUMNS]
            rows.append((name, cells))
            column_count = max(column_count, len(cells))
        bands.append((range(start, start + column_count), rows))
    return MeshMap(
        bands,
        figure=spread.heat,
        figures=by_rank(spread),
        column=mesh.column,
        different={row.rank for row in spread.different},
    )


def render_diff(result: DiffDocument, *, analyses: tuple[Analysis, Analysis] | None = None) -> str:
    """Return the page of a diff, with a timeline of both runs where their analyses are at hand."""
    sides: list[DiffSide] = []
    for analysis in analyses or ():
        side = _timeline_side(analysis)
        if side is not None:
            sides.append(side)
    if len(sides) < 2:
        sides = []
    left_out: list[str] = []
    for side in sides:
        left_out += side.timeline.left_out
    changes = result.waterfall
    undecided = finding_words.undecided_findings(result)
    return render_page(
        "diff.html.j2",
        css=["page.css", "diff.css"],
        scripts=[*TIMELINE_SCRIPTS, "diff.js"],
        data=DiffData(sides, result.comparable_cells, _changed_rank(result)),
        lanes=bool(sides),
        left_out=left_out,
        result=result,
        waterfall=changes,
        bars=diff_waterfall(changes) if changes else [],
        words=words,
        found_changes=finding_words.changed_findings(result),
        undecided_changes=undecided,
        undecided_note=finding_words.undecided_note(len(undecided)),
        savings=finding_words.savings_sentence(result),
    )


def _changed_rank(result: DiffDocument) -> RankRemark | None:
    """Return the rank whose compute changed, and what the diff says of it.

    None if no rank's compute explains it.
    """
    changes = result.waterfall
    if changes is None or not changes.compute_changed:
        return None
    return RankRemark(changes.rank, "; ".join(result.story or ["its compute changed most"]))


def _timeline_side(analysis: Analysis) -> DiffSide | None:
    """Return the timeline of one run and its schedule, at whose step it is aligned.

    None without GPU events.
    """
    timeline = timeline_data(analysis, PageClock(analysis))
    if timeline is None:
        return None
    path = input_path(analysis)
    shown_path = path and PathNames(analysis.paths).shorten(path)
    return DiffSide(timeline, schedule_data(analysis), shown_path)


def diff_waterfall(result: Waterfall) -> tuple[Rung, ...]:
    """Return the bars of a waterfall from before to after; all changes sum to the difference."""
    before_ns = round(1e6 * result.before_ms)
    after_ns = round(1e6 * result.after_ms)
    min_change_ns = MIN_CHANGE_SHARE * (abs(after_ns - before_ns) or 1)
    changes = []
    rest_ns = after_ns - before_ns
    for row in result.changes:
        change_ns = round(1e6 * row.change_ms)
        if abs(change_ns) >= min_change_ns:
            changes.append((row.part, change_ns))
            rest_ns -= change_ns
    if abs(rest_ns) > len(changes):  # more than what rounding leaves
        changes.append(("smaller changes", rest_ns))
    return waterfall(("before", before_ns), ("after", after_ns), changes)
