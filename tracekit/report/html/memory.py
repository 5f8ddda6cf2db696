"""What the page draws of memory: a line under a rank's lanes, on their time axis."""

from __future__ import annotations

import polars as pl

from tracekit.analysis import Analysis

Point = tuple[float, float, float | None]
"""Milliseconds from the step's start, GB allocated, GB reserved; it holds until the next."""


def memory_top(analysis: Analysis) -> float | None:
    """Return the most that any rank held or reserved, in GB: the height of every line; None without a record."""
    if analysis.memory is None:
        return None
    ranks = [one.measured for one in analysis.memory.ranks]
    return max(max(found.reserved_bytes or 0, found.peak_bytes) for found in ranks) / 1e9


def memory_points(analysis: Analysis, rank: int, span: tuple[int, int]) -> list[Point]:
    """Return a rank's line from the start of *span* to its end; empty where its memory was not recorded."""
    lines = {} if analysis.memory is None else {one.rank: one.measured.line for one in analysis.memory.ranks}
    return points_in(lines[rank], span) if rank in lines else []


def points_in(line: pl.DataFrame, span: tuple[int, int]) -> list[Point]:
    """Return the points of a line in a span of time, first what was held when it began.

    >>> line = pl.DataFrame({"at_ns": [0, 5_000_000, 9_000_000], "allocated": [10**9, 2 * 10**9, 10**9],
    ...                      "reserved": [None, 3 * 10**9, 3 * 10**9]}, schema_overrides={"reserved": pl.Int64})
    >>> points_in(line, (4_000_000, 8_000_000))
    [(0.0, 1.0, None), (1.0, 2.0, 3.0)]
    """
    begin, end = span
    known = line.filter(pl.col("allocated").is_not_null() & (pl.col("at_ns") <= end))
    before = known.filter(pl.col("at_ns") <= begin).tail(1)
    shown = pl.concat([before, known.filter(pl.col("at_ns") > begin)])
    gb = [(pl.col(name) / 1e9).round(5) for name in ("allocated", "reserved")]
    at = ((pl.col("at_ns").clip(begin) - begin) / 1e6).round(4)
    return list(shown.select(at, *gb).iter_rows())
