"""Results as people get them: documents and lazy tables, with methods that draw, show and save them.

What is measured, compared and simulated is data in the packages below ``report``; these classes
add what ``report`` makes of it. ``diffs`` and ``doctor``, which stand above, have theirs themselves.
"""

from tracekit.late.late_result import LateResult
from tracekit.memory.result import MemoryDiffResult, MemoryResult
from tracekit.results.analysis import AnalysisResult, Plots, read_analysis
from tracekit.results.schedules import (
    SimulationResult,
    WeightReloadResult,
    simulate,
    weight_reload,
)

Analysis = AnalysisResult
"""Its public name."""

__all__ = [
    "Analysis",
    "AnalysisResult",
    "LateResult",
    "MemoryDiffResult",
    "MemoryResult",
    "Plots",
    "SimulationResult",
    "WeightReloadResult",
    "read_analysis",
    "simulate",
    "weight_reload",
]
