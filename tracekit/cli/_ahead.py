"""Workers that are started before anything heavy is imported, where ranks will be measured and a core is free."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from tracekit._util.machine import WORKER_BYTES, available_memory, cores

PAYS_FILES = 4
"""Files from which it pays: a worker takes as long to start as two small ranks to measure."""
MOST = 4
"""Workers at most."""
ROOM = 4
"""Memory there must be for each, in what it takes before it has read anything."""
WORK = "tracekit.run.measure"
_TRACES = (".json", ".json.gz", ".sqlite")
_STORE = "tracekit-store.json"
_RUNNING = Path("/proc/loadavg")


def start_workers(paths: Sequence[str], later: str | None = None) -> None:
    """Start a worker for every two further traces, as far as cores and memory are free.

    *later* is the module that this process will need when all is measured.
    """
    files = sum(_traces(path) for path in paths)
    if files < PAYS_FILES:
        return
    count = min(files // 2, MOST, _free_cores() - 1, available_memory() // (ROOM * WORKER_BYTES))
    if count > 0:
        from tracekit._util.processes import start_ahead

        with contextlib.suppress(OSError):  # no more processes are allowed: this one does it all
            start_ahead(count, WORK, later=later)


def _traces(path: str) -> int:
    """Return how many files with a trace's name there are: a guess, for which nothing is opened."""
    place = Path(path)
    try:
        names = [place.name] if place.is_file() else [file.name for file in place.iterdir()]
    except (OSError, ValueError):
        return 0  # a glob, a URL, or nothing: whoever reads it says so
    return 0 if _STORE in names else sum(name.endswith(_TRACES) for name in names)


def _free_cores() -> int:
    """Return how many of the cores this process may use are its own or idle at this moment."""
    return min(cores(), (os.cpu_count() or 1) - _others())


def _others() -> int:
    """Return how many others run now, on all cores; the load of the last minute where the system does not tell."""
    try:
        return int(_RUNNING.read_text(encoding="ascii").split()[3].partition("/")[0]) - 1
    except (OSError, ValueError, IndexError):
        return round(os.getloadavg()[0]) if hasattr(os, "getloadavg") else 0
