"""The JSON document of an analysis (``documents.analysis``), built from its results."""

from collections.abc import Callable
from typing import Any

import msgspec
import polars as pl
from msgspec import UNSET, UnsetType

from tracekit._version import __version__
from tracekit.against_ideal import ScheduleComparison, StepComparison
from tracekit.analysis.combine.communication import RunRates, below_peak_ns
from tracekit.analysis.combine.stragglers import Stragglers
from tracekit.analysis.measure.by import By
from tracekit.analysis.result import Analysis, RoleResults
from tracekit.critical_path.path import CriticalPath
from tracekit.documents import analysis as documents
from tracekit.documents.analysis import Budget
from tracekit.documents.coding import rows
from tracekit.documents.findings import Finding
from tracekit.schema import PYTORCH_READERS, has_stacks
from tracekit.weight_updates import ReloadSummary

MAX_KERNELS_IN_DOCUMENT = 200
"""Kernels in the document, those with the most time; the table holds all."""
MAX_HOST_ROWS = 5
"""Rows of a rank's launch-bound idle time, the longest."""
MAX_PRODUCTS = 40
"""Kinds of matrix products, those with the most time."""
MAX_EXPERT_LAYERS = 256
"""Rows of expert layers, the most uneven first."""


FindingsOf = Callable[[Analysis], tuple[Finding, ...]]
"""Function that returns the findings of an analysis."""


def build_document(analysis: Analysis, *, findings_of: FindingsOf) -> documents.AnalysisDocument:
    """Return the document of an analysis.

    A key that depends on an option or on the kind of run is left out (``UNSET``) where it does not
    apply. All other keys are always there, and null (None) where their result is unknown.
    """
    critical = analysis.critical
    by = analysis.by
    schedule = analysis.schedule
    tables = analysis.tables
    lanes: list[documents.Lane] | UnsetType = UNSET
    if schedule is None and "lanes" in tables:
        lanes = rows(tables["lanes"], documents.Lane)
    # The table is sorted by time, the longest first. Its figures are means over steps and ranks, so
    # that counts are fractions where a kernel does not run equally often in all of them.
    longest_kernels = (
        tables["kernels"]
        .head(MAX_KERNELS_IN_DOCUMENT)
        .with_columns(pl.col("count").round(3), pl.col("ns").round().cast(pl.Int64))
    )
    return documents.AnalysisDocument(
        tracekit=__version__,
        format=documents.FORMAT,
        source=_source(analysis),
        ranks=[_with_longest_activities(rank) for rank in analysis.rank_results],
        step=step_document(analysis),
        workload=analysis.workload,
        findings=findings_of(analysis),
        total=analysis.total,
        schedule=None if schedule is None else schedule_document(schedule),
        # A schedule has the lanes in its own part of the document.
        lanes=lanes,
        critical_path=UNSET if critical is None else rows(critical.segments, documents.PathSegment),
        critical_path_ns=UNSET if critical is None else _path_totals(critical),
        # The graph is kept if changes were asked for: an empty list then says that none could be
        # predicted.
        what_if=list(analysis.changed_steps) if analysis.graph or analysis.changed_steps else UNSET,
        by=UNSET if by is None else by_document(by),
        **_roles(analysis.role_results, findings_of),
        late=UNSET if analysis.whole_run is None else analysis.whole_run.to_document(),
        hiding=analysis.hiding,
        stragglers=list(analysis.stragglers.rows),
        lateness=analysis.stragglers.late_ranks(),
        imbalance=_imbalance(analysis.stragglers),
        slowdown=analysis.slowdown,
        clocks=documents.ClockAlignment(
            residual_ns=analysis.clocks.residual_ns,
            worst_ns=analysis.clocks.worst_ns,
            ranks=rows(analysis.clocks.table, documents.RankClock),
        ),
        kernels=rows(longest_kernels, documents.Kernel),
        copies=rows(tables["copies"], documents.Copy),
        reload=None if analysis.reload is None else _reload(analysis.reload),
        rates=None if analysis.rates is None else _rates(analysis.rates),
        memory=None if analysis.memory is None else analysis.memory.figures,
        warnings=analysis.notices,
    )


def _source(analysis: Analysis) -> documents.RunOrigin:
    """Return what the analysis was made from."""
    devices: set[str] = set()
    for source in analysis.sources:
        devices.update(source.devices)
    return documents.RunOrigin(
        paths=list(analysis.paths) or [source.path for source in analysis.sources],
        reader="+".join(sorted({source.reader for source in analysis.sources})),
        ranks=[result.rank for result in analysis.rank_results],
        world_size=analysis.world_size,
        devices=sorted(devices),
        shapes=list(analysis.shapes),
        tokens_per_step=analysis.tokens_per_step,
        options=_recording_options(analysis),
    )


def _recording_options(analysis: Analysis) -> list[str] | None:
    """Return the options of PyTorch's profiler that were on; None if another program recorded the run."""
    sources = analysis.sources
    if any(source.reader not in PYTORCH_READERS for source in sources):
        return None
    is_on = {
        "record_shapes": any(source.record_shapes for source in sources),
        "profile_memory": analysis.memory is not None,
        "with_stack": any(has_stacks(source) for source in sources),
        "no CPU activities": not any(source.counts.get("cpu_op", 0) for source in sources),
    }
    return [name for name, value in is_on.items() if value]


def _roles(results: RoleResults, findings_of: FindingsOf) -> dict[str, Any]:
    """Return the keys about roles that have a value."""
    keys: dict[str, Any] = {}
    if results.roles:
        roles = []
        for role in results.roles:
            document = build_document(role.analysis, findings_of=findings_of)
            roles.append(documents.RoleDocument(role.name, role.kind, role.ranks, document))
        keys |= {"main_role": results.main_role, "roles": roles}
    if results.iterations:
        keys |= {"iterations": list(results.iterations), "phases": list(results.bands)}
    if results.weight_updates:
        keys["weight_updates"] = list(results.weight_updates)
    return keys


def _imbalance(stragglers: Stragglers) -> documents.Imbalance | None:
    share = stragglers.imbalance_share
    return (
        None
        if share is None
        else documents.Imbalance(share, rows(stragglers.imbalance, documents.ImbalanceStep))
    )


def _pipeline_step(step: StepComparison) -> documents.PipelineStep:
    """Return one step of one pipeline, compared with its ideal."""
    return documents.PipelineStep(
        ranks=list(step.pipeline.ranks),
        step=step.pipeline.step,
        name=step.match.schedule.name,
        exact=step.match.exact,
        measured_ns=step.measured_ns,
        ideal_ns=step.ideal_ns,
        gap_ns=step.gap_ns,
    )


def schedule_document(comparison: ScheduleComparison) -> documents.ComparedSchedule:
    """Return the ``schedule`` of the document."""
    head = comparison.head
    match = comparison.head.match
    confidence: Any = head.cells["confidence"].min()
    return documents.ComparedSchedule(
        name=comparison.name,
        compared_with=comparison.compared_with,
        pp=comparison.pp,
        microbatches=comparison.microbatches,
        virtual=comparison.virtual,
        ranks=head.orders(),
        measured=documents.Makespan(head.measured_ns, head.measured_bubble),
        ideal=documents.Makespan(head.ideal_ns, head.ideal_bubble),
        gap_ns=head.gap_ns,
        exact=comparison.exact,
        distance=match.distance,
        differences=tuple(match.differences),
        fb_run_apart=match.blocks_run_apart,
        step=head.pipeline.step,
        pipeline_ranks=list(head.pipeline.ranks),
        stages_from=head.pipeline.stages_from,
        confidence=None if confidence is None else round(float(confidence), 3),
        by_rank=head.bubbles,
        factors=msgspec.convert(comparison.factors, documents.Factors),
        lanes=rows(comparison.lanes, documents.Lane),
        positions=comparison.positions,
        what_if=list(comparison.what_if),
        pipelines=[_pipeline_step(step) for step in comparison.all],
    )


def _budget(budget: Budget, *, idle_known: bool) -> documents.Budget:
    """Return the parts of a span or of a step time."""
    return budget if idle_known else msgspec.structs.replace(budget, idle=None)


def step_document(analysis: Analysis) -> documents.Step:
    """Return the ``step`` of the document."""
    step = analysis.step
    not_common = [
        documents.StepNotCommon(number, list(ranks)) for number, ranks in step.not_common.items()
    ]
    free = step.free
    free_budget = None
    if free is not None and free.budget is not None:
        free_budget = _budget(free.budget, idle_known=analysis.total.idle_known)
    return documents.Step(
        time_ns=step.time_ns,
        free_ns=None if free is None else free.time_ns,
        free_range_ns=None if free is None else free.range_ns,
        free_from=None if free is None else free.source,
        free_budget_ns=free_budget,
        per_step=list(step.per_step),
        unusual=list(step.unusual),
        in_turn_ns=list(step.in_turn_ns),
        single=step.single,
        marked=step.is_marked,
        by_rank=[documents.RankStepTime(rank, time_ns) for rank, time_ns in step.by_rank.items()],
        budget_ns=_budget(step.budget, idle_known=analysis.total.idle_known),
        kinds=list(analysis.step_kinds) or UNSET,
        not_common=not_common,
    )


def _with_longest_activities(rank: documents.RankFigures) -> documents.RankFigures:
    """Return a rank with the longest host activities that have a name, or are Python itself."""
    named = [row for row in rank.idle_host if row.what or row.instead == "python"]
    return msgspec.structs.replace(rank, idle_host=tuple(named[:MAX_HOST_ROWS]))


def _path_totals(critical: CriticalPath) -> documents.PathTotals:
    steps = critical.segments.group_by("step").agg(
        ns=pl.col("end_ns").max() - pl.col("start_ns").min()
    )
    return documents.PathTotals(
        total=int(steps["ns"].sum()),
        **critical.totals(),
        slack=rows(critical.slack, documents.Slack),
        uncertain=critical.uncertain_ns,
        candidates=critical.candidates,
    )


def by_document(by: By) -> documents.ByTable:
    """Return the ``by`` of the document."""
    placed_rows = rows(by.rows, documents.ByRow) if by.placed else None
    return documents.ByTable(by.kind, by.total_ns, by.steps, placed_rows, list(by.notes))


def _reload(reload: ReloadSummary) -> documents.Reload:
    return documents.Reload(
        rounds=reload.rounds,
        buckets=reload.buckets,
        owners=reload.owners,
        sources=list(reload.sources),
        lanes=rows(reload.lanes, documents.ReloadLane),
        hidden=rows(reload.hidden, documents.ReloadHidden),
        time_ns={
            "H2D": reload.h2d_ns,
            "BROADCAST": reload.broadcast_ns,
            "RELOAD": reload.reload_ns,
        },
        measured_ns=reload.measured_ns,
        ideal_ns=reload.ideal_ns,
    )


def _rates(rates: RunRates) -> documents.Rates:
    total = rates.total
    return documents.Rates(
        flop=total.flop or None,
        model_flop=total.model_flop or None,
        product_ns=total.product_ns,
        uncounted_ns=total.uncounted_ns,
        tflop_s=total.tflop_s,
        utilisation=total.utilisation,
        below_peak_ns=below_peak_ns(rates.products),
        by_label=rows(rates.by("label"), documents.LabelRate),
        by_module=rows(rates.by("module"), documents.ModuleRate),
        products=rows(rates.products.head(MAX_PRODUCTS), documents.ProductRate),
        communication=rows(rates.communication, documents.Bandwidth),
        experts=rows(rates.experts, documents.ExpertLoad),
        expert_layers=rows(rates.expert_layers.head(MAX_EXPERT_LAYERS), documents.ExpertLayer),
        expert_cost=rates.expert_cost,
        lower_bound=total.uncounted_ns > 0,
        uncounted=rows(rates.uncounted.head(MAX_PRODUCTS), documents.Uncounted),
    )
