"""The analysis as JSON text."""

from __future__ import annotations

from tracekit.analysis import Analysis


def render_json(analysis: Analysis) -> str:
    """Return the JSON document (``format: tracekit.analysis/1``), one trailing newline."""
    return analysis.to_json() + "\n"
