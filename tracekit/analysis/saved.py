"""An analysis as a JSON document (``documents.analysis``), and what is read back from one: every figure, no event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from os import PathLike
from typing import Any

import msgspec
import polars as pl
from msgspec import UNSET, UnsetType

from tracekit._util.text import counted, join_with_and
from tracekit._version import __version__
from tracekit.align.clocks import CLOCKS, Clocks
from tracekit.analysis.combine.stragglers import Stragglers
from tracekit.analysis.measured import memory_curve
from tracekit.analysis.result import Analysis, Role, RoleResults, Tables
from tracekit.documents import analysis as documents
from tracekit.documents.analysis import (
    AnalysisDocument,
    HostActivity,
    Kernel,
    Lane,
    Operator,
    PathSegment,
    Phase,
    RankFigures,
)
from tracekit.documents.coding import known, read_document, rows, table_schema, to_plain
from tracekit.documents.findings import Finding
from tracekit.errors import InputError, Notice, NoticeValues
from tracekit.metrics.bandwidth import COPIES
from tracekit.metrics.host.time_by_activity import HOST_TIME
from tracekit.metrics.label_intervals import TIMELINE
from tracekit.metrics.operations import OPERATIONS
from tracekit.metrics.overlap import HIDDEN
from tracekit.parsers.rank_numbers import valid_rank
from tracekit.schema import PYTORCH_READERS, Source, has_stacks

MAX_KERNELS_IN_DOCUMENT = 200
"""Kernels in the document, those with the most time; the table holds all."""
MAX_OPERATORS_IN_DOCUMENT = 100
"""Operators in the document, those with the most time."""
MAX_HOST_ROWS = 5
"""Rows of a rank's launch-bound idle time, the longest."""

_JSON_TABLES = {
    "kernels": table_schema(Kernel),
    "operators": table_schema(Operator),
    "copies": pl.Schema({"rank": pl.Int32(), "step": pl.Int64(), **COPIES}),
    "lanes": table_schema(Lane),
    "critical_path": table_schema(PathSegment),
}
"""Keys of the JSON object whose values are rows of a table, with its columns."""
_STEP_COLUMNS = pl.Schema(
    {
        "rank": pl.Int32(),
        "step": pl.Int64(),
        "time_ns": pl.Int64(),
        "partial": pl.Boolean(),
        "start_ns": pl.Int64(),  # null: when a step ran is not saved
        "end_ns": pl.Int64(),
    }
)
_TABLES_OF_EVENTS = {
    "timeline": pl.Schema({"rank": pl.Int32(), **TIMELINE}),
    "operations": pl.Schema({"rank": pl.Int32(), **OPERATIONS, "wait_ns": pl.Int64()}),
    "hidden": pl.Schema({"rank": pl.Int32(), "step": pl.Int64(), **HIDDEN}),
    "host_time": pl.Schema({"rank": pl.Int32(), "step": pl.Int64(), **HOST_TIME}),
    "phases": pl.Schema({"rank": pl.Int32(), **table_schema(Phase)}),
    "reasons": pl.Schema(dict.fromkeys(("name", "label", "module"), pl.String())),
}
"""Tables that reports look into and that only the events can fill."""
ANALYZE_AGAIN = "write it again with analyze -o FILE.json"

FindingsOf = Callable[[Analysis], tuple[Finding, ...]]
"""Function that returns the findings of an analysis."""


def build_document(
    analysis: Analysis, *, findings_of: FindingsOf, show: Collection[str] = ()
) -> AnalysisDocument:
    """Return the document of an analysis.

    A key that depends on an option or on the kind of run is left out (``UNSET``) where it does not
    apply. All other keys are always there, and null (None) where their result is unknown.

    Args:
        analysis: The analysis.
        findings_of: Function that returns its findings.
        show: Sections that were asked for: with ``critical-path`` and ``changes`` these are in the
            document in any case.
    """
    path = analysis.critical_path if "critical-path" in show else None
    by = analysis.by
    schedule = analysis.schedule
    tables = analysis.tables
    lanes: list[Lane] | UnsetType = UNSET
    if schedule is None and "lanes" in tables:
        lanes = rows(tables["lanes"], Lane)
    # The table is sorted by time, the longest first. Its figures are means over steps and ranks, so
    # that counts are fractions where a kernel does not run equally often in all of them.
    whole_ns = pl.col("ns").round().cast(pl.Int64)
    longest_kernels = (
        tables["kernels"]
        .head(MAX_KERNELS_IN_DOCUMENT)
        .with_columns(pl.col("count").round(3), whole_ns)
    )
    longest_operators = (
        tables["operators"]
        .head(MAX_OPERATORS_IN_DOCUMENT)
        .with_columns(pl.col("calls", "kernels").round(3), whole_ns)
    )
    return AnalysisDocument(
        tracekit=__version__,
        format=documents.ANALYSIS_FORMAT,
        source=_source(analysis),
        ranks=[_with_longest_activities(rank) for rank in analysis.ranks],
        step=analysis.step,
        workload=analysis.workload,
        findings=findings_of(analysis),
        total=analysis.total,
        schedule=schedule,
        # A schedule has the lanes in its own part of the document.
        lanes=lanes,
        critical_path=UNSET if path is None else rows(path.segments, PathSegment),
        critical_path_ns=UNSET if path is None else path.to_document(),
        # Where changes were asked for, an empty list says that none could be predicted.
        what_if=list(analysis.changed_steps)
        if "changes" in show or analysis.changed_steps
        else UNSET,
        by=UNSET if by is None else by,
        **_roles(analysis.role_results, findings_of, show),
        hiding=analysis.hiding,
        stragglers=list(analysis.stragglers),
        lateness=analysis.lateness,
        imbalance=analysis.imbalance,
        slowdown=analysis.slowdown,
        clocks=documents.ClockAlignment(
            residual_ns=analysis.clocks.residual_ns,
            worst_ns=analysis.clocks.worst_ns,
            ranks=rows(analysis.clocks.table, documents.RankClock),
        ),
        kernels=rows(longest_kernels, Kernel),
        operators=rows(longest_operators, Operator),
        copies=rows(tables["copies"], documents.Copy),
        reload=analysis.reload,
        rates=analysis.rates,
        memory=analysis.memory,
        warnings=analysis.notices if path is None else (*analysis.notices, *path.notices),
    )


def _source(analysis: Analysis) -> documents.RunOrigin:
    """Return what the analysis was made from."""
    devices: set[str] = set()
    for source in analysis.sources:
        devices.update(source.devices)
    return documents.RunOrigin(
        paths=list(analysis.paths) or [source.path for source in analysis.sources],
        reader="+".join(sorted({source.reader for source in analysis.sources})),
        ranks=[result.rank for result in analysis.ranks],
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


def _roles(results: RoleResults, findings_of: FindingsOf, show: Collection[str]) -> dict[str, Any]:
    """Return the keys about roles that have a value."""
    keys: dict[str, Any] = {}
    if results.roles:
        roles = []
        for role in results.roles:
            shown = show if role.name == results.main_role else ()
            document = build_document(role.analysis, findings_of=findings_of, show=shown)
            roles.append(documents.RoleDocument(role.name, role.kind, role.ranks, document))
        keys |= {"main_role": results.main_role, "roles": roles}
    if results.iterations:
        keys |= {"iterations": list(results.iterations), "phases": list(results.bands)}
    if results.weight_updates:
        keys["weight_updates"] = list(results.weight_updates)
    return keys


def _with_longest_activities(rank: RankFigures) -> RankFigures:
    """Return a rank with the longest host activities that have a name, or are Python itself."""
    named = [row for row in rank.idle_host if row.what or row.instead == "python"]
    return msgspec.structs.replace(rank, idle_host=tuple(named[:MAX_HOST_ROWS]))


def analysis_of(document: AnalysisDocument, result_type: type[Analysis] = Analysis) -> Analysis:
    """Return the analysis that a document describes, as far as it holds it.

    Its figures, findings and small tables are those of the document; what needs the events (the
    timeline, the pipeline's cells, what-if) is not there.
    """
    plain = to_plain(document)
    tables = {name: _table(plain.get(name) or (), schema) for name, schema in _JSON_TABLES.items()}
    tables |= {name: schema.to_frame() for name, schema in _TABLES_OF_EVENTS.items()}
    steps = []
    for rank in document.ranks:
        steps += [
            (rank.rank, step.step, step.time_ns, step.partial, None, None) for step in rank.per_step
        ]
    tables["steps"] = pl.DataFrame(steps, schema=_STEP_COLUMNS, orient="row")
    for name, saved_rows in (("lanes", document.lanes), ("critical_path", document.critical_path)):
        if isinstance(saved_rows, UnsetType):
            del tables[name]
    source = document.source
    clocks = Clocks(
        _table(plain["clocks"]["ranks"], CLOCKS),
        residual_ns=document.clocks.residual_ns,
        worst_ns=document.clocks.worst_ns,
    )
    tables["clocks"] = clocks.table
    if document.memory is not None:
        tables["memory"] = memory_curve(document.memory, clocks)
    stragglers = Stragglers(rows=tuple(document.stragglers))
    for name, make_table in stragglers.tables().items():
        tables[name] = make_table()
    return result_type(
        sources=tuple(
            Source(
                source.paths[0] if source.paths else "",
                source.reader,
                rank.rank,
                "content",
                world_size=source.world_size,
                devices=tuple(source.devices),
            )
            for rank in document.ranks
        ),
        ranks=tuple(_with_other_activities(rank) for rank in document.ranks),
        tables=Tables.of(tables),
        clocks=clocks,
        reload=document.reload,
        waiting=stragglers,
        hiding=document.hiding,
        changed_steps=tuple(known(document.what_if, ())),
        notices=(*document.warnings, _saved_notice(document)),
        paths=tuple(source.paths),
        shapes=tuple(source.shapes),
        tokens_per_step=source.tokens_per_step,
        step_kinds=tuple(known(document.step.kinds, [])),
        workload=document.workload,
        role_results=_role_results(document, result_type),
        document=document,
    )


PARTS_OF_EVENTS = {
    "timeline": "the timeline",
    "schedule": "the pipeline and its ideal",
    "rates": "rates",
    "by": "rows by layer or module",
}
"""What reports show of the events, in words."""


def _saved_notice(document: AnalysisDocument) -> Notice:
    """Return what a saved analysis does not show, because only the events could."""
    shown_from_events = {
        "timeline": True,
        "schedule": document.schedule is not None,
        "rates": document.rates is not None,
        "by": not isinstance(document.by, UnsetType),
    }
    parts = tuple(name for name, is_left_out in shown_from_events.items() if is_left_out)
    left_out = join_with_and(PARTS_OF_EVENTS[part] for part in parts)
    message = (
        f"read from a saved analysis, which holds its figures, findings and "
        f"{counted(len(document.kernels), 'kernel')}, and no events: {left_out} are not shown; name the traces or a "
        "store to see them"
    )
    values: NoticeValues = {"kernels": len(document.kernels), "parts": parts}
    return Notice("saved-analysis", message, values=values)


def _table(rows: Sequence[Mapping[str, Any]], schema: pl.Schema) -> pl.DataFrame:
    """Return rows of a document as a table; columns that they do not have are null."""
    return pl.DataFrame(rows, schema=schema, strict=False)


def _role_results(document: AnalysisDocument, result_type: type[Analysis]) -> RoleResults:
    roles = []
    for role in known(document.roles, []):
        analysis = analysis_of(role.analysis, result_type)
        roles.append(Role(role.name, role.kind, role.ranks, analysis, analysis.clocks))
    return RoleResults(
        main_role=known(document.main_role, "") or None,
        roles=tuple(roles),
        iterations=tuple(known(document.iterations, [])),
        weight_updates=tuple(known(document.weight_updates, [])),
        bands=tuple(known(document.phases, [])),
    )


def read_saved(path: str | PathLike[str], result_type: type[Analysis] = Analysis) -> Analysis:
    """Return, as a *result_type*, the analysis in a JSON file of ``save`` or ``analyze -o``, gzipped or not."""
    document = read_document(path, AnalysisDocument, hint=ANALYZE_AGAIN)
    contradiction = find_contradiction(document)
    if contradiction is not None:
        raise InputError(contradiction, path=path, hint=ANALYZE_AGAIN)
    try:
        return analysis_of(document, result_type)
    # A path may hold lone surrogates, a name in a table may not; a figure may be too large for one.
    except (UnicodeEncodeError, OverflowError, pl.exceptions.PolarsError) as error:
        raise InputError(
            "a name or figure in its tables cannot be used", path=path, hint=ANALYZE_AGAIN
        ) from error


def find_contradiction(document: AnalysisDocument) -> str | None:
    """Return what contradicts itself in a document: its ranks, or the parts of a time; None if nothing does.

    tracekit writes no such document, and no answer may rest on one.
    """
    ranks = [rank.rank for rank in document.ranks]
    if not ranks:
        return "holds no ranks"
    are_ranks = len(set(ranks)) == len(ranks) and None not in map(valid_rank, ranks)
    if not are_ranks or set(ranks) != set(document.source.ranks):
        return "its ranks are not those of its source"
    budgets = {"$.step": document.step.budget_ns, "$.total": document.total.budget}
    for i, rank in enumerate(document.ranks):
        budgets[f"$.ranks[{i}]"] = rank.budget
        for k, step in enumerate(rank.per_step):
            budgets[f"$.ranks[{i}].per_step[{k}]"] = step.budget
            budgets[f"$.ranks[{i}].per_step[{k}].time_budget_ns"] = step.time_budget
    for json_path, budget in budgets.items():
        if not budget.conserved:
            return f"{json_path}: the parts of the time do not sum to it"
    for memory in () if document.memory is None else document.memory.ranks:
        line = memory.line
        is_line = len(line.at_ns) == len(line.allocated) == len(line.reserved)
        if not is_line or memory.rank not in ranks:
            return f"memory of rank {memory.rank}: is of no rank, or has lists of different lengths"
    for role in known(document.roles, []):
        contradiction = find_contradiction(role.analysis)
        if contradiction is not None:
            return f"role {role.name}: {contradiction}"
    return None


def _with_other_activities(rank: RankFigures) -> RankFigures:
    """Return a rank with host activity beyond the longest rows, which has no detail."""
    rest_ns = Counter(rank.idle_host_ns or {})
    for activity in rank.idle_host:
        rest_ns[activity.instead] -= activity.ns
    rest = tuple(HostActivity(kind, None, None, ns, 0) for kind, ns in rest_ns.items() if ns)
    return msgspec.structs.replace(rank, idle_host=(*rank.idle_host, *rest))
