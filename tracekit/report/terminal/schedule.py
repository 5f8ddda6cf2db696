"""The run compared with its ideal schedule, in the terminal: schedule spans, gap by cause, a Gantt chart, what-ifs."""

from collections.abc import Mapping, Sequence
from statistics import mean

import polars as pl
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tracekit._util.text import counted, short_ms, signed
from tracekit.pipeline.against_ideal import StepComparison
from tracekit.report.palette import CELL_COLOURS, LABEL_COLOURS
from tracekit.report.schedule.layout import OP_NAMES, layout_pipeline
from tracekit.report.table import Column, make_table
from tracekit.report.terminal.table import (
    MAX_RANKS_LISTED,
    WORST_RANKS_SHOWN,
    Note,
    render_table,
    stack,
)
from tracekit.report.text import gb_range
from tracekit.report.view import View
from tracekit.report.view.changed_steps import describe_range
from tracekit.report.view.pipeline import Rung, ScheduleView, WhatIfRow
from tracekit.schema import PHASES

MAX_RANKS_IN_CHART = 8
"""Ranks to draw; of more, the first and the last half of so many."""
MAX_RANKS_IN_SHORT_CHART = 4
MIN_SHARE_IN_SHORT_GAP = 0.01
"""Share of the schedule span from which a cause of the gap has a row of its own in the short
report."""
MIN_STRETCH_OF_SHORT_IDEAL = 3
"""Measured / ideal schedule span from which the ideal has its own time axis: on the run's it would
lose its cells."""
PAIR_LETTER = "X"
"""Letter of an overlapped pair (FB)."""


def gantt(
    compared: StepComparison, width: int, *, max_ranks: int = MAX_RANKS_IN_CHART
) -> RenderableType:
    """Draw the measured and the ideal cells of one pipeline, one line per rank."""
    layouts = layout_pipeline(compared)
    columns = max(40, min(width, 160) - 12)
    ideal_end_ns = max(int(layouts["ideal"].cells["end"].to_numpy().max()), 1)
    measured_end_ns = max(compared.measured_ns, ideal_end_ns)
    stretch = measured_end_ns / ideal_end_ns
    ranks = [bubble.rank for bubble in compared.bubbles]
    if len(ranks) > max_ranks:
        ranks = [*ranks[: max_ranks // 2], *ranks[-max_ranks // 2 :]]
    chart = Text()
    ideal = "ideal" if compared.match.exact else f"ideal of {compared.match.schedule.name}"
    ideal += f": {short_ms(ideal_end_ns)}"
    if stretch >= MIN_STRETCH_OF_SHORT_IDEAL:
        ideal += f", drawn {stretch:.0f} times as wide"
        ideal_axis_ns = ideal_end_ns
    else:
        ideal_axis_ns = measured_end_ns
    scale = short_ms(measured_end_ns / columns)
    sides = (
        (
            f"as it ran: {short_ms(compared.measured_ns)}, {scale} a character",
            layouts["measured"],
            measured_end_ns,
        ),
        (ideal, layouts["ideal"], ideal_axis_ns),
    )
    for title, layout, end_ns in sides:
        chart.append(f"  {title}\n", style="dim")
        for rank in ranks:
            chart.append(f"  {rank:>6}  ")
            chart.append_text(_line(layout.cells.filter(rank=rank), end_ns, columns))
            chart.append("\n")
    chart.rstrip()
    ops: set[str] = set()
    for layout in layouts.values():
        ops.update(layout.cells["op"])
    return Group(chart, Note(_legend(ops)))


def _legend(ops: set[str]) -> str:
    """Return the meaning of the letters of *ops*.

    >>> _legend({"F", "FB"})
    'F forward, X both at once; number: micro-batch, where it fits; ─ still running, · nothing runs'
    """
    meanings = [f"{op} {name}" for op, name in OP_NAMES.items() if op in ops]
    if "FB" in ops:
        meanings.append(f"{PAIR_LETTER} both at once")
    return f"{', '.join(meanings)}; number: micro-batch, where it fits; ─ still running, · nothing runs"


def _line(cells: pl.DataFrame, end_ns: int, columns: int) -> Text:
    """Return one rank's cells as a line of *columns* characters, from 0 to *end_ns*."""
    line = Text()
    column = 0
    for op, microbatch, start, end in cells.select("op", "microbatch", "start", "end").iter_rows():
        left = max(column, round(start / end_ns * columns))
        right = round(end / end_ns * columns)
        line.append("·" * (left - column), style="dim")
        cell_width = max(right - left, 0)
        letter = PAIR_LETTER if op == "FB" else op
        label = f"{letter}{microbatch}"
        text = label if len(label) <= cell_width else letter
        line.append(
            text.ljust(cell_width, "─")[:cell_width], style=CELL_COLOURS["B" if op == "FB" else op]
        )
        column = left + cell_width
    line.append("·" * (columns - column), style="dim")
    return line


MAX_ALTERNATIVES = 6
"""Schedules shown; the JSON has all."""


def render_schedule(view: View, width: int, *, short: bool = False) -> RenderableType | None:
    """Draw the section; None if no schedule was recognised.

    Args:
        view: The analysis.
        width: Width of the terminal.
        short: Draw only the larger causes of the gap, a few ranks, and predictions if there are
            any.
    """
    schedule = view.schedule
    if schedule is None:
        return None
    return stack(
        _headline(schedule),
        None if short else _schedule_spans(schedule, width),
        _waterfall(schedule, width, min_share=MIN_SHARE_IN_SHORT_GAP if short else 0.0),
        Note(view.below_peak) if view.below_peak and not short else None,
        gantt(
            schedule.head,
            width,
            max_ranks=MAX_RANKS_IN_SHORT_CHART if short else MAX_RANKS_IN_CHART,
        ),
        None if short else render_table(schedule.phases, width),
        render_what_if(schedule.alternatives, width),
    )


def draw_schedule(view: View, width: int) -> RenderableType | None:
    """Draw the pipeline above its ideal, with predictions for others if there are any.

    None without a pipeline.
    """
    schedule = view.schedule
    if schedule is None:
        return None
    return stack(
        _headline(schedule),
        gantt(schedule.head, width, max_ranks=MAX_RANKS_IN_SHORT_CHART),
        render_what_if(schedule.alternatives, width),
    )


def what_if(view: View, width: int) -> RenderableType | None:
    """Show the predictions alone; None if there are none."""
    return render_what_if(view.schedule.alternatives, width) if view.schedule is not None else None


def _headline(schedule: ScheduleView) -> RenderableType:
    comparison = schedule.comparison
    elsewhere = f"{counted(comparison.head.match.distance, 'unit')} elsewhere"
    chunks = f" × {comparison.virtual} chunks" if comparison.virtual > 1 else ""
    facts = [
        f"{counted(comparison.pp, 'rank')}{chunks}",
        counted(comparison.microbatches, "micro-batch"),
    ]
    if not comparison.exact:
        facts.append(f"nearest; {elsewhere}")
    if comparison.compared_with != comparison.name:
        facts.append(f"compared with {comparison.compared_with}: {elsewhere}")
    if schedule.which:
        facts.append(schedule.which)
    name = comparison.possible_names
    if comparison.exact:
        name = f"{name}, same order"
    line = Text(" · ".join([name, *facts]))
    line.stylize("bold", 0, len(comparison.name))
    for difference in schedule.differences[:3]:
        line.append(f"\n{difference}", style="dim")
    return Padding(line, (0, 0, 0, 2), expand=False)


def _schedule_spans(schedule: ScheduleView, width: int) -> RenderableType | None:
    """Show schedule span, time outside cells and peak activations: measured, ideal, and of each rank."""
    columns = (
        Column("schedule span"),
        Column("", "ms"),
        Column("outside cells", "share", note="share of ranks × schedule span in no cell"),
        *(Column(phase, "ms", note="time in no cell per rank") for phase in PHASES),
        Column("peak", "figure", note="most chunks held at once"),
    )
    head = schedule.head
    measured_by_phase = _mean_by_phase([bubble.measured_ns for bubble in head.bubbles])
    ideal_by_phase = _mean_by_phase([bubble.ideal_ns for bubble in head.bubbles])
    rows: list[tuple[object, ...]] = [
        ("measured", head.measured_ns, head.measured_bubble, *measured_by_phase, ""),
        ("ideal", head.ideal_ns, head.ideal_bubble, *ideal_by_phase, ""),
    ]
    bubbles = sorted(head.bubbles, key=lambda bubble: -sum(bubble.measured_ns.values()))
    shown = bubbles if len(bubbles) <= MAX_RANKS_LISTED else bubbles[:WORST_RANKS_SHOWN]
    for bubble in sorted(shown, key=lambda bubble: bubble.rank):
        phases = [bubble.measured_ns[phase] for phase in PHASES]
        outside = sum(phases) / max(head.measured_ns, 1)
        rows.append((f"  rank {bubble.rank}", "", outside, *phases, str(bubble.peak_activations)))
    notes = (f"schedule span: {schedule.span_meaning}",)
    return render_table(make_table(columns, rows, notes=notes), width)


def _mean_by_phase(times_of_ranks: Sequence[Mapping[str, int]]) -> list[float]:
    """Return the mean over ranks of the time in each phase, in the order of ``PHASES``."""
    means: list[float] = []
    for phase in PHASES:
        means.append(mean(phase_ns[phase] for phase_ns in times_of_ranks))
    return means


def _waterfall(
    schedule: ScheduleView, width: int, *, min_share: float = 0.0
) -> RenderableType | None:
    """Draw the way from the ideal to the measured schedule span, a bar for each cause of the gap.

    Causes below *min_share* of the schedule span have one row together.
    """
    if schedule.gap is None:
        return Note(schedule.gap_note or "")
    measured_ns = schedule.head.measured_ns
    length = max(10, min(40, width - 64))
    longest_ns = max(measured_ns, schedule.head.ideal_ns, 1)
    signs = {"more": "+ ", "less": "− ", "total": ""}
    rows: list[tuple[object, ...]] = []
    smaller = []
    for gap_rung in schedule.gap:
        if gap_rung.kind != "total" and abs(gap_rung.ns) < min_share * measured_ns:
            smaller.append(gap_rung)
    for rung in schedule.gap:
        if rung.name == "measured" and smaller:
            together_ns = sum(small.ns for small in smaller)
            name = f"{signs['more' if together_ns >= 0 else 'less']}{counted(len(smaller), 'smaller cause')}"
            rows.append((name, abs(together_ns), abs(together_ns) / measured_ns, ""))
        if rung not in smaller:
            share = abs(rung.ns) / max(measured_ns, 1)
            rows.append(
                (
                    f"{signs[rung.kind]}{rung.name}",
                    abs(rung.ns),
                    share,
                    _bar(rung, longest_ns, length),
                )
            )
    columns = (Column("gap"), Column("", "ms"), Column("of measured", "share"), Column(" "))
    note = "causes add up along the chain of cells that the schedule span follows; exposed times are of each rank"
    return render_table(make_table(columns, rows, notes=() if min_share else (note,)), width)


def _bar(rung: Rung, longest_ns: int, length: int) -> Text:
    """Draw a bar of the waterfall; a bar of any time is at least one character long."""
    start = round(rung.low_ns / longest_ns * length)
    end = round(rung.high_ns / longest_ns * length)
    shortest = 1 if rung.high_ns > rung.low_ns else 0
    start = min(start, length - shortest)
    return Text(" " * start + "█" * max(end - start, shortest), style=LABEL_COLOURS["pp_comm"])


def render_what_if(rows: Sequence[WhatIfRow], width: int) -> RenderableType | None:
    """Show predictions for other schedules, the best first, with their assumptions below.

    None if there are none.
    """
    if not rows:
        return None
    schedules: list[WhatIfRow] = []
    others: list[WhatIfRow] = []
    for row in rows:
        if row.change != "schedule":
            others.append(row)
        elif row.ran or len(schedules) < MAX_ALTERNATIVES:
            schedules.append(row)
    saves = "against this run as measured (− would be slower)"
    columns = (
        Column("what if", "name", value="title"),
        Column("predicted", "ms", value="predicted_ns"),
        Column(
            "between ms",
            "figure",
            value=lambda row: "" if row.ran else describe_range(row.predicted_range_ns),
        ),
        Column("ideal", "ms", 1, "free messages, balanced stages", value="ideal_ns"),
        Column("saves", "figure", note=saves, terminal_heading="saves ms", value=_savings),
        Column("outside cells", "share", 3, value="outside_cells"),
        Column("peak", "figure", 2, "micro-batches held", value=_peak_activations),
    )
    notes = _what_if_notes(schedules)
    return render_table(make_table(columns, [*schedules, *others], notes=notes), width)


def _peak_activations(row: WhatIfRow) -> str:
    return "" if row.peak_activations is None else f"{row.peak_activations:g}"


def _savings(row: WhatIfRow) -> Text:
    saves = "" if row.saves_ns is None or row.ran else signed(row.saves_ns / 1e6)
    return Text(saves, style="dim" if row.slower else "")


def _what_if_notes(rows: Sequence[WhatIfRow]) -> list[str]:
    """Return the memory that the rows need, then their assumptions and unknowns, each once."""
    notes = ["× n: chunks per rank"] if any((row.virtual or 1) > 1 for row in rows) else []
    needs: list[str] = []
    assumptions: list[str] = []
    unknowns: list[str] = []
    for row in rows:
        if row.peak_bytes is not None:
            verdict = " does not fit" if row.fits is False else ""
            needs.append(f"{row.title} {gb_range(*row.peak_bytes)}{verdict}")
        if not row.ran:
            assumptions += row.rests_on
            unknowns += row.unknown
    if needs:
        notes.append(f"memory of the fullest rank, GB: {', '.join(needs)}")
    if assumptions:
        notes.append("rests on: " + "; ".join(dict.fromkeys(assumptions)))
    if unknowns:
        notes.append("not known: " + "; ".join(dict.fromkeys(unknowns)))
    return notes
