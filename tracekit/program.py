"""The command line as a process: workers are started before anything else, and nothing is taken apart at the end."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tracekit._util.deferred import put_off
from tracekit._util.garbage import collect_rarely
from tracekit._util.machine import SYSTEM, WORKER_BYTES, available_memory, cores

PAYS_FILES = 4
"""Files from which it pays: a worker takes as long to start as two small ranks to measure."""
MOST = 4
"""Workers at most."""
ROOM = 4
"""Memory there must be for each, in what it takes before it has read anything."""
MOMENT_S = 0.002
"""After which a second look says who really runs."""
WORK = "tracekit.run.measure"
_TRACES = (".json", ".json.gz", ".sqlite")
_STORE = "tracekit-store.json"
_RUNNING = SYSTEM / "loadavg"
_ALONE = ("--workers", "--dask", "--explain", "--help", "-h")
"""Options with which ``analyze`` starts other workers, or none."""
_REPORT = "tracekit.report.terminal.analysis"
_QUIET = {
    "OPENBLAS_NUM_THREADS": "1",  # numpy starts and spins one thread per core; nothing needs them
    "_RJEM_MALLOC_CONF": "narenas:1",  # polars keeps what it freed apart for each of all cores, and few are used
}
"""What libraries are told before they are imported, unless the user tells them something else."""
_SELDOM = (
    "html",  # for pages
    "importlib.metadata",  # polars asks it for versions of what reads Iceberg's tables; it brings all of email with it
    "numpy._core._add_newdocs",  # texts for help(): 12 ms of them
    "numpy._core._add_newdocs_scalars",
)
"""Modules that libraries import, and that run when something of them is asked for."""


def program() -> NoReturn:
    """Run the command line as a process of its own, which ends at once.

    What is registered for its end is done; taking apart all that was imported, 0.03 s, is the system's.
    """
    collect_rarely()
    put_off(_SELDOM)
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        look_ahead(sys.argv[1:])
        from tracekit.cli import main

        main()
    except SystemExit as end:
        code = end.code
    except KeyboardInterrupt:  # before the command line, which says so itself, was there
        sys.stderr.write("interrupted\n")
        code = 130
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none: there is nobody to tell
            stream.flush()
    os._exit(code if isinstance(code, int) else 0)


def look_ahead(words: Sequence[str]) -> None:
    """Start workers where ranks will be measured, by a glance at the words: reading them all needs imports first.

    Where the glance was wrong (the words are, say), the workers end with this process.
    """
    if words[:1] == ["analyze"] and not any(word.startswith(_ALONE) for word in words):
        paths = [word for word in words[1:] if not word.startswith("-")]
        start_workers(paths, later=None if "--json" in words else _REPORT)


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
    others = _others()
    if others:  # one of them may be who started this process, and about to wait for it
        time.sleep(MOMENT_S)
        others = min(others, _others())
    return min(cores(), (os.cpu_count() or 1) - others)


def _others() -> int:
    """Return how many others run now, on all cores; the load of the last minute where the system does not tell."""
    try:
        return int(_RUNNING.read_text(encoding="ascii").split()[3].partition("/")[0]) - 1
    except (OSError, ValueError, IndexError):
        return round(os.getloadavg()[0]) if hasattr(os, "getloadavg") else 0
