"""What the host did instead of launching, and what hiding communication costs."""

from __future__ import annotations

from rich.console import Group, RenderableType

from tracekit._util.text import bare_ms, ms, percent
from tracekit.report.terminal.table import label_name, note, table
from tracekit.report.view import View

TOP = 5
LOUD = 0.01
"""Share of the span from which launch-bound idle time is worth its table."""


def instead(view: View, width: int) -> RenderableType | None:
    """List what the host did while the GPU waited for its next launch: the longest, over all ranks."""
    analysis = view.analysis
    span = analysis.total.budget.span_ns
    total: dict[tuple[str, str | None, str | None], int] = {}
    for one in analysis.ranks:
        for row in one.instead:
            key = (row["instead"], row["what"], row["line"])
            total[key] = total.get(key, 0) + row["ns"]
    bound = sum(total.values())
    if not analysis.total.idle_known or bound < LOUD * span:
        return None
    lines = any(line for _, _, line in total)
    made = table("ms per rank", "of it", "doing", "what", *(["line"] if lines else []), left=("doing", "what", "line"))
    named = sorted(((k, ns) for k, ns in total.items() if k[1] or k[0] == "python"), key=lambda item: -item[1])
    for (kind, what, line), ns in named[:TOP]:
        cells = [bare_ms(ns / len(analysis.ranks)), percent(ns, bound), kind.replace("_", " "), (what or "")[:60]]
        made.add_row(*cells, *([line or ""] if lines else []))
    inside = sum(one.inside_launch_ns for one in analysis.ranks) / len(analysis.ranks)
    said = (
        f"launch-bound idle is {percent(bound, span)} of the span; inside the launch call itself: {ms(inside)} per rank"
    )
    return Group(made, note(said))


def hiding(view: View, width: int) -> RenderableType | None:
    """Show how much slower compute ran beside communication, and what hiding gains after that."""
    found = view.analysis.hiding
    if found is None or found.extra_ns is None:
        return None
    count = max(1, len(view.analysis.ranks))
    made = table("label", "kernels", "slower by", "extra ms per rank", left=("label",))
    for row in found.to_dict()["by_label"]:
        slower = percent(row["slowdown"] - 1)
        made.add_row(label_name(row["label"]), f"{row['kernels']:,}", slower, bare_ms(row["extra_ns"] / count))
    net = "" if found.net_ns is None else f": a net gain of {ms(found.net_ns / count)}"
    cost = f"{'' if net else 'at least '}{ms(found.extra_ns / count)}"
    said = f"per rank hiding saved {ms(found.saved_ns / count)} and cost {cost}{net}"
    said += (
        f"; compared with the same kernel and shape alone: {percent(found.compared)} of the time beside communication"
    )
    return Group(made, note(said))
