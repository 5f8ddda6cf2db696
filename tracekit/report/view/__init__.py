"""One typed view of an analysis (``view_of``), which terminal, page, Markdown and plots render.

It holds numbers, words and tables without their looks. Times are nanoseconds, shares are 0 to 1 of what the field's
docstring says, None is unknown. Figures *per rank* are means over ranks.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

from tracekit._util.text import capitalize, counted, ranks_named
from tracekit.analysis import Analysis
from tracekit.analysis.spread import MANY_RANKS, Spread, spread
from tracekit.errors import Notice
from tracekit.parsers.source_refs import missing_ranks
from tracekit.report.advice import Advice, advise
from tracekit.report.evidence import MAX_MISSING_NAMED, collect_evidence, relevant_notices
from tracekit.report.table import Table
from tracekit.report.view.answer import Line, answer
from tracekit.report.view.blocking import Blocking, blocking
from tracekit.report.view.budget import (
    BudgetView,
    LabelRow,
    Matrix,
    beside_table,
    budget_view,
    hiding_table,
    label_rows,
    matrix_of,
)
from tracekit.report.view.copies import ReloadView, copy_tables, memory_table, reload_view
from tracekit.report.view.kernels import Kernel, kernels
from tracekit.report.view.lateness import LatenessMap, imbalance_table, lateness_map, slowdown_table
from tracekit.report.view.path import PathView, changes_table, path_view
from tracekit.report.view.pipeline import ScheduleView, schedule_view, unnamed_phases
from tracekit.report.view.ranks import (
    Steps,
    Straggler,
    clock_note,
    host_activity_table,
    idle_table,
    steps_view,
    stragglers,
)
from tracekit.report.view.rates import ByView, by_view, device_names, rate_tables
from tracekit.report.view.roles import RolesView, role_advice, roles_view

__all__ = ["View", "shorten_notices", "view_of"]

MAX_NOTICES_OF_A_KIND = 5
"""Warnings of one kind that are shown one by one."""
DEFINITIONS = (
    ("U(X)", "the union of X's intervals on one rank's GPU: never a sum of durations"),
    ("span", "start of the first to end of the last GPU event launched in the steps analyzed"),
    ("compute", "U(forward … optimizer, other); shares are of the span"),
    ("hidden", "|U(X) ∩ U(compute)| / |U(X)|"),
    ("exposed", "|U(X) − U(compute)|; two labels at once: charged to the first. compute + exposed + idle = span"),
    (
        "wait",
        "own start to the start of the last rank in the same operation (of a message: of its other side), at most the "
        "own duration; printed as a bound, own − shortest duration, where clocks are not aligned well enough",
    ),
    ("because", "what the next compute waited for while the label was exposed; the causes sum to the exposed time"),
    ("bubble", "(idle + exposed wait of pp_comm) / span; a run without a pipeline has idle and no bubble"),
)
SCHEDULE_DEFINITIONS = (
    ("cell", "one op of one stage on one micro-batch: its first kernel's start to its last kernel's end on the rank"),
    ("outside cells", "share of ranks × makespan in no cell, so that a cell's own stalls are not in it"),
    ("ideal", "the same order simulated with the median time of every op, messages free"),
    ("saves", "measured makespan − makespan of the what-if"),
)


@dataclass(frozen=True, eq=False)
class View:
    """The content of a report, in the order it is read."""

    title: str
    ranks: str
    """``8 ranks``, or ``4 of 8 ranks``, with those that are missing or damaged."""
    steps_named: str
    devices: tuple[str, ...]
    reader: str
    paths: tuple[str, ...]
    input_path: str | None
    """The input as one path: the only one, or the folder of all; None if there is none."""
    has_gpu: bool
    pipelined: bool
    """Whether the run has a pipeline; without one it has idle time and no bubble."""
    answer: tuple[Line, ...]
    advice: tuple[Advice, ...]
    budget: BudgetView
    labels: tuple[LabelRow, ...]
    matrix: Matrix | None
    beside: Table | None
    """Compute that ran beside each label."""
    idle: Table | None
    """Idle time of the ranks by cause, and their bubbles."""
    schedule: ScheduleView | None
    what_if_hint: Advice | None
    """That other schedules can be predicted, or why not; None without a schedule, or if they were predicted."""
    phases: Table | None
    """Hidden shares by phase for a run that overlaps micro-batches, if its schedule was not recognised."""
    blocking: Blocking | None
    """What blocks the step; None where the critical path does not tell."""
    critical: PathView | None
    """The critical path, if it was asked for."""
    changes: Table | None
    """Predicted step times with changes, if they were asked for."""
    by: ByView | None
    """The step by layer, module, annotation or shape, if it was asked for."""
    products: Table | None
    communication: Table | None
    experts: Table | None
    below_peak: str | None
    instead: Table | None
    """Activities of the host while the GPU waited for its next launch."""
    hiding: Table | None
    """Slowdown of compute that runs beside communication."""
    memory: Table | None
    stragglers: tuple[Straggler, ...]
    lateness: LatenessMap | None
    imbalance: Table | None
    slowdown: Table | None
    clock_note: str
    steps: Steps | None
    copies: Table | None
    """Copies by label, summed over ranks."""
    copies_by_rank: Table | None
    reload: ReloadView | None
    roles: RolesView | None
    """Roles, iterations and weight updates of a run whose ranks have several processes."""
    fleet: Spread | None
    """Distribution of figures over ranks, for a run of many ranks."""
    warnings: tuple[Notice, ...]
    definitions: tuple[tuple[str, str], ...]
    analysis: Analysis
    """The result itself, for timelines and counts."""

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """The longest kernels, and the evidence for their labels."""
        return kernels(self.analysis, self.input_path)

    @property
    def exposure(self) -> tuple[LabelRow, ...]:
        """Communication and copies, the most exposed first."""
        rows = [row for row in self.labels if row.kind != "compute"]
        return tuple(sorted(rows, key=lambda row: -row.exposed_ns))


_VIEWS: WeakKeyDictionary[Analysis, View] = WeakKeyDictionary()


def view_of(analysis: Analysis) -> View:
    """Return the content of every report of *analysis*; built once for each analysis.

    >>> from tracekit import analyze
    >>> view = view_of(analyze("sample_traces/reload", schedule="none"))
    >>> view.title, view.ranks, view.steps_named
    ('tracekit: reload, 4 ranks', '4 ranks', 'step 2')
    """
    if analysis not in _VIEWS:
        _VIEWS[analysis] = _build(analysis)
    return _VIEWS[analysis]


def _build(analysis: Analysis) -> View:
    path, labels, evidence = input_path(analysis), label_rows(analysis), collect_evidence(analysis)
    waited_for, schedule, blocked_by = stragglers(analysis), schedule_view(analysis), blocking(analysis)
    total_copies, copies_by_rank = copy_tables(analysis)
    quoted_path = None if path is None else shlex.quote(path)
    advice = [Advice(text) for text in role_advice(analysis)] or advise(evidence, path=quoted_path)
    critical = path_view(analysis)
    # What is uncertain about the critical path stands beside it.
    beside_path = () if critical is None or analysis.critical is None else analysis.critical.notices
    notices = [notice for notice in relevant_notices(analysis) if notice not in beside_path]
    next_steps = tuple(Advice(capitalize(line.text), line.command) for line in advice)
    return View(
        title=_title(analysis, path),
        ranks=_ranks(analysis),
        steps_named=_steps_named(analysis),
        devices=device_names(analysis.sources),
        reader="+".join(sorted({source.reader for source in analysis.sources})),
        paths=tuple(analysis.paths or (source.path for source in analysis.sources)),
        input_path=path,
        has_gpu=bool(analysis.total.budget.span_ns),
        pipelined=analysis.total.pipeline,
        answer=answer(
            analysis,
            labels=labels,
            schedule=schedule,
            stragglers=waited_for,
            advice=next_steps,
            blocking=blocked_by,
        ),
        advice=next_steps,
        budget=budget_view(analysis),
        labels=labels,
        matrix=matrix_of(analysis),
        beside=beside_table(analysis),
        idle=idle_table(analysis),
        schedule=schedule,
        what_if_hint=_what_if_hint(analysis, quoted_path),
        phases=unnamed_phases(analysis),
        blocking=blocked_by,
        critical=critical,
        changes=changes_table(analysis),
        by=by_view(analysis),
        **rate_tables(analysis),
        instead=host_activity_table(analysis),
        hiding=hiding_table(analysis),
        memory=memory_table(analysis),
        stragglers=waited_for,
        lateness=lateness_map(analysis),
        imbalance=imbalance_table(analysis),
        slowdown=slowdown_table(analysis),
        clock_note=clock_note(analysis),
        steps=steps_view(analysis),
        copies=total_copies,
        copies_by_rank=copies_by_rank,
        reload=reload_view(analysis),
        roles=roles_view(analysis),
        fleet=spread(analysis) if len(analysis.rank_results) > MANY_RANKS else None,
        warnings=tuple(shorten_notices(notices)),
        definitions=DEFINITIONS if schedule is None else (*DEFINITIONS, *SCHEDULE_DEFINITIONS),
        analysis=analysis,
    )


def _what_if_hint(analysis: Analysis, quoted_path: str | None) -> Advice | None:
    schedule = analysis.schedule
    if schedule is None or schedule.what_if:
        return None
    if schedule.no_prediction_reason:
        return Advice(f"other schedules cannot be predicted for this run: {schedule.no_prediction_reason}")
    command = None if quoted_path is None else f"tracekit analyze {quoted_path} --what-if"
    return Advice("`--what-if` predicts other schedules", command)


def shorten_notices(notices: Sequence[Notice]) -> list[Notice]:
    """Return the first notices of each kind and how many more there are; failed ranks are all listed.

    >>> [note.message for note in shorten_notices([Notice("cut", f"rank {n} ends early") for n in range(7)])][-2:]
    ['rank 4 ends early', '2 more like this']
    """
    shown: list[Notice] = []
    count_of: dict[str, int] = {}
    for notice in notices:
        count_of[notice.code] = count_of.get(notice.code, 0) + 1
        if count_of[notice.code] <= MAX_NOTICES_OF_A_KIND or notice.code == "rank-failed":
            shown.append(notice)
    shortened = []
    last_of_kind = {notice.code: i for i, notice in enumerate(shown)}
    for i, notice in enumerate(shown):
        shortened.append(notice)
        more = count_of[notice.code] - MAX_NOTICES_OF_A_KIND
        if more > 0 and i == last_of_kind[notice.code] and notice.code != "rank-failed":
            shortened.append(Notice(notice.code, f"{more} more like this"))
    return shortened


def _title(analysis: Analysis, path: str | None) -> str:
    schedule = "" if analysis.schedule is None else f"{analysis.schedule.name} on "
    name = (path or "").rstrip("/").rpartition("/")[2].partition("?")[0]
    # A folder that is named after its schedule is not named twice.
    run = f"{name}, " if name.strip(".") and schedule != f"{name} on " else ""
    return f"tracekit: {run}{schedule}{_ranks(analysis)}"


def _ranks(analysis: Analysis) -> str:
    """Return the number of ranks, and which of them are missing or damaged."""
    results, world = analysis.rank_results, analysis.world_size
    whole = [result.rank for result in results if result.whole.budget.span_ns]
    empty = [result.rank for result in results if not result.whole.budget.span_ns]
    missing_count, missing = missing_ranks([*whole, *empty], world or 0, most=MAX_MISSING_NAMED)
    more = f" and {missing_count - len(missing)} more" if missing_count > len(missing) else ""
    remarks = [
        f"{ranks_named(missing)}{more} missing" if missing else "",
        f"{ranks_named(empty)} without GPU events" if empty and whole else "",
        *(_cut_files(notice.message) for notice in analysis.notices if notice.code == "truncated"),
    ]
    of_world = f" of {world:,}" if world and world != len(whole) else ""
    count = f"{len(whole):,}{of_world} {'rank' if (world or len(whole)) == 1 else 'ranks'}"
    remark = "; ".join(dict.fromkeys(filter(None, remarks)))
    return f"{count} ({remark})" if remark and whole else count if whole else counted(len(results), "rank")


def _cut_files(message: str) -> str:
    """Return which ranks a notice of a truncated file is about."""
    ranks, _, rest = message.partition(":")
    return f"{ranks} truncated" if rest and ranks.startswith("rank") else "a file truncated"


def _steps_named(analysis: Analysis) -> str:
    steps = sorted({step for rank in analysis.rank_results for step in rank.steps})
    if not steps:
        return "no step marks"
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]}–{steps[-1]}"


def input_path(analysis: Analysis) -> str | None:
    """Return the input as one path: the only one, or the folder that holds them all; None if there is none.

    >>> from tracekit import analyze
    >>> input_path(analyze("sample_traces/reload", schedule="none"))
    'sample_traces/reload'
    """
    paths = dict.fromkeys(analysis.paths)
    folders = {path.rpartition("/")[0] for path in paths}
    if len(paths) == 1:
        return next(iter(paths))
    if analysis.role_results.roles and len(folders) > 1:  # a folder per role
        folders = {folder.rpartition("/")[0] for folder in folders}
    return (folders.pop() or ".") if len(folders) == 1 else None
