"""The frozen result of an analysis: what every report, gate and plot is made from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit._util.text import json_text, percent
from tracekit._version import __version__
from tracekit.align.clocks import Clocks
from tracekit.align.steps import step_times
from tracekit.errors import Notice
from tracekit.metrics.bubbles import Bubble
from tracekit.metrics.budget import Budget
from tracekit.metrics.hiding import Hiding
from tracekit.metrics.lanes import EXPOSABLE
from tracekit.metrics.overlap import ratio
from tracekit.metrics.reload import Reload
from tracekit.parsers.ranks import unknown_rank
from tracekit.schema import Source

if TYPE_CHECKING:
    import pandas as pd

    from tracekit.analysis.critical import CriticalPath
    from tracekit.analysis.rates import RunRates
    from tracekit.compare import ScheduleComparison

FORMAT = "tracekit.analysis/1"
TOP_HOST = 5
"""Rows of a rank's launch-bound idle time that go into the JSON."""
LARGEST_KERNELS = 200
"""Kernels that go into the JSON; the table holds all."""


@dataclass(frozen=True, eq=False)
class Measured:
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
    because_ns: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Of each label of the budget's exposed time: why no compute hid it (``metrics.causes``); sums to it."""
    blocking_ns: Mapping[str, int | None] = field(default_factory=dict)
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


@dataclass(frozen=True, eq=False)
class RankResult:
    """One rank: its window, each of its steps, its phases and the causes of its idleness."""

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


@dataclass(frozen=True, eq=False)
class Analysis:
    """Where the step went, on every rank. ``tables`` holds it all as polars tables; ``to_dict`` is the JSON.

    >>> from tracekit.run.analyze import analyze
    >>> analysis = analyze("sample_traces/reload", schedule="none")
    >>> analysis.ranks[0].whole.budget.span_ns
    104587652
    >>> analysis.to_dict()["source"]["ranks"]
    [0, 1, 2, 3]
    """

    sources: tuple[Source, ...]
    ranks: tuple[RankResult, ...]
    tables: Mapping[str, pl.DataFrame]
    clocks: Clocks
    reload: Reload | None = None
    rates: RunRates | None = None
    """How fast products and communication ran, where shapes and sizes were recorded."""
    schedule: ScheduleComparison | None = None
    """How the run compares with its ideal (``tracekit.compare``); None with the reason among the notices."""
    hiding: Hiding | None = None
    """What hiding communication saved and cost; None where no compute ran beside any."""
    critical: CriticalPath | None = None
    """The critical path across ranks, where it was asked for."""
    notices: tuple[Notice, ...] = ()
    paths: tuple[str, ...] = field(default=())
    shapes: tuple[str, ...] = ()
    """Input shapes of the model's products, where they were recorded."""

    @cached_property
    def total(self) -> Measured:
        """All ranks together."""
        return Measured.total(rank.whole for rank in self.ranks)

    @cached_property
    def step_times(self) -> dict[int | None, tuple[int, int]]:
        """How long each step took on its slowest rank, and which that is; a step takes the mean of them."""
        return step_times({result.rank: {s.step: s.budget.span_ns for s in result.per_step} for result in self.ranks})

    @property
    def world_size(self) -> int | None:
        """Number of ranks in the run, as far as the files show."""
        return max((s.world_size for s in self.sources if s.world_size is not None), default=None)

    def rank(self, rank: int) -> RankResult:
        """Return one rank's result."""
        for result in self.ranks:
            if result.rank == rank:
                return result
        raise unknown_rank([rank], (result.rank for result in self.ranks))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object (``format: tracekit.analysis/1``) as plain data."""
        readers = sorted({source.reader for source in self.sources})
        return {
            "tracekit": __version__,
            "format": FORMAT,
            "source": {
                "paths": list(self.paths) or [source.path for source in self.sources],
                "reader": "+".join(readers),
                "ranks": [result.rank for result in self.ranks],
                "world_size": self.world_size,
                "devices": sorted({name for source in self.sources for name in source.devices}),
                "shapes": list(self.shapes),
            },
            "ranks": [result.to_dict() for result in self.ranks],
            "total": self.total.to_dict(),
            "schedule": self.schedule.to_dict() if self.schedule is not None else None,
            **({"lanes": self.tables["lanes"].to_dicts()} if self.schedule is None and "lanes" in self.tables else {}),
            **(self.critical.to_dict() if self.critical is not None else {}),
            "hiding": self.hiding.to_dict() if self.hiding is not None else None,
            "stragglers": self.tables["stragglers"].to_dicts(),
            "clocks": {
                "residual_ns": self.clocks.residual_ns,
                "worst_ns": self.clocks.worst_ns,
                "ranks": self.clocks.table.to_dicts(),
            },
            "kernels": self._kernels(),
            "copies": self.tables["copies"].drop("step").to_dicts(),
            "reload": self.reload.to_dict() if self.reload is not None else None,
            "rates": self.rates.to_dict() if self.rates is not None else None,
            "warnings": [{"code": note.code, "message": note.message} for note in self.notices],
        }

    def _kernels(self) -> list[dict[str, Any]]:
        """Return the largest kernels, per step, averaged over ranks."""
        largest = self.tables["kernels"].head(LARGEST_KERNELS)
        return largest.with_columns(pl.col("count").round(3), pl.col("ns").round().cast(pl.Int64)).to_dicts()

    def to_json(self, *, indent: int | None = 1) -> str:
        """Return ``to_dict`` as text."""
        return json_text(json.dumps(self.to_dict(), indent=indent, ensure_ascii=False, allow_nan=False))

    def to_pandas(self) -> dict[str, pd.DataFrame]:
        """Return every table as a pandas one, by name."""
        return {name: table.to_pandas() for name, table in self.tables.items()}

    def _repr_html_(self) -> str:
        rows = [(str(result.rank), result.whole, 1) for result in self.ranks[:64]] + [
            ("mean", self.total, len(self.ranks) or 1)
        ]
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in _cells(*row))}</tr>" for row in rows)
        more = f"<p>… and {len(self.ranks) - 64} more ranks</p>" if len(self.ranks) > 64 else ""
        heads = ("rank", "span ms", "compute", "exposed", "idle", *(["bubble"] if self.total.pipeline else []))
        head = "".join(f"<th>{name}</th>" for name in heads)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"

    def __repr__(self) -> str:
        return f"<Analysis: {len(self.ranks)} ranks, {self.total.budget.span_ns / 1e6:.3f} ms of GPU time>"


def _cells(name: str, figures: Measured, of: int) -> list[str]:
    """Return a row of the notebook's table: shares are of the span, the span is a mean of so many ranks."""
    span, cost = figures.budget.span_ns, figures.budget
    idle = cost.idle_ns if figures.idle_known else None
    shares = [ratio(cost.compute_ns, span), ratio(sum(cost.exposed_ns.values()), span)]
    shares += [None if idle is None else ratio(idle, span)]
    cells = ["–" if share is None else f"{share:.1%}" for share in shares]
    return [name, f"{span / of / 1e6:,.3f}", *cells, *([figures.bubble_words] if figures.pipeline else [])]


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
    return {key: _sum(gathered[key]) for key in EXPOSABLE if key in gathered}


def _sum_known(parts: Iterable[Mapping[str, int | None]]) -> dict[str, int | None]:
    """Return the sums by key; None where any part is."""
    total: dict[str, int | None] = {}
    for part in parts:
        for key, value in part.items():
            known = total.get(key, 0)
            total[key] = None if value is None or known is None else known + value
    return total
