"""The map of the mesh in the terminal: one digit per rank."""

from rich.text import Text

from tracekit._util.text import percent
from tracekit.analysis.combine.spread import Figure, by_rank
from tracekit.report.blocks import MeshMap
from tracekit.report.palette import mix_colours

SHADES = "0123456789"
"""Characters of the map from the least to the most, readable without colour."""
LEAST_COLOUR = "#56b4e9"
MOST_COLOUR = "#d55e00"
"""Blue and vermilion, which colour-blind readers can tell apart."""


def draw_mesh(block: MeshMap, width: int) -> Text:
    """Draw one digit per rank, higher with more bubble or idle time.

    A wide mesh continues below.
    """
    figure = block.spread.heat
    mesh = block.spread.mesh
    assert figure is not None, "a map has a figure"
    figures = by_rank(block.spread)
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
