"""Combination of all ranks' tables into one analysis."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import median

import msgspec
import numpy as np
import polars as pl

from tracekit._util.columns import concat_ranks
from tracekit._util.machine import give_back_memory
from tracekit._util.notices import merge_notices
from tracekit._util.workers import MapFunction
from tracekit.align.clocks import Clocks
from tracekit.align.step_numbers import check_step_numbers
from tracekit.analysis.combine.communication import Communication, with_peers
from tracekit.analysis.combine.notices import (
    bound_notices,
    bounded_wait_notices,
    clock_notices,
    free_step_notices,
    incomplete_group_notices,
    lost_operation_notices,
    replayed_ranks_notices,
    start_up_notices,
    uncommon_step_notices,
    unlabelled_notices,
    wait_notices,
    weak_label_notices,
    without_known_peers,
    without_pipeline_notices,
)
from tracekit.analysis.combine.stragglers import explain_stragglers
from tracekit.analysis.measure.by import By, combined
from tracekit.analysis.measure.kernels import all_shapes, mean_kernels, run_reasons
from tracekit.analysis.measure.operators import mean_operators
from tracekit.analysis.measure.rank_timeline import RankTimeline
from tracekit.analysis.measure.tables import MIN_EVENTS_TO_GIVE_BACK_MEMORY, RankTables
from tracekit.analysis.measured import memory_curve, rank_results
from tracekit.analysis.result import Analysis, Computed, MemoryOfRun, Tables
from tracekit.classify.messages import format_messages
from tracekit.documents.analysis import (
    Bubble,
    ChangedStep,
    Figures,
    Phase,
    RankFigures,
    Step,
    Workload,
)
from tracekit.documents.coding import table_schema
from tracekit.errors import InputError, Notice
from tracekit.graph.change import Change, NoHostDelay, ranks_of_changes
from tracekit.graph.changes import WhatIfGraph
from tracekit.graph.critical_path import CriticalPath, join_cells
from tracekit.graph.pipeline import (
    fit_to_comparison,
    predict_microbatches,
    predict_schedule,
    with_predictions,
)
from tracekit.graph.predictor import Predictor
from tracekit.metrics.causes import causes_by_event
from tracekit.metrics.operations import may_be_message, may_be_of_pipeline
from tracekit.metrics.overlap import combine_overlap_costs
from tracekit.metrics.step_kinds import summarize_step_kinds
from tracekit.metrics.step_time import (
    free_exposed_share,
    free_idle_share,
    summarize_steps,
    with_free_step,
)
from tracekit.pipeline.against_ideal import ScheduleComparison, compare_pipelines
from tracekit.pipeline.reconstruct.parallel_groups import split_layout
from tracekit.pipeline.reconstruct.stalls import LANES
from tracekit.schema import LABELS

LABELS_OF_TRAINING_ALONE = frozenset({"dgrad", "wgrad", "backward", "optimizer"})
"""Labels of work that only training does."""

CombineMemory = Callable[[Sequence[RankTables], ScheduleComparison | None], MemoryOfRun | None]
"""Combines the memory of all ranks of a run; None where none recorded it."""
MAX_OPERATIONS_FORMATTED_TOGETHER = 100_000
"""Operations whose messages become text at once: while they do, each takes hundreds of bytes."""


def combine(
    ranks: Sequence[RankTables],
    *,
    paths: Sequence[str] = (),
    notices: Sequence[Notice] = (),
    schedule: str = "none",
    layout: str | None = None,
    what_if: bool = False,
    changes: Sequence[Change] = (),
    best_changes: bool = True,
    pipeline: int | None = None,
    combine_memory: CombineMemory | None = None,
    map_function: MapFunction = map,
    result_type: type[Analysis] = Analysis,
) -> Analysis:
    """Combine the tables of all ranks: match operations, align clocks, compute waits, bubbles and stragglers.

    Args:
        ranks: The tables of each rank, in any order.
        paths: Paths as the user gave them.
        notices: Notices from reading the traces.
        schedule: Ideal to compare with: ``auto``, a schedule's name, an order file or ``none``.
        layout: Arrangement of ranks, such as ``pp=4,ep=2,node=8``; by default it is derived from
            the traces.
        what_if: Predict the run under other schedules, and keep its events for questions about
            changes.
        changes: Changes to predict the run with (``graph.change``).
        best_changes: If no *changes* are given, or with *what_if*, predict the run with those that
            would save most.
        pipeline: Pipeline to show, counted from 0; by default the slowest.
        combine_memory: Combines the memory of the ranks (``memory.combine``), which the room measured.
        map_function: Maps the comparison over the pipelines of a large run, for example in worker
            processes.
        result_type: Class of the result, which may add methods.

    Raises:
        InputError: No rank has GPU events, or ranks number the same steps differently.

    """
    _check_gpu_events(ranks)
    mesh, ranks_per_node = split_layout(layout)
    sorted_ranks = sorted(ranks, key=lambda rank: rank.source.rank)
    if all(rank.steps_marked for rank in ranks):
        check_step_numbers({rank.source.rank: rank.steps for rank in sorted_ranks})
    ranks, peer_notices = with_peers(sorted_ranks, mesh)

    # Communication matched across ranks: waits, common clock, critical path.
    communication = Communication.of(
        ranks, ranks_per_node=ranks_per_node, changed_ranks=ranks_of_changes(changes)
    )
    operations = communication.operations
    clocks = communication.clocks
    is_large = operations.height > MIN_EVENTS_TO_GIVE_BACK_MEMORY
    give_back_memory(worth=is_large)  # of matching

    against_schedule = _compare_with_schedule(
        ranks,
        schedule,
        clocks=clocks,
        layout=mesh,
        pipeline_number=pipeline,
        predict_schedules=what_if,
        combine_memory=combine_memory,
        spread=map_function,
    )
    comparison = against_schedule.comparison

    # The figures of every rank.
    has_pipeline = comparison is not None or _may_have_pipeline(ranks, operations)
    results = rank_results(ranks, operations, communication.critical, pipeline=has_pipeline)
    schedule_notices = against_schedule.notices
    step_kinds = summarize_step_kinds([rank.step_kinds for rank in ranks])
    workload = _workload(results, generates=bool(step_kinds))
    if step_kinds or not (has_pipeline or _trains(results)):
        schedule_notices = without_pipeline_notices(schedule_notices)
    described_path = Computed(lambda: _described_path(ranks, communication, comparison))
    stragglers = explain_stragglers(communication.stragglers, ranks, operations, clocks)

    # Predictions of the step with changes.
    step_summary = summarize_steps({rank.source.rank: rank.timed_steps for rank in ranks})
    graph = _what_if_graph(ranks, communication, against_schedule, step_summary.time_ns or 0)
    comparison = _with_profiler(comparison, step_summary, graph)
    predict_best = best_changes and (what_if or not changes)
    changed_steps = _changed_steps(
        graph, changes, best=predict_best, work_recorded=_is_work_recorded(results)
    )
    give_back_memory(worth=is_large)  # of replays

    tables = {
        **run_tables(ranks, results, communication),
        **stragglers.tables(),
        **_memory_tables(against_schedule.memory, clocks),
        **_schedule_tables(ranks, comparison, schedule_notices, described_path),
    }
    all_notices = (
        *without_known_peers(notices, operations),
        *_rank_notices(ranks),
        *uncommon_step_notices(step_summary),
        *start_up_notices(step_summary),
        *free_step_notices(ranks, None if graph is None else graph.free_step),
        *replayed_ranks_notices(communication.replayed),
        *peer_notices,
        *_communication_notices(ranks, communication),
        *bound_notices(results, comparison),
        *unlabelled_notices(results),
        *weak_label_notices(results),
        *schedule_notices,
    )
    hidden_communication_ns = sum(result.whole.hidden_ns["communication"] for result in results)
    return result_type(
        sources=tuple(rank.source for rank in ranks),
        ranks=results,
        tables=Tables(tables),
        clocks=clocks,
        rate_tables=communication.rates,
        allocations=against_schedule.memory,
        comparison=comparison,
        places=_by(ranks, comparison, pipeline=has_pipeline),
        walked_path=communication.critical,
        described_path=described_path,
        graph=graph,
        changed_steps=changed_steps,
        waiting=stragglers,
        hiding=combine_overlap_costs([rank.hiding for rank in ranks], hidden_communication_ns),
        notices=all_notices,
        paths=tuple(paths),
        shapes=tuple(all_shapes(rank.shapes for rank in ranks)),
        tokens_per_step=_tokens_per_step(ranks),
        step_kinds=step_kinds,
        workload=workload,
        events=_events_with_causes(ranks, operations),
    )


@dataclass(frozen=True, slots=True)
class _AgainstSchedule:
    """The pipelines against their ideal schedule, and memory, which the comparison shows too."""

    comparison: ScheduleComparison | None
    """None without any pipeline."""
    predictor: Predictor | str | None
    """Predicts the run under other schedules; a text is the reason why it cannot be predicted. None
    without any pipeline."""
    memory: MemoryOfRun | None
    notices: tuple[Notice, ...]


def _compare_with_schedule(
    ranks: Sequence[RankTables],
    schedule: str,
    *,
    clocks: Clocks,
    layout: str | None,
    pipeline_number: int | None,
    predict_schedules: bool,
    combine_memory: CombineMemory | None,
    spread: MapFunction,
) -> _AgainstSchedule:
    """Compare the pipelines with the ideal schedule.

    Args:
        ranks: The tables of each rank.
        schedule: Ideal to compare with: ``auto``, a schedule's name, an order file or ``none``.
        clocks: Common clock of the ranks.
        layout: Arrangement of ranks; None to derive it.
        pipeline_number: Pipeline to show, counted from 0; None for the slowest.
        predict_schedules: Predict the run under other schedules.
        combine_memory: Combines the memory of the ranks; None leaves it out.
        spread: Maps the comparison over pipelines.

    """
    pipelines = [rank.pipeline for rank in ranks if rank.pipeline is not None]
    comparison = None
    notices: tuple[Notice, ...] = ()
    if schedule != "none" and pipelines:
        comparison, notices = compare_pipelines(
            pipelines,
            schedule=schedule,
            layout=layout,
            clocks=clocks,
            pipeline_number=pipeline_number,
            spread=spread,
        )
    predictor: Predictor | str | None = None
    if comparison is not None:
        predictor = fit_to_comparison(comparison)
        comparison, prediction_notices = with_predictions(
            comparison, predictor, rows=predict_schedules
        )
        notices += prediction_notices
    memory = None if combine_memory is None else combine_memory(ranks, comparison)
    if comparison is not None and memory is not None:
        comparison = memory.with_needs(comparison)
    return _AgainstSchedule(
        comparison=comparison,
        predictor=predictor,
        memory=memory,
        notices=notices,
    )


def _rank_notices(ranks: Sequence[RankTables]) -> tuple[Notice, ...]:
    """Return the notices of single ranks; one that several ranks have is listed once."""
    notices_by_rank = [(rank.source.rank, rank.notices) for rank in ranks]
    return tuple(merge_notices(notices_by_rank, ranks=len(ranks)))


def _communication_notices(
    ranks: Sequence[RankTables], communication: Communication
) -> tuple[Notice, ...]:
    """Return what is unknown or bounded about operations, clocks and waits."""
    operations = communication.operations
    clocks = communication.clocks
    return (
        *communication.notices,
        *clock_notices(ranks, clocks),
        *wait_notices(ranks, operations),
        *bounded_wait_notices(operations, clocks),
        *incomplete_group_notices(operations),
        *lost_operation_notices(operations, communication.lost),
    )


def _check_gpu_events(ranks: Sequence[RankTables]) -> None:
    """Raise InputError if no rank has GPU events, because every figure would be zero or unknown."""
    reasons = []
    for rank in ranks:
        reason = _reason_without_gpu_events(rank)
        if reason is None:
            return
        reasons.append(reason)
    if reasons:
        path = ranks[0].source.path
        hint = f"what it holds: tracekit doctor {path}"
        raise InputError("no GPU work was recorded", path=path, hint=hint, notice=reasons[0])


def _reason_without_gpu_events(rank: RankTables) -> Notice | None:
    """Return why a rank has no GPU events; None if it has some."""
    for notice in rank.notices:
        if notice.code == "no-gpu-events":
            return notice
    return None


def _may_have_pipeline(ranks: Sequence[RankTables], operations: pl.DataFrame) -> bool:
    """Return whether any message may be a pipeline's: by label, or because the host issues some and none is seen."""
    if may_be_message(operations).any():
        return bool(may_be_of_pipeline(operations).any())
    return any(rank.messages_issued for rank in ranks)


def _trains(results: Sequence[RankFigures]) -> bool:
    """Return whether anything runs backwards or updates weights.

    A trace without GPU work may be of training too.
    """
    for result in results:
        has_training_labels = LABELS_OF_TRAINING_ALONE & result.whole.label_ns.keys()
        if has_training_labels or not result.whole.budget.span_ns:
            return True
    return False


def _workload(results: Sequence[RankFigures], *, generates: bool) -> Workload | None:
    """Return what the program does; None if its labels do not show it.

    Prefill and decode steps are of inference. Otherwise work that runs backwards or updates weights
    is training, and a model that only runs forward is inference.
    """
    labels: set[str] = set()
    for result in results:
        labels |= result.whole.label_ns.keys()
    if generates:
        return "inference"
    if labels & LABELS_OF_TRAINING_ALONE:
        return "training"
    return "inference" if "forward" in labels else None


def _described_path(
    ranks: Sequence[RankTables], communication: Communication, comparison: ScheduleComparison | None
) -> CriticalPath:
    """Return the critical path with pipeline cells (if there is a pipeline) and causes."""
    critical = communication.critical
    if comparison is not None:
        critical = join_cells(critical, comparison)
    return critical.because(
        {rank.source.rank: rank.window.exposed for rank in ranks}, communication.operations
    )


def _events_with_causes(
    ranks: Sequence[RankTables], operations: pl.DataFrame
) -> tuple[RankTimeline, ...]:
    """Return the single events of the ranks that kept them, with the causes of each event's exposed time."""
    events = []
    for rank in ranks:
        if rank.events is None:
            continue
        own_operations = operations.filter(pl.col("rank") == rank.source.rank)
        causes = causes_by_event(rank.window.exposed, own_operations)
        events.append(replace(rank.events, causes=causes))
    return tuple(events)


def _timed_free_ns(ranks: Sequence[RankTables]) -> int | None:
    """Return the step without the profiler as the recorder timed it: the median over ranks; None if it did not."""
    timed_ns = [rank.source.free_step_ns for rank in ranks if rank.source.free_step_ns is not None]
    return round(median(timed_ns)) if timed_ns else None


def _with_profiler(
    comparison: ScheduleComparison | None, recorded: Step, graph: WhatIfGraph | None
) -> ScheduleComparison | None:
    """Return the comparison with what the profiler adds to its gap, where the step without it differs."""
    if comparison is None or graph is None:
        return comparison
    step = with_free_step(recorded, graph.free_step)
    if not step.profiler_ns:
        return comparison
    return comparison.with_profiler(
        {"host": free_idle_share(step), "p2p": free_exposed_share(step, "pp_comm")}
    )


def _what_if_graph(
    ranks: Sequence[RankTables],
    communication: Communication,
    against_schedule: _AgainstSchedule,
    step_time_ns: int,
) -> WhatIfGraph | None:
    """Return the graph for questions about changes; None without GPU events."""
    if communication.graph is None:
        return None
    comparison = against_schedule.comparison
    pipeline_positions = {}
    predict_memory = None
    if comparison is not None:
        for rank, position in comparison.positions.items():
            if "pp" in position:
                pipeline_positions[rank] = position["pp"]
        if against_schedule.memory is not None:
            predict_memory = partial(against_schedule.memory.needed_with_microbatches, comparison)
    predict_pipeline = predict_other_schedule = None
    if against_schedule.predictor is not None:
        predict_pipeline = partial(predict_microbatches, against_schedule.predictor)
        predict_other_schedule = partial(predict_schedule, against_schedule.predictor)
    return WhatIfGraph(
        graph=communication.graph,
        measured_ns=step_time_ns,
        timed_free_ns=_timed_free_ns(ranks),
        events_lost=not all(rank.idle_known for rank in ranks),
        positions=pipeline_positions,
        clock_error_ns=communication.clocks.residual_ns or 0,
        microbatches=predict_pipeline,
        schedule=predict_other_schedule,
        memory=predict_memory,
    )


MAX_UNRECORDED_SHARE = 0.01
"""Share of the ranks' spans in which work may have run that is not recorded, up to which an earlier host
is proposed: such work would not end earlier."""


def _is_work_recorded(results: Sequence[RankFigures]) -> bool:
    """Return whether hardly any time passed in work that is not recorded."""
    span_ns = sum(result.whole.budget.span_ns for result in results)
    unrecorded_ns = sum(result.whole.budget.unrecorded_ns for result in results)
    return unrecorded_ns <= MAX_UNRECORDED_SHARE * span_ns


def _changed_steps(
    graph: WhatIfGraph | None, changes: Sequence[Change], *, best: bool, work_recorded: bool
) -> tuple[ChangedStep, ...]:
    """Return the step with each change, with all of them if there are several, and with the *best* other changes."""
    if graph is None:
        why_not = "there are no GPU events"
        texts = map(str, changes)
        return tuple(ChangedStep(text, (text,), 0, why_not=why_not) for text in texts)
    rows = [graph.predict([change]) for change in changes]
    if len(changes) > 1 and all(row.why_not is None for row in rows):
        rows.append(graph.predict(changes))
    if best:
        not_proposed = () if work_recorded else (NoHostDelay(),)
        rows += graph.best_changes(without=(*changes, *not_proposed))
    return tuple(rows)


def _tokens_per_step(ranks: Sequence[RankTables]) -> float | None:
    tokens = pl.concat([rank.lateness.tokens for rank in ranks])
    return int(tokens["tokens"].sum()) / max(tokens["step"].n_unique(), 1) or None


def _memory_tables(
    memory: MemoryOfRun | None, clocks: Clocks
) -> dict[str, Callable[[], pl.DataFrame]]:
    """Return the function of the table of memory; empty if memory was not recorded."""
    if memory is None:
        return {}
    return {"memory": lambda: memory_curve(memory.figures, clocks)}


def _schedule_tables(
    ranks: Sequence[RankTables],
    comparison: ScheduleComparison | None,
    comparison_notices: Sequence[Notice],
    path: Computed[CriticalPath],
) -> dict[str, Callable[[], pl.DataFrame]]:
    """Return the functions of the tables of the critical path, and of those that only runs with a pipeline have."""
    functions: dict[str, Callable[[], pl.DataFrame]] = {
        "critical_path": lambda: path().segments.drop("chain"),
        "slack": lambda: path().slack,
    }
    if comparison is not None:
        functions |= {"cells": lambda: comparison.cells, "lanes": lambda: comparison.lanes}
    elif any(notice.values.get("case") == "overlap_alone" for notice in comparison_notices):
        # What each rank hid in each phase, which its own tables tell without a schedule.
        lanes_by_rank = {}
        for rank in ranks:
            if rank.pipeline is not None:
                lanes_by_rank[rank.pipeline.rank] = rank.pipeline.lanes
        functions["lanes"] = lambda: concat_ranks(lanes_by_rank, LANES)
    return functions


def _by(
    ranks: Sequence[RankTables], comparison: ScheduleComparison | None, *, pipeline: bool
) -> By | None:
    """Return the step by layer, module, annotation or shape; None if it was not asked for."""
    rows_by_rank = {rank.source.rank: rank.by for rank in ranks if rank.by is not None}
    if not rows_by_rank:
        return None
    stages_by_rank: dict[int, tuple[int, ...]] = {}
    if comparison is not None:
        cells = comparison.cells.group_by("rank").agg(pl.col("stage", "b_stage"))
        for rank, forward_stages, backward_stages in cells.iter_rows():
            stages = {*forward_stages, *backward_stages} - {None}
            stages_by_rank[rank] = tuple(sorted(stages))
    steps = max((len(rank.steps) for rank in ranks), default=1)
    return combined(rows_by_rank, stages=stages_by_rank, pipeline=pipeline, steps=max(steps, 1))


# ---- Tables of a run: every figure of an analysis as rows.
#
# Columns ``rank`` and ``step`` come first; a null step stands for the whole window.


_SCOPE = {"rank": pl.Int32(), "step": pl.Int64()}
_BUDGET = pl.Schema({**_SCOPE, "part": pl.String(), "ns": pl.Int64(), "share": pl.Float64()})
_OF_BUBBLE = {
    name: dtype for name, dtype in table_schema(Bubble).items() if name != "least_wait_ns"
}
_BUBBLES = pl.Schema({**_SCOPE, "span_ns": pl.Int64(), **_OF_BUBBLE})
_PHASES = pl.Schema({"rank": pl.Int32(), **table_schema(Phase)})


def run_tables(
    ranks: Sequence[RankTables], results: Sequence[RankFigures], communication: Communication
) -> dict[str, Callable[[], pl.DataFrame]]:
    """Return the functions that compute the tables which every run has, by table name."""
    operations = communication.operations
    kernels = cache(lambda: mean_kernels([rank.kernels for rank in ranks]))
    return {
        "steps": lambda: _of_ranks(ranks, "steps"),
        "budget": lambda: _budget_table(results),
        "labels": lambda: _label_table(ranks),
        "hidden": lambda: _window_and_steps(ranks, "hidden"),
        "copies": lambda: _of_ranks(ranks, "copies").insert_column(
            1, pl.lit(None, pl.Int64).alias("step")
        ),
        "bubbles": lambda: _bubble_table(results),
        "phases": lambda: _phase_table(results),
        "operations": lambda: _operations_table(operations),
        "gaps": lambda: _of_ranks(ranks, "gaps").sort("ns", descending=True),
        "timeline": lambda: _of_ranks(ranks, "timeline"),
        "host_time": lambda: _with_steps(ranks, "host_time"),
        "host_places": lambda: _with_steps(ranks, "host_places"),
        "memory_bound": lambda: _of_ranks(ranks, "memory_bound"),
        "clocks": lambda: communication.clocks.table,
        "matched": lambda: communication.matched().drop("row"),
        "kernels": kernels,
        "operators": lambda: mean_operators([rank.operators for rank in ranks]),
        "reasons": lambda: run_reasons([rank.reasons for rank in ranks], kernels()),
    }


def _operations_table(operations: pl.DataFrame) -> pl.DataFrame:
    """Return the operations with their messages as text, so that the table can be written to any format.

    Text stays categorical: that of a group names each of its ranks, on every one of its operations.
    How waits are shared by ranks that are late together is summed up in the stragglers.
    """
    messages = operations.get_column_index("messages")
    column = operations.select("messages")
    texts = [format_messages(column["messages"].clear())]
    texts += [
        format_messages(rows["messages"])
        for rows in column.iter_slices(MAX_OPERATIONS_FORMATTED_TOGETHER)
    ]
    text = pl.concat([part.cast(pl.Categorical) for part in texts])
    table = operations.drop("messages").insert_column(messages, text)
    return table.drop("part", "order_ns", "waited_for")


def _of_ranks(ranks: Sequence[RankTables], name: str) -> pl.DataFrame:
    """Return one of the tables of ``RankTables`` for all ranks."""
    schema: pl.Schema = getattr(ranks[0], name).schema
    return concat_ranks({rank.source.rank: getattr(rank, name) for rank in ranks}, schema)


def _with_steps(ranks: Sequence[RankTables], name: str) -> pl.DataFrame:
    """Return one of the tables of ``RankTables`` for all ranks, with the number of the step in place of its index."""
    tables: list[pl.DataFrame] = [getattr(rank, name) for rank in ranks]
    heights = [table.height for table in tables]
    numbers = np.repeat([rank.source.rank for rank in ranks], heights)
    # ``part`` counts the steps of each rank from 0: here, those of all ranks.
    step_counts = [rank.steps.height for rank in ranks]
    first_steps = np.repeat(np.cumsum(step_counts) - step_counts, heights)
    table = pl.concat(tables)
    steps = pl.concat([rank.steps["step"] for rank in ranks])
    return table.select(
        pl.Series("rank", numbers, pl.Int32),
        steps.gather(table["part"] + pl.Series(first_steps)).alias("step"),
        pl.exclude("part"),
    )


def _window_and_steps(ranks: Sequence[RankTables], name: str) -> pl.DataFrame:
    """Return a table of ``Measures`` for all ranks: the rows of the window, then those of each step if several."""
    frames = []
    for rank in ranks:
        number = pl.lit(rank.source.rank, pl.Int32).alias("rank")
        window: pl.DataFrame = getattr(rank.window, name)
        frames.append(
            window.select(number, pl.lit(None, pl.Int64).alias("step"), pl.exclude("part"))
        )
        if rank.by_step is not rank.window:
            # ``part`` counts the steps of a rank from 0; the table of steps gives each its number
            # in the run.
            steps = (
                rank.steps.select("step")
                .with_row_index("part")
                .with_columns(pl.col("part").cast(pl.Int64))
            )
            by_step: pl.DataFrame = getattr(rank.by_step, name)
            numbered = by_step.join(steps, on="part", how="left", maintain_order="left")
            frames.append(numbered.select(number, "step", pl.exclude("part", "step")))
    return pl.concat(frames)


def _label_table(ranks: Sequence[RankTables]) -> pl.DataFrame:
    """Return the time of each label by rank and step: no row is the sum of others."""
    frames = []
    for rank in ranks:
        steps = rank.steps.select("step").with_row_index("part").cast({"part": pl.Int64})
        labels = rank.by_step.labels.filter(pl.col("label").cast(pl.String).is_in(LABELS))
        numbered = labels.join(steps, on="part", how="left", maintain_order="left")
        number = pl.lit(rank.source.rank, pl.Int32).alias("rank")
        frames.append(numbered.select(number, "step", pl.exclude("part", "step")))
    return pl.concat(frames)


def _scopes(results: Sequence[RankFigures]) -> Iterator[tuple[int, int | None, Figures]]:
    """Yield rank, step and figures: of each rank's window (step None), and of its steps if there are several."""
    for result in results:
        yield result.rank, None, result.whole
        if len(result.per_step) > 1:
            for scope in result.per_step:
                yield result.rank, scope.step, scope


def _budget_table(results: Sequence[RankFigures]) -> pl.DataFrame:
    rows: list[tuple[int, int | None, str, int | None, float | None]] = []
    for rank, step, scope in _scopes(results):
        budget = scope.budget
        parts: list[tuple[str, int | None]] = [
            ("compute", budget.compute_ns),
            *budget.exposed_ns.items(),
        ]
        parts.append(("idle", budget.idle_ns if scope.idle_known else None))
        if budget.unrecorded_ns:
            parts.append(("not recorded", budget.unrecorded_ns))
        for name, ns in parts:
            share = ns / budget.span_ns if budget.span_ns and ns is not None else None
            rows.append((rank, step, name, ns, share))
    return pl.DataFrame(rows, schema=_BUDGET, orient="row")


def _bubble_table(results: Sequence[RankFigures]) -> pl.DataFrame:
    rows = []
    for rank, step, scope in _scopes(results):
        idle_ns = scope.budget.idle_ns if scope.idle_known else None
        bubble = (scope.bubble.wait_ns, scope.bubble_fraction, scope.lower_bound)
        rows.append((rank, step, scope.budget.span_ns, idle_ns, *bubble))
    return pl.DataFrame(rows, schema=_BUBBLES, orient="row")


def _phase_table(results: Sequence[RankFigures]) -> pl.DataFrame:
    rows = []
    for result in results:
        rows += [{"rank": result.rank, **msgspec.structs.asdict(phase)} for phase in result.phases]
    return pl.DataFrame(rows, schema=_PHASES)
