"""Where did my training step go, and how far is it from the schedule I meant to run.

>>> import tracekit
>>> tracekit.load("sample_traces/reload").ranks
(0, 1, 2, 3)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tracekit._util.above import wire
from tracekit._version import __version__
from tracekit.errors import InputError, Notice, TracekitError

if TYPE_CHECKING:
    from tracekit import classify, metrics, record, schedules
    from tracekit.analysis import Analysis, SavedAnalysis, read_analysis
    from tracekit.diffs import Diff, diff
    from tracekit.doctor import Diagnosis, diagnose
    from tracekit.gates import GateResult, gate
    from tracekit.record import handler, profiler
    from tracekit.redaction import redact
    from tracekit.report.perfetto.export import export
    from tracekit.run.analyze import analyze
    from tracekit.run.ingest import ingest
    from tracekit.run.load import load
    from tracekit.run.query import query
    from tracekit.run.watch import watch
    from tracekit.store.files import Store, open_store
    from tracekit.store.trace import Trace

# Imported on first use: `import tracekit` and `tracekit --help` stay instant. No room has the name of a call: importing
# it would take the call's place.
_HOMES = {
    "Analysis": "tracekit.analysis",
    "Diagnosis": "tracekit.doctor",
    "Diff": "tracekit.diffs",
    "GateResult": "tracekit.gates",
    "SavedAnalysis": "tracekit.analysis",
    "Store": "tracekit.store.files",
    "Trace": "tracekit.store.trace",
    "analyze": "tracekit.run.analyze",
    "diagnose": "tracekit.doctor",
    "diff": "tracekit.diffs",
    "export": "tracekit.report.perfetto.export",
    "gate": "tracekit.gates",
    "handler": "tracekit.record",
    "ingest": "tracekit.run.ingest",
    "load": "tracekit.run.load",
    "open_store": "tracekit.store.files",
    "profiler": "tracekit.record",
    "query": "tracekit.run.query",
    "read_analysis": "tracekit.analysis",
    "redact": "tracekit.redaction",
    "watch": "tracekit.run.watch",
}
_MODULES = ("classify", "metrics", "record", "schedules")

__all__ = [
    "Analysis",
    "Diagnosis",
    "Diff",
    "GateResult",
    "InputError",
    "Notice",
    "SavedAnalysis",
    "Store",
    "Trace",
    "TracekitError",
    "__version__",
    "analyze",
    "classify",
    "diagnose",
    "diff",
    "export",
    "gate",
    "handler",
    "ingest",
    "load",
    "metrics",
    "open_store",
    "profiler",
    "query",
    "read_analysis",
    "record",
    "redact",
    "schedules",
    "watch",
]

wire(
    {
        "draw_analysis": "tracekit.report.plot:draw",
        "draw_schedule": "tracekit.report.schedule.plot:draw_schedule",
        "write_analysis": "tracekit.report.write:write",
        "write_diff": "tracekit.report.ci.write:write_diff",
        "write_gate": "tracekit.report.ci.write:write_gate",
        "write_schedule": "tracekit.report.schedule.write:write_schedule",
    }
)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"tracekit.{name}")
    raise AttributeError(f"module 'tracekit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
