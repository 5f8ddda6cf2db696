"""Schedules written to files; the extension decides the format."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from tracekit._util.files import atomic_write
from tracekit._version import __version__
from tracekit.documents.coding import encode
from tracekit.errors import OptionError
from tracekit.report.figures import render_figure
from tracekit.report.perfetto.events import event_lines
from tracekit.report.perfetto.tracks import TrackNumbers
from tracekit.report.schedule.layout import layout_simulation, schedule_headline
from tracekit.report.write import check_extension
from tracekit.schedules.registry import write_orders
from tracekit.schedules.weight_reload import LANES, WeightReload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tracekit.schedules import BlockTimes, Simulation


EXTENSIONS = (".svg", ".png", ".html", ".trace.json", ".json", ".txt")


def write_schedule(
    simulation: Simulation | WeightReload,
    path: str | PathLike[str],
    *,
    lanes: bool = False,
    block_times: BlockTimes | None = None,
) -> None:
    """Write a simulated schedule or weight reload in the format of *path*'s extension (``EXTENSIONS``).

    Args:
        simulation: The schedule.
        path: File to write.
        lanes: Draw the phases inside the blocks too; pictures only.
        block_times: Times inside a block, for *lanes*.

    >>> import tempfile, pathlib
    >>> from tracekit.schedules import generate, simulate
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "1f1b.json"
    >>> write_schedule(simulate(generate("1f1b", pp=2, microbatches=2)), file)
    >>> json.loads(file.read_text())["makespan"]
    9
    """
    path = Path(path)
    extension = check_extension(path, EXTENSIONS)
    if extension == ".txt":
        if isinstance(simulation, WeightReload):
            raise OptionError(f"{path}: weight-reload has no order file", hint="use .json")
        write_orders(simulation.schedule, path)
        return
    if extension in (".svg", ".png"):
        content = render_figure(_draw(simulation, lanes, block_times), extension)
    else:
        content = _text(simulation, extension).encode()
    with atomic_write(path) as part:
        part.write_bytes(content)


def _draw(simulation: Simulation | WeightReload, lanes: bool, block_times: BlockTimes | None) -> Figure:
    from tracekit.report.schedule.plot import draw_phases, draw_reload, draw_schedule

    if isinstance(simulation, WeightReload):
        return draw_reload(simulation)
    return draw_phases(simulation.schedule, block_times) if lanes else draw_schedule(simulation)


def _text(simulation: Simulation | WeightReload, extension: str) -> str:
    if extension == ".html":
        from tracekit.report.schedule.page import schedule_page

        return schedule_page(simulation)
    if extension == ".trace.json":
        return schedule_trace(simulation)
    return encode(simulation.to_document(), indent=None)


UNIT_NS = 1_000_000
"""Nanoseconds that one unit of the given times is shown as."""


def schedule_trace(simulation: Simulation | WeightReload) -> str:
    """Return the trace as JSON text: one track per rank, or per buffer of a weight reload.

    >>> from tracekit.schedules import generate, simulate
    >>> trace = json.loads(schedule_trace(simulate(generate("1f1b", pp=1, microbatches=1))))
    >>> [(e["name"], e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X"]
    [('0F0', 0.0, 1000.0), ('0B0', 1000.0, 2000.0)]
    """
    numbers = TrackNumbers()
    if isinstance(simulation, WeightReload):
        name, details = simulation.name, ["bucket", "round", "role"]
        processes = [numbers.add_process(f"device {rank}") for rank in range(simulation.ranks)]
        tracks = [(pid, lane) for pid in processes for lane in LANES]
        lane_number = pl.col("lane").replace_strict({lane: i for i, lane in enumerate(LANES)}, return_dtype=pl.Int64)
        track, name_of_cell = pl.col("rank") * len(LANES) + lane_number, pl.format("{} {}", "op", "bucket")
        cells = simulation.cells.with_columns(track=track, name=name_of_cell)
    else:
        schedule = simulation.schedule
        name, details = schedule.name, ["stage", "microbatch", "b_stage", "b_microbatch"]
        pid = numbers.add_process(schedule_headline(schedule))
        tracks = [(pid, f"rank {rank}") for rank in range(schedule.pp)]
        cells = layout_simulation(simulation).cells.with_columns(track="rank")
    start_ns, end_ns = ((pl.col(time) * UNIT_NS).cast(pl.Float64).round().cast(pl.Int64) for time in ("start", "end"))
    placed = numbers.place_events(cells.with_columns(kind="op", start_ns=start_ns, end_ns=end_ns), tracks)
    lines = [*numbers.take_lines(), *event_lines(placed, 0, details={column: column for column in details})]
    about = {"tracekit": __version__, "schedule": name, "unit_us": UNIT_NS / 1000}
    header = json.dumps({"displayTimeUnit": "ms", "otherData": about}, ensure_ascii=False)
    return f'{header[:-1]}, "traceEvents": [\n' + ",\n".join(lines) + "\n]}\n"
