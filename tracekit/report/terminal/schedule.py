"""The run against its ideal schedule, in the terminal: bubbles side by side, the gap by cause, a text Gantt."""

from __future__ import annotations

import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text

from tracekit._util.text import bare_ms, counted, percent
from tracekit.analysis import Analysis
from tracekit.compare import Held, ScheduleComparison, WhatIf
from tracekit.report.palette import CELL_COLOURS, LABEL_COLOURS
from tracekit.report.summary import which
from tracekit.report.terminal.budget import MANY, SHOWN, table
from tracekit.schema import GAP_CAUSES, PHASES

_TURNED = {"F": "F", "B": "B", "I": "I", "W": "W", "FB": "X"}
ALTERNATIVES = 6


def render_schedule(analysis: Analysis, width: int) -> RenderableType | None:
    """Draw the whole section."""
    found: ScheduleComparison | None = analysis.schedule
    if found is None:
        return None
    parts: list[RenderableType | None] = [
        _headline(found),
        _sides(found.head),
        _waterfall(found.head, width),
        _gantt(found.head, width),
        _lanes(found.lanes),
        _what_if(found.what_if),
    ]
    return Group(*(part for part in parts if part is not None))


def _headline(found: ScheduleComparison) -> Text:
    held, schedule = found.head, found.head.match.schedule
    chunks = f" × {schedule.virtual} chunks" if schedule.virtual > 1 else ""
    line = Text.assemble(
        "  ",
        (schedule.name, "bold"),
        f" · {counted(found.pp, 'rank')}{chunks} · {schedule.microbatches} micro-batches · ",
    )
    line.append("order exactly the schedule's" if found.exact else f"nearest; {held.match.distance} units elsewhere")
    if which(found):
        line.append(f" · {which(found)}")
    for difference in held.match.differences[:3]:
        rank = held.pipeline.ranks[difference.rank]
        ran, want = " ".join(difference.measured) or "nothing", " ".join(difference.expected) or "nothing"
        line.append(f"\n  rank {rank}, cell {difference.position}: ran {ran}, the schedule has {want}", style="dim")
    return line


def _sides(held: Held) -> RenderableType:
    made = table("", "makespan ms", "bubble", "warm-up ms", "steady ms", "cool-down ms", "peak", left=("",))
    made.columns[0].no_wrap = True
    ranks = len(held.bubbles)
    made.add_row(
        "measured", bare_ms(held.measured_ns), percent(held.measured_bubble), *_mean(held, "measured_ns", ranks), ""
    )
    made.add_row("ideal", bare_ms(held.ideal_ns), percent(held.ideal_bubble), *_mean(held, "ideal_ns", ranks), "")
    for bubble in held.bubbles if ranks <= MANY else sorted(held.bubbles, key=_idle, reverse=True)[:SHOWN]:
        idle = sum(bubble.measured_ns.values())
        phases = [bare_ms(ns) for ns in bubble.measured_ns.values()]
        share = percent(idle, held.measured_ns)
        made.add_row(f"  rank {bubble.rank}", "", share, *phases, str(bubble.peak_activations))
    note = "bubble: share of the makespan in no cell; phases: idle ms a rank; peak: chunks held"
    return Group(made, Text("  " + note, style="dim"))


def _idle(bubble: object) -> int:
    return sum(bubble.measured_ns.values())  # type: ignore[attr-defined]


def _mean(held: Held, side: str, ranks: int) -> list[str]:
    sums = [0, 0, 0]
    for bubble in held.bubbles:
        sums = [a + b for a, b in zip(sums, getattr(bubble, side).values(), strict=True)]
    return [bare_ms(ns / ranks) for ns in sums]


def _waterfall(held: Held, width: int) -> RenderableType:
    if held.gap_ns is None:
        return Text("  ranks are missing: the gap cannot be split by cause", style="dim")
    room = max(10, min(40, width - 64))
    top = max(held.measured_ns, held.ideal_ns, 1)
    made = table("gap", "ms", "of makespan", "", left=("gap", ""))
    made.add_row(
        "ideal", bare_ms(held.ideal_ns), percent(held.ideal_ns, held.measured_ns), _bar(0, held.ideal_ns, top, room)
    )
    at = held.ideal_ns
    for part, ns in held.gap_ns.items():
        if ns or part == "unexplained":
            bar = _bar(min(at, at + ns), max(at, at + ns), top, room)
            sign = "+" if ns >= 0 else "−"
            name = f"{sign} {GAP_CAUSES[part].words}"
            made.add_row(name, bare_ms(abs(ns)), percent(abs(ns), held.measured_ns), bar)
        at += ns
    made.add_row("measured", bare_ms(held.measured_ns), "", _bar(0, held.measured_ns, top, room))
    return made


def _bar(start: int, end: int, top: int, room: int) -> Text:
    left, right = round(start / top * room), round(end / top * room)
    return Text(" " * left + "█" * max(right - left, 1 if end > start else 0), style=LABEL_COLOURS["pp_comm"])


def _gantt(held: Held, width: int) -> RenderableType:
    """Two blocks of one line per rank, to one scale: as it ran, and its ideal."""
    cells = held.cells
    origin = int(cells["start_ns"].min())  # type: ignore[arg-type]
    scale = max(held.measured_ns, int(cells["ideal_end_ns"].max()), 1)  # type: ignore[arg-type]
    room = max(40, min(width, 160) - 12)
    ranks = [b.rank for b in held.bubbles]
    shown = ranks if len(ranks) <= 8 else [*ranks[:4], *ranks[-4:]]
    lines = Text()
    for title, start, end, shift in (
        ("as it ran", "start_ns", "end_ns", origin),
        ("ideal", "ideal_start_ns", "ideal_end_ns", 0),
    ):
        lines.append(f"  {title}\n", style="dim")
        for rank in shown:
            part = cells.filter(pl.col("rank") == rank).select("op", "microbatch", start, end)
            lines.append(f"  {rank:>6}  ")
            lines.append_text(_row([(op, mb, a - shift, b - shift) for op, mb, a, b in part.iter_rows()], scale, room))
            lines.append("\n")
    lines.append(
        "  F forward, B backward, I and W its halves, X both at once; the number is the micro-batch", style="dim"
    )
    return lines


def _row(cells: list[tuple[str, int, int, int]], scale: int, room: int) -> Text:
    line, at = Text(), 0
    for op, microbatch, start, end in cells:
        left, right = max(at, round(start / scale * room)), round(end / scale * room)
        line.append("·" * (left - at), style="dim")
        wide = max(right - left, 0)
        if wide:
            text = f"{_TURNED[op]}{microbatch}"
            line.append((text if len(text) <= wide else _TURNED[op]).ljust(wide, "─")[:wide], style=_style(op))
        at = max(at, left + wide)
    line.append("·" * (room - at), style="dim")
    return line


def _style(op: str) -> str:
    return CELL_COLOURS["B" if op == "FB" else op]


def _lanes(lanes: pl.DataFrame) -> RenderableType | None:
    """Show what was hidden by phase, where there is more than pipeline transfers."""
    busy = lanes.filter(
        pl.col("label").is_in(["ep_dispatch", "ep_combine", "offload", "onload"]) & (pl.col("phase") != "FB")
    )
    if busy.is_empty():
        return None
    made = table("hidden by phase", "warm-up", "steady", "cool-down", "inside FB", left=("hidden by phase",))
    for (label, way), part in _by_label(busy):
        inside = lanes.filter((pl.col("label") == label) & pl.col("pass").eq_missing(way))
        shares = [_hidden(part, phase) for phase in PHASES]
        made.add_row(f"{label} {way or ''}".rstrip(), *shares, _hidden(inside, "FB"))
    sends = lanes.filter(pl.col("label") == "pp_comm")
    if sends.height:
        phases = (*PHASES, "FB")
        made.add_row("pp_comm beside wgrad", *(_hidden(sends, phase, "beside_wgrad_ns") for phase in phases))
    note = "shares of each label's time that compute ran beside; the overlapped schedule's ideal is all of it"
    return Group(made, Text("  " + note, style="dim"))


def _by_label(table_: pl.DataFrame) -> list[tuple[tuple[str, str | None], pl.DataFrame]]:
    groups = table_.group_by("label", "pass", maintain_order=True)
    return sorted((((str(k[0]), k[1]), part) for k, part in groups), key=lambda item: (item[0][0], item[0][1] or ""))


def _hidden(part: pl.DataFrame, phase: str, by: str = "hidden_ns") -> str:
    row = part.filter(pl.col("phase") == phase).select(pl.col(by, "total_ns").sum()).row(0)
    return percent(row[0], row[1])


def _what_if(lines: tuple[WhatIf, ...]) -> RenderableType | None:
    if not lines:
        return None
    made = table(
        "what if",
        "makespan ms",
        "saves ms",
        "bubble",
        "peak",
        "taken for granted",
        left=("what if", "taken for granted"),
    )
    schedules = [line for line in lines if line.change == "schedule"][:ALTERNATIVES]
    for line in [*schedules, *(line for line in lines if line.change == "without")]:
        name = line.name + (f" (virtual {line.virtual})" if line.virtual and line.virtual > 1 else "")
        peak = "" if line.peak_activations is None else f"{line.peak_activations:g}"
        made.add_row(
            name,
            bare_ms(line.makespan_ns),
            bare_ms(line.saves_ns),
            percent(line.bubble_fraction),
            peak,
            line.assumption,
        )
    note = "saves: a schedule against the ideal of the run's own, the rest against the run; peak: micro-batches held"
    return Group(made, Text("  " + note, style="dim"))
