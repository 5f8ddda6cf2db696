"""Where the explained kernels' longest events lie in the page's lanes, and which row explains a kernel."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tracekit.analysis import Analysis
from tracekit.report.names import short_kernel
from tracekit.report.view.work import Kernel

Moment = tuple[float, float]
"""From and to, in ms from the step's start on the rank's own clock."""


def kernel_moments(
    analysis: Analysis, kernels: Sequence[Kernel], steps: Collection[int | None]
) -> list[list[Moment | None]]:
    """Return for each kernel and each of its ranks when its longest event ran there; None where no lanes show it."""
    table = analysis.tables["steps"].select("rank", "step", "start_ns")
    begin = {(rank, step): start for rank, step, start in table.iter_rows()}

    def moment(rank: int, step: int | None, start: int, end: int) -> Moment | None:
        at = begin.get((rank, step))
        return None if at is None or step not in steps else ((start - at) / 1e6, (end - at) / 1e6)

    return [
        [moment(one.rank, one.step, one.start_ns, one.end_ns) for one in (kernel.why.places if kernel.why else ())]
        for kernel in kernels
    ]


def rows_by_name(kernels: Sequence[Kernel]) -> dict[tuple[str, str], int]:
    """Return which row explains a kernel of a short name and a label: the first of them."""
    found: dict[tuple[str, str], int] = {}
    for at, kernel in enumerate(kernels, 1):
        if kernel.why is not None:
            found.setdefault((short_kernel(kernel.name), kernel.label), at)
    return found
