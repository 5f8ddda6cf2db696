"""Many ranks in the terminal: distributions, the ranks that differ, and a heat map of the mesh."""

from rich.console import RenderableType
from rich.text import Text

from tracekit._util.text import counted, percent
from tracekit.analysis.combine.spread import Figure, Spread, by_rank
from tracekit.report.palette import mix_colours
from tracekit.report.table import Column, make_table
from tracekit.report.terminal.table import Note, render_table, stack
from tracekit.report.view import View

MAX_DIFFERENT_RANKS_LISTED = 8
"""Ranks that differ and have a line of their own."""
FIGURE_NAMES = {
    "compute": "compute",
    "communication": "exposed comm",
    "bubble": "bubble",
    "idle": "idle",
    "span_ns": "span",
}
HISTOGRAM_BARS = " ▁▂▃▄▅▆▇█"
SHADES = "·░▒▓█"
"""Characters of the heat map from the least to the most, readable without colour."""
LEAST_COLOUR = "#56b4e9"
MOST_COLOUR = "#d55e00"
"""Blue and vermilion, which colour-blind readers can tell apart."""


def many_ranks(view: View, width: int) -> RenderableType | None:
    """Draw the section; None for a run of few ranks."""
    if view.fleet is None:
        return None
    return stack(
        _distributions(view.fleet, width),
        _different_ranks(view.fleet, width),
        _heat_map(view.fleet, width),
    )


def _distributions(fleet: Spread, width: int) -> RenderableType | None:
    figures = [
        Column("least", "figure"),
        Column("rank", "figure"),
        Column("5 % below", "figure", expendable=1),
        Column("median", "figure"),
        Column("95 % below", "figure", expendable=1),
        Column("most", "figure"),
        Column("rank", "figure"),
    ]
    rows = []
    for figure in fleet.figures:
        least = value(figure.name, figure.least)
        most = value(figure.name, figure.most)
        all_are_alike = least == most
        rows.append(
            (
                FIGURE_NAMES[figure.name],
                least,
                "–" if all_are_alike else str(figure.least_rank),
                value(figure.name, figure.low),
                value(figure.name, figure.median),
                value(figure.name, figure.high),
                most,
                "–" if all_are_alike else str(figure.most_rank),
                Text(histogram(figure)),
            )
        )
    return render_table(make_table((Column(""), *figures, Column("ranks by bin")), rows), width)


def value(name: str, number: float) -> str:
    """Return a figure as text: shares in per cent, spans in milliseconds.

    >>> value("bubble", 0.25), value("span_ns", 2_000_000)
    ('25.0 %', '2.0 ms')
    """
    return f"{number / 1e6:,.1f} ms" if name == "span_ns" else percent(number)


def histogram(figure: Figure) -> str:
    """Return the bins as one line of bars; a bin with any rank in it is never blank."""
    fullest = max(figure.counts)
    highest_bar = len(HISTOGRAM_BARS) - 1
    bars = []
    for count in figure.counts:
        height = max(1, round(count / fullest * highest_bar)) if count else 0
        bars.append(HISTOGRAM_BARS[height])
    return "".join(bars)


def _different_ranks(fleet: Spread, width: int) -> RenderableType | None:
    if not fleet.different:
        return Note("no rank differs from those it should be like")
    columns = (
        Column("ranks that differ", value=lambda rank: f"rank {rank.rank}"),
        Column("figure", value=lambda rank: FIGURE_NAMES[rank.figure]),
        Column("is", "figure", value=lambda rank: value(rank.figure, rank.value)),
        Column("median", "figure", value=lambda rank: value(rank.figure, rank.median)),
        Column("of", value="like"),
    )
    more = len(fleet.different) - MAX_DIFFERENT_RANKS_LISTED
    notes = (
        (f"{counted(more, 'more rank')} {'differs' if more == 1 else 'differ'}",)
        if more > 0
        else ()
    )
    return render_table(
        make_table(columns, fleet.different[:MAX_DIFFERENT_RANKS_LISTED], notes=notes), width
    )


def _heat_map(fleet: Spread, width: int) -> RenderableType | None:
    """Draw one character per rank, darker with more bubble or idle time.

    A wide mesh continues below.
    """
    figure = fleet.heat
    mesh = fleet.mesh
    if figure is None:
        return None
    figures = by_rank(fleet)
    text = Text()
    name_length = max(len(name) for name in mesh.rows)
    band_length = max(16, (width - name_length - 4) // 8 * 8)
    for start in range(0, mesh.width, band_length):
        last = min(start + band_length, mesh.width) - 1
        if mesh.column == "replica":
            text.append(f"  {'':{name_length}}  {mesh.column}s {start}–{last}\n", style="dim")
        for name, ranks in zip(mesh.rows, mesh.cells, strict=True):
            text.append(f"  {name:{name_length}}  ", style="dim")
            for rank in ranks[start : start + band_length]:
                if rank is None:
                    text.append(" ")
                else:
                    text.append(*_shade(figures[rank][figure.name], figure))
            text.append("\n")
    ends = f"{SHADES[0]} {percent(figure.least)} to {SHADES[-1]} {percent(figure.most)}"
    return text.append(
        f"  {figure.name} of each rank, {ends}; blank: no trace; ?: not known", style="dim"
    )


def _shade(share: float | None, figure: Figure) -> tuple[str, str]:
    """Return the character and the colour of a share."""
    if share is None:
        return "?", "dim"
    heat = figure.shade(share)
    return SHADES[round(heat * (len(SHADES) - 1))], mix_colours(LEAST_COLOUR, MOST_COLOUR, heat)
