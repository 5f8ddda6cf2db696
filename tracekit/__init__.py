"""Where did my training step go, and how far is it from the schedule I meant to run.

>>> import tracekit
>>> tracekit.load("sample_traces/reload").ranks
(0, 1, 2, 3)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tracekit._version import __version__
from tracekit.errors import InputError, Notice, TracekitError

if TYPE_CHECKING:
    from tracekit import classify, metrics, schedules
    from tracekit.analysis import Analysis
    from tracekit.doctor.diagnose import diagnose
    from tracekit.record import handler, profiler
    from tracekit.run.analyze import analyze
    from tracekit.run.ingest import ingest
    from tracekit.run.load import load
    from tracekit.store.files import Store, open_store
    from tracekit.store.trace import Trace

# Imported on first use: `import tracekit` and `tracekit --help` stay instant.
_HOMES = {
    "Analysis": "tracekit.analysis",
    "analyze": "tracekit.run.analyze",
    "Store": "tracekit.store.files",
    "Trace": "tracekit.store.trace",
    "diagnose": "tracekit.doctor.diagnose",
    "handler": "tracekit.record",
    "profiler": "tracekit.record",
    "ingest": "tracekit.run.ingest",
    "load": "tracekit.run.load",
    "open_store": "tracekit.store.files",
}
_MODULES = ("classify", "metrics", "schedules")

__all__ = [
    "Analysis",
    "InputError",
    "Notice",
    "Store",
    "Trace",
    "TracekitError",
    "__version__",
    "analyze",
    "classify",
    "diagnose",
    "handler",
    "ingest",
    "load",
    "metrics",
    "open_store",
    "profiler",
    "schedules",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"tracekit.{name}")
    raise AttributeError(f"module 'tracekit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
