"""How well the ranks' clocks agree, as reports say it."""

from __future__ import annotations

import msgspec
import polars as pl

from tracekit._util.text import percent, short_ms
from tracekit.align.clocks import Clocks
from tracekit.analysis import Analysis
from tracekit.graph.critical_path import CriticalPath

MIN_CLOCK_ERROR_SHARE = 0.01
"""How well clocks are known, as a share of the step, from which the badge is a caveat."""
MAX_ERROR_SHARE_UNSAID = 0.001
"""How well clocks are known, as a share of the step, up to which they agree for all purposes."""
MIN_OPEN_PATH_SHARE = 0.01
"""Share of the critical path whose rank clocks leave open, from which the badge says so."""


class ClockBadge(msgspec.Struct, frozen=True):
    """How well the ranks' clocks agree."""

    text: str
    facts: tuple[str, ...]
    """What is uncertain because of it, a sentence each."""
    is_caveat: bool


def badge_of(analysis: Analysis) -> ClockBadge | None:
    """Return how well clocks agree; None for one rank."""
    if len(analysis.ranks) < 2:
        return None
    return clock_badge(analysis.clocks, analysis.step.time_ns or 0, analysis.walked_path)


def clock_badge(clocks: Clocks, step_ns: int, path: CriticalPath | None) -> ClockBadge:
    """Return how well clocks agree in a run with steps of *step_ns*, and what that leaves open of the critical path."""
    facts = _open_because_of_clocks(path)
    error_ns = clocks.residual_ns
    if error_ns is None:
        first = "Nothing ties the clocks of these ranks together: what waits for whom is not known."
        return ClockBadge("clocks not compared", (first, *facts), is_caveat=True)
    uncertainty_ns = clocks.table["uncertainty_ns"].max()
    known_ns = max(error_ns, uncertainty_ns) if isinstance(uncertainty_ns, int) else error_ns
    is_caveat = known_ns > MIN_CLOCK_ERROR_SHARE * step_ns or bool(facts)
    text = f"clocks within {short_ms(known_ns)}"
    if known_ns <= MAX_ERROR_SHARE_UNSAID * step_ns:
        text = "clocks agree"
    if is_caveat:
        text = f"ranks' clocks known to {short_ms(known_ns)}"
    first = (
        f"Operations that ranks took part in together end within {short_ms(error_ns)} of each other (median);"
        f" each rank's clock is known to {short_ms(known_ns)} or better."
    )
    return ClockBadge(text, (first, *facts), is_caveat)


def _open_because_of_clocks(path: CriticalPath | None) -> tuple[str, ...]:
    """Return what is not certain because clocks are not known better, a sentence each."""
    if path is None or len(path.candidates) < 2:
        return ()
    path_ns = int(path.pieces.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item())
    if path.uncertain_ns < MIN_OPEN_PATH_SHARE * path_ns:
        return ()
    share = percent(path.uncertain_ns, path_ns, digits=0)
    return (f"For {share} of the critical path it is open which rank it follows.",)
