"""The smaller sections of the terminal report: bubbles, stragglers, steps, copies, reload, warnings."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit._util.text import bare_ms, counted, wrap_text
from tracekit.report.terminal.grid import render_grid
from tracekit.report.terminal.table import MANY, SHOWN, label_name, note, table
from tracekit.report.view import View, grids


def bubbles(view: View, width: int) -> RenderableType | None:
    """Split each rank's bubble: why it was idle, where it waited, in which phase."""
    count = len(view.bubbles) + view.more_bubbles
    most = None if count <= MANY else SHOWN
    notes = [f"the {SHOWN} worst of {counted(count, 'rank')}"] if most else []
    return render_grid(grids.idle(view), width, most=most, notes=notes)


def stragglers(view: View, width: int) -> RenderableType | None:
    """Name the ranks that arrive last, by the waiting they cause."""
    if not view.stragglers:
        return None
    made = table("rank", "label", "others waited ms", "operations", left=("label",))
    for row in view.stragglers[:SHOWN]:
        made.add_row(str(row.rank), label_name(row.label), bare_ms(row.caused_ns), f"{row.operations:,}")
    text = "the rank that starts a matched operation last; others' wait in it, summed over ranks"
    return Group(made, note(f"{text}. {view.clock_note}" if view.clock_note else text))


def spread(view: View, width: int) -> RenderableType | None:
    """Show how much steps differ, where there are several."""
    if view.steps is None:
        return None
    rows = sorted(view.steps.rows, key=lambda row: -row.median_ns)
    one = view.steps.one_rank
    partial = any(row.partial for row in rows[:SHOWN])
    which = not one and any(row.slowest is not None for row in rows[:SHOWN])
    heads = ["step", "ms"] if one else ["step", "median ms", "shortest ms", "longest ms"]
    heads += ["slowest rank"] if which else []
    made = table(*heads, *([""] if partial else []))
    for row in rows[:SHOWN]:
        times = (row.median_ns,) if one else (row.median_ns, row.least_ns, row.most_ns)
        cells = [str(row.step), *(bare_ms(ns) for ns in times)]
        cells += ["–" if row.slowest is None else str(row.slowest)] if which else []
        made.add_row(*cells, *(["partial" if row.partial else ""] if partial else []))
    low, high = bare_ms(rows[-1].median_ns), bare_ms(rows[0].median_ns)
    said = f"{counted(len(rows) + view.steps.more, 'step')}, longest first: {high} to {low} ms"
    said += "; median, shortest and longest over ranks" if not one else ""
    return Group(made, note(said))


def copies(view: View, width: int) -> RenderableType | None:
    """Report offload, onload and other copies: bytes, bandwidth, hidden share, stalls."""
    return render_grid(grids.copies(view), width)


def reload(view: View, width: int) -> RenderableType | None:
    """Show a weight update against the two-buffer ideal."""
    if view.reload is None:
        return None
    facts = table("", " ", left=("", " "))
    facts.show_header = False
    for name, value in view.reload.facts:
        facts.add_row(name, value)
    left = len(view.reload.lanes) + view.reload.more - MANY
    more = [f"{counted(left, 'more row')} in the JSON"] if left > 0 else []
    made = render_grid(grids.reload_lanes(view), width, most=MANY, notes=more)
    return Group(facts, *([made] if made is not None else []))


def warnings(view: View, width: int) -> RenderableType | None:
    """List what was lost, missing or chosen on the way."""
    if not view.warnings:
        return None
    lines = []
    for said in view.warnings:
        lines.append(Text(wrap_text(said.message, max(40, width), first="  ! ", rest="    "), style="yellow"))
    return Group(*lines)
