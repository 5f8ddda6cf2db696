"""The report in the terminal: the answer, then sections, most of which are one table with its notes.

The sections are those of ``report.sections``. One that is more than its table is drawn by a function
of the view and the width of the terminal, which returns None if there is nothing to say; those that
draw more are in ``fleet`` and ``schedule``.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from tracekit._util.text import counted, percent
from tracekit.analysis import Analysis
from tracekit.documents.analysis import RankFigures
from tracekit.report.blocks import TextBlock
from tracekit.report.first_screen import finding_items
from tracekit.report.palette import (
    BAD,
    COMPUTE_COLOUR,
    IDLE_COLOUR,
    LABEL_COLOURS,
    UNRECORDED_COLOUR,
    UNSURE,
)
from tracekit.report.sections import (
    NEED_OPTIONS,
    Section,
    all_sections,
    find_section,
    section_words,
    sections_of,
    with_parts,
)
from tracekit.report.table import Column, Table, make_table
from tracekit.report.terminal.first_screen import (
    UNICODE_BLOCKS,
    block_lines,
    finding_lines,
    first_screen,
)
from tracekit.report.terminal.fleet import many_ranks
from tracekit.report.terminal.schedule import draw_schedule, render_schedule, what_if
from tracekit.report.terminal.screen import Screen
from tracekit.report.terminal.table import (
    MAX_RANKS_LISTED,
    WORST_RANKS_SHOWN,
    Note,
    render_table,
    stack,
    stacked_bar,
)
from tracekit.report.text import wrap_text
from tracekit.report.view import View, view_of
from tracekit.report.view.budget import NOT_RECORDED, Bar, LabelRow
from tracekit.report.words import WORDS

Drawing = Callable[[View, int], RenderableType | None]
MIN_WIDTH_FOR_MORE = 110
"""Columns of the terminal from which the budget shows communication apart from copies."""


def render(
    analysis: Analysis,
    console: Console | None = None,
    *,
    brief: bool = False,
    full: bool = True,
    page_written: bool = False,
    show: Sequence[str] = (),
) -> None:
    """Print the report.

    Args:
        analysis: The result.
        console: Where to print; standard output if it is None.
        brief: Print the beginning of the first screen, and predictions if they were asked for.
        full: Print every section below the first screen; else the schedule and what was asked for.
        page_written: Whether a page was written, which is then not suggested.
        show: Ids of further sections to print, and of those that options asked for.
    """
    out = console or Screen()
    view = view_of(analysis, show)
    is_full = full and not brief
    options = [] if is_full else ["--full"]
    if not page_written:
        options.append("-o report.html")
    lines = first_screen(
        view,
        out.columns if isinstance(out, Screen) else out.width,
        unicode=out.encoding.lower().startswith("utf"),
        brief=brief,
        options=options,
    )
    out.print(Text("\n").join(lines), soft_wrap=True)
    by_name = [name for name in show if name not in NEED_OPTIONS]
    for title, body in chosen_sections(view, out.width, brief=brief, full=is_full, asked=by_name):
        out.print()
        out.print(Text(title, style="bold"))
        out.print(body, crop=False)  # a command to copy may be longer than a line
    if is_full and view.what_if_hint is not None:
        out.print(Text(view.what_if_hint.text, style="dim"))


def _ranks_drawn(view: View) -> str:
    """Return how many ranks the budget draws, if these are not all."""
    ranks = len(view.analysis.rank_results)
    drawn = len(ranks_with_bars(view))
    return f"; {drawn} of {counted(ranks, 'rank')}" if drawn < ranks else ""


def compute(view: View, width: int) -> RenderableType | None:
    """List the compute labels, and unlabelled work in the last line."""
    rows = []
    for row in view.labels:
        if row.kind == "compute" and row.ns >= MIN_NS_SHOWN:
            rows.append(row)
    rows.sort(key=lambda row: (row.label == "other", -row.ns))
    columns = (
        Column("label", "label"),
        Column("time", "ms", terminal_heading="ms per rank", value="ns"),
        Column("of span", "share", value="share"),
        Column("kernels", "count", value="count"),
    )
    styles = {}
    for i, row in enumerate(rows):
        if row.loud or row.label == "other":
            styles[i] = f"bold {BAD}" if row.loud else "dim"
    return render_table(make_table(columns, rows), width, row_styles=styles)


MIN_NS_SHOWN = 500
"""Time per rank from which a compute label is listed."""


def exposure(view: View, width: int) -> RenderableType | None:
    """List communication and copies, the most exposed first."""

    def causes(row: LabelRow) -> Text:
        """Return a line for each cause, so that no line break separates a number from its unit."""
        shares = []
        for cause, share in row.causes():
            shares.append(f"{percent(share, digits=0)} {WORDS.exposure_causes[cause]}")
        return Text("\n".join(shares))

    charged = "charged to the first label where two run at once"
    columns = (
        Column("label", "label"),
        Column("time", "ms", terminal_heading="ms per rank", value="ns"),
        Column("hidden", "share"),
        Column(
            "exposed",
            "ms",
            note=f"{charged}, so that it can be less than what is not hidden",
            value="exposed_ns",
        ),
        Column("of span", "share", 2, value="exposed_share"),
        Column(
            "blocking",
            "ms",
            3,
            note="exposed time on the critical path, over all ranks",
            value="blocking_ns",
        ),
        Column("wait", "ms", 1, value="wait_ns"),
        Column("exposed because", value=causes),
    )
    return render_table(make_table(columns, view.exposure), width)


def critical(view: View, width: int) -> RenderableType | None:
    """List the longest segments of the slowest step's critical path, and sum up the whole."""
    if view.critical is None:
        return None
    columns = (
        Column("from", "ms", value="from_ns"),
        Column("", "ms", value="ns"),
        Column("of step", "share", 1, value="share"),
        Column("rank", "rank"),
        Column("kind"),
        Column("label"),
        Column(
            "came last",
            "figure",
            2,
            value=lambda row: "" if row.peer is None else f"rank {row.peer}",
        ),
        Column("what", "name", value="name"),
    )
    return render_table(make_table(columns, view.critical.rows, notes=view.critical.notes), width)


def step_times(view: View, width: int) -> RenderableType | None:
    """Show the longest steps and how much they differ; None if there is one step."""
    if view.steps is None:
        return None
    steps = sorted(view.steps.rows, key=lambda row: -row.median_ns)
    over_ranks = "" if view.steps.one_rank else "; median, shortest and longest over ranks"
    columns = [
        Column("step", "figure"),
        Column("median", "ms", value="median_ns"),
        *([] if view.steps.one_rank else [Column("shortest", "ms", value="least_ns")]),
        *([] if view.steps.one_rank else [Column("longest", "ms", value="most_ns")]),
        Column("slowest rank", "figure", value="slowest"),
        Column("", value=lambda row: "partial" if row.partial else ""),
    ]
    notes = (f"the longest of {counted(len(steps) + view.steps.more, 'step')}{over_ranks}",)
    return render_table(make_table(columns, steps[:WORST_RANKS_SHOWN], notes=notes), width)


def reload(view: View, width: int) -> RenderableType | None:
    """Show a weight update and its two-buffer ideal, and its lanes."""
    if view.reload is None:
        return None
    return stack(render_table(view.reload.facts, width), render_table(view.reload.lanes, width))


def warnings(view: View, width: int) -> RenderableType | None:
    """List the warnings: what was lost, missing or chosen on the way."""
    if not view.warnings:
        return None
    messages = []
    for notice in view.warnings:
        messages.append(wrap_text(notice.message, max(40, width), first="  ! ", rest="    "))
    return Group(*(Text(message, style=UNSURE) for message in messages))


def definitions(view: View, width: int) -> RenderableType:
    """Say how each number is defined."""
    lines = (f"{name} = {meaning}" for name, meaning in view.definitions)
    text = "\n".join(wrap_text(line, width, first="  ", rest="    ") for line in lines)
    return Text(text, style="dim")


def next_steps(view: View, width: int) -> RenderableType | None:
    """List all findings and what to do about them."""
    lines: list[Text] = []
    for item in finding_items(view):
        lines += finding_lines(item, width)
    return Group(*lines) if lines else None


GLYPHS = {
    "compute": UNICODE_BLOCKS["compute"],
    "communication": UNICODE_BLOCKS["exposed"],
    "copy": UNICODE_BLOCKS["exposed_copy"],
    "idle": UNICODE_BLOCKS["idle"],
    "unrecorded": UNICODE_BLOCKS["unrecorded"],
}
"""Fill of each kind of part."""
LEGEND = {
    "compute": ("compute", COMPUTE_COLOUR),
    "communication": ("exposed communication", LABEL_COLOURS["pp_comm"]),
    "copy": ("exposed copy", LABEL_COLOURS["offload"]),
    "idle": ("idle", IDLE_COLOUR),
    "unrecorded": (NOT_RECORDED, UNRECORDED_COLOUR),
}
"""Name and colour of each kind of part."""
MIN_BAR_LENGTH = 10


def ranks_with_bars(view: View) -> list[RankFigures]:
    """Return the ranks whose budget is drawn, by number: all, or of many those that differ most from the mean.

    The ranks that are named come first: by the first finding, and as the one that is waited for most.
    """
    ranks = view.analysis.rank_results
    if len(ranks) <= MAX_RANKS_LISTED:
        return list(ranks)
    mean = view.budget.mean

    def difference(rank: RankFigures) -> float:
        bar = Bar("", rank.whole)
        shares = [abs(bar.share(kind) - mean.share(kind)) for kind in LEGEND]
        return max(
            *shares, abs((rank.whole.bubble_fraction or 0.0) - (mean.whole.bubble_fraction or 0.0))
        )

    named = {straggler.rank for straggler in view.stragglers[:1] if not straggler.uncertain}
    for finding in view.findings[:1]:
        named.update(finding.ranks[:1])
    most_different = sorted(ranks, key=lambda rank: (rank.rank not in named, -difference(rank)))
    chosen = most_different[:WORST_RANKS_SHOWN]
    return sorted(chosen, key=lambda rank: rank.rank)


def budget(view: View, width: int) -> RenderableType | None:
    """Draw the span of each rank as a bar with the shares of its parts, then the mean of all ranks of the run.

    None if the run has no ranks.
    """
    ranks = view.analysis.rank_results
    bars = [Bar(str(rank.rank), rank.whole) for rank in ranks_with_bars(view)]
    mean_row = len(bars) if len(ranks) > 1 else None
    if mean_row is not None:
        bars.append(view.budget.mean)
    # Parts that took no time, as idle may have, are not drawn.
    kinds = {part.kind for part in view.budget.mean.parts if part.ns}
    columns = _budget_columns(width, has_unrecorded="unrecorded" in kinds, pipelined=view.pipelined)
    totals = () if mean_row is None else (mean_row,)
    table = render_table(make_table(columns, bars, totals=totals), width, total_style="bold")
    if table is None:
        return None
    if len(ranks) <= MAX_RANKS_LISTED:
        return Group(table, _legend(kinds))
    # Of equal ranks the first.
    least = min(ranks, key=_compute_share)
    most = max(ranks, key=_compute_share)
    lowest = f"{percent(_compute_share(least))} (rank {least.rank})"
    highest = f"{percent(_compute_share(most))} (rank {most.rank})"
    named = f"{lowest} to {highest}"
    remark = f"{counted(len(ranks), 'rank')}: compute runs from {named} of the span"
    return Group(table, _legend(kinds), Note(remark))


def _budget_columns(width: int, *, has_unrecorded: bool, pipelined: bool) -> list[Column]:
    """Return the columns of the budget, whose rows are bars.

    A wide terminal shows exposed communication apart from exposed copies. The time that was not
    recorded and the bubble have a column where there is such time, and where there is a pipeline.
    """
    is_wide = width >= MIN_WIDTH_FOR_MORE
    # The bar takes what the columns beside it leave: 59 or 44 characters, 14 for "not recorded" and
    # 10 for the bubble.
    beside = (59 if is_wide else 44) + 14 * has_unrecorded + 10 * pipelined
    bar_length = max(MIN_BAR_LENGTH, width - beside)

    def share(*kinds: str) -> Callable[[Bar], float]:
        return lambda bar: sum(bar.share(kind) for kind in kinds)

    exposed = [Column("exposed", "share", value=share("communication", "copy"))]
    if is_wide:
        exposed = [
            Column("communication", "share", value=share("communication")),
            Column("copies", "share", value=share("copy")),
        ]
    columns = [
        Column("rank", "figure", value="name"),
        Column("span", "ms", value="span_ns"),
        Column("", value=lambda bar: _draw(bar, bar_length)),
        Column("compute", "share", value=share("compute")),
        *exposed,
        Column("idle", "figure"),
    ]
    if has_unrecorded:
        columns.append(Column(NOT_RECORDED, "share", value=share("unrecorded")))
    if pipelined:
        columns.append(Column("bubble", "figure"))
    return columns


def _legend(kinds: Collection[str]) -> Text:
    """Return the fill and the name of these kinds of parts."""
    legend = Text("  ")
    for kind, (name, colour) in LEGEND.items():
        if kind in kinds:
            legend.append(GLYPHS[kind], style=colour).append(f" {name}  ")
    return legend


def _compute_share(rank: RankFigures) -> float:
    budget = rank.whole.budget
    return budget.compute_ns / budget.span_ns if budget.span_ns else 0.0


def _draw(bar: Bar, length: int) -> Text:
    """Draw the parts of a rank's bar."""
    return stacked_bar([(part.share, GLYPHS[part.kind], part.colour) for part in bar.parts], length)


def requested_changes(view: View, width: int) -> RenderableType | None:
    """Show predictions for changes if they were asked for."""
    return render_table(view.changes, width) if view.changes_asked else None


DRAWINGS: Mapping[str, Drawing] = {
    "budget": budget,
    "ranks": many_ranks,
    "compute": compute,
    "overlap": exposure,
    "schedule": render_schedule,
    "critical-path": critical,
    "by": lambda view, width: render_table(view.by, width, total_style="dim"),
    "products": lambda view, width: render_table(view.products, width, total_style="bold"),
    "stragglers": lambda view, width: render_table(
        view.waited_for, width, max_rows=WORST_RANKS_SHOWN
    ),
    "steps": step_times,
    "reload": reload,
    "warnings": warnings,
    "findings": next_steps,
    "definitions": definitions,
}
"""Drawings of sections that are more than their table, by id."""
BRIEF_DRAWINGS: Mapping[str, Drawing] = {"changes": requested_changes, "schedule": what_if}
"""Sections printed behind the five lines: predictions that were asked for."""
SHORT_DRAWINGS: Mapping[str, Drawing] = {
    "schedule": draw_schedule,
    "changes": requested_changes,
    "by": DRAWINGS["by"],
}
"""Sections printed by default behind the first screen: the drawing of a pipeline, and those that
were asked for."""
SHORT_TITLES = {"schedule": "Schedule"}
BRIEF_TITLES = {"schedule": "What other schedules would take"}


def draw_block(block: TextBlock, width: int) -> RenderableType | None:
    """Return a block of a section."""
    if isinstance(block, Table):
        return render_table(block, width)
    return Group(*block_lines(block, width))


def draw_section(section: Section, view: View, width: int) -> RenderableType | None:
    """Return a section, drawn by a function of its own or block by block; None if there is nothing to say."""
    drawing = DRAWINGS.get(section.id)
    if drawing is not None:
        return drawing(view, width)
    return stack(*(draw_block(block, width) for block in section.text_blocks(view)))


def chosen_sections(
    view: View, width: int, *, brief: bool, full: bool, asked: Sequence[str] = ()
) -> Iterator[tuple[str, RenderableType]]:
    """Yield the heading and content of each section that has something to say, and of those *asked* for."""
    words = section_words(view) | {"of_ranks": _ranks_drawn(view)}
    drawings = BRIEF_DRAWINGS if brief else SHORT_DRAWINGS
    titles = BRIEF_TITLES if brief else SHORT_TITLES
    chosen = tuple(
        section for section in sections_of(all_sections(view), "terminal") if not section.when_asked
    )
    if brief or not full:
        chosen = tuple(find_section(all_sections(view), section_id) for section_id in drawings)
    chosen_by_name = [(name, with_parts(all_sections(view), name)) for name in asked]
    asked_ids = {section.id for _, parts in chosen_by_name for section in parts}
    chosen = tuple(section for section in chosen if section.id not in asked_ids)
    for section in chosen:
        if brief or not full:
            title = titles.get(section.id) or section.heading(words)
            body = drawings[section.id](view, width)
        else:
            title = section.heading(words)
            body = draw_section(section, view, width)
        if body is not None:
            yield title, body
    for name, parts in chosen_by_name:
        drawn = [(section.heading(words), draw_section(section, view, width)) for section in parts]
        with_content = [(title, body) for title, body in drawn if body is not None]
        if not with_content:
            yield (
                find_section(all_sections(view), name).heading(words),
                Text("  nothing of this run", style="dim"),
            )
        yield from with_content
