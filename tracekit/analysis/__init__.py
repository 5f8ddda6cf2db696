"""Analysis of a run: each rank's events become small tables (``tables``), all ranks' tables one result (``combine``).

Both steps are pure functions. The same analysis can therefore run in one process, in several, or on a cluster
(``tracekit.run``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.analysis.measured import Measured, RankResult
from tracekit.analysis.result import Analysis, Plots

if TYPE_CHECKING:
    from tracekit.analysis.persistence import SavedAnalysis, SavedSchedule, read_analysis

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
    # Saved analyses are imported on first use: most programs read none, and they need the comparison with schedules.
    if name in __all__:
        from tracekit.analysis import persistence

        return getattr(persistence, name)
    raise AttributeError(f"module 'tracekit.analysis' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
