"""Links of the page's tables into its charts: moments in a rank's lanes, and the row that explains a kernel."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import polars as pl

from tracekit.analysis import Analysis
from tracekit.report.names import short_kernel
from tracekit.report.view.kernels import Kernel
from tracekit.report.view.path import PathView

Moment = tuple[float, float]
"""Start and end, in ms from the step's start on the rank's own clock."""


def kernel_moments(
    analysis: Analysis, kernels: Sequence[Kernel], steps: Collection[int | None]
) -> list[list[Moment | None]]:
    """Return when each kernel's longest event ran, for each of its ranks; None if its step is not in the lanes."""
    step_starts = analysis.tables["steps"].select("rank", "step", "start_ns")
    step_start = {(rank, step): start_ns for rank, step, start_ns in step_starts.iter_rows()}
    moments: list[list[Moment | None]] = []
    for kernel in kernels:
        of_kernel: list[Moment | None] = []
        for place in kernel.why.places if kernel.why else ():
            origin_ns = step_start.get((place.rank, place.step))
            if origin_ns is None or place.step not in steps:
                of_kernel.append(None)
            else:
                of_kernel.append(((place.start_ns - origin_ns) / 1e6, (place.end_ns - origin_ns) / 1e6))
        moments.append(of_kernel)
    return moments


def explaining_rows(kernels: Sequence[Kernel]) -> dict[tuple[str, str], int]:
    """Return the first row, counted from 1, that explains a kernel of a short name and label."""
    rows: dict[tuple[str, str], int] = {}
    for row, kernel in enumerate(kernels, 1):
        if kernel.why is not None:
            rows.setdefault((short_kernel(kernel.name), kernel.label), row)
    return rows


def path_moments(analysis: Analysis, path: PathView | None) -> list[Moment | None]:
    """Return when each listed segment of the critical path ran in its rank's lanes; None if outside of them."""
    if path is None or analysis.critical is None:
        return []
    of_step = pl.col("step").eq_missing(path.step)
    step_start = dict(analysis.tables["steps"].filter(of_step).select("rank", "start_ns").iter_rows())
    path_start_ns = int(analysis.critical.segments.filter(of_step)["start_ns"].to_numpy().min())
    moments: list[Moment | None] = []
    for row in path.rows:
        edges = np.array([row.from_ns, row.from_ns + row.ns]) + path_start_ns  # on the common clock
        start, end = (analysis.clocks.to_recorded(row.rank, edges) - step_start.get(row.rank, 0)) / 1e6
        moments.append((float(start), float(end)) if row.rank in step_start and end > 0 else None)
    return moments
