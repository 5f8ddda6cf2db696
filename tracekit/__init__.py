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
from tracekit.late import late
from tracekit.memory import memory
from tracekit.redact import redact

if TYPE_CHECKING:
    from tracekit import metrics, record
    from tracekit.classify import CallablePackage
    from tracekit.diffs import Diff, GateResult, diff, gate
    from tracekit.diffs.many_runs import compare
    from tracekit.doctor import Diagnosis, diagnose
    from tracekit.memory.run import diff_memory
    from tracekit.pipeline import schedules
    from tracekit.record import handler, profiler
    from tracekit.results import Analysis, read_analysis, simulate, weight_reload
    from tracekit.roles import weight_updates
    from tracekit.run.analyze import analyze
    from tracekit.run.export import export
    from tracekit.run.ingest import ingest
    from tracekit.run.load import load
    from tracekit.run.query import query
    from tracekit.run.watch import watch
    from tracekit.store.files import Store, open_store
    from tracekit.store.trace import Trace

    classify: CallablePackage

# Public names are imported on first use (PEP 562), so that `import tracekit` and `tracekit --help`
# take milliseconds. A module that is called like a public function would replace the function on
# this package when it is imported: rooms that are called so (late, memory, redact) hold the function
# themselves and are imported above, and the package classify can be called itself.
_MODULE_OF_SUBPACKAGE = {
    "classify": "tracekit.classify",
    "metrics": "tracekit.metrics",
    "record": "tracekit.record",
    "schedules": "tracekit.pipeline.schedules",
    "weight_updates": "tracekit.roles.weight_updates",
}
_NAMES_OF_MODULE = {
    "tracekit.diffs": ("Diff", "GateResult", "diff", "gate"),
    "tracekit.diffs.many_runs": ("compare",),
    "tracekit.doctor": ("Diagnosis", "diagnose"),
    "tracekit.record": ("handler", "profiler"),
    "tracekit.results": ("Analysis", "read_analysis", "simulate", "weight_reload"),
    "tracekit.memory.run": ("diff_memory",),
    "tracekit.store.files": ("Store", "open_store"),
    "tracekit.store.trace": ("Trace",),
    **{
        f"tracekit.run.{name}": (name,)
        for name in ("analyze", "export", "ingest", "load", "query", "watch")
    },
}
_MODULE_OF_NAME = {name: module for module, names in _NAMES_OF_MODULE.items() for name in names}

__all__ = [
    "Analysis", "Diagnosis", "Diff", "GateResult", "InputError", "Notice", "Store", "Trace",
    "TracekitError", "__version__", "analyze", "classify", "compare", "diagnose", "diff", "diff_memory", "export",
    "gate", "handler", "ingest", "late", "load", "memory", "metrics", "open_store", "profiler", "query",
    "read_analysis", "record", "redact", "schedules", "simulate", "watch", "weight_reload", "weight_updates",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF_SUBPACKAGE:
        return importlib.import_module(_MODULE_OF_SUBPACKAGE[name])
    if name == "SavedAnalysis":
        raise AttributeError("tracekit.SavedAnalysis was removed; use tracekit.Analysis")
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'tracekit' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF_NAME[name]), name)


def __dir__() -> list[str]:
    return [*__all__]
