"""The smaller sections of the terminal report: bubbles, stragglers, steps, copies, reload, warnings."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit._util.text import at_least, bare_ms, counted, percent, wrapped
from tracekit.report.terminal.table import MANY, SHOWN, label_name, note, table
from tracekit.report.view import View
from tracekit.schema import IDLE_CAUSES, PHASES


def bubbles(view: View, width: int) -> RenderableType | None:
    """Split each rank's bubble: why it was idle, where it waited, in which phase."""
    if not view.bubbles:
        return None
    count = len(view.bubbles) + view.more_bubbles
    rows = view.bubbles if count <= MANY else view.bubbles[:SHOWN]
    usual = ("launch_bound", "dependency")
    causes = [name for name in IDLE_CAUSES if name in usual or any(row.causes.get(name) for row in rows)]
    phased = width >= 96 and any(row.phase_ns for row in rows)
    waited = view.pipelined and any(row.wait_ns is not None for row in rows)
    head = ["rank", "idle ms", *(IDLE_CAUSES[name] for name in causes), *(["pp wait ms"] if waited else [])]
    head += ["bubble"] if view.pipelined else []
    made = table(*head, *(PHASES if phased else ()))
    for row in rows:
        cells = [str(row.rank), bare_ms(row.idle_ns), *(percent(row.causes[name]) for name in causes)]
        cells += [bare_ms(row.wait_ns)] if waited else []
        cells += [at_least(percent(row.bubble), row.lower_bound)] if view.pipelined else []
        made.add_row(*cells, *((bare_ms(row.phase_ns.get(phase)) for phase in PHASES) if phased else ()))
    notes = [f"{', '.join(IDLE_CAUSES[name] for name in causes)}: shares of idle"]
    notes += ["phases: bubble in ms"] if phased else []
    notes += [f"the {SHOWN} worst of {counted(count, 'rank')}"] if count > MANY else []
    return Group(made, note("; ".join(notes)))


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
    heads = ["step", "ms"] if one else ["step", "median ms", "fastest rank", "slowest rank", "which"]
    made = table(*heads, *([""] if partial else []))
    for row in rows[:SHOWN]:
        times = (row.median_ns,) if one else (row.median_ns, row.least_ns, row.most_ns)
        cells = [str(row.step), *(bare_ms(ns) for ns in times), *([] if one else [str(row.slowest)])]
        made.add_row(*cells, *(["partial" if row.partial else ""] if partial else []))
    low, high = bare_ms(rows[-1].median_ns), bare_ms(rows[0].median_ns)
    return Group(made, note(f"{counted(len(rows) + view.steps.more, 'step')}, slowest first: {low} to {high} ms"))


def copies(view: View, width: int) -> RenderableType | None:
    """Report offload, onload and other copies: bytes, bandwidth, hidden share, stalls."""
    if view.copies is None or not view.copies.total:
        return None
    made = table("label", "copies", "MB", "GB/s", "of link", "hidden", "stall ms", "stalls", left=("label",))
    for row in view.copies.total:
        moved = "–" if row.bytes is None else f"{row.bytes / 1e6:,.1f}"
        rate = "–" if row.gb_s is None else f"{row.gb_s:,.1f}"
        shares = (percent(row.of_link), percent(row.hidden))
        figures = (f"{row.count:,}", moved, rate, *shares, bare_ms(row.stall_ns), f"{row.stalls:,}")
        made.add_row(label_name(row.label), *figures)
    said = "all ranks; GB/s: bytes / union of the copies' time; stall: exposed time charged to the copy"
    links = sorted({row.link_gb_s for row in view.copies.total if row.link_gb_s})
    told = [
        f"link: {speed:g} GB/s one way between a GPU and its host; processes of one GPU share it" for speed in links
    ]
    return Group(made, *(note(text) for text in (said, *told)))


def reload(view: View, width: int) -> RenderableType | None:
    """Show a weight update against the two-buffer ideal."""
    if view.reload is None:
        return None
    facts = table("", " ", left=("", " "))
    facts.show_header = False
    for name, value in view.reload.facts:
        facts.add_row(name, value)
    made = table("rank", "lane", "copies", "ms", "GB/s", left=("lane",))
    for row in view.reload.lanes[:MANY]:
        rate = row["bandwidth_gb_s"]
        shown = "–" if rate is None else f"{rate:,.1f}"
        made.add_row(str(row["rank"]), str(row["lane"]), f"{row['count']:,}", bare_ms(row["ns"]), shown)  # type: ignore[arg-type]
    left = len(view.reload.lanes) + view.reload.more - MANY
    return Group(facts, made, *([note(f"{counted(left, 'more row')} in the JSON")] if left > 0 else []))


def warnings(view: View, width: int) -> RenderableType | None:
    """List what was lost, missing or chosen on the way."""
    if not view.warnings:
        return None
    lines = []
    for said in view.warnings:
        lines.append(Text(wrapped(said.message, max(40, width), first="  ! ", rest="    "), style="yellow"))
    return Group(*lines)
