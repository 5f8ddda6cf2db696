"""A run as a few named numbers, for dashboards: what trackers log, JSON lines, Prometheus' text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from tracekit.analysis import Analysis
from tracekit.diffs import from_analysis
from tracekit.diffs.stats import pseudomedian

PREFIX = "tracekit"


def scalars(analysis: Analysis, *, prefix: str = PREFIX) -> dict[str, float]:
    """Return the gate's metrics of a run, one number each: the middle of its steps; what is not known is left out.

    >>> from tracekit import analyze
    >>> found = scalars(analyze("sample_traces/reload", schedule="none"))
    >>> sorted(name for name in found if "overlap" in name)[:2]
    ['tracekit/overlap.broadcast', 'tracekit/overlap.communication']
    """
    run = from_analysis(analysis.to_dict(), name="run")
    return {f"{prefix}/{name}": pseudomedian(values) for name, values in sorted(run.samples.items()) if values}


def json_line(values: Mapping[str, float]) -> str:
    """Return figures as one line of JSON.

    >>> json_line({"tracekit/step_ms": 12.5})
    '{"tracekit/step_ms": 12.5}'
    """
    return json.dumps(dict(values), allow_nan=False)


def prometheus(values: Mapping[str, float]) -> str:
    """Return figures as Prometheus reads them: the part behind a metric's first dot is its label.

    >>> print(prometheus({"tracekit/step_ms": 12.5, "tracekit/overlap.ep_dispatch": 0.9}))
    # TYPE tracekit_overlap gauge
    tracekit_overlap{of="ep_dispatch"} 0.9
    # TYPE tracekit_step_ms gauge
    tracekit_step_ms 12.5
    """
    lines: list[str] = []
    typed: set[str] = set()
    for name, value in sorted(values.items()):
        family, _, key = name.partition(".")
        plain = re.sub(r"[^a-zA-Z0-9_]", "_", family)
        if plain not in typed:
            typed.add(plain)
            lines.append(f"# TYPE {plain} gauge")
        of = "" if not key else '{of="' + re.sub(r'["\\\n]', "_", key) + '"}'
        lines.append(f"{plain}{of} {value!r}")
    return "\n".join(lines)
