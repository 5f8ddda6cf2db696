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
