"""Pictures of the page of definitions: rows of boxes on a time axis, with brackets under them.

``python -m docsite.pictures`` writes them to ``docs/img``; a test checks that they are up to date.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from tracekit.report.palette import COMPUTE_COLOUR, IDLE_COLOUR, LABEL_COLOURS, UNRECORDED_COLOUR

FOLDER = Path(__file__).parent.parent / "docs" / "img"
UNIT_PX, ROW_PX = 12, 34
"""Width of a unit of time, height of a row."""
LEFT_PX, TOP_PX = 118, 26
"""Space for the names of the rows and for the title."""
COLOURS = {
    **LABEL_COLOURS,
    "idle": IDLE_COLOUR,
    "ideal": UNRECORDED_COLOUR,
    "wait": "#F6D2BB",
    "all": COMPUTE_COLOUR,
}
"""Colours of kinds of boxes: those of all pictures; waiting is a paler pp_comm."""
LIGHT_KINDS = frozenset({"forward", "wait", "idle", "ideal", "ep_dispatch"})
"""Kinds of boxes whose text is dark."""


@dataclass(frozen=True)
class Box:
    """A box, or a bracket, from *start* to *end* in a row, with its text."""

    start: float
    end: float
    kind: str
    text: str = ""


@dataclass(frozen=True)
class Picture:
    """Named rows of boxes and brackets below a title."""

    title: str
    length: int
    rows: Sequence[tuple[str, Sequence[Box]]]

    def svg(self) -> str:
        """Return the picture as SVG."""
        width, height = LEFT_PX + self.length * UNIT_PX + 16, TOP_PX + len(self.rows) * ROW_PX + 12
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            f' role="img" font-family="system-ui, sans-serif" font-size="12">',
            f"<title>{escape(self.title)}</title>",
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            f'<text x="8" y="17" font-weight="600">{escape(self.title)}</text>',
        ]
        for row, (name, boxes) in enumerate(self.rows):
            y = TOP_PX + row * ROW_PX
            parts.append(f'<text x="8" y="{y + 20}" fill="#333">{escape(name)}</text>')
            parts += [
                _draw_bracket(box, y) if box.kind == "bracket" else _draw_box(box, y)
                for box in boxes
            ]
        return "\n".join([*parts, "</svg>"]) + "\n"


def _draw_box(box: Box, y: int) -> str:
    x, width = LEFT_PX + box.start * UNIT_PX, (box.end - box.start) * UNIT_PX
    ink = "#222" if box.kind in LIGHT_KINDS else "#fff"
    return (
        f'<rect x="{x:g}" y="{y + 4}" width="{width:g}" height="{ROW_PX - 10}" rx="3" fill="{COLOURS[box.kind]}"/>'
        f'<text x="{x + width / 2:g}" y="{y + 20}" text-anchor="middle" fill="{ink}">{escape(box.text)}</text>'
    )


def _draw_bracket(box: Box, y: int) -> str:
    start, end = LEFT_PX + box.start * UNIT_PX, LEFT_PX + box.end * UNIT_PX
    return (
        f'<path d="M{start + 1:g} {y + 2} v5 H{end - 1:g} v-5" fill="none" stroke="#666"/>'
        f'<text x="{(start + end) / 2:g}" y="{y + 22}" text-anchor="middle" fill="#333">{escape(box.text)}</text>'
    )


def bracket(start: float, end: float, text: str) -> Box:
    """Return a bracket with text under it."""
    return Box(start, end, "bracket", text)


PICTURES = {
    "def-budget.svg": Picture(
        "One rank's GPU: compute + exposed + idle = span",
        48,
        (
            ("compute stream", [Box(0, 16, "forward", "forward"), Box(26, 40, "backward", "backward")]),
            ("comm stream", [Box(8, 22, "ep_dispatch", "ep_dispatch"), Box(34, 48, "dp_comm", "dp_comm")]),
            ("the span", [bracket(0, 16, "compute 16"), bracket(16, 22, "exposed 6"), bracket(22, 26, "idle 4"),
                          bracket(26, 40, "compute 14"), bracket(40, 48, "exposed 8")]),
            ("hidden", [bracket(8, 16, "8 of 14"), bracket(34, 40, "6 of 14")]),
        ),
    ),
    "def-wait.svg": Picture(
        "One message, two ranks: wait = own duration − the shortest",
        48,
        (
            ("rank 0 sends", [Box(0, 24, "forward", "forward"), Box(24, 32, "pp_comm", "send 8")]),
            ("rank 1 receives", [Box(6, 24, "wait", "wait 18"), Box(24, 32, "pp_comm", "transfer 8"),
                                 Box(32, 48, "forward", "forward")]),
            ("", [bracket(6, 32, "the receive kernel: 26, of which 18 is waiting")]),
        ),
    ),
    "def-bubble.svg": Picture(
        "The last of two pipeline ranks: bubble = idle + exposed pipeline wait",
        48,
        (
            ("rank 1's GPU", [Box(0, 10, "wait", "wait 10"), Box(10, 13, "pp_comm"), Box(13, 25, "forward", "forward"),
                              Box(25, 37, "backward", "backward"), Box(37, 42, "idle", "idle 5"),
                              Box(42, 48, "optimizer", "optim.")]),
            ("", [bracket(0, 10, "bubble 10"), bracket(10, 13, "3"), bracket(37, 42, "5")]),
            ("bubble fraction", [bracket(0, 48, "(10 + 5) / 48 = 31 %; the transfer of 3 is exposed, not bubble")]),
        ),
    ),
    "def-cells.svg": Picture(
        "Pipeline cells: 1F1B on two ranks, two micro-batches",
        46,
        (
            ("rank 0", [Box(0, 5, "forward", "0F0"), Box(5, 10, "forward", "0F1"), Box(23, 32, "backward", "0B0"),
                        Box(37, 46, "backward", "0B1")]),
            ("rank 1", [Box(7, 12, "forward", "1F0"), Box(12, 21, "backward", "1B0"), Box(21, 26, "forward", "1F1"),
                        Box(26, 35, "backward", "1B1")]),
            ("outside cells", [bracket(0, 46, "2 × 46 − (28 + 28) = 36 of 92: 39 %")]),
        ),
    ),
    "def-gap.svg": Picture(
        "The gap: the same order replayed, one cause more each time",
        48,
        (
            ("ideal", [Box(0, 28, "ideal", "28")]),
            ("+ imbalance", [Box(28, 32, "wgrad", "4")]),
            ("+ transfers", [Box(32, 41, "pp_comm", "9")]),
            ("+ late launches", [Box(41, 46, "optimizer", "5")]),
            ("+ unexplained", [Box(46, 48, "other", "2")]),
            ("measured", [Box(0, 48, "all", "48: the parts sum to the gap of 20")]),
        ),
    ),
    "def-clocks.svg": Picture(
        "Two clocks: messages both ways bound their difference from both sides",
        48,
        (
            ("rank 0's clock", [Box(2, 10, "pp_comm", "send"), Box(30, 40, "pp_comm", "receive")]),
            ("rank 1's clock", [Box(12, 20, "pp_comm", "receive"), Box(26, 36, "pp_comm", "send")]),
            ("", [bracket(2, 20, "there: at most 18"), bracket(26, 40, "back: at most 14")]),
            ("rank 1's offset", [bracket(0, 48, "(18 − 14) / 2 = 2, and no further off than (18 + 14) / 2 = 16")]),
        ),
    ),
    "graph-edges.svg": Picture(
        "What an event waits for: its launch, its stream, another stream, another rank",
        56,
        (
            ("host", [Box(0, 1, "other"), Box(3, 4, "other"), Box(6, 7, "other"), Box(7, 33, "idle", "waits for B"),
                      Box(36, 37, "other")]),
            ("", [bracket(1, 5, "latency"), bracket(33, 36, "host"), bracket(37, 41, "latency")]),
            ("stream 7", [Box(5, 16, "forward", "A"), Box(17, 32, "forward", "B"), Box(41, 53, "forward", "D")]),
            ("", [bracket(16, 17, "stream"), bracket(32, 33, "released")]),
            ("stream 9", [Box(18, 28, "wait", "waits for rank 1"), Box(28, 36, "dp_comm", "C")]),
            ("", [bracket(16, 18, "other"), bracket(28, 36, "transfer")]),
            ("rank 1", [Box(6, 27, "forward", "slower than A"), Box(28, 36, "dp_comm", "C'")]),
            ("", [bracket(27, 28, "other: it comes last")]),
        ),
    ),
}  # fmt: skip


def main() -> None:
    """Write every picture."""
    for name, picture in PICTURES.items():
        (FOLDER / name).write_text(picture.svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
