"""Time budget of a step: compute + exposed communication and copies by label + idle = span, to the nanosecond.

Where GPU work is missing from the file, idle time in which it may have run is a term of its own: unrecorded.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from tracekit.intervals import EMPTY, Intervals, union
from tracekit.metrics.label_intervals import EXPOSABLE_LABELS, Lanes


class Budget(msgspec.Struct, frozen=True):
    """Terms of a span, in nanoseconds. ``exposed_ns`` holds only labels that occur.

    >>> Budget(span_ns=10, compute_ns=6, exposed_ns={"pp_comm": 1}, idle_ns=3).conserved
    True
    """

    span_ns: int
    compute_ns: int
    exposed_ns: Mapping[str, int] = {}
    idle_ns: int = 0
    unrecorded_ns: int = 0
    """Idle time in which work that is missing from the file may have run."""

    @property
    def conserved(self) -> bool:
        """Whether the terms sum to the span."""
        return self.compute_ns + sum(self.exposed_ns.values()) + self.idle_ns + self.unrecorded_ns == self.span_ns

    def __add__(self, other: Budget) -> Budget:
        """Return the sum of two ranks or steps.

        >>> Budget(10, 6, {"pp_comm": 1}, 3) + Budget(5, 5)
        Budget(span_ns=15, compute_ns=11, exposed_ns={'pp_comm': 1}, idle_ns=3, unrecorded_ns=0)
        """
        labels = [label for label in EXPOSABLE_LABELS if label in self.exposed_ns or label in other.exposed_ns]
        return Budget(
            self.span_ns + other.span_ns,
            self.compute_ns + other.compute_ns,
            {label: self.exposed_ns.get(label, 0) + other.exposed_ns.get(label, 0) for label in labels},
            self.idle_ns + other.idle_ns,
            self.unrecorded_ns + other.unrecorded_ns,
        )


def budgets(lanes: Lanes, *, unrecorded: Intervals = EMPTY) -> list[Budget]:
    """Return one budget per part.

    Time that two exposed labels cover belongs to the one that comes first in the order of labels.

    Args:
        lanes: Interval sets of one rank.
        unrecorded: Time in which work that is missing from the file may have run.

    >>> import polars as pl
    >>> events = pl.DataFrame({"label": ["forward", "pp_comm", "offload", "forward"],
    ...                        "start_ns": [0, 4, 7, 12], "end_ns": [6, 8, 10, 14]})
    >>> budgets(Lanes.of(events))
    [Budget(span_ns=14, compute_ns=8, exposed_ns={'pp_comm': 2, 'offload': 2}, idle_ns=2, unrecorded_ns=0)]

    """
    parts = lanes.parts
    span_ns = lanes.busy.hull().totals_ns(parts)
    busy_ns, compute_ns = lanes.busy.totals_ns(parts), lanes.compute.totals_ns(parts)
    exposed_ns = {label: exposed.totals_ns(parts) for label, exposed in lanes.exposed.items()}
    unrecorded_ns = unrecorded_gaps(lanes, unrecorded).totals_ns(parts)
    return [
        Budget(
            span_ns=int(span_ns[part]),
            compute_ns=int(compute_ns[part]),
            exposed_ns={label: int(ns[part]) for label, ns in exposed_ns.items()},
            idle_ns=int(span_ns[part] - busy_ns[part] - unrecorded_ns[part]),
            unrecorded_ns=int(unrecorded_ns[part]),
        )
        for part in range(parts)
    ]


def unrecorded_gaps(lanes: Lanes, unrecorded: Intervals) -> Intervals:
    """Return the idle time of every part that falls into *unrecorded*, which is of the rank as a whole (group 0)."""
    if not len(unrecorded):
        return EMPTY
    # The same intervals once for every part.
    part = np.repeat(np.arange(lanes.parts), len(unrecorded))
    start, end = np.tile(unrecorded.start_ns, lanes.parts), np.tile(unrecorded.end_ns, lanes.parts)
    return union(start, end, part) & lanes.idle
