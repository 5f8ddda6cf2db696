"""A rank's GPU time as few enough intervals to draw: what ran when, by label and pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.intervals import union
from tracekit.schema import LABELS, PASSES

MOST = 3000
"""Intervals kept of one rank. More would not be told apart on a screen."""

TIMELINE = pl.Schema({"label": pl.Enum(LABELS), "pass": pl.Enum(PASSES), "start_ns": pl.Int64(), "end_ns": pl.Int64()})


def timeline(labelled: pl.DataFrame, *, most: int = MOST) -> pl.DataFrame:
    """Return unions by (label, pass); where there are more than *most*, those nearest to each other are joined.

    Joining covers gaps, so this table is for drawing, never for measuring.

    >>> events = pl.DataFrame(
    ...     {"label": ["forward"] * 3, "pass": ["forward"] * 3, "start_ns": [0, 5, 100], "end_ns": [4, 9, 109]},
    ...     schema_overrides={"label": pl.Enum(LABELS), "pass": pl.Enum(PASSES)},
    ... )
    >>> timeline(events, most=2)["start_ns", "end_ns"].rows()
    [(0, 9), (100, 109)]
    """
    passes = len(PASSES) + 1
    label = labelled["label"].to_physical().to_numpy().astype(np.int64)
    which = labelled["pass"].to_physical().fill_null(len(PASSES)).to_numpy().astype(np.int64)
    runs = union(labelled["start_ns"].to_numpy(), labelled["end_ns"].to_numpy(), label * passes + which)
    group, start, end = runs.group, runs.start_ns, runs.end_ns
    if len(start) > most:
        gap = np.where(group[1:] == group[:-1], start[1:] - end[:-1], np.iinfo(np.int64).max)
        closed = np.partition(gap, len(gap) - most)[len(gap) - most]  # the widest gap that is drawn over
        opens = np.concatenate(([True], gap > closed))
        group, start, end = group[opens], start[opens], end[np.append(np.flatnonzero(opens)[1:] - 1, len(end) - 1)]
    return pl.DataFrame(
        {
            "label": _named(group // passes, LABELS),
            "pass": _named(group % passes, (*PASSES, None)),
            "start_ns": start,
            "end_ns": end,
        },
        schema=TIMELINE,
    ).sort("start_ns")


def _named(code: npt.NDArray[np.int64], names: Sequence[str | None]) -> pl.Series:
    return pl.Series(names, dtype=pl.Enum([name for name in names if name]))[code]
