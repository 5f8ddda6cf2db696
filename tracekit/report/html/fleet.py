"""Many ranks on the page: distributions, the ranks that differ, and the mesh as a heat map."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tracekit._util.text import ms, percent
from tracekit.analysis.spread import FIGURES, Figure, Spread, by_rank

BAND = 64
"""Columns of the heat map side by side; broader meshes go on below."""
MOST_DIFFERENT = 20


class FigureRow(msgspec.Struct, frozen=True):
    """One figure over the ranks, as it is shown."""

    title: str
    cells: tuple[str, ...]
    """Least, 5 %, median, 95 %, most."""
    least_rank: int | None
    most_rank: int | None
    """None where all ranks are alike."""
    counts: tuple[int, ...]

    @property
    def bars(self) -> tuple[float, ...]:
        """Ranks in each bin, of the fullest."""
        return tuple(count / max(self.counts) for count in self.counts)


class DifferentRow(msgspec.Struct, frozen=True):
    """A rank that differs, as it is shown."""

    rank: int
    figure: str
    value: str
    median: str
    like: str


class HeatCell(msgspec.Struct, frozen=True):
    """One rank in the heat map; *heat* from 0 to 1, None where nothing is known."""

    rank: int | None
    heat: float | None
    text: str
    title: str


class HeatBand(msgspec.Struct, frozen=True):
    """Some columns of the heat map."""

    columns: range
    rows: tuple[tuple[str, tuple[HeatCell, ...]], ...]


class HeatMap(msgspec.Struct, frozen=True):
    """Where bubbles, or idle times, lie in the mesh."""

    bands: tuple[HeatBand, ...]
    figure: str
    """``bubble`` or ``idle``."""
    least: str
    most: str
    column: str


class FleetPage(msgspec.Struct, frozen=True):
    """What the section shows."""

    figures: tuple[FigureRow, ...]
    different: tuple[DifferentRow, ...]
    more_different: int
    heat: HeatMap | None


def page_fleet(found: Spread | None) -> FleetPage | None:
    """Return what the section shows; None for runs of few ranks, which have a bar each."""
    if found is None:
        return None
    return FleetPage(
        figures=tuple(_figure(one) for one in found.figures),
        different=tuple(
            DifferentRow(
                one.rank, FIGURES[one.figure], _value(one.figure, one.value), _value(one.figure, one.median), one.like
            )
            for one in found.different[:MOST_DIFFERENT]
        ),
        more_different=max(0, len(found.different) - MOST_DIFFERENT),
        heat=_heat(found),
    )


def _figure(one: Figure) -> FigureRow:
    cells = tuple(_value(one.name, x) for x in (one.least, one.low, one.median, one.high, one.most))
    alike = cells[0] == cells[-1]
    least, most = (None, None) if alike else (one.least_rank, one.most_rank)
    return FigureRow(one.title, cells, least, most, one.counts)


def _value(name: str, figure: float) -> str:
    return ms(figure) if name == "span_ns" else percent(figure)


def _heat(found: Spread) -> HeatMap | None:
    figure = found.heat
    if figure is None:
        return None
    figures = by_rank(found)
    bands = []
    for start in range(0, found.mesh.width, BAND):
        rows = tuple(
            (name, tuple(_cell(rank, figures, figure) for rank in ranks[start : start + BAND]))
            for name, ranks in zip(found.mesh.rows, found.mesh.cells, strict=True)
        )
        bands.append(HeatBand(range(start, start + max(len(cells) for _, cells in rows)), rows))
    return HeatMap(tuple(bands), figure.name, percent(figure.least), percent(figure.most), found.mesh.column)


def _cell(rank: int | None, figures: Mapping[int, Mapping[str, float | None]], scale: Figure) -> HeatCell:
    if rank is None:
        return HeatCell(None, None, "", "no trace")
    one = figures[rank]
    share = one[scale.name]
    told = f"rank {rank}: {scale.name} {percent(share)}, compute {percent(one['compute'])}, span {ms(one['span_ns'])}"
    if share is None:
        return HeatCell(rank, None, "?", told)
    return HeatCell(rank, scale.shade(share), f"{100 * share:.0f}", told)
