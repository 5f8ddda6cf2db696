"""Drawings of the page for runs with several processes per rank, as SVG: phases of every process, and weight updates.

A weight update is drawn per device, measured above its ideal: the buffer of copies from the host and the two buffers
that server and worker share, each with what fills it and, lighter, how long it is held.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

from tracekit._util.text import ms
from tracekit.analysis import Analysis
from tracekit.documents.roles import BucketCell, WeightUpdate
from tracekit.report.palette import IDLE_COLOUR, LABEL_COLOURS, mix_colours
from tracekit.report.view.roles import PHASE_WORDS
from tracekit.schedules.weight_reload import LANES

WIDTH, NAME_WIDTH = 1000, 150
"""Width of a drawing, and of the names at its left."""
ROW_HEIGHT, ROW_STEP, GROUP_GAP, AXIS_HEIGHT = 12, 14, 8, 18
MAX_RANKS_DRAWN = 16
MAX_UPDATES_DRAWN = 4
PHASE_COLOURS = {
    "rollout": LABEL_COLOURS["forward"],
    "train": LABEL_COLOURS["wgrad"],
    "weight_sync": LABEL_COLOURS["broadcast"],
    "other": LABEL_COLOURS["other"],
}
OP_COLOURS = {
    ("H2D", None): ("copy from the host (H2D)", LABEL_COLOURS["onload"]),
    ("BROADCAST", "source"): ("broadcast, as source", LABEL_COLOURS["broadcast"]),
    ("BROADCAST", "destination"): (
        "broadcast, as destination",
        mix_colours(LABEL_COLOURS["broadcast"], "#ffffff", 0.45),
    ),
    ("RELOAD", None): ("reload", LABEL_COLOURS["reload"]),
}
HELD_COLOUR = mix_colours(LABEL_COLOURS["broadcast"], "#ffffff", 0.8)

Legend = tuple[tuple[str, str], ...]


def phase_drawing(analysis: Analysis) -> tuple[Markup, Legend] | None:
    """Return the phases of every role and rank over time, with lines where iterations begin; None without any."""
    results = analysis.role_results
    if not results.iterations:
        return None
    start, end = results.iterations[0].start_ns, results.iterations[-1].end_ns
    lanes = sorted(
        {(band.role, band.rank) for band in results.bands}, key=lambda lane: (_role_order(analysis, lane[0]), lane[1])
    )
    lanes = [lane for lane in lanes if lane[1] < MAX_RANKS_DRAWN]
    canvas = _Canvas(start, end)
    for role in dict.fromkeys(role for role, _ in lanes):
        for _, rank in (lane for lane in lanes if lane[0] == role):
            canvas.row(f"{role} · rank {rank}")
            for band in results.bands:
                if (band.role, band.rank) == (role, rank):
                    tip = f"{PHASE_WORDS[band.phase]}, {ms(band.end_ns - band.start_ns)}, GPU busy {ms(band.busy_ns)}"
                    canvas.box(band.start_ns, band.end_ns, PHASE_COLOURS[band.phase], tip)
        canvas.gap()
    legend = [
        (PHASE_WORDS[phase], colour)
        for phase, colour in PHASE_COLOURS.items()
        if any(band.phase == phase for band in results.bands)
    ]
    title = "Phases of every role and rank over time"
    return canvas.svg(title, marks=[iteration.start_ns for iteration in results.iterations]), tuple(legend)


def _role_order(analysis: Analysis, role: str) -> int:
    return (
        [known_role.name for known_role in analysis.role_results.roles].index(role)
        if analysis.role_results.roles
        else 0
    )


def update_drawings(analysis: Analysis) -> tuple[list[tuple[str, Markup]], Legend]:
    """Return the title and drawing of each weight update, and the legend of all."""
    updates = [update for update in analysis.role_results.weight_updates if update.cells]
    drawings = []
    for number, update in enumerate(updates[:MAX_UPDATES_DRAWN]):
        end = max(update.measured_ns, update.ideal_ns or 0)
        drawings.append(
            (f"Update {number}, measured: {ms(update.measured_ns)}", _draw_cells(update.cells, update.start_ns, end))
        )
        if update.ideal_ns is not None:
            drawings.append((f"Its two-buffer ideal: {ms(update.ideal_ns)}", _draw_cells(_ideal_cells(update), 0, end)))
    return drawings, (*OP_COLOURS.values(), ("buffer held", HELD_COLOUR))


def _ideal_cells(update: WeightUpdate) -> list[BucketCell]:
    """Return the operations of the ideal on every device."""
    ranks = sorted({cell.rank for cell in update.cells})
    reload_end = {bucket: end for op, bucket, _, end in update.ideal if op == "RELOAD"}
    cells = []
    for op, bucket, start, end in update.ideal:
        for rank in ranks:
            source = update.sources[bucket]
            role = None if op != "BROADCAST" or source is None else "source" if source == rank else "destination"
            lane = LANES[0] if op == "H2D" else LANES[1 + bucket % 2]
            free_ns = end if op == "H2D" else reload_end.get(bucket)
            cells.append(BucketCell(rank, lane, op, role, bucket, start, end, free_ns))
    return cells


def _draw_cells(cells: Iterable[BucketCell], origin_ns: int, duration_ns: int) -> Markup:
    """Return the buffers of every device over time."""
    by_lane: dict[tuple[int, str], list[BucketCell]] = {}
    for cell in cells:
        by_lane.setdefault((cell.rank, cell.lane), []).append(cell)
    ranks = sorted({rank for rank, _ in by_lane})[:MAX_RANKS_DRAWN]
    canvas = _Canvas(origin_ns, origin_ns + duration_ns)
    for rank in ranks:
        for lane in LANES:
            canvas.row(f"rank {rank} · {lane}")
            own = by_lane.get((rank, lane), [])
            for cell in own:
                if cell.held_until_ns is not None and cell.held_until_ns > cell.end_ns:
                    canvas.box(cell.end_ns, cell.held_until_ns, HELD_COLOUR, f"bucket {cell.bucket} held")
            for cell in own:
                name, colour = OP_COLOURS.get((cell.op, cell.role), (cell.op.lower(), LABEL_COLOURS["broadcast"]))
                tip = f"bucket {cell.bucket}: {name}, {ms(cell.end_ns - cell.start_ns)}"
                canvas.box(cell.start_ns, cell.end_ns, colour, tip, text=str(cell.bucket))
        canvas.gap()
    return canvas.svg("Buffers of every device over time")


class _Canvas:
    """Rows of boxes on one time axis."""

    def __init__(self, start_ns: int, end_ns: int) -> None:
        self.start_ns, self.scale = start_ns, (WIDTH - NAME_WIDTH) / max(1, end_ns - start_ns)
        self.end_ns, self.top, self.parts = end_ns, 0, list[str]()

    def row(self, name: str) -> None:
        """Begin a row below the others."""
        self.top += ROW_STEP
        middle = self.top + ROW_HEIGHT - 3
        self.parts.append(f'<text x="{NAME_WIDTH - 6}" y="{middle}" text-anchor="end">{escape(name)}</text>')
        width = WIDTH - NAME_WIDTH
        self.parts.append(
            f'<rect x="{NAME_WIDTH}" y="{self.top}" width="{width}" height="{ROW_HEIGHT}" fill="{IDLE_COLOUR}"/>'
        )

    def gap(self) -> None:
        """Leave some space below the last row."""
        self.top += GROUP_GAP

    def x(self, time_ns: int) -> float:
        """Return the place of a time."""
        return NAME_WIDTH + (min(max(time_ns, self.start_ns), self.end_ns) - self.start_ns) * self.scale

    def box(self, start_ns: int, end_ns: int, colour: str, tip: str, *, text: str = "") -> None:
        """Draw a box into the last row, with its text if there is room for it."""
        left, right = self.x(start_ns), self.x(end_ns)
        width = max(right - left, 0.6)
        self.parts.append(
            f'<rect x="{left:.1f}" y="{self.top}" width="{width:.1f}" height="{ROW_HEIGHT}" fill="{colour}">'
            f"<title>{escape(tip)}</title></rect>"
        )
        if text and width > 7 * len(text) + 4:
            centre = (left + right) / 2
            self.parts.append(f'<text x="{centre:.1f}" y="{self.top + 9}" text-anchor="middle">{escape(text)}</text>')

    def svg(self, title: str, *, marks: Sequence[int] = ()) -> Markup:
        """Return the drawing with its axis; *marks* are times that get a line."""
        height = self.top + ROW_STEP + AXIS_HEIGHT
        bottom = self.top + ROW_STEP
        lines = [
            f'<path d="M{self.x(mark):.1f} 6V{bottom}" stroke="currentColor" stroke-dasharray="3 3"/>' for mark in marks
        ]
        middle = (self.start_ns + self.end_ns) // 2
        ticks = [
            f'<text x="{self.x(time):.1f}" y="{height - 4}" text-anchor="{anchor}">{ms(time - self.start_ns)}</text>'
            for time, anchor in ((self.start_ns, "start"), (middle, "middle"), (self.end_ns, "end"))
        ]
        body = "".join([*self.parts, *lines, *ticks])
        return Markup(
            f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}" class="rows">{body}</svg>'
        )
