"""Comparison of two runs: the changes between them, and which of them exceed noise.

>>> from tracekit.diffs import diff
>>> changes = diff("sample_traces/reload", "sample_traces/reload")
>>> changes.obstacles, changes.tables["ranks"]["change_ms"].max()
((), 0.0)
"""

from tracekit.diffs.changes import Diff, diff
from tracekit.diffs.load_runs import Comparable, Side, read_side, side_of
from tracekit.diffs.run_samples import Run, from_analysis

__all__ = ["Comparable", "Diff", "Run", "Side", "diff", "from_analysis", "read_side", "side_of"]
