"""Shared style of matplotlib figures: text colours, axes, titles, legends and rectangles."""

import io
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

INK = "#22272B"
"""Colour of text."""
QUIET_INK = "#4A545E"
"""Colour of text of less weight: subtitles, names of sections."""
FAINT_INK = "#8A949E"
"""Colour of axes and thin lines."""
AXIS_TEXT_POINTS = 34
"""Height, in points, of the tick labels and the name of a time axis."""
LEGEND_INCHES_PER_LETTER = 0.07
LEGEND_INCHES_PER_KEY = 0.42
"""Width of a legend's coloured key with the space around it."""
_LEGEND_STYLE: dict[str, Any] = {
    "frameon": False,
    "handlelength": 1.2,
    "handleheight": 1,
    "labelcolor": INK,
    "fontsize": 8,
}


def figure_and_axes(ax: Axes | None, *, width: float, height: float) -> tuple[Figure, Axes]:
    """Return *ax* with its figure, or a new figure of this size in inches if *ax* is None."""
    if ax is not None:
        return cast("Figure", ax.get_figure(root=True)), ax
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def message_figure(ax: Axes | None, text: str) -> Figure:
    """Return a figure that tells why there is nothing to draw."""
    figure, ax = figure_and_axes(ax, width=7, height=2)
    ax.set_axis_off()
    ax.text(
        0.5,
        0.5,
        text,
        transform=ax.transAxes,
        ha="center",
        va="center",
        fontsize=10,
        color=QUIET_INK,
        wrap=True,
    )
    return figure


def draw_title(ax: Axes, title: str, subtitle: str = "") -> None:
    """Write the title of a plot and, below it, its main figures."""
    ax.set_title(title, loc="left", fontsize=11, color=INK, pad=20 if subtitle else 8)
    if subtitle:
        ax.text(
            0, 1.01, subtitle, transform=ax.transAxes, va="bottom", fontsize=8.5, color=QUIET_INK
        )


def strip_axes(ax: Axes, *, x_label: str = "") -> None:
    """Remove everything from the axes but the row names at the left and the axis below, which is named *x_label*."""
    ax.set_xlabel(x_label, fontsize=8.5, color=INK)
    ax.tick_params(length=0, labelsize=8.5, colors=INK)
    ax.tick_params(axis="x", length=3, color=FAINT_INK)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color(FAINT_INK)


def draw_legend(ax: Axes, handles: Sequence[Artist], *, below_axes: bool = False) -> None:
    """Draw a legend below the figure, or below the axes if other axes share the figure."""
    figure = cast("Figure", ax.get_figure(root=True))
    if not below_axes:
        figure.legend(
            loc="outside lower center",
            **legend_rows(handles, float(figure.get_size_inches()[0])),
            **_LEGEND_STYLE,
        )
        return
    # The distance is in points, not a share of the axes: however low the axes are, the legend
    # starts below the name of the time axis.
    anchor = ax.transAxes + ScaledTranslation(0, -AXIS_TEXT_POINTS / 72, figure.dpi_scale_trans)
    ax.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=anchor,
        borderaxespad=0,
        **legend_rows(handles, ax.get_window_extent().width / figure.dpi),
        **_LEGEND_STYLE,
    )


def legend_rows(handles: Sequence[Artist], inches: float) -> dict[str, Any]:
    """Return the options ``handles`` and ``ncols`` of a legend that fits into *inches* and reads row by row.

    matplotlib fills a legend column by column, so the handles are put into that order.

    >>> from matplotlib.patches import Patch
    >>> options = legend_rows([Patch(label=name * 10) for name in "abcde"], 4.0)
    >>> options["ncols"], [handle.get_label()[0] for handle in options["handles"]]
    (3, ['a', 'd', 'b', 'e', 'c'])
    """
    longest = max((len(str(handle.get_label())) for handle in handles), default=1)
    columns_that_fit = max(
        1, int(inches / (LEGEND_INCHES_PER_LETTER * longest + LEGEND_INCHES_PER_KEY))
    )
    rows = max(1, -(-len(handles) // columns_that_fit))
    columns = max(1, -(-len(handles) // rows))
    by_column: list[Any] = []
    for column in range(columns):
        by_column += handles[column::columns]
    return {"handles": by_column, "ncols": columns}


def draw_boxes(
    ax: Axes,
    *,
    start: npt.ArrayLike,
    end: npt.ArrayLike,
    top: npt.ArrayLike,
    bottom: npt.ArrayLike,
    **style: Any,
) -> None:
    """Draw many rectangles as one collection; any edge may be one number for all.

    *top* is the smaller y.
    """
    start, end, top, bottom = np.broadcast_arrays(start, end, top, bottom)
    if start.size:
        # Shape (corner, x or y, box), turned into one (corner, x or y) array per box.
        corners = np.stack([[start, top], [start, bottom], [end, bottom], [end, top]]).transpose(
            2, 0, 1
        )
        ax.add_collection(PolyCollection(list(corners), **{"edgecolors": "none", **style}))


def text_colour_on(colour: str) -> str:
    """Return white for a dark background *colour*, the ink for a light one.

    >>> text_colour_on("#000000"), text_colour_on("#ffffff")
    ('white', '#22272B')
    """
    red = int(colour[1:3], 16)
    green = int(colour[3:5], 16)
    blue = int(colour[5:7], 16)
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 118 else INK


def render_figure(figure: Figure, extension: str) -> bytes:
    """Return the content of a file with this extension (.png, .svg, .pdf).

    Equal figures give equal bytes.
    """
    file_format = extension[1:]
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(file_format)
    buffer = io.BytesIO()  # written to disk in one piece: matplotlib does not handle a full disk
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tracekit", "pdf.fonttype": 42}):
        figure.savefig(buffer, format=file_format, dpi=150, facecolor="white", metadata=metadata)
    return buffer.getvalue()
