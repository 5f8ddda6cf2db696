"""Drawings of the page for runs with several processes per rank, as SVG: phases of every process, and weight updates.

A weight update is drawn per device, measured above its ideal: the buffer of copies from the host and the two buffers
that server and worker share, each with what fills it and, lighter, how long it is held.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import product

from markupsafe import Markup

from tracekit._util.text import ms
from tracekit.analysis import Analysis
from tracekit.documents.roles import BucketCell, WeightUpdate
from tracekit.report.html.canvas import Canvas
from tracekit.report.html.timeline import Moment, PageClock
from tracekit.report.palette import LABEL_COLOURS, mix_colours
from tracekit.report.schedule.layout import RELOAD_COLOURS
from tracekit.report.words import WORDS
from tracekit.schedules.weight_reload import LANES

SIZES = {"rows": (1000, 150), "rows narrow": (364, 110)}
"""Width of a drawing, and of the names at its left, by class: on a desk, and on a phone."""
ROW_HEIGHT, GROUP_GAP = 12, 10
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


def phase_drawing(analysis: Analysis) -> tuple[Markup, Legend] | None:
    """Return the phases of every role and rank over time, with lines where iterations begin; None without any."""
    results = analysis.role_results
    if not results.iterations:
        return None
    start, end = results.iterations[0].start_ns, results.iterations[-1].end_ns
    order = [role.name for role in results.roles]  # a run without roles has one band per rank
    lanes = sorted(
        {(band.role, band.rank) for band in results.bands},
        key=lambda lane: (order.index(lane[0]) if order else 0, lane[1]),
    )
    lanes = [lane for lane in lanes if lane[1] < MAX_RANKS_DRAWN]

    def draw(canvas: Canvas) -> None:
        last_role = None
        for role, rank in lanes:
            canvas.row(f"{role} · rank {rank}", gap=2 if role == last_role else GROUP_GAP)
            last_role = role
            for band in results.bands:
                if (band.role, band.rank) == (role, rank):
                    tip = f"{WORDS.phases[band.phase]}, {ms(band.end_ns - band.start_ns)}, GPU busy {ms(band.busy_ns)}"
                    canvas.box(band.start_ns, band.end_ns, PHASE_COLOURS[band.phase], tip)

    legend = [
        (WORDS.phases[phase], colour)
        for phase, colour in PHASE_COLOURS.items()
        if any(band.phase == phase for band in results.bands)
    ]
    marks = [iteration.start_ns for iteration in results.iterations]
    return _svg(draw, start, end, "Phases of every role and rank over time", marks=marks), tuple(legend)


def update_drawings(analysis: Analysis, clock: PageClock) -> tuple[list[tuple[str, Moment | None, Markup]], Legend]:
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

    def draw(canvas: Canvas) -> None:
        for rank, lane in product(ranks, LANES):
            canvas.row(f"rank {rank} · {lane}", gap=GROUP_GAP if lane == LANES[0] else 2)
            own = by_lane.get((rank, lane), [])
            for cell in own:
                if cell.held_until_ns is not None and cell.held_until_ns > cell.end_ns:
                    canvas.box(cell.end_ns, cell.held_until_ns, HELD_COLOUR, f"bucket {cell.bucket} held")
            for cell in own:
                # A broadcast whose source is unknown is drawn like the source's.
                op = RELOAD_COLOURS.get((cell.role or cell.op)[0].upper(), RELOAD_COLOURS["S"])
                tip = f"bucket {cell.bucket}: {op.name}, {ms(cell.end_ns - cell.start_ns)}"
                canvas.box(cell.start_ns, cell.end_ns, op.colour, tip, text=str(cell.bucket))

    return _svg(draw, origin_ns, origin_ns + duration_ns, "Buffers of every device over time")


def _svg(
    draw: Callable[[Canvas], None], start_ns: int, end_ns: int, title: str, *, marks: Sequence[int] = ()
) -> Markup:
    """Return the drawing in both sizes, of which the page shows one, with the times of its start, middle and end."""
    times: dict[float, str] = {time: ms(time - start_ns) for time in (start_ns, (start_ns + end_ns) // 2, end_ns)}
    drawings = []
    for name, (width, name_width) in SIZES.items():
        canvas = Canvas(start_ns, end_ns, width=width, name_width=name_width, row_height=ROW_HEIGHT)
        draw(canvas)
        drawings.append(canvas.svg(title, times, marks=marks, attributes=f'class="{name}"'))
    return Markup().join(drawings)
