"""Schedules drawn as SVG elements, for pages without scripts."""

from __future__ import annotations

import math
from collections import defaultdict

from tracekit._util.text import html
from tracekit.report.schedule.layout import WHOLE, ScheduleLayout

LEFT_PX = 64
"""Width of the column with the names of the ranks."""
MIN_LABEL_PX = 13
"""Width from which a box shows its micro-batch."""
MAX_TOOLTIPS = 8_000
"""A layout of more boxes is drawn as one path per colour, without labels and tooltips."""


def svg_rows(layout: ScheduleLayout, *, top: float, row_height: float, px_per_unit: float) -> list[str]:
    """Return the names of the ranks and the idle time under their cells, one row below the other from *top*."""
    elements = []
    width = layout.end * px_per_unit
    for row, rank in enumerate(layout.ranks):
        y = top + row * row_height
        elements.append(f'<text x="0" y="{y + row_height * 0.66:.0f}">rank {rank}</text>')
        size = f'width="{width:.1f}" height="{row_height - 2}"'
        elements.append(f'<rect x="{LEFT_PX}" y="{y + 1}" {size} class="idle"/>')
    return elements


def svg_cells(
    layout: ScheduleLayout, *, top: float, row_height: float, px_per_unit: float, time_format: str = "g", unit: str = ""
) -> list[str]:
    """Return one group per box: a rectangle, its micro-batch where it fits, and a tooltip."""
    boxes = layout.boxes.select("row", "start", "end", "top", "bottom", "part", "name", "microbatch")
    bar_height = row_height - 2
    elements = []
    paths: defaultdict[str, list[str]] = defaultdict(list)
    for box, colour in zip(boxes.iter_rows(named=True), layout.box_colours, strict=True):
        start, end = box["start"], box["end"]
        x, width = LEFT_PX + start * px_per_unit, max((end - start) * px_per_unit, 0.5)
        y = top + box["row"] * row_height + 1 + box["top"] * bar_height
        height = (box["bottom"] - box["top"]) * bar_height
        if len(boxes) > MAX_TOOLTIPS:
            paths[colour].append(f"M{x:.1f} {y:.0f}h{width:.1f}v{height:.0f}h-{width:.1f}z")
            continue
        rank = layout.ranks[box["row"]]
        tooltip = f"{box['name']} · rank {rank} · {start:{time_format}} to {end:{time_format}}{unit}"
        size = f'x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}"'
        half = "" if box["part"] == WHOLE else " half"
        label = ""
        if width >= MIN_LABEL_PX and box["microbatch"] is not None:
            # A low box, such as half of a pair, needs smaller digits.
            font = "" if height > 14 else f' style="font-size:{min(height - 1, 9):.0f}px"'
            middle = f'x="{x + width / 2:.1f}" y="{y + height / 2 + 4:.1f}"'
            label = f'<text {middle} text-anchor="middle"{font}>{box["microbatch"]}</text>'
        elements.append(
            f'<g class="cell{half}"><title>{html(tooltip)}</title><rect {size} fill="{colour}"/>{label}</g>'
        )
    return elements + [f'<path fill="{colour}" d="{"".join(parts)}"/>' for colour, parts in paths.items()]


def round_ticks(end: float) -> list[float]:
    """Return about ten round times from 0 to *end*.

    >>> round_ticks(47)
    [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 45.0]
    """
    power = 10.0 ** math.floor(math.log10(end / 10))
    step = next(power * factor for factor in (1, 2, 5, 10) if end / (power * factor) <= 12)
    return [i * step for i in range(int(end / step) + 1)]
