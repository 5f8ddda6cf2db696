"""A run as named numbers for dashboards: experiment trackers, JSON lines, Prometheus."""

import json
import re
from collections.abc import Mapping

from tracekit._util.values import without_none
from tracekit.analysis import Analysis
from tracekit.diffs.run_samples import from_analysis
from tracekit.diffs.runs import centre_of_runs
from tracekit.report.write import document_of


def scalars(analysis: Analysis) -> dict[str, float]:
    """Return the metrics of the gate for a run, at the levels that the gate compares, and its free step.

    They are of the run as recorded, but for ``free_step_ms``: the step without the profiler. Unknown ones are left out.

    >>> from tracekit import analyze
    >>> values = scalars(analyze("sample_traces/reload", schedule="none"))
    >>> sorted(name for name in values if "overlap" in name)[:2]
    ['tracekit/overlap.broadcast', 'tracekit/overlap.communication']
    """
    document = document_of(analysis)
    run = from_analysis(document, name="run")
    names = sorted(run.metric_names)
    levels = {f"tracekit/{name}": centre_of_runs([run], name) for name in names}
    free_ns = document.step.free_ns
    levels["tracekit/free_step_ms"] = None if free_ns is None else free_ns / 1e6
    return without_none(levels)


def json_line(values: Mapping[str, float]) -> str:
    """Return the values as one line of JSON.

    >>> json_line({"tracekit/step_ms": 12.5})
    '{"tracekit/step_ms": 12.5}'
    """
    return json.dumps(dict(values), allow_nan=False)


def prometheus(values: Mapping[str, float]) -> str:
    """Return the values in the text format of Prometheus.

    The part after the first dot of a name becomes a label.

    >>> print(prometheus({"tracekit/step_ms": 12.5, "tracekit/overlap.ep_dispatch": 0.9}))
    # TYPE tracekit_overlap gauge
    tracekit_overlap{of="ep_dispatch"} 0.9
    # TYPE tracekit_step_ms gauge
    tracekit_step_ms 12.5
    """
    lines: list[str] = []
    families: set[str] = set()
    for name, value in sorted(values.items()):
        family, _, label = name.partition(".")
        family = re.sub(r"[^a-zA-Z0-9_]", "_", family)
        if family not in families:
            families.add(family)
            lines.append(f"# TYPE {family} gauge")
        labels = '{of="' + re.sub(r'["\\\n]', "_", label) + '"}' if label else ""
        lines.append(f"{family}{labels} {value!r}")
    return "\n".join(lines)
