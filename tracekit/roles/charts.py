"""The phases of every process over time, and weight updates measured above their ideal, as charts of a page.

An update is drawn per device: the buffer of copies from the host and the two buffers that server and
worker share, each with what fills it and, lighter, how long it is held.
"""

from collections.abc import Iterator, Sequence
from itertools import product

from tracekit._util.text import ms
from tracekit.analysis import Analysis
from tracekit.documents.roles import BucketCell, WeightUpdate
from tracekit.pipeline.schedules.two_buffers import BUFFER_LANES
from tracekit.report.blocks import Box, Row, RowChart
from tracekit.report.palette import LABEL_COLOURS, mix_colours
from tracekit.report.schedule.layout import RELOAD_COLOURS
from tracekit.report.table import PlacedValue
from tracekit.report.words import WORDS

MAX_RANKS_DRAWN = 16
MAX_UPDATES_DRAWN = 4
PHASE_COLOURS = {
    "rollout": LABEL_COLOURS["forward"],
    "train": LABEL_COLOURS["wgrad"],
    "weight_sync": LABEL_COLOURS["broadcast"],
    "other": LABEL_COLOURS["other"],
}
HELD_COLOUR = mix_colours(LABEL_COLOURS["broadcast"], "#ffffff", 0.8)
UPDATE_LEGEND = (
    *((op.name, op.colour) for op in RELOAD_COLOURS.values()),
    ("buffer held", HELD_COLOUR),
)


def phase_chart(analysis: Analysis) -> RowChart | None:
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
        drawn = [rank for rank in ranks if rank < MAX_RANKS_DRAWN]
        for rank in drawn:
            name = f"{role} · rank {rank}"
            rows.append(Row(name, boxes_of_lanes[role, rank], begins_group=rank == drawn[0]))
    present_phases = {band.phase for band in results.bands}
    legend = [
        (WORDS.phases[phase], colour)
        for phase, colour in PHASE_COLOURS.items()
        if phase in present_phases
    ]
    return RowChart(
        "Phases of every role and rank over time",
        rows,
        results.iterations[0].start_ns,
        results.iterations[-1].end_ns,
        marks=[iteration.start_ns for iteration in results.iterations],
        legend=legend,
    )


def update_charts(analysis: Analysis) -> Iterator[RowChart]:
    """Yield each weight update, and below it its ideal."""
    updates = [update for update in analysis.role_results.weight_updates if update.cells]
    for number, update in enumerate(updates[:MAX_UPDATES_DRAWN]):
        length_ns = max(update.measured_ns, update.ideal_ns or 0)
        title = f"Update {number}, measured: {ms(update.measured_ns)}"
        place = PlacedValue(title, None, start_ns=update.start_ns, end_ns=update.end_ns)
        legend = UPDATE_LEGEND if number == 0 else ()
        yield _cells_chart(place, update.cells, update.start_ns, length_ns, legend)
        if update.ideal_ns is not None:
            place = PlacedValue(f"Its two-buffer ideal: {ms(update.ideal_ns)}", None)
            yield _cells_chart(place, _ideal_cells(update), 0, length_ns, ())


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


def _cells_chart(
    heading: PlacedValue,
    cells: Sequence[BucketCell],
    origin_ns: int,
    length_ns: int,
    legend: Sequence[tuple[str, str]],
) -> RowChart:
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
        # Operations are drawn over the time for which their buffers are held.
        boxes = [*held_boxes, *op_boxes]
        rows.append(Row(f"rank {rank} · {lane}", boxes, begins_group=lane == BUFFER_LANES[0]))
    return RowChart(
        "Buffers of every device over time",
        rows,
        origin_ns,
        origin_ns + length_ns,
        legend=legend,
        heading=heading,
    )
