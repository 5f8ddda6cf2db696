"""Findings: what costs time, why, what to do and what that would save."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct

Certainty = Literal["measured", "bounded", "possible"]
"""How sure a saving is: measured or replayed; a bound; possible under an assumption that the text
names."""
EvidenceValue = str | int | float | bool | None
Share = Annotated[float, Meta(ge=0, le=1e9)]
"""A time as a share of another, which may be shorter: of a step of a microsecond, a quarter of an
hour is not too much."""
Cost = Annotated[int, Meta(ge=0)]


MAX_PLACES_PER_FINDING = 5
"""Places of the trace that show a finding."""
MIN_SHARE_TO_SHOW = 0.01
"""Share of the step from which a finding is shown unless all are asked for."""


class Place(Struct, frozen=True):
    """One place in the trace that shows a finding."""

    rank: int
    """Number of the rank."""
    step: int | None
    """Number of the step."""
    start_ns: int
    """Start on the rank's own clock."""
    end_ns: int
    """End."""
    name: str | None
    """Event or call of the host."""
    source: str | None = None
    """Function and line, where stacks were recorded; else, of a wait, the annotated range around it."""

    @property
    def is_in_range(self) -> bool:
        """Whether the source is an annotated range, and not a function with its file and line.

        >>> Place(0, 4, 1, 9, "cudaEventSynchronize", "FSDP::root_post_backward_callback").is_in_range
        True
        >>> Place(0, 4, 1, 9, "cudaEventSynchronize", "train.py(12): step").is_in_range
        False
        """
        return self.source is not None and re.search(r"\(\d+\): ", self.source) is None


class Effect(Struct, frozen=True, kw_only=True):
    """What a finding costs and would save, and where it shows. Times are per step."""

    cost_ns: Cost
    """Time that it costs."""
    cost_bytes: Cost | None = None
    """Memory that it costs; null if it is about time."""
    share: Share
    """The time as a share of the step time."""
    ranks: tuple[int, ...] = ()
    """Ranks that it is about; empty: all alike."""
    steps: tuple[int, ...] = ()
    """Steps that it is about; empty: all alike."""
    where: tuple[Place, ...] = ()
    """Up to five places that show it."""
    saves_ns: int | None = None
    """Predicted saving; null if it cannot be predicted."""
    saves_range_ns: tuple[int, int] | None = None
    """Least and largest saving."""
    certain: Certainty = "measured"
    """How sure the saving is."""
    shares_time_with: tuple[int, ...] = ()
    """Numbers, from 1, of the findings in the list that share its time: their savings do not add
    up."""
    saves_after_ns: int | None = None
    """Predicted saving after the findings listed before it were dealt with; null if unknown."""
    may_save_more: bool = False
    """Whether its cause may cost more than its saving says, or another change of types, layouts or the
    algorithm saves more: its time is then no bound."""

    @property
    def saving_ns(self) -> int | None:
        """What it saves, or the most that it can save where only that is known; None if neither is.

        >>> Effect(cost_ns=4, share=0.2, saves_range_ns=(0, 2)).saving_ns
        2
        """
        if self.saves_ns is None and self.saves_range_ns is not None:
            return self.saves_range_ns[1]
        return self.saves_ns

    @property
    def effect_ns(self) -> int:
        """What it saves; what it costs where no saving is predicted.

        >>> Effect(cost_ns=4, share=0.2, saves_ns=3).effect_ns
        3
        """
        return self.cost_ns if self.saving_ns is None else self.saving_ns

    @property
    def effect_share(self) -> float:
        """The same as a share of the step.

        >>> round(Effect(cost_ns=4, share=0.2, saves_ns=3).effect_share, 2)
        0.15
        """
        return self.share * self.effect_ns / self.cost_ns if self.cost_ns else 0.0

    @property
    def matters(self) -> bool:
        """Whether it costs or saves enough to be shown unless all findings are asked for."""
        return max(self.share, self.effect_share) >= MIN_SHARE_TO_SHOW or bool(self.cost_bytes)


class Finding(Effect, frozen=True, kw_only=True):
    """What costs time, why, what to do, and what it would save. Times are per step.

    >>> finding = Finding(code="data_loading", case="no_workers", cost_ns=48_000_000, share=0.72, evidence={"ms": 48})
    >>> finding.certain, finding.saves_ns
    ('measured', None)
    """

    code: str
    """Kind of finding; a code keeps its meaning."""
    case: str = ""
    """Variant of the code that its texts are chosen by; empty if it has one."""
    evidence: Mapping[str, EvidenceValue] = {}
    """Figures that it rests on, by name."""
    text: str = ""
    """What costs time and why."""
    advice: str = ""
    """What to do about it."""
    change: str | None = None
    """What-if change that does what is advised; null if no change can be replayed."""
