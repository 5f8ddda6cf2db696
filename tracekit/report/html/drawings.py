"""Drawings of the pages as SVG: rows of boxes on one time axis, for pages without scripts.

Runs with several processes per rank have the phases of every process, and their weight updates. An
update is drawn per device, measured above its ideal: the buffer of copies from the host and the two
buffers that server and worker share, each with what fills it and, lighter, how long it is held.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import msgspec
from markupsafe import Markup

from tracekit._util.text import ms
from tracekit.analysis import Analysis
from tracekit.documents.roles import BucketCell, WeightUpdate
from tracekit.pipeline.schedules.two_buffers import BUFFER_LANES
from tracekit.report.html.charts import Moment, PageClock
from tracekit.report.html.templates import render_template
from tracekit.report.palette import IDLE_COLOUR, LABEL_COLOURS, mix_colours
from tracekit.report.schedule.layout import RELOAD_COLOURS
from tracekit.report.words import WORDS

SIZES = {"rows": (760, 120), "rows narrow": (364, 110)}
"""Width of a drawing, and of the names at its left, by class: on a desk, and on a phone."""
BOX_ROW_HEIGHT = 12
ROW_GAP = 2
GROUP_GAP = 10
"""Distance in pixels between the rows of two roles or devices."""
MAX_RANKS_DRAWN = 16
MAX_UPDATES_DRAWN = 4
PHASE_COLOURS = {
    "rollout": LABEL_COLOURS["forward"],
    "train": LABEL_COLOURS["wgrad"],
    "weight_sync": LABEL_COLOURS["broadcast"],
    "other": LABEL_COLOURS["other"],
}
HELD_COLOUR = mix_colours(LABEL_COLOURS["broadcast"], "#ffffff", 0.8)

Legend = tuple[tuple[str, str], ...]


class Box(msgspec.Struct, frozen=True):
    """A box from one time to another."""

    start: float
    end: float
    colour: str
    tip: str
    text: str = ""
    """Written into the box if it fits."""
    top: float = 0.0
    """Its edges within the row, as shares of the row's height."""
    bottom: float = 1.0


class Row(msgspec.Struct, frozen=True):
    """A row of boxes; time that no box covers is drawn as idle."""

    name: str
    boxes: list[Box]
    gap: int = ROW_GAP
    """Distance from the row above."""


def draw_rows(rows: Sequence[Row], title: str, **options: Any) -> Markup:
    """Return rows as an SVG element.

    *options* are ``start`` and ``end`` of the time axis, its ``ticks`` (texts by time) and
    ``marks`` (times that get a line), ``width``, ``name_width`` and ``row_height`` in pixels, and
    further ``attributes`` of the element.
    """
    return Markup(
        render_template(
            "rows.svg.j2", rows=rows, title=title, idle_colour=IDLE_COLOUR, **options
        ).rstrip()
    )


def phase_drawing(analysis: Analysis) -> tuple[Markup, Legend] | None:
    """Return the phases of every role and rank over time, with lines where iterations begin.

    None without any.
    """
    results = analysis.role_results
    if not results.iterations:
        return None
    boxes_of_lanes: dict[tuple[str, int], list[Box]] = {}  # by role and rank
    for band in results.bands:
        tip = f"{WORDS.phases[band.phase]}, {ms(band.end_ns - band.start_ns)}, GPU busy {ms(band.busy_ns)}"
        box = Box(band.start_ns, band.end_ns, PHASE_COLOURS[band.phase], tip)
        boxes_of_lanes.setdefault((band.role, band.rank), []).append(box)
    rows = []
    # A run of one role lists no roles.
    for role in [role.name for role in results.roles] or {results.bands[0].role}:
        ranks = sorted(rank for lane_role, rank in boxes_of_lanes if lane_role == role)
        gap = GROUP_GAP
        for rank in ranks:
            if rank < MAX_RANKS_DRAWN:
                rows.append(Row(f"{role} · rank {rank}", boxes_of_lanes[role, rank], gap=gap))
                gap = ROW_GAP
    present_phases = {band.phase for band in results.bands}
    legend = [
        (WORDS.phases[phase], colour)
        for phase, colour in PHASE_COLOURS.items()
        if phase in present_phases
    ]
    drawing = _svg(
        rows,
        results.iterations[0].start_ns,
        results.iterations[-1].end_ns,
        "Phases of every role and rank over time",
        marks=[iteration.start_ns for iteration in results.iterations],
    )
    return drawing, tuple(legend)


def update_drawings(
    analysis: Analysis, clock: PageClock
) -> tuple[list[tuple[str, Moment | None, Markup]], Legend]:
    """Return title, moment on the timeline and drawing of each weight update, and the legend of all."""
    updates = [update for update in analysis.role_results.weight_updates if update.cells]
    drawings: list[tuple[str, Moment | None, Markup]] = []
    for number, update in enumerate(updates[:MAX_UPDATES_DRAWN]):
        end = max(update.measured_ns, update.ideal_ns or 0)
        title = f"Update {number}, measured: {ms(update.measured_ns)}"
        moment = clock.moment(update.start_ns, update.end_ns)
        drawings.append((title, moment, _draw_cells(update.cells, update.start_ns, end)))
        if update.ideal_ns is not None:
            title = f"Its two-buffer ideal: {ms(update.ideal_ns)}"
            drawings.append((title, None, _draw_cells(_ideal_cells(update), 0, end)))
    legend = [(op.name, op.colour) for op in RELOAD_COLOURS.values()]
    return drawings, (*legend, ("buffer held", HELD_COLOUR))


def _ideal_cells(update: WeightUpdate) -> list[BucketCell]:
    """Return the operations of the ideal on every device."""
    ranks = sorted({cell.rank for cell in update.cells})
    reload_end = {bucket: end for op, bucket, _, end in update.ideal if op == "RELOAD"}
    cells = []
    for op, bucket, start, end in update.ideal:
        for rank in ranks:
            source = update.sources[bucket]
            role = None
            if op == "BROADCAST" and source is not None:
                role = "source" if source == rank else "destination"
            lane = BUFFER_LANES[0] if op == "H2D" else BUFFER_LANES[1 + bucket % 2]
            free_ns = end if op == "H2D" else reload_end.get(bucket)
            cells.append(BucketCell(rank, lane, op, role, bucket, start, end, free_ns))
    return cells


def _draw_cells(cells: Sequence[BucketCell], origin_ns: int, duration_ns: int) -> Markup:
    """Return the buffers of every device over time."""
    rows = []
    for rank, lane in product(
        sorted({cell.rank for cell in cells})[:MAX_RANKS_DRAWN], BUFFER_LANES
    ):
        held_boxes = []
        op_boxes = []
        for cell in cells:
            if (cell.rank, cell.lane) != (rank, lane):
                continue
            if cell.held_until_ns is not None and cell.held_until_ns > cell.end_ns:
                tip = f"bucket {cell.bucket} held"
                held_boxes.append(Box(cell.end_ns, cell.held_until_ns, HELD_COLOUR, tip))
            # A broadcast whose source is unknown is drawn like the source's.
            op = RELOAD_COLOURS.get((cell.role or cell.op)[0].upper(), RELOAD_COLOURS["S"])
            tip = f"bucket {cell.bucket}: {op.name}, {ms(cell.end_ns - cell.start_ns)}"
            op_boxes.append(Box(cell.start_ns, cell.end_ns, op.colour, tip, text=str(cell.bucket)))
        gap = GROUP_GAP if lane == BUFFER_LANES[0] else ROW_GAP
        # Operations are drawn over the time for which their buffers are held.
        rows.append(Row(f"rank {rank} · {lane}", [*held_boxes, *op_boxes], gap=gap))
    return _svg(rows, origin_ns, origin_ns + duration_ns, "Buffers of every device over time")


def _svg(
    rows: Sequence[Row], start_ns: int, end_ns: int, title: str, *, marks: Sequence[int] = ()
) -> Markup:
    """Return the drawing in both sizes, of which the page shows one, with the times of its start, middle and end."""
    middle_ns = (start_ns + end_ns) // 2
    drawings = []
    for name, (width, name_width) in SIZES.items():
        drawings.append(
            draw_rows(
                rows,
                title,
                start=start_ns,
                end=end_ns,
                ticks={time: ms(time - start_ns) for time in (start_ns, middle_ns, end_ns)},
                marks=marks,
                row_height=BOX_ROW_HEIGHT,
                width=width,
                name_width=name_width,
                attributes=Markup(f'class="{name}"'),
            )
        )
    return Markup().join(drawings)
