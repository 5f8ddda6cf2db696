"""Drawings of rows of boxes on one time axis, as SVG elements for pages without scripts."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

from tracekit._util.text import html
from tracekit.report.palette import IDLE_COLOUR

AXIS_HEIGHT = 18
LETTER_WIDTH = 7


class Canvas:
    """Rows of boxes between two times; time that no box covers is drawn as idle."""

    def __init__(self, start: float, end: float, *, width: float, name_width: int, row_height: int) -> None:
        self.start, self.end, self.width, self.name_width = start, end, width, name_width
        self.scale = (width - name_width) / (end - start or 1)
        self.row_height, self.top, self.bottom = row_height, 0, 0
        self.parts: list[str] = []

    def row(self, name: str, *, gap: int = 2) -> None:
        """Begin a row below the others, *gap* away from the last."""
        self.top = self.bottom + gap
        self.bottom = self.top + self.row_height
        middle = self.top + self.row_height / 2 + 4
        self.parts.append(f'<text x="{self.name_width - 6}" y="{middle:.0f}" text-anchor="end">{html(name)}</text>')
        size = f'width="{self.width - self.name_width:.1f}" height="{self.row_height}"'
        self.parts.append(f'<rect x="{self.name_width}" y="{self.top}" {size} class="idle" fill="{IDLE_COLOUR}"/>')

    def x(self, time: float) -> float:
        """Return the position of a time."""
        return self.name_width + (min(max(time, self.start), self.end) - self.start) * self.scale

    def box(
        self, start: float, end: float, colour: str, tip: str, *, text: str = "", edges: tuple[float, float] = (0, 1)
    ) -> None:
        """Draw a box into the last row, with its text if it fits; *edges* are its top and bottom within the row."""
        left, width = self.x(start), max(self.x(end) - self.x(start), 0.5)
        top, height = self.top + edges[0] * self.row_height, (edges[1] - edges[0]) * self.row_height
        half = "" if edges == (0, 1) else " half"
        label = ""
        if text and width > LETTER_WIDTH * len(text) + 4:
            # A low box, such as half of a pair, needs smaller digits.
            size = f"font-size:{min(height - 1, 11):.0f}px"
            middle = f'x="{left + width / 2:.1f}" y="{top + height / 2 + 4:.1f}" text-anchor="middle"'
            label = f'<text {middle} style="{size}">{escape(text)}</text>'
        size = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
        self.parts.append(f'<g class="cell{half}"><title>{html(tip)}</title><rect {size} fill="{colour}"/>{label}</g>')

    def svg(
        self, title: str, ticks: Mapping[float, str], *, marks: Sequence[float] = (), attributes: str = ""
    ) -> Markup:
        """Return the drawing with its axis; *ticks* are times with their text, *marks* times that get a line."""
        height = self.bottom + AXIS_HEIGHT
        lines = [
            f'<path d="M{self.x(mark):.1f} 6V{self.bottom}" stroke="currentColor" stroke-dasharray="3 3"/>'
            for mark in marks
        ]
        anchors = {self.start: "start", self.end: "end"}
        texts = [
            f'<text x="{self.x(time):.1f}" y="{height - 4}" text-anchor="{anchors.get(time, "middle")}">{text}</text>'
            for time, text in ticks.items()
        ]
        body = "".join([*self.parts, *lines, *texts])
        size = f'viewBox="0 0 {self.width:.0f} {height}" {attributes}'
        return Markup(f'<svg {size} role="img" aria-label="{html(title)}">{body}</svg>')
