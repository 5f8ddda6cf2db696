"""The run against its ideal schedule, in the terminal: both sides, the gap by cause, a text Gantt, what if."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tracekit._util.text import bare_ms, counted, percent
from tracekit.report.palette import LABEL_COLOURS
from tracekit.report.terminal.gantt import gantt
from tracekit.report.terminal.table import MANY, SHOWN, note, table
from tracekit.report.terminal.whatif import render_what_if
from tracekit.report.view import View
from tracekit.report.view.pipeline import PhaseRow, Rung, ScheduleView, paired
from tracekit.schema import PHASES


def render_schedule(view: View, width: int) -> RenderableType | None:
    """Draw the whole section."""
    found, held = view.schedule, view.analysis.schedule
    if found is None or held is None:
        return None
    parts: list[RenderableType | None] = [
        _headline(found),
        _sides(found),
        _waterfall(found, width),
        note(view.rates.below_peak) if view.rates is not None and view.rates.below_peak else None,
        gantt(held.head, width),
        _phases(found.phases),
        render_what_if(found.alternatives, width),
    ]
    return Group(*(part for part in parts if part is not None))


def _headline(found: ScheduleView) -> RenderableType:
    chunks = f" × {found.virtual} chunks" if found.virtual > 1 else ""
    size = f" · {counted(found.pp, 'rank')}{chunks} · {counted(found.microbatches, 'micro-batch')} · "
    line = Text.assemble((found.name, "bold"), size)
    line.append(
        "order exactly the schedule's" if found.exact else f"nearest; {counted(found.distance, 'unit')} elsewhere"
    )
    if found.which:
        line.append(f" · {found.which}")
    for difference in found.differences[:3]:
        line.append(f"\n{difference}", style="dim")
    return Padding(line, (0, 0, 0, 2), expand=False)


def _sides(found: ScheduleView) -> RenderableType:
    heads = ("", "makespan ms", "outside cells", *(f"{phase} ms" for phase in PHASES), "peak")
    made = table(*heads, left=("",))
    made.columns[0].no_wrap = True
    for side in (found.measured, found.ideal):
        phases = [bare_ms(side.phase_ns[phase]) for phase in PHASES]
        made.add_row(side.name, bare_ms(side.makespan_ns), percent(side.outside_cells), *phases, "")
    ranks = found.by_rank
    if len(ranks) > MANY:
        ranks = tuple(sorted(ranks, key=lambda one: -sum(one.phase_ns.values()))[:SHOWN])
    for one in ranks:
        phases = [bare_ms(one.phase_ns[phase]) for phase in PHASES]
        made.add_row(f"  rank {one.rank}", "", percent(one.outside_cells), *phases, str(one.peak_activations))
    said = "outside cells: share of ranks × makespan in no cell; phases: ms in no cell per rank; peak: chunks held"
    return Group(made, note(said))


def _waterfall(found: ScheduleView, width: int) -> RenderableType:
    if found.gap is None:
        return note("ranks are missing: the gap cannot be split by cause")
    measured = found.measured.makespan_ns
    room = max(10, min(40, width - 64))
    top = max(measured, found.ideal.makespan_ns, 1)
    made = table("gap", "ms", "of makespan", "", left=("gap", ""))
    for rung in found.gap:
        sign = {"more": "+ ", "less": "− "}.get(rung.kind, "")
        share = "" if rung.name == "measured" else percent(abs(rung.ns), measured)
        made.add_row(f"{sign}{rung.name}", bare_ms(abs(rung.ns)), share, _bar(rung, top, room))
    return made


def _bar(rung: Rung, top: int, room: int) -> Text:
    left, right = round(rung.low_ns / top * room), round(rung.high_ns / top * room)
    least = 1 if rung.high_ns > rung.low_ns else 0
    left = min(left, room - least)
    return Text(" " * left + "█" * max(right - left, least), style=LABEL_COLOURS["pp_comm"])


def unnamed(view: View, width: int) -> RenderableType | None:
    """Show what a rank that overlaps micro-batches hid by phase, where no schedule could be named."""
    return _phases(view.phases)


def _phases(rows: Sequence[PhaseRow]) -> RenderableType | None:
    """Show what was hidden by phase, where there is more than pipeline transfers."""
    if not rows:
        return None
    heads = [*PHASES, *(["inside FB"] if paired(rows) else [])]
    made = table("hidden by phase", *heads, left=("hidden by phase",))
    for row in rows:
        made.add_row(row.name, *(percent(share) for share in row.shares[: len(heads)]))
    said = "shares of each label's time that compute ran beside; the overlapped schedule's ideal is all of it"
    return Group(made, note(said))
