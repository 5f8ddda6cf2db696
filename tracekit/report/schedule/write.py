"""Schedules written to files; the extension decides the format."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit._util.files import atomic_write
from tracekit._version import __version__
from tracekit.documents.coding import encode
from tracekit.errors import OptionError
from tracekit.report.figures import render_figure
from tracekit.report.schedule.layout import layout_simulation
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
        return json.dumps(schedule_trace(simulation), ensure_ascii=False)  # Perfetto does not decode escapes
    return encode(simulation.to_document(), indent=None)


UNIT_US = 1000.0
"""Microseconds that one unit of the given times is shown as."""


def schedule_trace(simulation: Simulation | WeightReload) -> dict[str, Any]:
    """Return the trace: one track per rank, or per buffer of a weight reload.

    >>> from tracekit.schedules import generate, simulate
    >>> trace = schedule_trace(simulate(generate("1f1b", pp=1, microbatches=1)))
    >>> [(e["name"], e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X"]
    [('0F0', 0.0, 1000.0), ('0B0', 1000.0, 2000.0)]
    """
    if isinstance(simulation, WeightReload):
        name, events = simulation.name, _reload_events(simulation)
    else:
        name, events = simulation.schedule.name, _cell_events(simulation)
    about = {"tracekit": __version__, "schedule": name, "unit_us": UNIT_US}
    return {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}


def _cell_events(simulation: Simulation) -> list[dict[str, Any]]:
    schedule = simulation.schedule
    title = f"{schedule.name} · {schedule.pp} ranks × {schedule.microbatches} micro-batches"
    events = _track_names(0, None, title, 0)
    for rank in range(schedule.pp):
        events += _track_names(0, rank, f"rank {rank}", rank)
    columns = ("stage", "microbatch", "b_stage", "b_microbatch")
    for cell in layout_simulation(simulation).cells.iter_rows(named=True):
        events.append(_slice(cell, cell["name"], pid=0, tid=cell["rank"], columns=columns))
    return events


def _reload_events(reload: WeightReload) -> list[dict[str, Any]]:
    events = []
    for rank in range(reload.ranks):
        events += _track_names(rank, None, f"device {rank}", rank)
        for lane, name in enumerate(LANES):
            events += _track_names(rank, lane, name, lane)
    columns = ("bucket", "round", "role")
    for cell in reload.cells.iter_rows(named=True):
        name, lane = f"{cell['op']} {cell['bucket']}", LANES.index(cell["lane"])
        events.append(_slice(cell, name, pid=cell["rank"], tid=lane, columns=columns))
    return events


def _track_names(pid: int, tid: int | None, name: str, sort_index: int) -> list[dict[str, Any]]:
    """Return the metadata events that name and order a process (*tid* None) or a thread."""
    kind, track = ("process", {"pid": pid}) if tid is None else ("thread", {"pid": pid, "tid": tid})
    return [
        {"ph": "M", "name": f"{kind}_name", **track, "args": {"name": name}},
        {"ph": "M", "name": f"{kind}_sort_index", **track, "args": {"sort_index": sort_index}},
    ]


def _slice(cell: dict[str, Any], name: str, *, pid: int, tid: int, columns: tuple[str, ...]) -> dict[str, Any]:
    """Return the event of one cell; its details are those of *columns* that are not null."""
    return {
        "ph": "X",
        "name": name,
        "cat": cell["op"],
        "pid": pid,
        "tid": tid,
        "ts": cell["start"] * UNIT_US,
        "dur": (cell["end"] - cell["start"]) * UNIT_US,
        "args": {column: cell[column] for column in columns if cell[column] is not None},
    }
