"""Comparison of two runs: the changes between them, which of them exceed noise, and the gate on regressions.

>>> from tracekit.diffs import diff, gate
>>> changes = diff("sample_traces/reload", "sample_traces/reload")
>>> changes.obstacles, changes.tables["ranks"]["change_ms"].max()
((), 0.0)
>>> result = gate("sample_traces/reload", require=["step_ms < 10", "overlap.broadcast > 0.5"])
>>> result.verdict, result.exit_code
('regressed', 1)
"""

from tracekit.diffs.changes import Diff, diff
from tracekit.diffs.gate_config import Config, load_config
from tracekit.diffs.load_runs import Comparable, Side, read_side, side_of
from tracekit.diffs.run_gate import GateResult, gate
from tracekit.diffs.run_samples import from_analysis
from tracekit.diffs.runs import Run
from tracekit.diffs.samples import make_samples
from tracekit.documents.gate import Waiver

__all__ = [
    "Comparable",
    "Config",
    "Diff",
    "GateResult",
    "Run",
    "Side",
    "Waiver",
    "diff",
    "from_analysis",
    "gate",
    "load_config",
    "make_samples",
    "read_side",
    "side_of",
]
