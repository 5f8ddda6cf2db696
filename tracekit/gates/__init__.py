"""Gate on performance regressions: limits, baselines and one verdict, based on ``tracekit.diffs``.

>>> from tracekit.gates import gate
>>> result = gate("sample_traces/reload", require=["step_ms < 10", "overlap.broadcast > 0.5"])
>>> result.verdict, result.exit_code
('regressed', 1)
"""

from tracekit.documents.gate import Waiver
from tracekit.gates.config import Config, load_config
from tracekit.gates.run_gate import GateResult, gate

__all__ = ["Config", "GateResult", "Waiver", "gate", "load_config"]
