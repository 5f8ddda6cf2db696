"""What an analysis and one read back from JSON have in common: the figures of every rank, and how they look."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit._util.text import json_text, percent
from tracekit.align.steps import step_times
from tracekit.analysis.measured import Measured, RankResult
from tracekit.metrics.overlap import ratio
from tracekit.parsers.ranks import unknown_rank

if TYPE_CHECKING:
    import pandas as pd

MOST_SHOWN = 64
"""Ranks in a notebook's table."""


class Figures(ABC):
    """Figures by rank. ``tables`` holds them all as polars tables; ``to_dict`` is the JSON."""

    ranks: tuple[RankResult, ...]
    tables: Mapping[str, pl.DataFrame]

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object (``format: tracekit.analysis/1``) as plain data."""

    @cached_property
    def total(self) -> Measured:
        """All ranks together."""
        return Measured.total(rank.whole for rank in self.ranks)

    @cached_property
    def step_times(self) -> dict[int | None, tuple[int, int]]:
        """How long each step took on its slowest rank, and which that is; a step takes the mean of them."""
        return step_times({result.rank: {s.step: s.budget.span_ns for s in result.per_step} for result in self.ranks})

    def rank(self, rank: int) -> RankResult:
        """Return one rank's result."""
        for result in self.ranks:
            if result.rank == rank:
                return result
        raise unknown_rank([rank], (result.rank for result in self.ranks))

    def to_json(self, *, indent: int | None = 1) -> str:
        """Return ``to_dict`` as text."""
        return json_text(json.dumps(self.to_dict(), indent=indent, ensure_ascii=False, allow_nan=False))

    def to_pandas(self) -> dict[str, pd.DataFrame]:
        """Return every table as a pandas one, by name."""
        return {name: table.to_pandas() for name, table in self.tables.items()}

    def _repr_html_(self) -> str:
        rows = [(str(result.rank), result.whole, 1) for result in self.ranks[:MOST_SHOWN]] + [
            ("mean", self.total, len(self.ranks) or 1)
        ]
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in _cells(*row))}</tr>" for row in rows)
        more = f"<p>… and {len(self.ranks) - MOST_SHOWN} more ranks</p>" if len(self.ranks) > MOST_SHOWN else ""
        heads = ("rank", "span ms", "compute", "exposed", "idle", *(["bubble"] if self.total.pipeline else []))
        head = "".join(f"<th>{name}</th>" for name in heads)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"

    def __repr__(self) -> str:
        span_ms = self.total.budget.span_ns / 1e6
        return f"<{type(self).__name__}: {len(self.ranks)} ranks, {span_ms:.3f} ms of GPU time>"


def _cells(name: str, figures: Measured, of: int) -> list[str]:
    """Return a row of the notebook's table: shares are of the span, the span is a mean of so many ranks."""
    span, cost = figures.budget.span_ns, figures.budget
    idle = cost.idle_ns if figures.idle_known else None
    shares = [ratio(cost.compute_ns, span), ratio(sum(cost.exposed_ns.values()), span)]
    shares += [None if idle is None else ratio(idle, span)]
    cells = ["–" if share is None else percent(share) for share in shares]
    return [name, f"{span / of / 1e6:,.3f}", *cells, *([figures.bubble_words] if figures.pipeline else [])]
