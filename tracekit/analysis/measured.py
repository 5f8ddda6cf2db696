"""Figures of a rank, of one of its steps, and of all ranks together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tracekit._util.text import percent
from tracekit.metrics.bubbles import Bubble
from tracekit.metrics.budget import Budget
from tracekit.metrics.label_intervals import EXPOSABLE_LABELS
from tracekit.metrics.overlap import ratio

MAX_HOST_ROWS_IN_JSON = 5
"""Rows of a rank's launch-bound idle time in the JSON, the longest."""
_SETS = ("compute", "communication", "copy")
"""Sets of labels whose time is in ``label_ns`` too."""


class Measured(msgspec.Struct, frozen=True, eq=False):
    """The figures of one rank's window, of one step on one rank, or of all ranks together."""

    budget: Budget
    label_ns: Mapping[str, int]
    label_count: Mapping[str, int]
    hidden_ns: Mapping[str, int]
    """By communication and copy label, and by both sets: the time that compute hides."""
    hidden_by_ns: Mapping[str, Mapping[str, int]]
    """By communication and copy label: the hidden time by the label of the compute that hides it."""
    wait_ns: Mapping[str, int | None]
    """By communication label: the time in which any operation waits for a peer; None if that is unknown."""
    bubble: Bubble
    because_ns: Mapping[str, Mapping[str, int]] = {}
    """By exposed label: its exposed time by cause (``metrics.causes``); the causes sum to the exposed time."""
    blocking_ns: Mapping[str, int | None] = {}
    """By exposed label: the part of its exposed time on the critical path; None if that is unknown."""
    weak_ns: int = 0
    """Time whose label rests on weak evidence (``metrics.weak``)."""
    idle_known: bool = True
    lower_bound: bool = False
    """Whether the bubble is a lower bound: some waiting could not be measured, or work was not recorded."""
    pipeline: bool = True
    """False for a run without a pipeline, which has idle time and no bubble."""
    step: int | None = None
    partial: bool = False
    """Whether this is a first or last step that looks cut off."""

    @property
    def overlap(self) -> dict[str, float | None]:
        """Share of each label's (and set's) own time that compute hides; None if it never ran."""
        return {name: ratio(ns, self.label_ns.get(name, 0)) for name, ns in self.hidden_ns.items()}

    @property
    def weak_share(self) -> float | None:
        """Share of the GPU's busy time whose label rests on weak evidence; None if the GPU is never busy."""
        return ratio(self.weak_ns, self.budget.compute_ns + sum(self.budget.exposed_ns.values()))

    @property
    def bubble_fraction(self) -> float | None:
        """Share of the span that is idle or exposed pipeline waiting; None without a pipeline or known idle time."""
        return self.bubble.fraction if self.idle_known and self.pipeline else None

    @property
    def bubble_words(self) -> str:
        """The bubble fraction as text: ≥ marks a lower bound, – stands for none.

        >>> figures = Measured(Budget(100, 80), {}, {}, {}, {}, {}, Bubble(100, 20, None), lower_bound=True)
        >>> figures.bubble_words
        '≥ 20.0 %'
        """
        share = self.bubble_fraction
        return "–" if share is None else f"{'≥ ' if self.lower_bound else ''}{percent(share)}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        idle = self.budget.idle_ns if self.idle_known else None
        unrecorded = {"not_recorded": self.budget.unrecorded_ns} if self.budget.unrecorded_ns else {}
        return {
            "span_ns": self.budget.span_ns,
            "budget_ns": {
                "compute": self.budget.compute_ns,
                "exposed": dict(self.budget.exposed_ns),
                "idle": idle,
                **unrecorded,
            },
            "label_ns": {name: ns for name, ns in self.label_ns.items() if name not in _SETS},
            "set_ns": {name: ns for name, ns in self.label_ns.items() if name in _SETS},
            "label_count": dict(self.label_count),
            "weak_ns": self.weak_ns,
            "weak_share": self.weak_share,
            "overlap": self.overlap,
            "hidden_ns": {label: dict(by) for label, by in self.hidden_by_ns.items()},
            "wait_ns": dict(self.wait_ns),
            "blocking_ns": dict(self.blocking_ns),
            "exposed_because_ns": {label: dict(causes) for label, causes in self.because_ns.items()},
            "bubble": {
                "idle_ns": idle,
                "wait_ns": self.bubble.wait_ns,
                "fraction": self.bubble_fraction,
                "lower_bound": self.lower_bound,
            },
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measured:
        """Return the figures whose ``to_dict`` gave *data*."""
        budget, bubble, span = data["budget_ns"], data["bubble"], data["span_ns"]
        idle, fraction = budget["idle"], bubble["fraction"]
        label_ns = {**data["label_ns"], **data["set_ns"]}
        # If the whole wait is unknown, its lower bound follows from the fraction: (idle + bound) / span.
        bound = 0
        if bubble["wait_ns"] is None and fraction is not None:
            bound = round(fraction * span) - (idle or 0)
        return cls(
            budget=Budget(span, budget["compute"], budget["exposed"], idle or 0, budget.get("not_recorded", 0)),
            label_ns=label_ns,
            label_count=data["label_count"],
            hidden_ns={name: round((share or 0) * label_ns.get(name, 0)) for name, share in data["overlap"].items()},
            hidden_by_ns=data["hidden_ns"],
            wait_ns=data["wait_ns"],
            bubble=Bubble(span, idle or 0, bubble["wait_ns"], bound),
            because_ns=data["exposed_because_ns"],
            blocking_ns=data["blocking_ns"],
            weak_ns=data["weak_ns"],
            idle_known=idle is not None,
            lower_bound=bubble["lower_bound"],
            pipeline=fraction is not None or idle is None or not span,
            step=data.get("step"),
            partial=data.get("partial", False),
        )

    @classmethod
    def total(cls, parts: Iterable[Measured]) -> Measured:
        """Return the sum over ranks: times are added, ratios are of the sums."""
        ranks = list(parts)
        return cls(
            budget=sum((rank.budget for rank in ranks), Budget(0, 0)),
            label_ns=_sum(rank.label_ns for rank in ranks),
            label_count=_sum(rank.label_count for rank in ranks),
            hidden_ns={"communication": 0, "copy": 0, **_sum(rank.hidden_ns for rank in ranks)},
            hidden_by_ns=_sum_nested(rank.hidden_by_ns for rank in ranks),
            wait_ns=_sum_or_none(rank.wait_ns for rank in ranks),
            bubble=sum((rank.bubble for rank in ranks), Bubble(0, 0, 0)),
            because_ns=_sum_nested(rank.because_ns for rank in ranks),
            blocking_ns=_sum_or_none(rank.blocking_ns for rank in ranks),
            weak_ns=sum(rank.weak_ns for rank in ranks),
            idle_known=all(rank.idle_known for rank in ranks),
            lower_bound=any(rank.lower_bound for rank in ranks),
            pipeline=any(rank.pipeline for rank in ranks),
        )


class RankResult(msgspec.Struct, frozen=True, eq=False):
    """The figures of one rank: of its window, each of its steps and phases, and its idle time by cause.

    >>> from tracekit import analyze
    >>> first = analyze("sample_traces/reload", schedule="none").rank_results[0]
    >>> first.rank, first.steps
    (0, (2,))
    """

    rank: int
    steps: tuple[int, ...]
    whole: Measured
    """Figures of all selected steps, with the time between them."""
    per_step: tuple[Measured, ...]
    phases: tuple[Mapping[str, Any], ...]
    idle_causes: Mapping[str, int]
    instead: tuple[Mapping[str, Any], ...] = ()
    """Launch-bound idle time by activity of the host (``metrics.instead``), the longest first."""
    inside_launch_ns: int = 0
    """Idle time inside the launch call of the work that ended it."""

    @property
    def idle_host_ns(self) -> dict[str, int] | None:
        """Launch-bound idle time in ns by kind of host activity; None if the trace does not show the host."""
        total = _sum({row["instead"]: row["ns"]} for row in self.instead)
        return total if total or not self.idle_causes.get("launch_bound") else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        named_rows = [dict(row) for row in self.instead if row["what"] or row["instead"] == "python"]
        return {
            "rank": self.rank,
            "steps": list(self.steps),
            **self.whole.to_dict(),
            "phases": [dict(phase) for phase in self.phases],
            "idle_host_ns": self.idle_host_ns if self.whole.idle_known else None,
            "idle_host": named_rows[:MAX_HOST_ROWS_IN_JSON],
            "inside_launch_ns": self.inside_launch_ns,
            "idle_causes_ns": dict(self.idle_causes) if self.whole.idle_known else None,
            "per_step": [{"step": scope.step, "partial": scope.partial, **scope.to_dict()} for scope in self.per_step],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RankResult:
        """Return the rank whose ``to_dict`` gave *data*; host activity beyond the longest rows has no detail."""
        rows = list(data["idle_host"])
        detailed_ns = _sum({row["instead"]: row["ns"]} for row in rows)
        rest_ns = {kind: ns - detailed_ns.get(kind, 0) for kind, ns in (data["idle_host_ns"] or {}).items()}
        return cls(
            rank=data["rank"],
            steps=tuple(data["steps"]),
            whole=Measured.from_dict(data),
            per_step=tuple(Measured.from_dict(step) for step in data["per_step"]),
            phases=tuple(data["phases"]),
            idle_causes=data["idle_causes_ns"] or {},
            instead=(*rows, *({"instead": kind, "what": None, "ns": ns} for kind, ns in rest_ns.items() if ns)),
            inside_launch_ns=data["inside_launch_ns"],
        )


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums by key."""
    total: dict[str, int] = {}
    for part in parts:
        for key, value in part.items():
            total[key] = total.get(key, 0) + value
    return total


def _sum_nested(parts: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Return the sums by label and inner key, labels in the order of ``EXPOSABLE``."""
    by_label: dict[str, list[Mapping[str, int]]] = {}
    for part in parts:
        for label, row in part.items():
            by_label.setdefault(label, []).append(row)
    return {label: _sum(by_label[label]) for label in EXPOSABLE_LABELS if label in by_label}


def _sum_or_none(parts: Iterable[Mapping[str, int | None]]) -> dict[str, int | None]:
    """Return the sums by key; None if any summand is."""
    total: dict[str, int | None] = {}
    for part in parts:
        for key, value in part.items():
            so_far = total.get(key, 0)
            total[key] = None if value is None or so_far is None else so_far + value
    return total
