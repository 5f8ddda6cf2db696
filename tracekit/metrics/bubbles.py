"""Bubbles: idle time and exposed pipeline waiting, by phase of the pipeline.

bubble = idle + |U(waits of pp_comm) − U(compute)|; bubble fraction = bubble / span. Phases of a rank: warm-up before
its first backward, steady until its last forward has ended, cool-down until its last backward has, then the rest
(gradient sync, optimizer).
"""

from __future__ import annotations

import msgspec
import numpy as np
import polars as pl

from tracekit.intervals import Intervals, Longs, union
from tracekit.metrics.lanes import Lanes
from tracekit.schema import STEP_PHASES

_BACKWARD = ("dgrad", "wgrad", "backward")


class Bubble(msgspec.Struct, frozen=True):
    """``wait_ns`` is null where the wait of any send or receive is unknown; the fraction is then a lower bound."""

    span_ns: int
    idle_ns: int
    wait_ns: int | None
    known_ns: int = 0
    """Of an unknown wait, the part that is known."""

    @property
    def fraction(self) -> float | None:
        """Share of the span that is bubble; the least it can be where a wait is unknown.

        >>> Bubble(100, 5, 20).fraction, Bubble(100, 5, None, 10).fraction
        (0.25, 0.15)
        """
        return (self.idle_ns + self.least_wait_ns) / self.span_ns if self.span_ns else None

    @property
    def least_wait_ns(self) -> int:
        """The wait, or as much of it as is known."""
        return self.known_ns if self.wait_ns is None else self.wait_ns

    def __add__(self, other: Bubble) -> Bubble:
        """Sum over ranks; a wait unknown on either side is unknown in the sum.

        >>> Bubble(100, 5, 20) + Bubble(100, 5, None, 1)
        Bubble(span_ns=200, idle_ns=10, wait_ns=None, known_ns=21)
        """
        known = self.least_wait_ns + other.least_wait_ns
        whole = self.wait_ns is not None and other.wait_ns is not None
        return Bubble(
            self.span_ns + other.span_ns,
            self.idle_ns + other.idle_ns,
            known if whole else None,
            0 if whole else known,
        )


def phases(lanes: Lanes) -> pl.DataFrame:
    """Bounds of each phase of each part, with its span, compute and idle; empty where a part has no backward.

    >>> events = pl.DataFrame({"label": ["forward", "dgrad", "forward", "dgrad", "optimizer"],
    ...                        "start_ns": [0, 5, 8, 13, 20], "end_ns": [4, 8, 12, 16, 21]})
    >>> phases(Lanes.of(events)).select("phase", "start_ns", "end_ns", "idle_ns").rows()
    [('warm-up', 0, 5, 1), ('steady', 5, 12, 0), ('cool-down', 12, 16, 1), ('rest', 16, 21, 4)]
    """
    hull, forward = lanes.busy.hull(), lanes.label("forward").hull()
    backward = _hull_of([lanes.label(x) for x in _BACKWARD])
    part = np.intersect1d(forward.group, backward.group)
    (begin, end), (_, last), (first, done) = (_edges(one, part) for one in (hull, forward, backward))
    last = np.maximum(last, first)
    edges = np.stack([begin, first, last, np.maximum(done, last), end], axis=1)
    asked = edges[:, :-1].ravel(), edges[:, 1:].ravel(), np.repeat(part, len(STEP_PHASES))
    return pl.DataFrame(
        {
            "part": asked[2],
            "phase": pl.Series(list(STEP_PHASES) * len(part), dtype=pl.String),
            "start_ns": asked[0],
            "end_ns": asked[1],
            "span_ns": asked[1] - asked[0],
            "compute_ns": lanes.compute.covered_ns(*asked),
            "idle_ns": lanes.idle.covered_ns(*asked),
        }
    )


def _edges(hull: Intervals, part: Longs) -> tuple[Longs, Longs]:
    """Return the start and the end of these parts."""
    at = np.searchsorted(hull.group, part)
    return hull.start_ns[at], hull.end_ns[at]


def exposed_waits(start_ns: Longs, wait_ns: Longs, part: Longs, covered: Intervals) -> Intervals:
    """Return the waiting of these operations that compute does not hide: each waits at its beginning.

    *covered* is where compute runs (at least wherever the operations do); the group of both is the part.

    >>> exposed_waits(np.array([0, 20]), np.array([10, 0]), np.array([0, 0]), union([4], [6]))
    Intervals([0, 4), [6, 10))
    """
    return union(start_ns, start_ns + wait_ns, part) - covered


def _hull_of(sets: list[Intervals]) -> Intervals:
    start, end, group = (np.concatenate([getattr(s, c) for s in sets]) for c in ("start_ns", "end_ns", "group"))
    return union(start, end, group).hull()
