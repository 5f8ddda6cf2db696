"""One rank's half of the analysis: a pure function from its events to small tables that can travel."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit._util.machine import give_back_memory
from tracekit.align.steps import assign_parts, number_steps
from tracekit.analysis.damage import refuse_damaged, repeated
from tracekit.analysis.foreign import why_no_gpu
from tracekit.analysis.kernels import KERNELS, kernel_table, shape_list
from tracekit.analysis.reasons import REASONS, kernel_reasons
from tracekit.critical_path.pieces import PATH_PIECES, find_path_pieces
from tracekit.errors import Notice
from tracekit.intervals import Intervals
from tracekit.metrics.bubbles import phases
from tracekit.metrics.budget import Budget, budgets
from tracekit.metrics.causes import Rank, exposure_causes
from tracekit.metrics.completeness import check_completeness
from tracekit.metrics.copies import copies
from tracekit.metrics.expert_balance import EXPERT_WORK, measure_expert_work
from tracekit.metrics.host_activity import HOST_ACTIVITY as INSTEAD_ROWS
from tracekit.metrics.host_activity import find_host_activity, idle_inside_launches, keep_longest
from tracekit.metrics.host_calls import ApiCalls, find_api_calls, find_waiting_calls
from tracekit.metrics.idle_gaps import add_slow_launch_ends, gaps, name_next_events, sum_gap_causes
from tracekit.metrics.label_intervals import Lanes, weak_ns
from tracekit.metrics.memory import RankMemory, measure_rank_memory
from tracekit.metrics.operations import operations
from tracekit.metrics.overlap import hidden, label_times
from tracekit.metrics.overlap_cost import OVERLAP_COSTS, measure_overlap_costs
from tracekit.metrics.peaks import host_link_gb_s
from tracekit.metrics.rates import PRODUCTS, Rates, products
from tracekit.metrics.reload import reload_events
from tracekit.metrics.start_constraints import find_start_constraints
from tracekit.metrics.timeline import timeline
from tracekit.metrics.waits import count_issued_messages
from tracekit.schema import COPY_LABELS, RankEvents, Source

if TYPE_CHECKING:
    from tracekit.analysis.by import RankRows
    from tracekit.classify import RuleBook
    from tracekit.reconstruct import RankPipeline

LONGEST_GAPS = 100
"""Idle gaps kept by rank, the longest; their sums are exact."""
MANY = 10_000
"""GPU events from which measuring leaves memory that is worth giving back."""


@dataclass(frozen=True, eq=False)
class Measures:
    """What was measured over some parts of one rank: its whole window (one part), or each of its steps."""

    budgets: tuple[Budget, ...]
    labels: pl.DataFrame
    hidden: pl.DataFrame
    phases: pl.DataFrame
    causes: pl.DataFrame
    copies: pl.DataFrame
    covered: Intervals
    """Where compute runs beside communication."""
    exposed: pl.DataFrame
    """Exposed time by cause, before the peers were heard."""
    weak: tuple[int, ...]
    """Of each part, the time whose label rests on weak evidence."""


@dataclass(frozen=True, eq=False)
class RankTables:
    """All that leaves a rank: a few small tables, picklable."""

    source: Source
    steps: pl.DataFrame
    window: Measures
    by_step: Measures
    operations: pl.DataFrame
    gaps: pl.DataFrame
    timeline: pl.DataFrame
    """What ran when, by label, in few enough intervals to draw."""
    reload: pl.DataFrame | None
    pipeline: RankPipeline | None
    """What ``tracekit.compare.rank_pipeline`` found; None when no schedule was asked for."""
    products: pl.DataFrame = field(default_factory=PRODUCTS.to_frame)
    """Matrix products by what they are, with their FLOP (``metrics.rates``)."""
    rates: Rates | None = None
    experts: pl.DataFrame = field(default_factory=EXPERT_WORK.to_frame)
    """What its experts computed for each dispatch (``metrics.experts``)."""
    memory: RankMemory | None = None
    """What the allocator held; None where it was not recorded."""
    kernels: pl.DataFrame = field(default_factory=KERNELS.to_frame)
    """Time by kernel name, label and module, a step."""
    reasons: pl.DataFrame = field(default_factory=REASONS.to_frame)
    """Why the longest of them have their labels, and where they ran (``analysis.reasons``)."""
    shapes: tuple[str, ...] = ()
    """Input shapes of the model's products, where they were recorded."""
    path: pl.DataFrame = field(default_factory=PATH_PIECES.to_frame)
    """What came before what: the pieces that the critical path may run through."""
    instead: pl.DataFrame = field(default_factory=INSTEAD_ROWS.to_frame)
    """What the host did while the GPU waited for its next launch."""
    inside_launch_ns: int = 0
    """Idle time inside the launch call of the work that ended it."""
    hiding: pl.DataFrame = field(default_factory=OVERLAP_COSTS.to_frame)
    """How long kernels took beside communication, and the same alone."""
    launches_known: bool = True
    """False where the file has no GPU event's launch."""
    steps_marked: bool = True
    """False where no mark says which step is which: ranks may count theirs differently."""
    idle_known: bool = True
    """False where work ran on the GPU that the trace does not show."""
    messages_issued: int = 0
    """Calls of the host that send or receive."""
    by: RankRows | None = None
    """Its events in the rows asked for (``analysis.by``); None where none were."""
    notices: tuple[Notice, ...] = ()


def rank_tables(
    rank: RankEvents,
    *,
    labelled: pl.DataFrame | None = None,
    rules: str | Path | RuleBook | None = None,
    steps: str | None = None,
    pipeline: bool = True,
    by: str | None = None,
    modules: pl.DataFrame | None = None,
) -> RankTables:
    """Return one rank labelled and measured. *labelled* saves labelling where a store already has it.

    *by* adds its events in rows (see ``analysis.by``); *modules* are its calls of modules, where they were read apart.

    >>> from tracekit.run.load import load
    >>> tables = rank_tables(load("sample_traces/reload", ranks=[0]).rank(0))
    >>> tables.window.budgets[0].span_ns, tables.window.budgets[0].conserved
    (104587652, True)
    """
    damaged = refuse_damaged(rank)
    if isinstance(rules, str | Path):
        from tracekit.classify import load_rules

        rules = load_rules(rules)
    if labelled is None:
        from tracekit.classify import classify

        labelled = classify(rank.events, rules=rules)
    again = repeated(labelled, rank.source)
    api = find_api_calls(rank.events)
    recording = check_completeness(api, labelled)
    labelled, unmarked = number_steps(add_slow_launch_ends(labelled, api.calls))
    kept, table, notices = assign_parts(labelled, steps)
    table = table.with_columns(rank=pl.lit(rank.source.rank, pl.Int32))
    tables = _measured(rank, kept, table, api, recording.unrecorded, rules=rules, by=by, modules=modules)
    give_back_memory(worth=len(kept) > MANY)
    chunks = _pipeline(kept, labelled, rank.source, recording.cut_steps) if pipeline else None
    return replace(
        tables,
        pipeline=chunks,
        memory=_memory(rank, kept, chunks, whole=steps is None),
        steps_marked=not unmarked,
        idle_known=recording.idle_known and not damaged,
        notices=(*damaged, *again, *recording.notices, *unmarked, *notices, *_notices(kept, table, rank)),
    )


def _measured(
    rank: RankEvents, kept: pl.DataFrame, steps: pl.DataFrame, api: ApiCalls, unrecorded: Intervals,
    *, rules: RuleBook | None, by: str | None, modules: pl.DataFrame | None,
) -> RankTables:  # fmt: skip
    """Return all that is measured of the GPU events *kept*, over the whole window and by step; not their pipeline."""
    number, device = rank.source.rank, next(iter(rank.source.devices), None)
    link = None if device is None else host_link_gb_s(device)
    calls = find_waiting_calls(api)
    waits = calls["start_ns"].to_numpy()[~calls["blocks"].to_numpy()]
    work = Rank.of(kept, find_start_constraints(kept, waits), calls)
    whole = Lanes.of(kept)
    holes = gaps(kept, whole, unrecorded=unrecorded)
    window = _measure(work, whole, holes, None, unrecorded, link=link)
    path, hiding = find_path_pieces(work, calls, whole.exposed), measure_overlap_costs(kept, whole, texts=work.texts)
    instead = keep_longest(find_host_activity(rank.events, kept, holes))
    inside_launch_ns = idle_inside_launches(api, kept, holes)
    longest = name_next_events(holes.top_k(LONGEST_GAPS, by="ns"), kept)
    rows = None if by is None else _rows(rank, kept, by, modules, whole)
    lanes, by_step = whole, window
    if len(steps) > 1:
        del whole, holes  # the steps take as much
        lanes = Lanes.of(kept, parts=len(steps), part="part")
        step_holes = gaps(kept, lanes, part="part", unrecorded=unrecorded)
        by_step = _measure(work, lanes, step_holes, "part", unrecorded, link=link)
    multiplied, rates = products(kept, device=device, multiprocessors=rank.source.multiprocessors, texts=work.texts)
    return RankTables(
        source=rank.source,
        steps=steps,
        window=window,
        by_step=by_step,
        operations=operations(kept, lanes, part="part"),
        gaps=longest.with_columns(rank=pl.lit(number, pl.Int32)),
        timeline=timeline(kept).with_columns(rank=pl.lit(number, pl.Int32)),
        reload=reload_events(kept),
        pipeline=None,
        products=multiplied,
        rates=rates,
        experts=measure_expert_work(kept),
        kernels=kernel_table(kept, texts=work.texts),
        reasons=kernel_reasons(kept, rank=number, rules=rules, texts=work.texts),
        shapes=shape_list(rank.events),
        path=path,
        instead=instead,
        inside_launch_ns=inside_launch_ns,
        hiding=hiding,
        launches_known=bool(work.launched.any()) or not len(kept),
        messages_issued=count_issued_messages(rank.events),
        by=rows,
    )


def _rows(rank: RankEvents, kept: pl.DataFrame, by: str, modules: pl.DataFrame | None, lanes: Lanes) -> RankRows:
    from tracekit.analysis.by import rank_rows

    return rank_rows(rank, kept, by, modules=modules, lanes=lanes)


def _memory(rank: RankEvents, kept: pl.DataFrame, pipeline: RankPipeline | None, *, whole: bool) -> RankMemory | None:
    """Return what the allocator held while the host launched the steps asked for."""
    if rank.memory.is_empty():
        return None
    launched = kept["launch_ns"].drop_nulls()
    window = None if whole or launched.is_empty() else (int(launched.min()), int(launched.max()))  # type: ignore[arg-type]
    chunks = None if pipeline is None else pipeline.chunks
    return measure_rank_memory(
        rank.memory, kept, rank.events.filter(pl.col("kind") == "cpu_op"), window=window, chunks=chunks
    )


def _measure(
    work: Rank, lanes: Lanes, holes: pl.DataFrame, part: str | None, unrecorded: Intervals, *, link: float | None
) -> Measures:
    labelled = work.labelled
    times = label_times(labelled, lanes, part=part)
    stalls = {
        (p, label): (int(ns), int(count))
        for label, intervals in lanes.exposed.items()
        if label in COPY_LABELS
        for p, (ns, count) in enumerate(
            zip(intervals.totals_ns(lanes.parts), np.bincount(intervals.group, minlength=lanes.parts), strict=True)
        )
    }
    return Measures(
        budgets=tuple(budgets(lanes, unrecorded=unrecorded)),
        labels=times,
        hidden=hidden(labelled, part=part, texts=work.texts),
        phases=phases(lanes),
        causes=sum_gap_causes(holes),
        copies=copies(times, stalls, link_gb_s=link),
        covered=lanes.compute & lanes.communication,
        exposed=exposure_causes(work, lanes.exposed, parts=part is not None),
        weak=weak_ns(labelled, parts=lanes.parts, part=part),
    )


def _pipeline(kept: pl.DataFrame, labelled: pl.DataFrame, source: Source, cut: tuple[int | None, ...]) -> RankPipeline:
    from tracekit.reconstruct import rank_pipeline

    return replace(rank_pipeline(kept, source, around=labelled), cut=cut)


def _notices(kept: pl.DataFrame, steps: pl.DataFrame, rank: RankEvents) -> list[Notice]:
    if kept.is_empty():
        return [Notice("no-gpu-events", f"there are no GPU events: {why_no_gpu(rank)}")]
    notes = []
    if kept["step"].null_count() == len(kept):
        notes.append(Notice("no-steps", "there are no step marks: the whole trace is taken as one step"))
    for row in steps.filter("partial").iter_rows(named=True):
        notes.append(
            Notice("partial-step", f"step {row['step']} holds only {row['events']} GPU events: it looks cut off")
        )
    whole = int((kept["kind"] == "graph").sum())
    if whole:
        text = f"{whole} CUDA graphs were recorded whole, without their kernels: they count as compute labelled other"
        notes.append(Notice("graphs-whole", text))
    lost = kept["launch_ns"].null_count()
    if lost * 100 > len(kept):
        text = f"{lost} of {len(kept)} GPU events have no launch in the file: what their gaps waited for is not known"
        notes.append(Notice("no-launches", text))
    return notes
