"""Analysis of a run: each rank's events become small tables (``tables``), all ranks' tables one result (``combine``).

Both steps are pure functions. The same analysis can therefore run in one process, in several, or on
a cluster (``tracekit.run``).
"""

import typing

from tracekit.analysis.result import Analysis
from tracekit.documents.analysis import Figures, RankFigures

__all__ = ["Analysis", "Figures", "RankFigures"]

_SUCCESSORS = {"SavedAnalysis": "Analysis", "Measured": "Figures", "RankResult": "RankFigures"}
"""Names that were removed, and what to use instead."""


def __getattr__(name: str) -> typing.NoReturn:
    if name in _SUCCESSORS:
        message = f"tracekit.analysis.{name} was removed; use {_SUCCESSORS[name]}"
        raise AttributeError(message)
    raise AttributeError(f"module 'tracekit.analysis' has no attribute {name!r}")
