"""What changed between two runs, and which of it is beyond noise.

>>> from tracekit.diffs import diff
>>> changes = diff("sample_traces/reload", "sample_traces/reload")
>>> changes.obstacles, changes.tables["ranks"]["change_ms"].max()
((), 0.0)
"""

from tracekit.diffs.changes import Diff, diff
from tracekit.diffs.samples import Run, from_analysis
from tracekit.diffs.sides import Comparable, Side, read_side, side_of

__all__ = ["Comparable", "Diff", "Run", "Side", "diff", "from_analysis", "read_side", "side_of"]
