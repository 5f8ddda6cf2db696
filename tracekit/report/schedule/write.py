"""Write a schedule to a file; the extension says how."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit._util.files import atomic_write
from tracekit.errors import OptionError
from tracekit.schedules.files import write_orders
from tracekit.schedules.weight_reload import WeightReload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tracekit.schedules import BlockTimes, Simulation

EXTENSIONS = (".svg", ".png", ".html", ".trace.json", ".json", ".txt")


def write_schedule(
    done: Simulation | WeightReload,
    path: str | PathLike[str],
    *,
    lanes: bool = False,
    block_times: BlockTimes | None = None,
) -> None:
    """Draw or write *done* as *path*'s extension asks; with *lanes*, a picture shows the phases inside the blocks too.

    >>> import tempfile, pathlib
    >>> from tracekit.schedules import generate, simulate
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "1f1b.json"
    >>> write_schedule(simulate(generate("1f1b", pp=2, microbatches=2)), file)
    >>> json.loads(file.read_text())["makespan"]
    9
    """
    path = Path(path)
    kind = check_extension(path)
    if kind in (".svg", ".png"):
        from matplotlib import rc_context

        figure = _figure(done, lanes, block_times)
        # A fixed salt and no date: the same schedule always gives the same bytes.
        with atomic_write(path) as part, rc_context({"svg.fonttype": "none", "svg.hashsalt": "tracekit"}):
            metadata = {"Date": None} if kind == ".svg" else None
            figure.savefig(part, format=kind[1:], dpi=150, facecolor="white", metadata=metadata)
    elif kind == ".txt":
        if isinstance(done, WeightReload):
            raise OptionError(f"{path}: weight-reload has no order file", hint="use .json")
        write_orders(done.schedule, path)
    else:
        with atomic_write(path) as part:
            part.write_text(_text(done, kind), encoding="utf-8")


def check_extension(path: Path) -> str:
    """Return the extension that decides, or raise.

    >>> from pathlib import Path
    >>> check_extension(Path("a.trace.json")), check_extension(Path("b.json"))
    ('.trace.json', '.json')
    """
    for extension in EXTENSIONS:
        if path.name.lower().endswith(extension):
            return extension
    raise OptionError(f"{path}: cannot write this kind of file", hint=f"end it in {' '.join(EXTENSIONS)}")


def _figure(done: Simulation | WeightReload, lanes: bool, block_times: BlockTimes | None) -> Figure:
    from tracekit.report.schedule.lanes import draw_phases, draw_reload
    from tracekit.report.schedule.plot import draw_schedule

    if isinstance(done, WeightReload):
        return draw_reload(done)
    return draw_phases(done.schedule, block_times) if lanes else draw_schedule(done)


def _text(done: Simulation | WeightReload, kind: str) -> str:
    if kind == ".html":
        from tracekit.report.schedule.page import schedule_page

        return schedule_page(done)
    if kind == ".trace.json":
        from tracekit.report.schedule.trace import schedule_trace

        return json.dumps(schedule_trace(done), ensure_ascii=False)  # Perfetto shows escapes as they stand
    return json.dumps(done.to_dict())
