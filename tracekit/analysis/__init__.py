"""One rank's events to small tables (``tables``), and all ranks' tables to one frozen result (``combine``).

Each rank is a pure function of its events, and so is putting them together: that is what lets the same analysis run in
one process, in several, or on a cluster (``tracekit.run``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.analysis.measured import Measured, RankResult
from tracekit.analysis.plots import Plots
from tracekit.analysis.result import Analysis

if TYPE_CHECKING:
    from tracekit.analysis.saved import SavedAnalysis, SavedSchedule, read_analysis

__all__ = [
    "Analysis",
    "Measured",
    "Plots",
    "RankResult",
    "SavedAnalysis",
    "SavedSchedule",
    "read_analysis",
]


def __getattr__(name: str) -> Any:
    if name in __all__:  # what a file holds: most runs read none
        from tracekit.analysis import saved

        return getattr(saved, name)
    raise AttributeError(f"module 'tracekit.analysis' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
