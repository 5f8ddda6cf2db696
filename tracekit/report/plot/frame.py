"""What the pictures share: a figure where none is given, titles, and bars on rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from tracekit.report.legend import rows_of
from tracekit.report.schedule.plot import INK

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUIET = "#4A545E"
UNDER_AXIS = 34
"""Points that the numbers and the name of an axis take."""


def canvas(ax: Axes | None, *, width: float, height: float) -> tuple[Figure, Axes]:
    """Return the figure and axes to draw on: those given, else new ones of this size in inches."""
    if ax is not None:
        return cast("Figure", ax.get_figure(root=True)), ax
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def title(ax: Axes, text: str, below: str = "") -> None:
    """Write what the picture shows, and under it the figures to remember."""
    ax.set_title(text, loc="left", fontsize=11, color=INK, pad=20 if below else 8)
    if below:
        ax.text(0, 1.01, below, transform=ax.transAxes, va="bottom", fontsize=8.5, color=QUIET)


def legend(ax: Axes, handles: Sequence[Artist], *, given: bool) -> None:
    """Return what the colours mean: below the figure, or below the axes where others share the figure."""
    look: dict[str, Any] = {"frameon": False, "handlelength": 1.2, "handleheight": 1, "labelcolor": INK, "fontsize": 8}
    figure = cast("Figure", ax.get_figure(root=True))
    if given:
        fitted = rows_of(handles, ax.get_window_extent().width / figure.dpi)
        from matplotlib.transforms import ScaledTranslation

        # In points, not in shares of the axes: below the numbers and the name of the axis, however low the axes are.
        below = ax.transAxes + ScaledTranslation(0, -UNDER_AXIS / 72, figure.dpi_scale_trans)
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=below, borderaxespad=0, **fitted, **look)
    else:
        fitted = rows_of(handles, float(figure.get_size_inches()[0]))
        figure.legend(loc="outside lower center", **fitted, **look)


def boxes(
    ax: Axes,
    low: npt.NDArray[Any],
    high: npt.NDArray[Any],
    start: npt.NDArray[Any],
    end: npt.NDArray[Any],
    **look: Any,
) -> None:
    """Draw many rectangles at once."""
    from matplotlib.collections import PolyCollection

    if len(start):
        corners = np.stack([[start, low], [start, high], [end, high], [end, low]]).transpose(2, 0, 1)
        ax.add_collection(PolyCollection(list(corners), **{"edgecolors": "none", **look}))


def ink_on(colour: str) -> str:
    """White on dark colours, dark on light ones.

    >>> ink_on("#000000"), ink_on("#ffffff")
    ('white', '#22272B')
    """
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 118 else INK


def nothing(ax: Axes, why: str) -> None:
    """Say why there is nothing to draw."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, why, transform=ax.transAxes, ha="center", va="center", fontsize=10, color=QUIET, wrap=True)
