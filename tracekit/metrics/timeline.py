"""Timeline of a rank for drawings: intervals by label and pass, few enough to draw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit.intervals import union
from tracekit.schema import LABELS, PASSES

MAX_TIMELINE_INTERVALS = 3000
"""Intervals kept for one rank; a screen cannot resolve more."""

TIMELINE = pl.Schema({"label": pl.Enum(LABELS), "pass": pl.Enum(PASSES), "start_ns": pl.Int64(), "end_ns": pl.Int64()})


def timeline(labelled: pl.DataFrame, *, max_intervals: int = MAX_TIMELINE_INTERVALS) -> pl.DataFrame:
    """Return unions by label and pass (``TIMELINE``); if there are more than *max_intervals*, nearest ones are joined.

    Joining covers gaps, so this table is for drawing, never for measuring.

    >>> events = pl.DataFrame(
    ...     {"label": ["forward"] * 3, "pass": ["forward"] * 3, "start_ns": [0, 5, 100], "end_ns": [4, 9, 109]},
    ...     schema_overrides={"label": pl.Enum(LABELS), "pass": pl.Enum(PASSES)},
    ... )
    >>> timeline(events, max_intervals=2)["start_ns", "end_ns"].rows()
    [(0, 9), (100, 109)]
    """
    # One group for every (label, pass); the last pass stands for none.
    passes = len(PASSES) + 1
    label = labelled["label"].to_physical().to_numpy().astype(np.int64)
    pass_ = labelled["pass"].to_physical().fill_null(len(PASSES)).to_numpy().astype(np.int64)
    intervals = union(labelled["start_ns"].to_numpy(), labelled["end_ns"].to_numpy(), label * passes + pass_)
    group, start, end = intervals.group, intervals.start_ns, intervals.end_ns
    if len(start) > max_intervals:
        # Keep the max_intervals - 1 widest gaps (gaps between groups are infinite) and draw over the others.
        gap = np.where(group[1:] == group[:-1], start[1:] - end[:-1], np.iinfo(np.int64).max)
        widest_closed = np.partition(gap, len(gap) - max_intervals)[len(gap) - max_intervals]
        first = np.flatnonzero(np.concatenate(([True], gap > widest_closed)))
        last = np.append(first[1:] - 1, len(end) - 1)
        group, start, end = group[first], start[first], end[last]
    return pl.DataFrame(
        {
            "label": _decode(group // passes, LABELS),
            "pass": _decode(group % passes, (*PASSES, None)),
            "start_ns": start,
            "end_ns": end,
        },
        schema=TIMELINE,
    ).sort("start_ns")


def _decode(code: Ints, names: Sequence[str | None]) -> pl.Series:
    """Return the names at some indices as an Enum column."""
    return pl.Series(names, dtype=pl.Enum([name for name in names if name]))[code]
