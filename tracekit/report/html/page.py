"""HTML pages of an analysis and of a diff: each is one file that opens offline, with charts from packed data."""

from collections.abc import Collection, Sequence

import msgspec

from tracekit.analysis import Analysis
from tracekit.analysis.combine.spread import Mesh, by_rank
from tracekit.documents.diff import DiffDocument, Waterfall
from tracekit.documents.page import DiffData, DiffSide, PageData, RankRemark, ScheduleChoice
from tracekit.report.blocks import (
    Block,
    FindingItem,
    Headline,
    Line,
    PageDrawing,
    PipelineChart,
    Sentence,
)
from tracekit.report.ci import finding_words, words
from tracekit.report.clock_words import badge_of
from tracekit.report.findings import further_findings, main_findings
from tracekit.report.first_screen import first_screen
from tracekit.report.html.charts import PageClock, role_timelines, schedule_data, timeline_data
from tracekit.report.html.finding_links import section_of
from tracekit.report.html.places import PathNames, busiest_rank, different_ranks, places_on_page
from tracekit.report.html.templates import render_page
from tracekit.report.run_facts import input_path, run_name, source_paths
from tracekit.report.section import page_parts, page_sections, page_tabs, section_words
from tracekit.report.sections import all_sections
from tracekit.report.sections.ranks import spread_of_many
from tracekit.report.sections.schedule import Rung, waterfall

TIMELINE_SCRIPTS = tuple(
    f"{name}.js"
    for name in ("columns", "tracks", "chart", "events", "timeline", "details", "search", "tables")
)
"""Scripts of every page with a timeline."""
HEAT_MAP_COLUMNS = 64
"""Columns of the map of the mesh side by side; a broader mesh continues below."""
MIN_SHOWN_NS = 5_000
"""The least time that two digits of a millisecond show."""
MIN_CHANGE_SHARE = 0.02
"""Changes below this share of the whole difference are summed as smaller changes."""


def render_html(analysis: Analysis, show: Collection[str] = ()) -> str:
    """Return the page as text; *show* are the sections that options asked for.

    >>> from tracekit import analyze
    >>> page = render_html(analyze("sample_traces/reload"))
    >>> page.startswith("<!doctype html>"), "http://" in page.split("<main")[1]
    (True, False)
    """
    clock = PageClock(analysis)
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
    findings = main_findings(analysis)
    busiest = busiest_rank(analysis.comparison)
    places = places_on_page(findings, clock, ranks, busiest=busiest)
    facts, first_blocks = _arrange(first_screen(analysis))
    paths = PathNames(analysis.paths or source_paths(analysis))
    path = input_path(analysis)
    drawn = drawn_sections(analysis, show, has_timeline=bool(ranks))
    drawings = [
        block for section in drawn for block in section.all_blocks if isinstance(block, PageDrawing)
    ]
    schedule = None
    if any(isinstance(block, PipelineChart) for section in drawn for block in section.all_blocks):
        schedule = schedule_data(analysis)
    choices = schedule.choices if schedule else []
    ids = [section.id for section in drawn]
    picture = max(drawn, key=lambda section: section.picture, default=None)
    return render_page(
        "page.html.j2",
        css=["page.css", *(drawing.css for drawing in drawings if drawing.css)],
        scripts=[
            *TIMELINE_SCRIPTS,
            *(drawing.script for drawing in drawings if drawing.script),
            "page.js",
        ],
        data=PageData(
            schedule,
            timelines,
            path=path and paths.shorten(path),
            findings=places,
            different=different_ranks(findings, analysis.once(spread_of_many), busiest=busiest),
            memory=next((drawing.data for drawing in drawings if drawing.data), None),
        ),
        title=run_name(analysis) or "run",
        facts=facts,
        clocks=badge_of(analysis),
        tabs=page_tabs(all_sections(analysis), ids),
        linked=["findings", *ids],
        sections=drawn,
        picture=picture if picture is not None and picture.picture else None,
        places={finding.number: finding.places for finding in places},
        blocks=first_blocks,
        further=further_findings(analysis),
        section_of=section_of,
        shared=paths.shorten,
        paths=source_paths(analysis),
        has_path=path is not None,
        lanes=ranks,
        left_out=left_out,
        clock=clock,
        iterations=iterations,
        rank_count=len(analysis.ranks),
        choices=len(choices),
        choice_name=_choice_name(choices),
        mesh_bands=mesh_bands,
        by_rank=by_rank,
    )


class DrawnPart(msgspec.Struct, frozen=True):
    """A section that a page shows within another."""

    id: str
    title: str
    blocks: Sequence[Block]
    is_folded: bool


class DrawnSection(msgspec.Struct, frozen=True):
    """A section of the page that has something to show."""

    id: str
    name: str
    about: str
    blocks: Sequence[Block]
    parts: Sequence[DrawnPart]
    is_folded: bool
    picture: int

    @property
    def all_blocks(self) -> Sequence[Block]:
        """Its blocks, and those of its parts."""
        return [*self.blocks, *(block for part in self.parts for block in part.blocks)]


def drawn_sections(
    analysis: Analysis, show: Collection[str], *, has_timeline: bool
) -> list[DrawnSection]:
    """Return the sections that have something to show, with their parts."""
    words = section_words(analysis)
    sections = all_sections(analysis)
    drawn = []
    for section in page_sections(sections):
        parts = []
        for part in page_parts(sections, section.id):
            is_asked = "page" not in part.when_asked or part.part_of in show
            if is_asked and (blocks := part.blocks(analysis)):
                title = part.title.format_map(words)
                parts.append(DrawnPart(part.id, title, blocks, "page" in part.folded))
        blocks = section.blocks(analysis)
        is_empty_timeline = section.id == "timeline" and not has_timeline
        if (blocks or parts) and not is_empty_timeline:
            drawn.append(
                DrawnSection(
                    section.id,
                    section.name.format_map(words),
                    section.about.format_map(words),
                    blocks,
                    parts,
                    is_folded="page" in section.folded,
                    picture=section.picture,
                )
            )
    return drawn


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


def mesh_bands(
    mesh: Mesh,
) -> list[tuple[range, list[tuple[str, Sequence[int | None]]]]]:
    """Return the columns of a mesh that stand side by side, with the name and ranks of each row."""
    bands: list[tuple[range, list[tuple[str, Sequence[int | None]]]]] = []
    for start in range(0, mesh.width, HEAT_MAP_COLUMNS):
        rows: list[tuple[str, Sequence[int | None]]] = []
        column_count = 0
        for name, ranks in zip(mesh.rows, mesh.cells, strict=True):
            cells = ranks[start : start + HEAT_MAP_COLUMNS]
            rows.append((name, cells))
            column_count = max(column_count, len(cells))
        bands.append((range(start, start + column_count), rows))
    return bands


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
        undecided_note=finding_words.undecided_note(result),
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
    if abs(rest_ns) >= MIN_SHOWN_NS:
        changes.append(("smaller changes", rest_ns))
    return waterfall(("before", before_ns), ("after", after_ns), changes)
