"""Time budget of a step: compute + exposed communication and copies by label + idle = span, to the nanosecond.

Where GPU work is missing from the file, idle time in which it may have run is a term of its own: unrecorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit.intervals import EMPTY, Intervals, union
from tracekit.metrics.label_intervals import Lanes
from tracekit.schema import STEP_PHASES


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


# ---- Bubbles: idle time and exposed pipeline waiting, and the phases of a pipeline.
#
# bubble = idle + |U(waits of pp_comm) − U(compute)|; bubble fraction = bubble / span. Phases of a rank: warm-up
# before its first backward, steady until its last forward has ended, cool-down until its last backward has ended,
# then the rest (gradient sync, optimizer).


_BACKWARD_LABELS = ("dgrad", "wgrad", "backward")


class Bubble(msgspec.Struct, frozen=True):
    """Bubble of a rank, or of several. Where a wait is unknown, the fraction is a lower bound."""

    span_ns: int
    idle_ns: int
    wait_ns: int | None
    """Exposed wait of pipeline messages; None where the wait of any message is unknown."""
    known_ns: int = 0
    """Lower bound of the wait."""

    @property
    def fraction(self) -> float | None:
        """Bubble / span, a lower bound where a wait is unknown; None if the span is 0.

        >>> Bubble(100, 5, 20).fraction, Bubble(100, 5, None, 10).fraction
        (0.25, 0.15)
        """
        return (self.idle_ns + max(self.wait_ns or 0, self.known_ns)) / self.span_ns if self.span_ns else None


def phases(lanes: Lanes) -> pl.DataFrame:
    """Return bounds, span, compute and idle time of each phase of each part; no rows for a part without a backward.

    >>> events = pl.DataFrame({"label": ["forward", "dgrad", "forward", "dgrad", "optimizer"],
    ...                        "start_ns": [0, 5, 8, 13, 20], "end_ns": [4, 8, 12, 16, 21]})
    >>> phases(Lanes.of(events)).select("phase", "start_ns", "end_ns", "idle_ns").rows()
    [('warm-up', 0, 5, 1), ('steady', 5, 12, 0), ('cool-down', 12, 16, 1), ('rest', 16, 21, 4)]
    """
    forward = lanes.label("forward").hull()
    backward = reduce(or_, (lanes.label(label) for label in _BACKWARD_LABELS)).hull()
    parts = np.intersect1d(forward.group, backward.group)
    part_start, part_end = _bounds(lanes.busy.hull(), parts)
    backward_start, backward_end = _bounds(backward, parts)
    steady_end = np.maximum(_bounds(forward, parts)[1], backward_start)
    # One row per part with the five edges of its four phases; then all phases of all parts below each other.
    edges = np.stack([part_start, backward_start, steady_end, np.maximum(backward_end, steady_end), part_end], axis=1)
    start, end, part = edges[:, :-1].ravel(), edges[:, 1:].ravel(), np.repeat(parts, len(STEP_PHASES))
    return pl.DataFrame(
        {
            "part": part,
            "phase": pl.Series(list(STEP_PHASES) * len(parts), dtype=pl.String),
            "start_ns": start,
            "end_ns": end,
            "span_ns": end - start,
            "compute_ns": lanes.compute.covered_ns(start, end, part),
            "idle_ns": lanes.idle.covered_ns(start, end, part),
        }
    )


def _bounds(hull: Intervals, parts: Ints) -> tuple[Ints, Ints]:
    """Return start and end of *parts* in a set with one interval per part."""
    rows = np.searchsorted(hull.group, parts)
    return hull.start_ns[rows], hull.end_ns[rows]


def find_exposed_waits(start_ns: Ints, wait_ns: Ints, part: Ints, compute: Intervals) -> Intervals:
    """Return the waiting of operations that compute does not hide; an operation waits at its beginning.

    Args:
        start_ns: Start of each operation.
        wait_ns: Wait of each operation.
        part: Part of each operation.
        compute: Time in which compute runs, at least wherever the operations do; its groups are parts.

    >>> find_exposed_waits(np.array([0, 20]), np.array([10, 0]), np.array([0, 0]), union([4], [6]))
    Intervals([0, 4), [6, 10))

    """
    return union(start_ns, start_ns + wait_ns, part) - compute
