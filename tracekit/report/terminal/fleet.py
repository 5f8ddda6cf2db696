"""Many ranks in the terminal: distributions, the ranks that differ, and a heat map of the mesh."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit._util.text import counted, percent
from tracekit.analysis.spread import Figure, Spread, by_rank
from tracekit.report.terminal.table import note, table
from tracekit.report.view import View

SHOWN = 8
"""Ranks that differ with a line of their own."""
NAMES = {"compute": "compute", "communication": "exposed comm", "bubble": "bubble", "idle": "idle", "span_ns": "span"}
BARS = " ▁▂▃▄▅▆▇█"
SHADES = "·░▒▓█"
"""From the least bubble to the most, without colour."""


def many_ranks(view: View, width: int) -> RenderableType | None:
    """Draw the section, for runs of many ranks."""
    found = view.fleet
    if found is None:
        return None
    parts: list[RenderableType] = [_figures(found, width), _different(found)]
    return Group(*parts, *_heat(found, width))


def _figures(found: Spread, width: int) -> RenderableType:
    wide = width >= 100
    inner = ("5 % below", "median", "95 % below") if wide else ("median",)
    made = table("", "least", "rank", *inner, "most", "rank", "ranks by bin", left=("", "ranks by bin"))
    for one in found.figures:
        middle = (one.low, one.median, one.high) if wide else (one.median,)
        row = [value(one.name, x) for x in (one.least, *middle, one.most)]
        ends = ("–", "–") if row[0] == row[-1] else (str(one.least_rank), str(one.most_rank))
        made.add_row(NAMES[one.name], row[0], ends[0], *row[1:], ends[1], histogram(one))
    return made


def value(name: str, figure: float) -> str:
    """Return a figure as text: shares in per cent, spans in milliseconds.

    >>> value("bubble", 0.25), value("span_ns", 2_000_000)
    ('25.0 %', '2.0 ms')
    """
    return f"{figure / 1e6:,.1f} ms" if name == "span_ns" else percent(figure)


def histogram(one: Figure) -> str:
    """Return the bins as one line of bars; a bin with any rank in it is never blank."""
    top = max(one.counts)
    return "".join(BARS[0 if not count else max(1, round(count / top * (len(BARS) - 1)))] for count in one.counts)


def _different(found: Spread) -> RenderableType:
    if not found.different:
        return note("no rank differs from those it should be like")
    made = table("ranks that differ", "figure", "is", "median", "of", left=("ranks that differ", "figure", "of"))
    for one in found.different[:SHOWN]:
        made.add_row(
            f"rank {one.rank}",
            NAMES[one.figure],
            value(one.figure, one.value),
            value(one.figure, one.median),
            one.like,
        )
    more = len(found.different) - SHOWN
    return (
        Group(made, note(f"{counted(more, 'more rank')} {'differs' if more == 1 else 'differ'}")) if more > 0 else made
    )


def _heat(found: Spread, width: int) -> list[RenderableType]:
    """One character a rank, darker with more bubble or idle time; broad meshes in bands."""
    figures = by_rank(found)
    shown = found.heat
    if shown is None:
        return []
    lines = Text()
    names = max(len(name) for name in found.mesh.rows)
    room = max(16, (width - names - 4) // 8 * 8)
    for start in range(0, found.mesh.width, room):
        last = min(start + room, found.mesh.width) - 1
        bands = f"{found.mesh.column}s {start}–{last}" if found.mesh.column == "replica" else ""
        lines.append(f"  {'':{names}}  {bands}\n" if bands else "", style="dim")
        for name, ranks in zip(found.mesh.rows, found.mesh.cells, strict=True):
            lines.append(f"  {name:{names}}  ", style="dim")
            for rank in ranks[start : start + room]:
                lines.append(*((" ", "") if rank is None else _shade(figures[rank][shown.name], shown)))
            lines.append("\n")
    ends = f"{SHADES[0]} {percent(shown.least)} to {SHADES[-1]} {percent(shown.most)}"
    lines.append(f"  {shown.name} of each rank, {ends}; blank: no trace; ?: not known", style="dim")
    return [lines]


def _shade(share: float | None, figure: Figure) -> tuple[str, str]:
    if share is None:
        return "?", "dim"
    far = figure.shade(share)
    # From blue to vermilion, which colour-blind readers can tell apart.
    low, high = (0x56, 0xB4, 0xE9), (0xD5, 0x5E, 0x00)
    colour = "".join(f"{round(a + (b - a) * far):02x}" for a, b in zip(low, high, strict=True))
    return SHADES[round(far * (len(SHADES) - 1))], f"#{colour}"
