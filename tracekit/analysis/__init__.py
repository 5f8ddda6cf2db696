"""Analysis of a run: each rank's events become small tables (``tables``), all ranks' tables one result (``combine``).

Both steps are pure functions. The same analysis can therefore run in one process, in several, or on
a cluster (``tracekit.run``).
"""

from tracekit.analysis.result import Analysis
from tracekit.documents.analysis import Figures, RankFigures

__all__ = ["Analysis", "Figures", "RankFigures"]
