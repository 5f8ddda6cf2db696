"""The step's budget: compute + exposed communication and copies by label + idle = span, to the nanosecond.

Where work is missing from the file, idle time in which it may have run is a part of its own: unrecorded.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from tracekit.intervals import EMPTY, Intervals, union
from tracekit.metrics.lanes import EXPOSABLE, Lanes


class Budget(msgspec.Struct, frozen=True):
    """Where a span went. ``exposed_ns`` holds only labels that occur.

    >>> Budget(span_ns=10, compute_ns=6, exposed_ns={"pp_comm": 1}, idle_ns=3).conserved
    True
    """

    span_ns: int
    compute_ns: int
    exposed_ns: Mapping[str, int] = {}
    idle_ns: int = 0
    unrecorded_ns: int = 0
    """Time without an event in which lost work may have run."""

    @property
    def conserved(self) -> bool:
        """Return whether the parts sum to the span."""
        return self.compute_ns + sum(self.exposed_ns.values()) + self.idle_ns + self.unrecorded_ns == self.span_ns

    def __add__(self, other: Budget) -> Budget:
        """Sum over ranks or steps.

        >>> Budget(10, 6, {"pp_comm": 1}, 3) + Budget(5, 5)
        Budget(span_ns=15, compute_ns=11, exposed_ns={'pp_comm': 1}, idle_ns=3, unrecorded_ns=0)
        """
        labels = [x for x in EXPOSABLE if x in self.exposed_ns or x in other.exposed_ns]
        return Budget(
            self.span_ns + other.span_ns,
            self.compute_ns + other.compute_ns,
            {x: self.exposed_ns.get(x, 0) + other.exposed_ns.get(x, 0) for x in labels},
            self.idle_ns + other.idle_ns,
            self.unrecorded_ns + other.unrecorded_ns,
        )


def budgets(lanes: Lanes, *, unrecorded: Intervals = EMPTY) -> list[Budget]:
    """Return one budget per part: where its span went.

    Time that two exposed labels cover goes to the one that comes first in the order of labels. *unrecorded* is when
    lost work may have run.

    >>> import polars as pl
    >>> events = pl.DataFrame({"label": ["forward", "pp_comm", "offload", "forward"],
    ...                        "start_ns": [0, 4, 7, 12], "end_ns": [6, 8, 10, 14]})
    >>> budgets(Lanes.of(events))
    [Budget(span_ns=14, compute_ns=8, exposed_ns={'pp_comm': 2, 'offload': 2}, idle_ns=2, unrecorded_ns=0)]
    """
    parts = lanes.parts
    spans = lanes.busy.hull().totals_ns(parts)
    busy, compute = lanes.busy.totals_ns(parts), lanes.compute.totals_ns(parts)
    exposed = {label: part.totals_ns(parts) for label, part in lanes.paid.items()}
    holes = unrecorded_gaps(lanes, unrecorded).totals_ns(parts)
    return [
        Budget(
            span_ns=int(spans[p]),
            compute_ns=int(compute[p]),
            exposed_ns={x: int(ns[p]) for x, ns in exposed.items()},
            idle_ns=int(spans[p] - busy[p] - holes[p]),
            unrecorded_ns=int(holes[p]),
        )
        for p in range(parts)
    ]


def unrecorded_gaps(lanes: Lanes, unrecorded: Intervals) -> Intervals:
    """Return the gaps of every part that fall into *unrecorded* (of one rank, no parts)."""
    if not len(unrecorded):
        return EMPTY
    count = len(unrecorded)
    group = np.repeat(np.arange(lanes.parts), count)
    return union(np.tile(unrecorded.start_ns, lanes.parts), np.tile(unrecorded.end_ns, lanes.parts), group) & (
        lanes.idle
    )
