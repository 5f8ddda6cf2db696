"""Trace analysis of distributed training: where a step's time goes, and how far it is from the intended schedule.

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
    from tracekit import metrics, record, schedules, weight_updates
    from tracekit.classify import CallablePackage
    from tracekit.diffs import Diff, GateResult, diff, gate
    from tracekit.doctor import Diagnosis, diagnose
    from tracekit.record import handler, profiler
    from tracekit.redaction import redact
    from tracekit.results import Analysis, read_analysis, simulate, weight_reload
    from tracekit.run.analyze import analyze
    from tracekit.run.export import export
    from tracekit.run.ingest import ingest
    from tracekit.run.late import late
    from tracekit.run.load import load
    from tracekit.run.memory_snapshots import diff_memory, memory
    from tracekit.run.query import query
    from tracekit.run.watch import watch
    from tracekit.store.files import Store, open_store
    from tracekit.store.trace import Trace

    classify: CallablePackage

# Public names are imported on first use (PEP 562), so that `import tracekit` and `tracekit --help`
# take milliseconds. No module may be called like a public function: importing it would replace the
# function on this package. The package classify is the exception, and can be called itself.
_SUBPACKAGES = ("classify", "metrics", "record", "schedules", "weight_updates")
_NAMES_OF_MODULE = {
    "tracekit.diffs": ("Diff", "GateResult", "diff", "gate"),
    "tracekit.doctor": ("Diagnosis", "diagnose"),
    "tracekit.record": ("handler", "profiler"),
    "tracekit.redaction": ("redact",),
    "tracekit.results": ("Analysis", "read_analysis", "simulate", "weight_reload"),
    "tracekit.run.memory_snapshots": ("diff_memory", "memory"),
    "tracekit.store.files": ("Store", "open_store"),
    "tracekit.store.trace": ("Trace",),
    **{
        f"tracekit.run.{name}": (name,)
        for name in ("analyze", "export", "ingest", "late", "load", "query", "watch")
    },
}
_MODULE_OF_NAME = {name: module for module, names in _NAMES_OF_MODULE.items() for name in names}

__all__ = [
    "Analysis", "Diagnosis", "Diff", "GateResult", "InputError", "Notice", "Store", "Trace",
    "TracekitError", "__version__", "analyze", "classify", "diagnose", "diff", "diff_memory", "export", "gate",
    "handler", "ingest", "late", "load", "memory", "metrics", "open_store", "profiler", "query", "read_analysis",
    "record", "redact", "schedules", "simulate", "watch", "weight_reload", "weight_updates",
]  # fmt: skip

_FIRST_NAMES = (
    "Analysis", "Diff", "GateResult", "Trace", "TracekitError",
    "analyze", "diff", "gate", "handler", "late", "load", "memory", "profiler", "schedules",
)  # fmt: skip
"""What completion offers: the calls that most people need, and the types of their results."""


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"tracekit.{name}")
    if name == "SavedAnalysis":
        raise AttributeError("tracekit.SavedAnalysis was removed; use tracekit.Analysis")
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'tracekit' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF_NAME[name]), name)


def __dir__() -> list[str]:
    return [*_FIRST_NAMES]
