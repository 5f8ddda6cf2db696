"""Tables of a run: every figure of an analysis as rows.

Columns ``rank`` and ``step`` come first; a null step stands for the whole window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import polars as pl

from tracekit.analysis.communication import Communication
from tracekit.analysis.kernels import mean_kernels, run_reasons
from tracekit.analysis.measured import Measured, RankResult
from tracekit.analysis.tables import RankTables

_SCOPE = {"rank": pl.Int32(), "step": pl.Int64()}
_BUDGET = pl.Schema({**_SCOPE, "part": pl.String(), "ns": pl.Int64(), "share": pl.Float64()})
_BUBBLES = pl.Schema(
    {
        **_SCOPE,
        **dict.fromkeys(("span_ns", "idle_ns", "wait_ns"), pl.Int64()),
        "fraction": pl.Float64(),
        "lower_bound": pl.Boolean(),
    }
)
_PHASES = pl.Schema(
    {**_SCOPE, "phase": pl.String(), **dict.fromkeys(("span_ns", "compute_ns", "idle_ns", "wait_ns"), pl.Int64())}
)


def run_tables(
    ranks: Sequence[RankTables], results: Sequence[RankResult], communication: Communication
) -> dict[str, Callable[[], pl.DataFrame]]:
    """Return the functions that compute the tables which every run has, by table name."""
    operations = communication.operations
    kernels = cache(lambda: mean_kernels([rank.kernels for rank in ranks]))
    return {
        "steps": lambda: _rank_first(pl.concat([rank.steps for rank in ranks])),
        "budget": lambda: _budget_table(results),
        "labels": lambda: _window_and_steps(ranks, "labels"),
        "hidden": lambda: _window_and_steps(ranks, "hidden"),
        "copies": lambda: _window_and_steps(ranks, "copies", with_steps=False),
        "bubbles": lambda: _bubble_table(results),
        "phases": lambda: _phase_table(results),
        "operations": lambda: operations.drop("part", "order_ns").cast({pl.Categorical: pl.String}),
        "gaps": lambda: _gap_table(ranks),
        "timeline": lambda: _rank_first(pl.concat([rank.timeline for rank in ranks])),
        "clocks": lambda: communication.clocks.table,
        "matched": lambda: communication.matched().drop("row"),
        "kernels": kernels,
        "reasons": lambda: run_reasons([rank.reasons for rank in ranks], kernels()),
    }


def _rank_first(table: pl.DataFrame) -> pl.DataFrame:
    return table.select("rank", pl.exclude("rank"))


def _gap_table(ranks: Sequence[RankTables]) -> pl.DataFrame:
    gaps = pl.concat([rank.gaps for rank in ranks]).drop("part")
    return _rank_first(gaps).sort("ns", descending=True)


def _window_and_steps(ranks: Sequence[RankTables], name: str, *, with_steps: bool = True) -> pl.DataFrame:
    """Return a table of ``Measures`` for all ranks: the rows of the window, then those of each step if several."""
    frames = []
    for rank in ranks:
        number = pl.lit(rank.source.rank, pl.Int32).alias("rank")
        window: pl.DataFrame = getattr(rank.window, name)
        frames.append(window.select(number, pl.lit(None, pl.Int64).alias("step"), pl.exclude("part")))
        if with_steps and rank.by_step is not rank.window:
            # ``part`` counts the steps of a rank from 0; the table of steps gives each its number in the run.
            steps = rank.steps.select("step").with_row_index("part").with_columns(pl.col("part").cast(pl.Int64))
            by_step: pl.DataFrame = getattr(rank.by_step, name)
            numbered = by_step.join(steps, on="part", how="left", maintain_order="left")
            frames.append(numbered.select(number, "step", pl.exclude("part", "step")))
    return pl.concat(frames)


def _scopes(results: Sequence[RankResult]) -> Iterator[tuple[int, int | None, Measured]]:
    """Yield rank, step and figures: of each rank's window (step None), and of its steps if there are several."""
    for result in results:
        yield result.rank, None, result.whole
        if len(result.per_step) > 1:
            for scope in result.per_step:
                yield result.rank, scope.step, scope


def _budget_table(results: Sequence[RankResult]) -> pl.DataFrame:
    rows: list[tuple[int, int | None, str, int | None, float | None]] = []
    for rank, step, scope in _scopes(results):
        budget = scope.budget
        parts: list[tuple[str, int | None]] = [("compute", budget.compute_ns), *budget.exposed_ns.items()]
        parts.append(("idle", budget.idle_ns if scope.idle_known else None))
        if budget.unrecorded_ns:
            parts.append(("not recorded", budget.unrecorded_ns))
        for name, ns in parts:
            rows.append((rank, step, name, ns, ns / budget.span_ns if budget.span_ns and ns is not None else None))
    return pl.DataFrame(rows, schema=_BUDGET, orient="row")


def _bubble_table(results: Sequence[RankResult]) -> pl.DataFrame:
    rows = []
    for rank, step, scope in _scopes(results):
        idle_ns = scope.budget.idle_ns if scope.idle_known else None
        bubble = (scope.bubble.wait_ns, scope.bubble_fraction, scope.lower_bound)
        rows.append((rank, step, scope.budget.span_ns, idle_ns, *bubble))
    return pl.DataFrame(rows, schema=_BUBBLES, orient="row")


def _phase_table(results: Sequence[RankResult]) -> pl.DataFrame:
    rows = [{"rank": result.rank, **phase} for result in results for phase in result.phases]
    return pl.DataFrame(rows, schema=_PHASES)
