"""One rank's events to small tables (``tables``), and all ranks' tables to one frozen result (``combine``).

Each rank is a pure function of its events, and so is putting them together: that is what lets the same analysis run in
one process, in several, or on a cluster (``tracekit.run``).
"""

from __future__ import annotations

from tracekit.analysis.measured import Measured, RankResult
from tracekit.analysis.plots import Plots
from tracekit.analysis.result import Analysis

__all__ = [
    "Analysis",
    "Measured",
    "Plots",
    "RankResult",
]
