"""Layout of a pipeline schedule or a weight reload: rows, boxes on a time axis, labels, colours, and figures as text.

Every drawing of a schedule (terminal, SVG page, HTML page, matplotlib figure, Perfetto trace) reads
one ``ScheduleLayout`` and only draws it. A layout comes from a simulated schedule or weight reload,
or from the measured or the ideal cells of a compared pipeline. Time starts at 0 and keeps the unit
of its source: units of the given times, or nanoseconds.

A cell is one op on one rank, or on one buffer of a device. An overlapped pair (op FB) is one cell
but two boxes: its forward in the upper half of the row, its backward in the lower half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.text import counted, percent
from tracekit.documents.page import Coloured
from tracekit.pipeline.against_ideal import StepComparison
from tracekit.pipeline.schedules import Schedule, Simulation
from tracekit.pipeline.schedules.two_buffers import BUFFER_LANES, WeightReload
from tracekit.report.palette import CELL_COLOURS, LABEL_COLOURS, mix_colours
from tracekit.schema import PHASES

OP_NAMES = {"F": "forward", "B": "backward", "I": "backward for input", "W": "backward for weights"}
RANK_COLUMNS = ("rank", "work", "outside cells", *PHASES, "peak chunks")
"""Columns of ``rank_rows``."""
WHOLE = 0
UPPER = 1
LOWER = 2
"""Part of its row that a box fills."""
PART_EDGES = {WHOLE: (0.0, 1.0), UPPER: (0.0, 0.5), LOWER: (0.5, 1.0)}
"""Top and bottom edge of each part, as shares of the row's height counted from its top."""
MAX_WHITE_IN_CHUNK_COLOUR = 0.45
"""Share of white in the colour of a rank's last chunk."""

RELOAD_COLOURS = {
    "H": Coloured("copy from the host", LABEL_COLOURS["onload"]),
    "S": Coloured("broadcast, as source", LABEL_COLOURS["broadcast"]),
    "D": Coloured(
        "broadcast, as destination", mix_colours(LABEL_COLOURS["broadcast"], "#ffffff", 0.5)
    ),
    "R": Coloured("reload", mix_colours(LABEL_COLOURS["reload"], "#ffffff", 0.3)),
}
"""Ops of a weight reload by their letter; lighter than their labels where the number in a box could
not be read."""


@dataclass(frozen=True, eq=False)
class ScheduleLayout:
    """Cells of a schedule placed on one row per rank, or per buffer of a device."""

    rows: Sequence[str]
    """Name of each row, from top to bottom."""
    end: Any
    """End of the time axis."""
    cells: pl.DataFrame
    """One row per cell: the source's columns with ``row``, ``start``, ``end`` and ``name`` (such as
    0F3)."""
    boxes: pl.DataFrame
    """One row per box, the lower halves last: the columns of its cell with ``cell`` (index into
    ``cells``), ``op`` (one letter), ``part`` (``WHOLE``, ``UPPER`` or ``LOWER``), ``top`` and
    ``bottom`` (its edges within the row, 0 to 1), ``number`` (its micro-batch or bucket), ``label``
    (the text in it) and ``colour_key`` (index into ``colours``)."""
    colours: Sequence[Coloured]
    """Ops that occur, in the order of the legend, each once per shade."""
    legend: Mapping[str, Coloured]
    """Ops that occur by their letter, each once, in legend order."""
    shade_count: int = 1
    """Shades per op; above 1, later chunks of a rank are lighter."""
    ranks: Sequence[int] = ()
    """Rank of each row; empty for a weight reload."""
    origin_ns: int = 0
    """Time of the layout's 0 on the common clock, for cells of a run."""

    def in_ms(self) -> ScheduleLayout:
        """Return a layout in nanoseconds as one in milliseconds."""
        times = pl.col("start", "end") / 1e6
        cells = self.cells.with_columns(times)
        boxes = self.boxes.with_columns(times)
        return replace(self, cells=cells, boxes=boxes, end=self.end / 1e6)

    @property
    def box_colours(self) -> list[str]:
        """Colour of each box."""
        return [self.colours[key].colour for key in self.boxes["colour_key"].to_list()]


def layout_simulation(simulation: Simulation | WeightReload) -> ScheduleLayout:
    """Lay out a simulated schedule or weight reload; times are in units of the given times.

    >>> from tracekit.pipeline.schedules import generate, simulate
    >>> layout = layout_simulation(simulate(generate("interleaved-overlap", pp=1, microbatches=2, virtual=1)))
    >>> layout.cells["name"].to_list()
    ['0F0', '(0F1;0B0)', '0B1']
    >>> layout.boxes.select("op", "label", "part", "start").rows()
    [('F', '0', 0, 0), ('F', '1', 1, 1), ('B', '1', 0, 4), ('B', '0', 2, 1)]
    """
    if isinstance(simulation, WeightReload):
        return _layout_reload(simulation)
    schedule = simulation.schedule
    return layout_cells(
        simulation.cells, schedule, ranks=range(schedule.pp), end=simulation.makespan
    )


def _layout_reload(reload: WeightReload) -> ScheduleLayout:
    """Lay out a weight reload: one row per buffer of every device."""
    lane_number = {lane: i for i, lane in enumerate(BUFFER_LANES)}
    letter_number = {letter: i for i, letter in enumerate(RELOAD_COLOURS)}
    cells = reload.cells.with_columns(
        row=pl.col("rank") * len(BUFFER_LANES)
        + pl.col("lane").replace_strict(lane_number, return_dtype=pl.Int64),
        name=pl.format("{} {}", "op", "bucket"),
    )
    letter = pl.coalesce("role", "op").str.slice(0, 1).str.to_uppercase()
    boxes = cells.with_row_index("cell").with_columns(
        op=letter,
        part=pl.lit(WHOLE, pl.UInt8),
        top=pl.lit(0.0),
        bottom=pl.lit(1.0),
        number="bucket",
        label=pl.col("bucket").cast(pl.String),
        colour_key=letter.replace_strict(letter_number, return_dtype=pl.Int64),
    )
    rows = []
    for rank in range(reload.ranks):
        rows += [f"device {rank} · {lane}" for lane in BUFFER_LANES]
    colours = list(RELOAD_COLOURS.values())
    return ScheduleLayout(rows, reload.makespan, cells, boxes, colours, RELOAD_COLOURS)


def layout_pipeline(
    compared: StepComparison, *, extra_columns: Sequence[pl.Series] = ()
) -> dict[str, ScheduleLayout]:
    """Lay out a compared pipeline twice: ``measured`` and ``ideal``, both in nanoseconds from their first cell.

    Args:
        compared: One pipeline in one step.
        extra_columns: Columns to add to the measured cells, one value per cell.
    """
    cells = compared.cells
    compared_with = compared.match.schedule
    ran = compared.match.ran or compared_with
    ranks = sorted(cells["rank"].unique().to_list())
    origin_ns = int(cells["start_ns"].to_numpy().min()) if len(cells) else 0
    measured = cells.with_columns(
        *extra_columns, start=pl.col("start_ns") - origin_ns, end=pl.col("end_ns") - origin_ns
    )
    ideal = cells.with_columns(start="ideal_start_ns", end="ideal_end_ns")
    if compared.ideal_cells is not None:
        ideal = compared.ideal_cells.filter(pl.col("rank").is_in(ranks))
    return {
        "measured": layout_cells(
            measured, ran, ranks=ranks, end=compared.measured_ns, origin_ns=origin_ns
        ),
        "ideal": layout_cells(
            ideal, compared_with, ranks=ranks, end=compared.ideal_ns, origin_ns=origin_ns
        ),
    }


def layout_cells(
    cells: pl.DataFrame, schedule: Schedule, *, ranks: Sequence[int], end: Any, origin_ns: int = 0
) -> ScheduleLayout:
    """Place cells on rows and split them into boxes.

    Args:
        cells: Columns ``rank``, ``op``, ``stage``, ``microbatch``, ``b_stage``, ``b_microbatch``
            (the backward of an FB), ``start`` and ``end``. An unknown stage counts as the rank's
            first chunk.
        schedule: Tells which chunk of its rank a stage is.
        ranks: Rank of each row.
        end: End of the time axis.
        origin_ns: Time of 0 on the common clock.
    """
    cells = cells.with_columns(
        pl.col("op").cast(pl.String),
        row=pl.col("rank").replace_strict(ranks, range(len(ranks)), return_dtype=pl.Int64),
    ).with_columns(name=cell_name())
    chunk_of_stage = stage_chunks(schedule)
    boxes = _split_pairs(cells)
    boxes = boxes.with_columns(
        chunk_of_rank=pl.Series(chunk_of_stage[boxes["stage"].fill_null(0).to_numpy()])
    )
    by_shade = chunks_have_shades(schedule)
    shade_count = int(chunk_of_stage.max()) + 1 if by_shade else 1
    ops = [op for op in OP_NAMES if op in set(boxes["op"].unique())]
    legend = {}
    colours = []  # all shades of the first op, then all shades of the second
    for op in ops:
        legend[op] = Coloured(OP_NAMES[op], CELL_COLOURS[op])
        for shade in range(shade_count):
            colours.append(Coloured(OP_NAMES[op], shade_colour(op, shade, shade_count)))
    op_number = pl.col("op").replace_strict(ops, range(len(ops)), return_dtype=pl.Int64)
    edges = list(PART_EDGES.values())
    boxes = boxes.with_columns(
        top=pl.col("part").replace_strict(list(PART_EDGES), [top for top, _ in edges]),
        bottom=pl.col("part").replace_strict(list(PART_EDGES), [bottom for _, bottom in edges]),
        number="microbatch",
        label=_box_label(chunk_has_mark=not by_shade),
        colour_key=op_number * shade_count + (pl.col("chunk_of_rank") if by_shade else 0),
    )
    return ScheduleLayout(
        rows=[f"rank {rank}" for rank in ranks],
        end=end,
        cells=cells,
        boxes=boxes.drop("chunk_of_rank"),
        colours=colours,
        legend=legend,
        shade_count=shade_count,
        ranks=ranks,
        origin_ns=origin_ns,
    )


def _box_label(*, chunk_has_mark: bool) -> pl.Expr:
    """Return the micro-batch of a box, empty if unknown; with a stroke per chunk where no shade shows it."""
    microbatch = pl.col("microbatch").cast(pl.String)
    if chunk_has_mark:
        strokes = pl.lit("′").repeat_by("chunk_of_rank").list.join("")
        microbatch += strokes
    return microbatch.fill_null("")


def _split_pairs(cells: pl.DataFrame) -> pl.DataFrame:
    """Return one row per box: a pair (FB) as its forward in its place and its backward after all other boxes."""
    is_pair = pl.col("op") == "FB"
    numbered = cells.with_row_index("cell")
    whole_and_upper = numbered.with_columns(
        op=pl.when(is_pair).then(pl.lit("F")).otherwise("op"),
        part=pl.when(is_pair).then(pl.lit(UPPER, pl.UInt8)).otherwise(pl.lit(WHOLE, pl.UInt8)),
    )
    lower = numbered.filter(is_pair).with_columns(
        op=pl.lit("B"), part=pl.lit(LOWER, pl.UInt8), stage="b_stage", microbatch="b_microbatch"
    )
    return pl.concat([whole_and_upper, lower])


def cell_name() -> pl.Expr:
    """Return a cell's name in the notation of schedules, such as 0F3 or (0F7;7B3).

    Its op if its stage is unknown.
    """
    pair = pl.format("({}F{};{}B{})", "stage", "microbatch", "b_stage", "b_microbatch")
    single = pl.format("{}{}{}", "stage", "op", "microbatch")
    return pl.coalesce(pl.when(pl.col("op") == "FB").then(pair).otherwise(single), "op")


def stage_chunks(schedule: Schedule) -> npt.NDArray[np.int64]:
    """Return which of its rank's chunks each stage is, counted in the order of the stages.

    All are 0 in a schedule of two directions: there the number of a micro-batch tells its
    direction.

    >>> from tracekit.pipeline.schedules import generate
    >>> stage_chunks(generate("interleaved", pp=2, microbatches=2)).tolist()
    [0, 0, 1, 1]
    >>> stage_chunks(generate("dualpipe", pp=2, microbatches=4)).tolist()
    [0, 0]
    """
    placement = schedule.stage_ranks  # (stage, micro-batch) → rank
    if (placement != placement[:, :1]).any():
        return np.zeros(len(placement), np.int64)
    stages = pl.DataFrame({"rank": placement[:, 0]})
    return stages.select(chunk=pl.int_range(pl.len()).over("rank"))["chunk"].to_numpy()


def chunks_have_shades(schedule: Schedule) -> bool:
    """Return whether shades tell chunks apart; not where a lighter B would look like an I."""
    kinds = set()
    for rank in schedule.ranks:
        for op in rank:
            kinds.add(op.kind)
    return not ("I" in kinds and kinds & {"B", "FB"})


def shade_colour(op: str, shade: int, shade_count: int) -> str:
    """Return the colour of an op; later shades are lighter.

    >>> shade_colour("F", 0, 2), shade_colour("F", 1, 2)
    ('#E69F00', '#f1ca73')
    """
    if shade == 0:
        return CELL_COLOURS[op]
    return mix_colours(
        CELL_COLOURS[op], "#ffffff", MAX_WHITE_IN_CHUNK_COLOUR * shade / max(shade_count - 1, 1)
    )


def headline(simulation: Simulation | Schedule | WeightReload, *, name: str | None = None) -> str:
    """Return the name of a schedule or weight reload, or another *name* for it, and its sizes.

    >>> from tracekit.pipeline.schedules import generate
    >>> from tracekit.pipeline.schedules.two_buffers import weight_reload
    >>> headline(generate("interleaved", pp=2, microbatches=4)), headline(weight_reload(4, 2))
    ('interleaved · 2 ranks × 4 micro-batches × 2 chunks', 'weight-reload · 4 devices × 2 rounds')
    """
    if isinstance(simulation, WeightReload):
        return f"{simulation.name} · {simulation.ranks} devices × {simulation.rounds} rounds"
    schedule = simulation.schedule if isinstance(simulation, Simulation) else simulation
    chunks = (
        f" × {schedule.virtual} chunks"
        if schedule.virtual > 1 and stage_chunks(schedule).any()
        else ""
    )
    sizes = (
        f"{counted(schedule.pp, 'rank')} × {counted(schedule.microbatches, 'micro-batch')}{chunks}"
    )
    return f"{name or schedule.name} · {sizes}"


def simulation_facts(simulation: Simulation | WeightReload) -> str:
    """Return makespan, share outside cells and peak activations as one line.

    Of a weight reload, who sends a bucket.
    """
    if isinstance(simulation, WeightReload):
        source = f"device g mod {simulation.ranks} is the source of bucket g"
        return f"makespan {simulation.makespan:g} · numbers are buckets; {source}"
    peaks = simulation.peak_activations
    peak = f"{peaks[0]}" if len(set(peaks)) == 1 else f"{min(peaks)}–{max(peaks)}"
    outside = f"{percent(simulation.bubble_fraction)} of ranks × makespan outside cells"
    return f"makespan {simulation.makespan:g} · {outside} · peak {peak} chunks per rank"


def rank_rows(simulation: Simulation) -> list[tuple[float, ...]]:
    """Return work, time outside cells (in all and by phase) and peak activations of each rank (``RANK_COLUMNS``)."""
    idle_by_phase = simulation.idle_by_phase.iter_rows()
    figures = zip(
        idle_by_phase, simulation.busy, simulation.bubble, simulation.peak_activations, strict=True
    )
    return [(rank, work, bubble, *idle, peak) for (rank, *idle), work, bubble, peak in figures]
