"""Time whose label rests on weak evidence: on what ran around the work, not on what the work itself shows."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.intervals import union
from tracekit.metrics.lanes import label_codes
from tracekit.schema import LABELS

WEAK = 0.65
"""Confidence below which a label's evidence is weak: neighbours and order alone give less, names and operators more."""


def weak_ns(labelled: pl.DataFrame, *, parts: int = 1, part: str | None = None) -> tuple[int, ...]:
    """Return the time in each part whose label rests on weak evidence; what no rule knows has no label and is left out.

    >>> events = pl.DataFrame(
    ...     {"label": ["forward", "backward", "other"], "confidence": [0.9, 0.6, 0.0], "start_ns": [0, 4, 8],
    ...      "end_ns": [4, 7, 9]})
    >>> weak_ns(events)
    (3,)
    """
    weak = labelled["confidence"].to_numpy() < np.float32(WEAK)
    rows = np.flatnonzero(weak & (label_codes(labelled) != LABELS.index("other")))
    group = labelled[part].to_numpy()[rows] if part is not None else None
    found = union(labelled["start_ns"].to_numpy()[rows], labelled["end_ns"].to_numpy()[rows], group)
    return tuple(found.totals_ns(parts).tolist())
