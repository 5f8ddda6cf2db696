"""What the page draws of memory: a line per rank under its lanes, over the same stretch of time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from tracekit.analysis import Analysis
from tracekit.report.view.memory import gb

WIDTH, HEIGHT = 1000, 60
"""Size of a line's own coordinates."""


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """One rank's line: paths in the coordinates above, and its peak in words."""

    rank: int
    allocated: str
    reserved: str
    peak: str


def memory_lines(analysis: Analysis, ranks: Iterable[int]) -> list[MemoryLine]:
    """Return the lines of *ranks* in the step that the lanes show; none where memory was not recorded."""
    if analysis.memory is None:
        return []
    wanted = analysis.schedule.head.pipeline.step if analysis.schedule is not None else None
    lines = {one.rank: one.measured for one in analysis.memory.ranks}
    top = max(max(found.reserved_bytes or 0, found.peak_bytes) for found in lines.values())
    made = []
    for rank in ranks:
        span = _span(analysis.tables["steps"].filter(pl.col("rank") == rank), wanted)
        if rank not in lines or span is None:
            continue
        shown = lines[rank].line
        allocated, reserved = (_path(shown["at_ns"], shown[name], span, top) for name in ("allocated", "reserved"))
        made.append(MemoryLine(rank, allocated, reserved, gb(lines[rank].peak_bytes)))
    return made


def _span(steps: pl.DataFrame, wanted: int | None) -> tuple[int, int] | None:
    step = steps.filter(pl.col("step") == wanted) if wanted is not None else steps.head(1)
    step = steps.head(1) if step.is_empty() else step
    return None if step.is_empty() else (step["start_ns"][0], step["end_ns"][0])


def _path(at: pl.Series, held: pl.Series, span: tuple[int, int], top: int) -> str:
    """Return a step line: what was held stays until the next point.

    >>> _path(pl.Series([0, 50]), pl.Series([0, 30]), (0, 100), 60)
    'M0.0 60.0 H500.0 V30.0 H1000'
    """
    begin, end = span
    known = pl.DataFrame({"at": at, "held": held}).drop_nulls()
    inside = known.filter(pl.col("at").is_between(begin, end))
    before = known.filter(pl.col("at") < begin)
    first = before["held"][-1] if len(before) else (inside["held"][0] if len(inside) else None)
    if first is None:
        return ""
    points = inside.select(
        x=(pl.col("at") - begin) / max(1, end - begin) * WIDTH, y=HEIGHT - pl.col("held") / max(1, top) * HEIGHT
    )
    moves = " ".join(f"H{x:.1f} V{y:.1f}" for x, y in points.iter_rows() if x > 0)
    return f"M0.0 {HEIGHT - first / max(1, top) * HEIGHT:.1f} {moves} H{WIDTH}".replace("  ", " ")
