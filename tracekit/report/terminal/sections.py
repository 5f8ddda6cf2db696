"""The sections of the terminal report that are one table with its notes.

A section is a function of the view and the width of the terminal. It returns what to print, or None if there is nothing
to say. Sections that draw something are in ``budget``, ``fleet`` and ``schedule``.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit._util.text import bare_ms, counted, percent, wrap_text
from tracekit.report.table import Column, Table, Value, make_table
from tracekit.report.terminal.table import (
    MAX_RANKS_LISTED,
    WORST_RANKS_SHOWN,
    Note,
    command_line,
    new_table,
    render_table,
)
from tracekit.report.view import View, tables

MIN_WIDTH_FOR_MORE = 110
"""Columns of the terminal from which a second cause and more compute labels are shown in a row."""


def compute(view: View, width: int) -> RenderableType | None:
    """List the compute labels, and unlabelled work in the last line."""
    rows = [row for row in view.labels if row.kind == "compute" and bare_ms(row.ns) != bare_ms(0)]
    if not rows:
        return None
    rows.sort(key=lambda row: (row.label == "other", -row.ns))
    columns = (
        Column("label", "label"),
        Column("time", "ms", terminal_heading="ms per rank"),
        Column("of span", "share"),
        Column("kernels", "count"),
    )
    styles = {i: "bold red" if row.loud else "dim" for i, row in enumerate(rows) if row.loud or row.label == "other"}
    cells = tuple((row.label, row.ns, row.share, row.count) for row in rows)
    return render_table(Table(columns, cells), width, row_styles=styles)


def exposure(view: View, width: int) -> RenderableType | None:
    """List communication and copies, the most exposed first."""
    columns = (
        Column("label", "label"),
        Column("time", "ms", terminal_heading="ms per rank"),
        Column("hidden", "share"),
        Column("exposed", "ms"),
        Column("of span", "share", 2),
        Column("blocking", "ms", 3),
        Column("wait", "ms", 1),
        Column("because"),
    )
    max_causes = 2 if width >= MIN_WIDTH_FOR_MORE else 1
    cells = [
        (
            row.label,
            row.ns,
            row.hidden,
            row.exposed_ns,
            row.exposed_share,
            row.blocking_ns,
            row.wait_ns,
            ", ".join(f"{percent(share, digits=0)} {cause}" for cause, share in row.causes(most=max_causes)),
        )
        for row in view.exposure
    ]
    return render_table(make_table(columns, cells), width)


def compute_beside(view: View, width: int) -> RenderableType | None:
    """Show the compute labels and modules that hide each label, by pass."""
    if not view.beside:
        return None
    max_parts = 6 if width >= MIN_WIDTH_FOR_MORE else 4
    columns = (
        Column("label", "label"),
        Column("pass"),
        Column("time", "ms", terminal_heading="ms per rank"),
        Column("beside it, share of the label's time"),
    )
    rows = tuple(
        (row.label, row.pass_, row.ns, ", ".join(f"{name} {percent(share)}" for name, share in row.parts[:max_parts]))
        for row in view.beside
    )
    return render_table(Table(columns, rows), width)


def hiding(view: View, width: int) -> RenderableType | None:
    """Show how much slower compute ran beside communication, and the net gain of hiding."""
    return render_table(tables.hiding(view), width)


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
        Column("time", "ms", terminal_heading="ms per rank"),
        Column("of it", "share"),
        Column("doing"),
        Column("what"),
        Column("line"),
    )
    rows = tuple((row.ns, row.share, row.doing, row.what, row.line) for row in view.instead.rows)
    return render_table(Table(columns, rows, (view.instead.note,)), width)


def critical(view: View, width: int) -> RenderableType | None:
    """List the longest segments of the slowest step's critical path, and sum up the whole."""
    path = view.critical
    if path is None:
        return None
    columns = (
        Column("from", "ms"),
        Column("", "ms"),
        Column("of step", "share", 1),
        Column("rank", "rank"),
        Column("kind"),
        Column("label"),
        Column("came last", "figure", 2),
        Column("what", "name"),
    )
    rows = tuple(
        (
            row.from_ns,
            row.ns,
            row.share,
            row.rank,
            row.kind,
            row.label,
            "" if row.peer is None else f"rank {row.peer}",
            row.name(),
        )
        for row in path.rows
    )
    return render_table(Table(columns, rows, path.notes), width)


def changes(view: View, width: int) -> RenderableType | None:
    """List the predicted step times with changes."""
    return None if view.changes is None else render_table(view.changes.table, width)


def breakdown(view: View, width: int) -> RenderableType | None:
    """Show the step by layer, module, annotation or shape; None if that was not asked for."""
    if view.by is None:
        return None
    if view.by.table is None:
        return Group(*(Note(line) for line in view.by.notes))
    return render_table(view.by.table, width, total_style="dim")


def products(view: View, width: int) -> RenderableType | None:
    """Show the rates of matrix products; None if no shapes were recorded."""
    return render_table(tables.products(view), width, total_style="bold")


def communication(view: View, width: int) -> RenderableType | None:
    """Show the bandwidth of matched operations; None if no sizes were recorded."""
    return render_table(tables.communication(view), width)


def experts(view: View, width: int) -> RenderableType | None:
    """Show what the experts of each rank receive; None if dispatches do not say it."""
    return render_table(tables.experts(view), width)


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
        Column("rank", "rank"),
        Column("label", "label"),
        Column("others waited", "ms"),
        Column("operations", "count"),
    )
    shown = view.stragglers[:WORST_RANKS_SHOWN]
    rows = tuple((row.rank, row.label, row.caused_ns, row.operations) for row in shown)
    note = "the rank that starts a matched operation last; others' wait in it, summed over ranks"
    note = f"{note}. {view.clock_note}" if view.clock_note else note
    return render_table(Table(columns, rows, (note,)), width)


def step_times(view: View, width: int) -> RenderableType | None:
    """Show the longest steps and how much they differ; None if there is one step."""
    if view.steps is None:
        return None
    steps = sorted(view.steps.rows, key=lambda row: -row.median_ns)
    extremes = f"{bare_ms(steps[0].median_ns)} to {bare_ms(steps[-1].median_ns)} ms"
    note = f"{counted(len(steps) + view.steps.more, 'step')}, longest first: {extremes}"
    shown = steps[:WORST_RANKS_SHOWN]
    some_rank_is_slowest = any(row.slowest is not None for row in shown)
    several_ranks = not view.steps.one_rank
    columns = [Column("step", "figure"), Column("median" if several_ranks else "", "ms")]
    rows: list[list[Value]] = [[str(row.step), row.median_ns] for row in shown]
    if several_ranks:
        note = f"{note}; median, shortest and longest over ranks"
        columns += [Column("shortest", "ms"), Column("longest", "ms"), Column("slowest rank", "figure")]
        for cells, row in zip(rows, shown, strict=True):
            cells += [row.least_ns, row.most_ns, row.slowest if some_rank_is_slowest else ""]
    columns.append(Column("", "figure"))
    for cells, row in zip(rows, shown, strict=True):
        cells.append("partial" if row.partial else "")
    return render_table(Table(tuple(columns), tuple(map(tuple, rows)), (note,)), width)


def copies(view: View, width: int) -> RenderableType | None:
    """Show offload, onload and other copies: bytes, bandwidth, hidden share, stalls."""
    return render_table(tables.copies(view), width)


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


def warnings(view: View, width: int) -> RenderableType | None:
    """List the warnings: what was lost, missing or chosen on the way."""
    if not view.warnings:
        return None
    messages = (wrap_text(notice.message, max(40, width), first="  ! ", rest="    ") for notice in view.warnings)
    return Group(*(Text(message, style="yellow") for message in messages))


def next_steps(view: View, width: int) -> RenderableType | None:
    """List everything to do next, with commands to copy."""
    steps = [(advice.text, advice.command) for advice in view.advice]
    if view.has_gpu:
        steps.append(("A page to share:", f"tracekit analyze {view.asked or 'PATH…'} -o report.html"))
    lines: list[RenderableType] = []
    for number, (text, command) in enumerate(steps, 1):
        lines.append(Text(wrap_text(text, max(40, width), first=f"  {number}. ", rest="     ")))
        if command:
            lines.append(command_line(command))
    return Group(*lines)
