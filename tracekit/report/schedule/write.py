"""Schedules written to files; the extension decides the format."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit._util.files import atomic_write
from tracekit.documents.coding import encode
from tracekit.errors import OptionError
from tracekit.schedules.files import write_orders
from tracekit.schedules.weight_reload import WeightReload

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
    extension = check_extension(path)
    if extension in (".svg", ".png"):
        from matplotlib import rc_context

        figure = _draw(simulation, lanes, block_times)
        # A fixed salt and no date: the same schedule always gives the same bytes.
        with atomic_write(path) as part, rc_context({"svg.fonttype": "none", "svg.hashsalt": "tracekit"}):
            metadata = {"Date": None} if extension == ".svg" else None
            figure.savefig(part, format=extension[1:], dpi=150, facecolor="white", metadata=metadata)
    elif extension == ".txt":
        if isinstance(simulation, WeightReload):
            raise OptionError(f"{path}: weight-reload has no order file", hint="use .json")
        write_orders(simulation.schedule, path)
    else:
        with atomic_write(path) as part:
            part.write_text(_text(simulation, extension), encoding="utf-8")


def check_extension(path: Path) -> str:
    """Return the extension of ``EXTENSIONS`` that *path* ends in; raise OptionError if it is none of them.

    >>> from pathlib import Path
    >>> check_extension(Path("a.trace.json")), check_extension(Path("b.json"))
    ('.trace.json', '.json')
    """
    for extension in EXTENSIONS:
        if path.name.lower().endswith(extension):
            return extension
    raise OptionError(f"{path}: cannot write this kind of file", hint=f"end it in {' '.join(EXTENSIONS)}")


def _draw(simulation: Simulation | WeightReload, lanes: bool, block_times: BlockTimes | None) -> Figure:
    from tracekit.report.schedule.lanes import draw_phases, draw_reload
    from tracekit.report.schedule.plot import draw_schedule

    if isinstance(simulation, WeightReload):
        return draw_reload(simulation)
    return draw_phases(simulation.schedule, block_times) if lanes else draw_schedule(simulation)


def _text(simulation: Simulation | WeightReload, extension: str) -> str:
    if extension == ".html":
        from tracekit.report.schedule.page import schedule_page

        return schedule_page(simulation)
    if extension == ".trace.json":
        from tracekit.report.schedule.trace import schedule_trace

        return json.dumps(schedule_trace(simulation), ensure_ascii=False)  # Perfetto does not decode escapes
    return encode(simulation.to_document(), indent=None)
