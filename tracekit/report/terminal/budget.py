"""The budget in the terminal: a bar for each rank."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit._util.text import at_least, bare_ms, counted, percent
from tracekit.analysis import RankResult
from tracekit.report.palette import COMPUTE_COLOUR, IDLE_COLOUR, LABEL_COLOURS, UNRECORDED_COLOUR
from tracekit.report.terminal.table import MAX_RANKS_LISTED, WORST_RANKS_SHOWN, Note, new_table
from tracekit.report.view import View
from tracekit.report.view.budget import NOT_RECORDED, Bar, bar_of

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
MIN_WIDTH_FOR_MORE = 110
"""Columns of the terminal from which exposed communication and copies have a column each."""
MIN_BAR_LENGTH = 10


def budget(view: View, width: int) -> RenderableType | None:
    """Draw one bar per rank: compute, exposed communication, exposed copies, idle."""
    bars, remark = _chosen_bars(view)
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
