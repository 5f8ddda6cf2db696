"""The figures of a rank, of one of its steps, and of all ranks together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tracekit._util.text import percent
from tracekit.metrics.bubbles import Bubble
from tracekit.metrics.budget import Budget
from tracekit.metrics.label_intervals import EXPOSABLE_LABELS
from tracekit.metrics.overlap import ratio

TOP_HOST = 5
"""Rows of a rank's launch-bound idle time that go into the JSON."""


class Measured(msgspec.Struct, frozen=True, eq=False):
    """The figures of one rank's window, of one step on one rank, or of all ranks together."""

    budget: Budget
    label_ns: Mapping[str, int]
    label_count: Mapping[str, int]
    hidden_ns: Mapping[str, int]
    """Of each communication and copy label, and of both sets: the time compute hides."""
    hidden_by_ns: Mapping[str, Mapping[str, int]]
    wait_ns: Mapping[str, int | None]
    """Of each communication label, the time some operation of it waits for a peer; null without peers' traces."""
    bubble: Bubble
    because_ns: Mapping[str, Mapping[str, int]] = {}
    """Of each label of the budget's exposed time: why no compute hid it (``metrics.causes``); sums to it."""
    blocking_ns: Mapping[str, int | None] = {}
    """Of each label of the budget's exposed time: the part on the critical path; None where that is not known."""
    weak_ns: int = 0
    """Time whose label rests on weak evidence (``metrics.weak``)."""
    idle_known: bool = True
    lower_bound: bool = False
    """True where some pipeline waiting could not be measured, or work may be missing from the recording."""
    pipeline: bool = True
    """False of a run without a pipeline: it has idle time and no bubble."""
    step: int | None = None
    partial: bool = False
    """True of a first or last step that looks cut off."""

    @property
    def overlap(self) -> dict[str, float | None]:
        """Share of each label's (and set's) own time that compute hides; None where it never ran."""
        return {name: ratio(ns, self.label_ns.get(name, 0)) for name, ns in self.hidden_ns.items()}

    @property
    def weak_share(self) -> float | None:
        """Share of the time the GPU is busy whose label rests on weak evidence; None where it never is."""
        return ratio(self.weak_ns, self.budget.compute_ns + sum(self.budget.exposed_ns.values()))

    @property
    def bubble_fraction(self) -> float | None:
        """Share of the span that is idle or exposed pipeline waiting; None without a pipeline or known idle time."""
        return self.bubble.fraction if self.idle_known and self.pipeline else None

    @property
    def bubble_words(self) -> str:
        """The bubble fraction as text, with ≥ where it is a lower bound; – where there is none.

        >>> one = Measured(Budget(100, 80), {}, {}, {}, {}, {}, Bubble(100, 20, None), lower_bound=True)
        >>> one.bubble_words
        '≥ 20.0 %'
        """
        share = self.bubble_fraction
        return "–" if share is None else f"{'≥ ' if self.lower_bound else ''}{percent(share)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        idle = self.budget.idle_ns if self.idle_known else None
        unrecorded = {"not_recorded": self.budget.unrecorded_ns} if self.budget.unrecorded_ns else {}
        sets = ("compute", "communication", "copy")
        return {
            "span_ns": self.budget.span_ns,
            "budget_ns": {
                "compute": self.budget.compute_ns,
                "exposed": dict(self.budget.exposed_ns),
                "idle": idle,
                **unrecorded,
            },
            "label_ns": {k: v for k, v in self.label_ns.items() if k not in sets},
            "set_ns": {k: v for k, v in self.label_ns.items() if k in sets},
            "label_count": dict(self.label_count),
            "weak_ns": self.weak_ns,
            "weak_share": self.weak_share,
            "overlap": self.overlap,
            "hidden_ns": {k: dict(v) for k, v in self.hidden_by_ns.items()},
            "wait_ns": dict(self.wait_ns),
            "blocking_ns": dict(self.blocking_ns),
            "exposed_because_ns": {k: dict(v) for k, v in self.because_ns.items()},
            "bubble": {
                "idle_ns": idle,
                "wait_ns": self.bubble.wait_ns,
                "fraction": self.bubble_fraction,
                "lower_bound": self.lower_bound,
            },
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measured:
        """Return the figures that ``to_dict`` gave *data* of."""
        cost, bubble, span = data["budget_ns"], data["bubble"], data["span_ns"]
        label_ns, idle, share = {**data["label_ns"], **data["set_ns"]}, cost["idle"], bubble["fraction"]
        unknown = bubble["wait_ns"] is None and share is not None
        return cls(
            budget=Budget(span, cost["compute"], cost["exposed"], idle or 0, cost.get("not_recorded", 0)),
            label_ns=label_ns,
            label_count=data["label_count"],
            hidden_ns={name: round((part or 0) * label_ns.get(name, 0)) for name, part in data["overlap"].items()},
            hidden_by_ns=data["hidden_ns"],
            wait_ns=data["wait_ns"],
            bubble=Bubble(span, idle or 0, bubble["wait_ns"], round(share * span) - (idle or 0) if unknown else 0),
            because_ns=data["exposed_because_ns"],
            blocking_ns=data["blocking_ns"],
            weak_ns=data["weak_ns"],
            idle_known=idle is not None,
            lower_bound=bubble["lower_bound"],
            pipeline=share is not None or idle is None or not span,
            step=data.get("step"),
            partial=data.get("partial", False),
        )

    @classmethod
    def total(cls, parts: Iterable[Measured]) -> Measured:
        """Sum over ranks: nanoseconds add up, ratios are of the sums."""
        several = list(parts)
        budget, bubble = Budget(0, 0), Bubble(0, 0, 0)
        for part in several:
            budget, bubble = budget + part.budget, bubble + part.bubble
        return cls(
            budget=budget,
            label_ns=_sum(part.label_ns for part in several),
            label_count=_sum(part.label_count for part in several),
            hidden_ns={"communication": 0, "copy": 0, **_sum(part.hidden_ns for part in several)},
            hidden_by_ns=_sum_nested(part.hidden_by_ns for part in several),
            wait_ns=_sum_known(part.wait_ns for part in several),
            bubble=bubble,
            because_ns=_sum_nested(part.because_ns for part in several),
            blocking_ns=_sum_known(part.blocking_ns for part in several),
            weak_ns=sum(part.weak_ns for part in several),
            idle_known=all(part.idle_known for part in several),
            lower_bound=any(part.lower_bound for part in several),
            pipeline=any(part.pipeline for part in several),
        )


class RankResult(msgspec.Struct, frozen=True, eq=False):
    """One rank: its window, each of its steps, its phases and the causes of its idleness.

    >>> from tracekit import analyze
    >>> first = analyze("sample_traces/reload", schedule="none").ranks[0]
    >>> first.rank, first.steps
    (0, (2,))
    """

    rank: int
    steps: tuple[int, ...]
    whole: Measured
    per_step: tuple[Measured, ...]
    phases: tuple[Mapping[str, Any], ...]
    idle_causes: Mapping[str, int]
    instead: tuple[Mapping[str, Any], ...] = ()
    """What the host did while it had not launched the GPU's next work (``metrics.instead``), longest first."""
    inside_launch_ns: int = 0
    """Idle time inside the launch call of the work that ended it."""

    @property
    def idle_host_ns(self) -> dict[str, int] | None:
        """Launch-bound idle time by what the host did; None where the trace does not show the host."""
        total: dict[str, int] = {}
        for row in self.instead:
            total[row["instead"]] = total.get(row["instead"], 0) + row["ns"]
        return total if total or not self.idle_causes.get("launch_bound") else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "rank": self.rank,
            "steps": list(self.steps),
            **self.whole.to_dict(),
            "phases": [dict(phase) for phase in self.phases],
            "idle_host_ns": self.idle_host_ns if self.whole.idle_known else None,
            "idle_host": [dict(row) for row in self.instead if row["what"] or row["instead"] == "python"][:TOP_HOST],
            "inside_launch_ns": self.inside_launch_ns,
            "idle_causes_ns": dict(self.idle_causes) if self.whole.idle_known else None,
            "per_step": [{"step": scope.step, "partial": scope.partial, **scope.to_dict()} for scope in self.per_step],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RankResult:
        """Return the rank that ``to_dict`` gave *data* of; of what the host did, only the longest rows say what."""
        rows = [*data["idle_host"]]
        named: dict[str, int] = {}
        for row in rows:
            named[row["instead"]] = named.get(row["instead"], 0) + row["ns"]
        rest = {name: ns - named.get(name, 0) for name, ns in (data["idle_host_ns"] or {}).items()}
        return cls(
            rank=data["rank"],
            steps=tuple(data["steps"]),
            whole=Measured.from_dict(data),
            per_step=tuple(Measured.from_dict(step) for step in data["per_step"]),
            phases=tuple(data["phases"]),
            idle_causes=data["idle_causes_ns"] or {},
            instead=(*rows, *({"instead": name, "what": None, "ns": ns} for name, ns in rest.items() if ns)),
            inside_launch_ns=data["inside_launch_ns"],
        )


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for key, value in part.items():
            total[key] = total.get(key, 0) + value
    return total


def _sum_nested(parts: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    gathered: dict[str, list[Mapping[str, int]]] = {}
    for part in parts:
        for key, row in part.items():
            gathered.setdefault(key, []).append(row)
    return {key: _sum(gathered[key]) for key in EXPOSABLE_LABELS if key in gathered}


def _sum_known(parts: Iterable[Mapping[str, int | None]]) -> dict[str, int | None]:
    """Return the sums by key; None where any part is."""
    total: dict[str, int | None] = {}
    for part in parts:
        for key, value in part.items():
            known = total.get(key, 0)
            total[key] = None if value is None or known is None else known + value
    return total
