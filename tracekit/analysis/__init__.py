"""One rank's events to small tables (``rank_tables``), and all ranks' tables to one frozen result (``combine``).

Each rank is a pure function of its events, and so is putting them together: that is what lets the same analysis run in
one process, in several, or on a cluster (``tracekit.run``).
"""

from __future__ import annotations

from tracekit.analysis.combine import combine
from tracekit.analysis.result import Analysis, Measured, RankResult
from tracekit.analysis.tables import RankTables, rank_tables

__all__ = ["Analysis", "Measured", "RankResult", "RankTables", "combine", "rank_tables"]
