"""Whether the evidence allows a schedule to be named: the right name, or none with the reason.

A schedule is named only if at most a tenth of its units of work stand elsewhere, its ideal is not above the
measurement, and little of the time between them is left unexplained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracekit._util.text import ms, percent
from tracekit.compare.identify import Match, Orders
from tracekit.compare.orders import units
from tracekit.errors import Notice
from tracekit.schedules import Op

ELSEWHERE = 0.1
"""Share of a schedule's units of work that may stand elsewhere for the run to be called by its name."""
ABOVE = 0.01
"""Share of the measurement by which an ideal may lie above it: averages of cells are rounded."""
UNEXPLAINED = 0.1
"""Share of the measurement that may be left unexplained, or be explained twice, for a comparison to be believed."""


def unit_count(order: Sequence[Op]) -> int:
    """Return how many units of work an order has: B is two, FB three.

    >>> unit_count([Op("F", 0, 0), Op("B", 0, 0)])
    3
    """
    return sum(len(units(op)) for op in order)


def elsewhere(orders: Orders, match: Match) -> float:
    """Return the share of the schedule's units, on the ranks there are, that stand elsewhere in the run."""
    return match.distance / max(1, sum(unit_count(match.schedule.ranks[at]) for at in orders))


def doubt(match: Match, *, measured_ns: int, ideal_ns: int, gap_ns: Mapping[str, int] | None) -> Notice | None:
    """Return a notice of why a comparison cannot be believed; None where it can.

    *gap_ns* is None where ranks are missing: a part of a pipeline may well be shorter than the ideal of the whole.
    """
    if gap_ns is None:
        return None
    name = match.schedule.name
    if ideal_ns > (1 + ABOVE) * measured_ns:
        text = f"the ideal of {name} at the run's own times, {ms(ideal_ns)}, is above the {ms(measured_ns)} measured"
        return Notice("schedule-doubtful", f"{text}: no schedule is named")
    if abs(gap_ns["unexplained"]) > UNEXPLAINED * measured_ns:
        share = percent(abs(gap_ns["unexplained"]), measured_ns)
        text = f"compared with {name}, {share} of the {ms(measured_ns)} measured would stay unexplained"
        return Notice("schedule-doubtful", f"{text}: no schedule is named")
    twice = -sum(min(0, ns) for ns in gap_ns.values())
    if twice > UNEXPLAINED * measured_ns:
        text = f"compared with {name}, {percent(twice, measured_ns)} of the {ms(measured_ns)} measured would have two "
        return Notice("schedule-doubtful", f"{text}causes: no schedule is named")
    return None
