"""What the host did instead of launching, and what hiding communication costs the compute beside it."""

from __future__ import annotations

import msgspec

from tracekit._util.text import ms, percent
from tracekit.analysis import Analysis

TOP = 5
WORTH_A_ROW = 0.005
"""Share of a table's whole (what hiding costs, launch-bound idle) from which something has a row of it."""
LOUD = 0.01
"""Share of the span from which launch-bound idle time is worth its table."""


class InsteadRow(msgspec.Struct, frozen=True):
    """One thing the host did while the GPU waited for its next launch."""

    ns: float
    """Per rank."""
    share: float
    """Of the launch-bound idle time."""
    doing: str
    what: str
    line: str
    """Of the program's source; empty where no stacks were recorded."""


class Instead(msgspec.Struct, frozen=True):
    """Where launch-bound idle time went, the longest first."""

    rows: tuple[InsteadRow, ...]
    note: str

    @property
    def lines(self) -> bool:
        """Whether lines of source are known."""
        return any(row.line for row in self.rows)


class HidingRow(msgspec.Struct, frozen=True):
    """How much slower one label's kernels ran beside communication than alone."""

    label: str
    kernels: int
    slower: float
    """1 is twice the time."""
    extra_ns: float
    """Per rank."""


class Hiding(msgspec.Struct, frozen=True):
    """What hiding gains after what it costs."""

    rows: tuple[HidingRow, ...]
    note: str


def instead_view(analysis: Analysis) -> Instead | None:
    """Return what the host did instead, over all ranks; None where it hardly launches late."""
    span = analysis.total.budget.span_ns
    total: dict[tuple[str, str | None, str | None], int] = {}
    for one in analysis.rank_results:
        for row in one.instead:
            key = (row["instead"], row["what"], row["line"])
            total[key] = total.get(key, 0) + row["ns"]
    bound = sum(total.values())
    if not analysis.total.idle_known or bound < LOUD * span or not bound:
        return None
    ranks = max(1, len(analysis.rank_results))
    named = sorted(((k, ns) for k, ns in total.items() if k[1] or k[0] == "python"), key=lambda item: -item[1])
    rows = tuple(
        InsteadRow(ns / ranks, ns / bound, kind.replace("_", " "), (what or "")[:60], line or "")
        for (kind, what, line), ns in named[:TOP]
        if ns >= WORTH_A_ROW * bound
    )
    inside = sum(one.inside_launch_ns for one in analysis.rank_results) / ranks
    said = f"launch-bound idle is {percent(bound, span)} of the span; inside the launch call itself: {ms(inside)}"
    return Instead(rows, f"{said} per rank")


def hiding_view(analysis: Analysis) -> Hiding | None:
    """Return how much slower compute ran beside communication; None where no kernel ran both ways."""
    found = analysis.hiding
    if found is None or found.extra_ns is None:
        return None
    ranks = max(1, len(analysis.rank_results))
    rows = tuple(
        HidingRow(row["label"], row["kernels"], row["slowdown"] - 1, row["extra_ns"] / ranks)
        for row in found.to_dict()["by_label"]
        if abs(row["extra_ns"]) >= WORTH_A_ROW * found.extra_ns
    )
    net = "" if found.net_ns is None else f": a net gain of {ms(found.net_ns / ranks)}"
    cost = f"{'' if net else 'at least '}{ms(found.extra_ns / ranks)}"
    said = f"per rank hiding saved {ms(found.saved_ns / ranks)} and cost {cost}{net}; "
    said += f"compared with the same kernel and shape alone: {percent(found.compared)} of the time beside communication"
    return Hiding(rows, said)
