"""The analysis as JSON text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from tracekit.analysis import Analysis


def render_json(analysis: Analysis) -> Iterator[str]:
    """Return the JSON document (``format: tracekit.analysis/1``) in pieces, one trailing newline."""
    return chain(analysis.json_pieces(), "\n")
