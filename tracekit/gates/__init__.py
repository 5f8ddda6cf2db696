"""Limits, baselines and verdicts, standing on ``tracekit.diffs``: a regression stops, noise does not.

from tracekit.gates import gate, read_side
result = gate(read_side(["new/"], what="candidate"), read_side(["perf/baseline.json"], what="baseline"))
result.verdict, result.exit_code
"""

from tracekit.diffs import Run, Side, diff, from_analysis, read_side
from tracekit.gates.config import Config, Waiver, load_config
from tracekit.gates.outcome import GateResult, gate

__all__ = ["Config", "GateResult", "Run", "Side", "Waiver", "diff", "from_analysis", "gate", "load_config", "read_side"]
