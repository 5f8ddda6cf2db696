"""Ranks together: match their operations, align their clocks, find waiting, bubbles and stragglers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from msgspec.structs import replace

from tracekit._util.machine import give_back_memory
from tracekit._util.notices import merge_notices
from tracekit._util.text import percent, ranks_named
from tracekit._util.workers import MapFunction
from tracekit.align.clocks import Clocks
from tracekit.analysis.communication import MANY, Communication
from tracekit.analysis.kernels import all_shapes, together
from tracekit.analysis.lazily import Make, Tables
from tracekit.analysis.measured import Measured, RankResult
from tracekit.analysis.memory import run_memory, with_memory
from tracekit.analysis.peers import bound_notices, with_peers, without_settled
from tracekit.analysis.reasons import run_reasons
from tracekit.analysis.result import Analysis
from tracekit.analysis.scopes import rank_results
from tracekit.analysis.tables import RankTables
from tracekit.critical_path.path import CriticalPath, join_cells
from tracekit.errors import Notice
from tracekit.metrics.overlap_cost import combine_overlap_costs
from tracekit.metrics.reload import reload_report
from tracekit.metrics.waits import find_stragglers, has_unknown_wait, has_unseen_messages, may_be_message
from tracekit.reconstruct.parallel_groups import split_layout
from tracekit.store.sources import EPOCH_NS

if TYPE_CHECKING:
    from tracekit.analysis.by import By
    from tracekit.compare import ScheduleComparison

LOUD_OTHER = 0.01
"""Share of a window above which unlabelled work is worth a warning."""
LOUD_WEAK = 0.01
"""Share of the GPU's time above which labels by weak evidence are worth a warning."""


AT_ONCE = 1 << 18
"""Operations that are looked at in one go."""


def combine(
    parts: Sequence[RankTables],
    *,
    paths: Sequence[str] = (),
    notices: Sequence[Notice] = (),
    schedule: str = "none",
    layout: str | None = None,
    what_if: bool = False,
    path: bool = False,
    show: int | None = None,
    spread: MapFunction = map,
) -> Analysis:
    """Return the ranks' tables as one analysis; *notices* come from reading them, *show* is the pipeline asked for.

    *spread* says who works on the many pipelines of a large run.
    """
    layout, node = split_layout(layout)
    parts, ordered = with_peers(sorted(parts, key=lambda part: part.source.rank), layout)
    shared = Communication.of(parts, node=node)
    many = len(parts) >= MANY
    give_back_memory(worth=many)
    waited, clocks, critical = shared.waited, shared.clocks, shared.critical
    asked: dict[str, Any] = {"schedule": schedule, "layout": layout, "what_if": what_if, "pipeline": show}
    asked["spread"] = spread
    compared, reasons = _compare(parts, clocks, **asked)
    give_back_memory(worth=many)
    memory = run_memory(parts, compared)
    compared = with_memory(compared, memory)
    pipeline = compared is not None or _has_messages(parts, waited)
    ranks = rank_results(parts, waited, pipeline=pipeline)
    give_back_memory(worth=many)
    ranks = tuple(_with_blocking(result, critical) for result in ranks)
    reports = [part.reload for part in parts if part.reload is not None]
    tables = _tables(parts, ranks, waited)
    kernels = cache(lambda: together([part.kernels for part in parts]))
    tables["clocks"] = lambda: clocks.table
    tables["matched"] = lambda: shared.matched().drop("row")
    tables["kernels"] = kernels
    tables["reasons"] = lambda: run_reasons([part.reasons for part in parts], kernels())
    if memory is not None:
        tables["memory"] = lambda: memory.table(clocks)
    own = merge_notices(((part.source.rank, part.notices) for part in parts), ranks=len(parts))
    if compared is not None:
        tables |= {"cells": lambda: compared.cells, "lanes": lambda: compared.lanes}
    elif any(notice.code == "overlap-seen" for notice in reasons):
        tables["lanes"] = lambda: _lanes(parts)
    if path:
        critical = join_cells(critical, compared) if compared is not None else critical
        critical = critical.because(parts, waited)
        tables |= {"critical_path": lambda: critical.segments, "slack": lambda: critical.slack}
    return Analysis(
        sources=tuple(part.source for part in parts),
        ranks=ranks,
        tables=Tables(tables),
        clocks=clocks,
        reload=reload_report(reports),
        rates=shared.rates,
        memory=memory,
        schedule=compared,
        by=_by(parts, compared, pipeline=pipeline),
        critical=critical if path else None,
        hiding=combine_overlap_costs(
            [part.hiding for part in parts], sum(result.whole.hidden_ns["communication"] for result in ranks)
        ),
        notices=(
            *without_settled(notices, waited),
            *own,
            *ordered,
            *shared.notices,
            *_clock_notices(parts, clocks),
            *_wait_notices(parts, waited),
            *bound_notices(ranks, compared),
            *_other_notices(ranks),
            *_weak_notices(ranks),
            *(reasons if pipeline or _trains(ranks) else _without(reasons, *PIPELINE_NOTICES)),
            *(critical.notices if path else ()),
        ),
        paths=tuple(paths),
        shapes=tuple(all_shapes(part.shapes for part in parts)),
    )


def _by(parts: Sequence[RankTables], compared: ScheduleComparison | None, *, pipeline: bool) -> By | None:
    """Return the ranks' rows together, where they were asked for."""
    rows = {part.source.rank: part.by for part in parts if part.by is not None}
    if not rows:
        return None
    from tracekit.analysis.by import combined

    stages: dict[int, tuple[int, ...]] = {}
    if compared is not None:
        ran = compared.cells.group_by("rank").agg(pl.col("stage", "b_stage"))
        for rank, ahead, back in ran.iter_rows():
            stages[rank] = tuple(sorted({stage for stage in (*ahead, *back) if stage is not None}))
    steps = max((len(part.steps) for part in parts), default=1)
    return combined(rows, stages=stages, pipeline=pipeline, steps=max(steps, 1))


def _with_blocking(result: RankResult, critical: CriticalPath) -> RankResult:
    """Return a rank's figures with the part of its exposed time that lies on the critical path."""

    def add(scope: Measured, step: int | None = None) -> Measured:
        labels = [label for label, ns in scope.budget.exposed_ns.items() if ns]
        return replace(scope, blocking_ns=critical.blocking_ns(result.rank, labels, step))

    return replace(result, whole=add(result.whole), per_step=tuple(add(scope, scope.step) for scope in result.per_step))


def _tables(parts: Sequence[RankTables], ranks: Sequence[RankResult], waited: pl.DataFrame) -> dict[str, Make]:
    """Return everything as tables; columns ``rank`` and ``step`` come first (a null step is the whole window)."""
    rank_first = ("rank", pl.exclude("rank"))
    return {
        "steps": lambda: pl.concat([p.steps for p in parts]).select(*rank_first),
        "budget": lambda: _budget_table(ranks),
        "labels": lambda: _stacked(parts, "labels"),
        "hidden": lambda: _stacked(parts, "hidden"),
        "copies": lambda: _stacked(parts, "copies", steps=False),
        "bubbles": lambda: _bubble_table(ranks),
        "phases": lambda: _phase_table(ranks),
        "operations": lambda: waited.drop("part", "order_ns").cast({pl.Categorical: pl.String}),
        "stragglers": lambda: find_stragglers(waited).cast({pl.Categorical: pl.String}),
        "gaps": lambda: pl.concat([p.gaps for p in parts]).drop("part").select(*rank_first).sort("ns", descending=True),
        "timeline": lambda: pl.concat([p.timeline for p in parts]).select(*rank_first),
    }


def _stacked(parts: Sequence[RankTables], name: str, *, steps: bool = True) -> pl.DataFrame:
    """Return one table of all ranks: the window's rows, then (where there are several) each step's."""
    frames = []
    for part in parts:
        rank = pl.lit(part.source.rank, pl.Int32).alias("rank")
        window: pl.DataFrame = getattr(part.window, name)
        frames.append(window.select(rank, pl.lit(None, pl.Int64).alias("step"), pl.exclude("part")))
        if steps and part.by_step is not part.window:
            numbers = part.steps.select("step").with_row_index("part").with_columns(pl.col("part").cast(pl.Int64))
            by_step: pl.DataFrame = getattr(part.by_step, name)
            numbered = by_step.join(numbers, on="part", how="left", maintain_order="left")
            frames.append(numbered.select(rank, "step", pl.exclude("part", "step")))
    return pl.concat(frames)


def _scopes(ranks: Sequence[RankResult]) -> list[tuple[int, int | None, Measured]]:
    scopes: list[tuple[int, int | None, Measured]] = []
    for result in ranks:
        scopes.append((result.rank, None, result.whole))
        if len(result.per_step) > 1:
            scopes += [(result.rank, step.step, step) for step in result.per_step]
    return scopes


def _budget_table(ranks: Sequence[RankResult]) -> pl.DataFrame:
    rows: list[tuple[int, int | None, str, int | None, float | None]] = []
    for rank, step, scope in _scopes(ranks):
        span = scope.budget.span_ns
        idle = scope.budget.idle_ns if scope.idle_known else None
        lost = [("not recorded", scope.budget.unrecorded_ns)] * bool(scope.budget.unrecorded_ns)
        for name, ns in (("compute", scope.budget.compute_ns), *scope.budget.exposed_ns.items(), ("idle", idle), *lost):
            rows.append((rank, step, name, ns, ns / span if span and ns is not None else None))
    schema = {"rank": pl.Int32, "step": pl.Int64, "part": pl.String, "ns": pl.Int64, "share": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _bubble_table(ranks: Sequence[RankResult]) -> pl.DataFrame:
    rows = [
        (rank, step, scope.budget.span_ns, scope.budget.idle_ns if scope.idle_known else None,
         scope.bubble.wait_ns, scope.bubble_fraction, scope.lower_bound)
        for rank, step, scope in _scopes(ranks)
    ]  # fmt: skip
    schema = {"rank": pl.Int32, "step": pl.Int64, "span_ns": pl.Int64, "idle_ns": pl.Int64, "wait_ns": pl.Int64,
              "fraction": pl.Float64, "lower_bound": pl.Boolean}  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")


def _phase_table(ranks: Sequence[RankResult]) -> pl.DataFrame:
    rows = [{"rank": result.rank, **phase} for result in ranks for phase in result.phases]
    schema = {"rank": pl.Int32, "step": pl.Int64, "phase": pl.String, "span_ns": pl.Int64, "compute_ns": pl.Int64,
              "idle_ns": pl.Int64, "wait_ns": pl.Int64}  # fmt: skip
    return pl.DataFrame(rows, schema=schema)


def _clock_notices(parts: Sequence[RankTables], clocks: Clocks) -> list[Notice]:
    """Return notices of ranks whose trace lies so far from the others in time that it may be of another run.

    Clocks of machines differ, and are aligned; a run recorded again a minute later has the same operations and would
    be aligned as well. Clocks that count from a machine's start say nothing.
    """
    spans: dict[int, tuple[Any, Any]] = {
        part.source.rank: (part.steps["start_ns"].min(), part.steps["end_ns"].max()) for part in parts
    }
    longest = max((end - start for start, end in spans.values() if start is not None), default=0)
    return [
        Notice(
            "clocks-apart",
            f"rank {rank} was recorded {abs(offset) / 1e9:,.1f} s {'after' if offset > 0 else 'before'} rank {first}: "
            "if they belong to one run, their clocks differ by that much; if not, name the files of one run",
        )
        for first in [min(spans, default=0)]
        for rank, offset in clocks.table.select("rank", "offset_ns").drop_nulls().rows()
        if abs(offset) > longest and (spans[rank][0] or 0) > EPOCH_NS
    ]


def _has_messages(parts: Sequence[RankTables], waited: pl.DataFrame) -> bool:
    """Return whether anything sends or receives: a run in which nothing does has no pipeline."""
    return any(part.messages_issued for part in parts) or bool(may_be_message(waited).any())


def _wait_notices(parts: Sequence[RankTables], waited: pl.DataFrame) -> list[Notice]:
    """Return notices of communication whose waiting could not be separated from its transfer."""
    least = "waiting inside them is not known and the bubble fraction is a lower bound"
    seen: Counter[int] = Counter()
    silent: list[pl.Series] = []
    for some in waited.select("rank", "label", "what", "p2p", "wait_ns", "open").iter_slices(AT_ONCE):
        ranks, counts = np.unique(some["rank"].to_numpy()[may_be_message(some)], return_counts=True)
        seen.update(dict(zip(ranks.tolist(), counts.tolist(), strict=True)))
        silent.append(some["p2p"].filter(pl.Series(has_unknown_wait(some))).cast(pl.String))
    unseen = [part.source.rank for part in parts if has_unseen_messages(part.messages_issued, seen[part.source.rank])]
    notices = []
    if unseen:
        text = f"{ranks_named(unseen)}: the host sends and receives, but no kernel is known to do so"
        notices.append(Notice("wait-unknown", f"{text}: {least}; name the kernels in a rules file (--rules)"))
    lost = pl.concat(silent) if silent else pl.Series(dtype=pl.String)
    if lost.is_empty():
        return notices
    count = f"{len(lost)} of {seen.total()} sends and receives"
    nameless = lost.str.contains("?", literal=True).fill_null(True).all()
    if lost.null_count() == len(lost):
        why, next_ = "name neither what they carry nor their peer", "record operators, or the peers"
    elif nameless:
        why, next_ = "do not name their peer", "record the peers"
    else:
        why, next_ = "have no peer in these traces", "give all ranks of the pipeline"
    return [*notices, Notice("wait-unknown", f"{count} {why}: {least}; {next_}")]


def _other_notices(ranks: Sequence[RankResult]) -> list[Notice]:
    shares = {
        result.rank: result.whole.label_ns.get("other", 0) / result.whole.budget.span_ns
        for result in ranks
        if result.whole.budget.span_ns
    }
    loud = [rank for rank, share in shares.items() if share > LOUD_OTHER]
    if not loud:
        return []
    worst = max(loud, key=lambda rank: shares[rank])
    text = (
        f"no rule knows what {percent(shares[worst])} of rank {worst}'s span is (label other"
        + (f"; above {percent(LOUD_OTHER, digits=0)} on {len(loud)} ranks" if len(loud) > 1 else "")
        + "): it counts as compute; name it in a rules file (--rules), see --explain other"
    )
    return [Notice("unlabelled", text)]


def _weak_notices(ranks: Sequence[RankResult]) -> list[Notice]:
    """Return a notice of how much GPU time is labelled only by what ran around it."""
    share = Measured.total(result.whole for result in ranks).weak_share
    if share is None or share <= LOUD_WEAK:
        return []
    text = (
        f"{percent(share)} of GPU time is labelled by weak evidence (what ran around it): record operators and shapes"
    )
    return [Notice("weak-labels", f"{text}, or name it in a rules file (--rules); --explain says which rule decided")]


def _compare(
    parts: Sequence[RankTables], clocks: Clocks, *, schedule: str, **asked: Any
) -> tuple[ScheduleComparison | None, tuple[Notice, ...]]:
    """Return the run compared with its ideal, where that was asked for; notices why where it cannot be."""
    pipelines = [part.pipeline for part in parts if part.pipeline is not None]
    if schedule == "none" or not pipelines:
        return None, ()
    from tracekit.compare import compare_pipelines

    return compare_pipelines(pipelines, schedule=schedule, clocks=clocks, **asked)


PIPELINE_NOTICES = ("no-pipeline", "no-sequence-numbers", "pairs-by-order")
"""Notices that do not concern a run without training, where no pipeline was to be expected."""


def _trains(ranks: Sequence[RankResult]) -> bool:
    """Return whether anything runs backwards or updates weights; a trace without GPU work may be of training."""
    trained = {"dgrad", "wgrad", "backward", "optimizer"}
    return any(trained & result.whole.label_ns.keys() or not result.whole.budget.span_ns for result in ranks)


def _without(notices: Iterable[Notice], *codes: str) -> tuple[Notice, ...]:
    return tuple(notice for notice in notices if notice.code not in codes)


def _lanes(parts: Sequence[RankTables]) -> pl.DataFrame:
    """Return what each rank hid in each phase: known from the rank alone, without its schedule."""
    known = [(part.source.rank, part.pipeline.lanes) for part in parts if part.pipeline is not None]
    return pl.concat([table.select(pl.lit(rank, pl.Int32).alias("rank"), pl.all()) for rank, table in known])
