"""The sections of the terminal report that are one table with its notes, the first with a bar for each rank.

A section is a function of the view and the width of the terminal. It returns what to print, or None if there is nothing
to say. Sections that draw more are in ``fleet`` and ``schedule``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit._util.text import at_least, bare_ms, counted, percent, wrap_text
from tracekit.analysis import RankResult
from tracekit.report.palette import COMPUTE_COLOUR, IDLE_COLOUR, LABEL_COLOURS, UNRECORDED_COLOUR
from tracekit.report.table import Column, Table, make_table, rows_of
from tracekit.report.terminal.table import (
    MAX_RANKS_LISTED,
    WORST_RANKS_SHOWN,
    Note,
    command_line,
    new_table,
    render_table,
)
from tracekit.report.view import View, tables
from tracekit.report.view.budget import NOT_RECORDED, Bar, Beside, LabelRow, bar_of

MIN_WIDTH_FOR_MORE = 110
"""Columns of the terminal from which rows show more: causes, compute labels, communication apart from copies."""


def shared(
    table: Callable[[View], Table | None], *, total_style: str = ""
) -> Callable[[View, int], RenderableType | None]:
    """Return the section that shows one of the tables that all reports share."""
    return lambda view, width: render_table(table(view), width, total_style=total_style)


def compute(view: View, width: int) -> RenderableType | None:
    """List the compute labels, and unlabelled work in the last line."""
    rows = [row for row in view.labels if row.kind == "compute" and bare_ms(row.ns) != bare_ms(0)]
    if not rows:
        return None
    rows.sort(key=lambda row: (row.label == "other", -row.ns))
    columns = (
        Column("label", "label"),
        Column("time", "ms", terminal_heading="ms per rank", value="ns"),
        Column("of span", "share", value="share"),
        Column("kernels", "count", value="count"),
    )
    styles = {i: "bold red" if row.loud else "dim" for i, row in enumerate(rows) if row.loud or row.label == "other"}
    return render_table(Table(columns, rows_of(columns, rows)), width, row_styles=styles)


def exposure(view: View, width: int) -> RenderableType | None:
    """List communication and copies, the most exposed first."""
    max_causes = 2 if width >= MIN_WIDTH_FOR_MORE else 1

    def causes(row: LabelRow) -> str:
        return ", ".join(f"{percent(share, digits=0)} {cause}" for cause, share in row.causes(most=max_causes))

    columns = (
        Column("label", "label"),
        Column("time", "ms", terminal_heading="ms per rank", value="ns"),
        Column("hidden", "share"),
        Column("exposed", "ms", value="exposed_ns"),
        Column("of span", "share", 2, value="exposed_share"),
        Column("blocking", "ms", 3, value="blocking_ns"),
        Column("wait", "ms", 1, value="wait_ns"),
        Column("because", value=causes),
    )
    return render_table(make_table(columns, rows_of(columns, view.exposure)), width)


def compute_beside(view: View, width: int) -> RenderableType | None:
    """Show the compute labels and modules that hide each label, by pass."""
    if not view.beside:
        return None
    max_parts = 6 if width >= MIN_WIDTH_FOR_MORE else 4

    def parts(row: Beside) -> str:
        return ", ".join(f"{name} {percent(share)}" for name, share in row.parts[:max_parts])

    columns = (
        Column("label", "label"),
        Column("pass", value="pass_"),
        Column("time", "ms", terminal_heading="ms per rank", value="ns"),
        Column("beside it, share of the label's time", value=parts),
    )
    return render_table(Table(columns, rows_of(columns, view.beside)), width)


def bubbles(view: View, width: int) -> RenderableType | None:
    """Show the bubble of each rank: causes of idle time, pipeline waits, phases."""
    count = len(view.bubbles) + view.more_bubbles
    if count <= MAX_RANKS_LISTED:
        return render_table(tables.idle(view), width)
    note = f"the {WORST_RANKS_SHOWN} worst of {counted(count, 'rank')}"
    return render_table(tables.idle(view), width, max_rows=WORST_RANKS_SHOWN, notes=[note])


def host_activity(view: View, width: int) -> RenderableType | None:
    """List what the host did while the GPU waited for its next launch, the longest first."""
    if view.instead is None:
        return None
    columns = (
        Column("time", "ms", terminal_heading="ms per rank", value="ns"),
        Column("of it", "share", value="share"),
        Column("doing"),
        Column("what"),
        Column("line"),
    )
    return render_table(Table(columns, rows_of(columns, view.instead.rows), (view.instead.note,)), width)


def critical(view: View, width: int) -> RenderableType | None:
    """List the longest segments of the slowest step's critical path, and sum up the whole."""
    path = view.critical
    if path is None:
        return None
    columns = (
        Column("from", "ms", value="from_ns"),
        Column("", "ms", value="ns"),
        Column("of step", "share", 1, value="share"),
        Column("rank", "rank"),
        Column("kind"),
        Column("label"),
        Column("came last", "figure", 2, value=lambda row: "" if row.peer is None else f"rank {row.peer}"),
        Column("what", "name", value=lambda row: row.name()),
    )
    return render_table(Table(columns, rows_of(columns, path.rows), path.notes), width)


def changes(view: View, width: int) -> RenderableType | None:
    """List the predicted step times with changes."""
    return None if view.changes is None else render_table(view.changes.table, width)


def requested_changes(view: View, width: int) -> RenderableType | None:
    """Return the predicted step times with changes if they were asked for."""
    return changes(view, width) if view.analysis.graph is not None else None


def breakdown(view: View, width: int) -> RenderableType | None:
    """Show the step by layer, module, annotation or shape; None if that was not asked for."""
    if view.by is None:
        return None
    if view.by.table is None:
        return Group(*(Note(line) for line in view.by.notes))
    return render_table(view.by.table, width, total_style="dim")


def memory(view: View, width: int) -> RenderableType | None:
    """Show the peak memory of each rank in GB, by phase; None if allocations were not recorded."""
    if view.memory is None:
        return None
    expendable = {"reserved": 2, "before": 1}
    columns = [Column(name, "figure", expendable.get(name, 0)) for name in view.memory.columns]
    rows = tuple((row.rank, *view.memory.cells(row)) for row in view.memory.rows)
    return render_table(Table((Column("rank", "rank"), *columns), rows, view.memory.notes), width)


def stragglers(view: View, width: int) -> RenderableType | None:
    """Name the ranks that start operations last, and the waiting they cause."""
    if not view.stragglers:
        return None
    columns = (
        Column("rank", "figure", value="ranks"),
        Column("label", "label"),
        Column("others waited", "ms", value="caused_ns"),
        Column("operations", "count"),
        Column("late", "word", 1, value="when"),
        Column("why", "name", 2),
    )
    note = "the rank that starts a matched operation last; others' wait in it, summed over ranks"
    note = f"{note}. {view.clock_note}" if view.clock_note else note
    rows = rows_of(columns, view.stragglers[:WORST_RANKS_SHOWN])
    return render_table(Table(columns, rows, (note,)), width)


def imbalance(view: View, width: int) -> RenderableType | None:
    """Show the steps in which unequal work costs most."""
    return None if view.imbalance is None else render_table(view.imbalance, width)


def slowdown(view: View, width: int) -> RenderableType | None:
    """Show which stages, kinds of cells and ranks slow the pipeline down."""
    return None if view.slowdown is None else render_table(view.slowdown, width)


def step_times(view: View, width: int) -> RenderableType | None:
    """Show the longest steps and how much they differ; None if there is one step."""
    if view.steps is None:
        return None
    steps = sorted(view.steps.rows, key=lambda row: -row.median_ns)
    extremes = f"{bare_ms(steps[0].median_ns)} to {bare_ms(steps[-1].median_ns)} ms"
    note = f"{counted(len(steps) + view.steps.more, 'step')}, longest first: {extremes}"
    shown = steps[:WORST_RANKS_SHOWN]
    columns = [Column("step", "figure"), Column("", "ms", value="median_ns")]
    if not view.steps.one_rank:
        note = f"{note}; median, shortest and longest over ranks"
        columns = [
            Column("step", "figure"),
            Column("median", "ms", value="median_ns"),
            Column("shortest", "ms", value="least_ns"),
            Column("longest", "ms", value="most_ns"),
        ]
        some_rank_is_slowest = any(row.slowest is not None for row in shown)
        columns += [Column("slowest rank", "figure", value="slowest")] if some_rank_is_slowest else []
    columns.append(Column("", "figure", value=lambda row: "partial" if row.partial else ""))
    return render_table(Table(tuple(columns), rows_of(columns, shown), (note,)), width)


def reload(view: View, width: int) -> RenderableType | None:
    """Show a weight update and its two-buffer ideal, and its lanes."""
    if view.reload is None:
        return None
    facts = new_table(("", ""), left=(True, True))
    facts.show_header = False
    for name, value in view.reload.facts:
        facts.add_row(name, value)
    more = len(view.reload.lanes) + view.reload.more - MAX_RANKS_LISTED
    notes = [f"{counted(more, 'more row')} in the JSON"] if more > 0 else []
    lanes = render_table(tables.reload_lanes(view), width, max_rows=MAX_RANKS_LISTED, notes=notes)
    return facts if lanes is None else Group(facts, lanes)


def roles(view: View, width: int) -> RenderableType | None:
    """Show the roles of a run, its RL iterations, which role waits for which, and its weight updates."""
    if view.roles is None:
        return None
    parts: list[RenderableType] = []
    for title, meaning, table in view.roles.tables:
        if table is not None and (rendered := render_table(table, width)) is not None:
            parts += [Text(f"{title} ({meaning})", style="italic"), rendered]
    return Group(*parts)


def warnings(view: View, width: int) -> RenderableType | None:
    """List the warnings: what was lost, missing or chosen on the way."""
    if not view.warnings:
        return None
    messages = (wrap_text(notice.message, max(40, width), first="  ! ", rest="    ") for notice in view.warnings)
    return Group(*(Text(message, style="yellow") for message in messages))


def next_steps(view: View, width: int, *, first: int = 1) -> RenderableType | None:
    """List what to do next from the *first* thing on, with commands to copy."""
    lines: list[RenderableType] = []
    for number, advice in enumerate(view.advice[first - 1 :], first):
        lines.append(Text(wrap_text(advice.text, max(40, width), first=f"  {number}. ", rest="     ")))
        if advice.command:
            lines.append(command_line(advice.command))
    return Group(*lines) if lines else None


def further_steps(view: View, width: int) -> RenderableType | None:
    """List what to do beside the first thing, which the answer names."""
    return next_steps(view, width, first=2)


GLYPHS = {"compute": "█", "communication": "▓", "copy": "▒", "idle": "░", "unrecorded": "?"}
"""Fill of each kind of part; they can be told apart without colour."""
LEGEND = {
    "compute": ("compute", COMPUTE_COLOUR),
    "communication": ("exposed communication", LABEL_COLOURS["pp_comm"]),
    "copy": ("exposed copy", LABEL_COLOURS["offload"]),
    "idle": ("idle", IDLE_COLOUR),
    "unrecorded": (NOT_RECORDED, UNRECORDED_COLOUR),
}
"""Name and colour of each kind of part."""
MIN_BAR_LENGTH = 10
MAX_BARS_IN_SHORT_BUDGET = 4


def short_budget(view: View, width: int) -> RenderableType | None:
    """Draw the bars of a few ranks and their mean."""
    return budget(view, width, max_bars=MAX_BARS_IN_SHORT_BUDGET)


def budget(view: View, width: int, *, max_bars: int | None = None) -> RenderableType | None:
    """Draw one bar per rank: compute, exposed communication, exposed copies, idle; at most *max_bars* if given."""
    bars, remark = _chosen_bars(view)
    if max_bars is not None and len(bars) > max_bars:
        bars, remark = bars[:max_bars], ""  # the title says so
    is_wide = width >= MIN_WIDTH_FOR_MORE
    exposed = ["communication", "copies"] if is_wide else ["exposed"]
    last = [NOT_RECORDED] if any(part.kind == "unrecorded" for part in view.budget.mean.parts) else []
    last += ["bubble"] if view.pipelined else []
    headings = ["rank", "span ms", "", "compute", *exposed, "idle", *last]
    table = new_table(headings, left=[heading == "" for heading in headings])
    length = _bar_length(bars, width, is_wide, last)
    for bar in bars:
        table.add_row(*_row(bar, length, is_wide, last))
    if len(view.analysis.rank_results) > 1:
        table.add_row(*_row(view.budget.mean, length, is_wide, last), style="bold")
    legend = Text("  ")
    kinds = {part.kind for part in view.budget.mean.parts if part.ns}
    for kind, (name, colour) in LEGEND.items():
        if kind in kinds:
            legend.append(GLYPHS[kind], style=colour).append(f" {name}  ")
    return Group(table, legend, *([Note(remark)] if remark else []))


def _bar_length(bars: Sequence[Bar], width: int, is_wide: bool, last: Sequence[str]) -> int:
    """Return the length that the names, spans and shares beside the bars leave for them."""
    names = max(len(bar.name) for bar in bars)
    spans = max(len(bare_ms(bar.span_ns)) for bar in bars)
    free = width - names - spans - (49 if is_wide else 34) - sum(2 + max(8, len(name)) for name in last)
    return max(MIN_BAR_LENGTH, min(width - (78 if is_wide else 58), free))


def _chosen_bars(view: View) -> tuple[list[Bar], str]:
    """Return the bars of the ranks to show, the least compute first, and a remark if some ranks are left out."""
    ranks = sorted(view.analysis.rank_results, key=_compute_share)

    def bar(rank: RankResult, remark: str = "") -> Bar:
        return bar_of(f"{rank.rank}{remark}", rank.whole, rank=rank.rank)

    if len(ranks) <= MAX_RANKS_LISTED:
        return [bar(rank) for rank in ranks], ""
    worst, best = ranks[0], max(ranks, key=_compute_share)  # of equal ranks the first, as in the distribution
    bars = [*map(bar, ranks[:WORST_RANKS_SHOWN]), bar(ranks[len(ranks) // 2], " (median)"), bar(best, " (best)")]
    ends = [f"{percent(_compute_share(rank))} (rank {rank.rank})" for rank in (worst, best)]
    return bars, f"{counted(len(ranks), 'rank')}: compute runs from {' to '.join(ends)} of the span"


def _compute_share(rank: RankResult) -> float:
    budget = rank.whole.budget
    return budget.compute_ns / budget.span_ns if budget.span_ns else 0.0


def _row(bar: Bar, length: int, is_wide: bool, last: Sequence[str]) -> list[RenderableType]:
    exposed = [bar.share("communication"), bar.share("copy")]
    last_cells = {
        NOT_RECORDED: percent(bar.share("unrecorded")),
        "bubble": at_least(percent(bar.bubble), bar.lower_bound),
    }
    return [
        bar.name,
        bare_ms(bar.span_ns),
        _draw(bar, length),
        percent(bar.share("compute")),
        *(percent(share) for share in (exposed if is_wide else [sum(exposed)])),
        percent(bar.share("idle")) if bar.idle_known else "unknown",
        *(last_cells[name] for name in last),
    ]


def _draw(bar: Bar, length: int) -> Text:
    """Draw the parts of a bar with as many characters as their shares of *length* say.

    Shares are rounded by largest remainder: each part first gets its whole characters, and those left over go to the
    parts whose fraction is largest. So the bar is full.
    """
    exact = [part.share * length for part in bar.parts]
    counts = [int(characters) for characters in exact]
    left_over = round(sum(exact)) - sum(counts)
    for i in sorted(range(len(counts)), key=lambda i: counts[i] - exact[i])[:left_over]:
        counts[i] += 1
    text = Text(no_wrap=True)
    for part, count in zip(bar.parts, counts, strict=True):
        text.append(GLYPHS[part.kind] * count, style=part.colour)
    return text
