"""Limits, baselines and verdicts: a regression stops, noise does not.

from tracekit.gate import gate, read_side
result = gate(read_side(["new/"], what="candidate"), read_side(["perf/baseline.json"], what="baseline"))
result.verdict, result.exit_code
"""

from tracekit.gate.changes import diff
from tracekit.gate.config import Config, Waiver, load_config
from tracekit.gate.inputs import Side, read_side
from tracekit.gate.outcome import GateResult, gate
from tracekit.gate.samples import Run, from_analysis

__all__ = ["Config", "GateResult", "Run", "Side", "Waiver", "diff", "from_analysis", "gate", "load_config", "read_side"]
