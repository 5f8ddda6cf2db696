"""Where the step went: a bar per rank, and the compute labels."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit._util.text import at_least, bare_ms, counted, percent
from tracekit.analysis import RankResult
from tracekit.report.palette import COMPUTE_COLOUR, IDLE_COLOUR, LABEL_COLOURS, UNRECORDED_COLOUR
from tracekit.report.terminal.table import MANY, SHOWN, label_name, note, table
from tracekit.report.view import View
from tracekit.report.view.budget import NOT_RECORDED, Bar, bar_of

GLYPHS = {"compute": "█", "communication": "▓", "copy": "▒", "idle": "░", "unrecorded": "?"}
"""Told apart without colour too."""
WIDE = 110
"""Columns from which exposed communication and copies have a column each."""


def budget(view: View, width: int) -> RenderableType | None:
    """Draw one bar per rank: compute, exposed communication, exposed copies, idle."""
    chosen, remark = _chosen(view)
    wide = width >= WIDE
    shares = ["communication", "copies"] if wide else ["exposed"]
    lost = any(part.kind == "unrecorded" for part in view.budget.mean.parts)
    last = [*([NOT_RECORDED] if lost else []), *(["bubble"] if view.pipelined else [])]
    made = table("rank", "span ms", "", "compute", *shares, "idle", *last, left=("",))
    room = _room(chosen, width, wide, last)
    for bar in chosen:
        made.add_row(*_row(bar, room, wide, last))
    if len(view.analysis.rank_results) > 1:
        made.add_row(*_row(view.budget.mean, room, wide, last), style="bold")
    return Group(made, _legend(view), *([note(remark)] if remark else []))


def _legend(view: View) -> Text:
    legend = Text("  ")
    kinds = {part.kind for part in view.budget.mean.parts if part.ns}
    for name, colour in (
        ("compute", COMPUTE_COLOUR),
        ("communication", LABEL_COLOURS["pp_comm"]),
        ("copy", LABEL_COLOURS["offload"]),
        ("idle", IDLE_COLOUR),
        ("unrecorded", UNRECORDED_COLOUR),
    ):
        if name in kinds:
            said = {"communication": "exposed communication", "copy": "exposed copy", "unrecorded": NOT_RECORDED}
            legend.append(GLYPHS[name], style=colour).append(f" {said.get(name, name)}  ")
    return legend


def _room(chosen: Sequence[Bar], width: int, wide: bool, last: Sequence[str]) -> int:
    """Return how long a bar may be beside the names, the spans and the shares."""
    names = max(len(bar.name) for bar in chosen)
    spans = max(len(bare_ms(bar.span_ns)) for bar in chosen)
    room = width - names - spans - (49 if wide else 34) - sum(2 + max(8, len(name)) for name in last)
    return max(10, min(width - (78 if wide else 58), room))


def _chosen(view: View) -> tuple[list[Bar], str]:
    """Pick the ranks worth a line of their own, the least compute first."""
    ranks = sorted(view.analysis.rank_results, key=_busy_share)

    def bar(one: RankResult, about: str = "") -> Bar:
        return bar_of(f"{one.rank}{about}", one.whole, rank=one.rank)

    if len(ranks) <= MANY:
        return [bar(one) for one in ranks], ""
    best = max(ranks, key=_busy_share)  # of several alike the first, as in the spread
    picked = [
        *(bar(one) for one in ranks[:SHOWN]),
        bar(ranks[len(ranks) // 2], " (median)"),
        bar(best, " (best)"),
    ]
    ends = [f"{percent(_busy_share(one))} (rank {one.rank})" for one in (ranks[0], best)]
    return picked, f"{counted(len(ranks), 'rank')}: compute runs from {' to '.join(ends)} of the span"


def _busy_share(one: RankResult) -> float:
    return one.whole.budget.compute_ns / one.whole.budget.span_ns if one.whole.budget.span_ns else 0.0


def _row(bar: Bar, room: int, wide: bool, last: Sequence[str]) -> list[RenderableType]:
    exposed = [bar.share("communication"), bar.share("copy")]
    idle = percent(bar.share("idle")) if bar.idle_known else "unknown"
    ends = {NOT_RECORDED: percent(bar.share("unrecorded")), "bubble": at_least(percent(bar.bubble), bar.lower_bound)}
    shares = [percent(share) for share in (exposed if wide else [sum(exposed)])]
    return [
        bar.name,
        bare_ms(bar.span_ns),
        _drawn(bar, room),
        percent(bar.share("compute")),
        *shares,
        idle,
        *(ends[name] for name in last),
    ]


def _drawn(bar: Bar, width: int) -> Text:
    """Share *width* cells out by largest remainder, so that the bar is full and nothing large is lost."""
    exact = [part.share * width for part in bar.parts]
    cells = [int(x) for x in exact]
    spare = round(sum(exact)) - sum(cells)
    for i in sorted(range(len(cells)), key=lambda i: cells[i] - exact[i])[:spare]:
        cells[i] += 1
    text = Text(no_wrap=True)
    for part, count in zip(bar.parts, cells, strict=True):
        text.append(GLYPHS[part.kind] * count, style=part.colour)
    return text


def compute(view: View, width: int) -> RenderableType | None:
    """List the compute labels, and what no rule knows on a line of its own."""
    rows = [row for row in view.labels if row.kind == "compute" and bare_ms(row.ns) != bare_ms(0)]
    if not rows:
        return None
    made = table("label", "ms per rank", "of span", "kernels", left=("label",))
    for row in sorted(rows, key=lambda row: (row.label == "other", -row.ns)):
        style = "bold red" if row.loud else "dim" if row.label == "other" else ""
        made.add_row(label_name(row.label), bare_ms(row.ns), percent(row.share), f"{row.count:,}", style=style)
    return made
