"""Limits that a comparison is checked against."""

from __future__ import annotations

from typing import Literal

import msgspec

from tracekit.diffs.metrics import Metric


class Requirement(msgspec.Struct, frozen=True):
    """One limit: on the candidate alone, or on the change against the baseline.

    >>> from tracekit.gates.expr import parse
    >>> r = parse("step_ms < +3%")
    >>> r.metric.name, r.kind, r.limit, r.worse
    ('step_ms', 'relative', 0.03, 'up')
    """

    text: str
    metric: Metric
    op: Literal["<", "<=", ">", ">="]
    kind: Literal["limit", "relative", "change"]
    limit: float

    @property
    def worse(self) -> Literal["up", "down"]:
        """The direction that breaks the requirement."""
        return "up" if self.op[0] == "<" else "down"

    def holds(self, value: float) -> bool:
        """Whether *value* (a level, or a change for the signed kinds) satisfies it.

        >>> from tracekit.gates.expr import parse
        >>> parse("overlap.ep_dispatch > -0.02").holds(-0.01)
        True
        """
        if self.op[0] == "<":
            return value < self.limit or (self.op == "<=" and value == self.limit)
        return value > self.limit or (self.op == ">=" and value == self.limit)
