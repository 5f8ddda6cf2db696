"""One typed view of an analysis (``view_of``), which terminal, page, Markdown and plots render.

It holds numbers, words and tables without their looks. Times are nanoseconds, shares are 0 to 1 of
what the field's docstring says, None is unknown. Figures *per rank* are means over ranks.
"""

import re
import shlex
from collections.abc import Callable, Collection
from functools import cached_property, partial
from typing import TypeVar

from tracekit._util.text import counted, ranks_named
from tracekit.analysis import Analysis
from tracekit.analysis.combine.spread import MANY_RANKS, spread
from tracekit.documents.findings import Finding
from tracekit.errors import Notice
from tracekit.findings.families import kind_of
from tracekit.report.blocks import Sentence
from tracekit.report.clock_words import badge_of
from tracekit.report.findings import (
    absent_costs,
    findings_of,
    shown_findings,
)
from tracekit.report.gap_words import missing_ranks_named, relevant_notices
from tracekit.report.notices import NoticeLine, shorten_notices
from tracekit.report.table import Table
from tracekit.report.view import idle as idle_tables
from tracekit.report.view import kernels as kernel_tables
from tracekit.report.view import operators as operator_tables
from tracekit.report.view import places, rates
from tracekit.report.view import ranks as rank_tables
from tracekit.report.view import stragglers as straggler_tables
from tracekit.report.view.budget import (
    BudgetView,
    LabelRow,
    beside_table,
    hiding_matrix,
    hiding_table,
    label_rows,
)
from tracekit.report.view.changed_steps import changes_table
from tracekit.report.view.copies import copy_table, reload_view
from tracekit.report.view.path import path_view
from tracekit.report.view.pipeline import ScheduleView, unnamed_phases
from tracekit.report.words import WORDS

__all__ = ["View", "input_path", "view_of"]

Result = TypeVar("Result")


def describe_ranks(analysis: Analysis) -> str:
    """Return the number of ranks, and which of them are missing or damaged."""
    results = analysis.rank_results
    world = analysis.world_size
    whole: list[int] = []
    empty: list[int] = []
    for result in results:
        if result.whole.budget.span_ns:
            whole.append(result.rank)
        else:
            empty.append(result.rank)
    if not whole:
        return counted(len(results), "rank")
    remarks = []
    missing = missing_ranks_named([*whole, *empty], world)
    if missing:
        remarks.append(f"{missing} missing")
    if empty:
        remarks.append(f"{ranks_named(empty)} without GPU events")
    remarks += [_cut_files(notice) for notice in analysis.notices if notice.code == "truncated"]
    of_world = f" of {world:,}" if world and world != len(whole) else ""
    noun = "rank" if (world or len(whole)) == 1 else "ranks"
    count = f"{len(whole):,}{of_world} {noun}"
    if not remarks:
        return count
    return f"{count} ({'; '.join(dict.fromkeys(remarks))})"


def _cut_files(notice: Notice) -> str:
    """Return which ranks a notice of a truncated file is about."""
    return f"{ranks_named(notice.ranks)} truncated" if notice.ranks else "a file truncated"


def input_path(analysis: Analysis) -> str | None:
    """Return the input as one path: the only one, or the folder that holds them all.

    None if there is none.

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


def computed(function: Callable[[Analysis], Result]) -> cached_property[Result]:
    """Return an attribute of the view: what *function* returns for its analysis, computed when it is first read."""
    return cached_property(lambda view: function(view.analysis))


class View:
    """The content of a report, in the order it is read."""

    def __init__(self, analysis: Analysis, *, changes_asked: bool = False) -> None:
        self.analysis = analysis
        self.changes_asked = changes_asked
        """Whether its changes were asked for, not only listed."""
        self.paths = tuple(analysis.paths or (source.path for source in analysis.sources))
        self.devices = rates.device_names(analysis.sources)
        self.reader = "+".join(sorted({source.reader for source in analysis.sources}))
        self.input_path = input_path(analysis)
        self.quoted_path = None if self.input_path is None else shlex.quote(self.input_path)
        self.pipelined = analysis.total.pipeline
        """Whether the run has a pipeline; without one it has idle time and no bubble."""

    ranks = computed(describe_ranks)
    """``8 ranks``, or ``4 of 8 ranks``, with those that are missing or damaged."""
    budget = computed(BudgetView)
    labels = computed(label_rows)
    matrix = computed(hiding_matrix)
    """Compute labels that hide each label."""
    beside = computed(beside_table)
    """Compute that ran beside each label."""
    idle = computed(idle_tables.idle_table)
    """Idle time of the ranks by cause, and their bubbles."""
    schedule = computed(
        lambda analysis: None if analysis.schedule is None else ScheduleView(analysis.schedule)
    )
    """The comparison of the run with its ideal; None if no schedule was recognised."""
    phases = computed(unnamed_phases)
    """Hidden shares by phase for a run that overlaps micro-batches, if its schedule was not
    recognised."""
    critical = computed(path_view)
    """The critical path."""
    by = computed(places.by_table)
    """The step by layer, module, annotation or shape, if it was asked for."""
    products = computed(rates.products_table)
    communication = computed(rates.communication_table)
    experts = computed(rates.experts_table)
    below_peak = computed(rates.below_peak)
    instead = computed(idle_tables.host_activity_table)
    """Activities of the host while the GPU waited for its next launch."""
    hiding = computed(hiding_table)
    """Slowdown of compute that runs beside communication."""
    stragglers = computed(straggler_tables.stragglers)
    waited_for = computed(straggler_tables.straggler_table)
    """The stragglers as a table."""
    lateness = computed(straggler_tables.lateness_map)
    imbalance = computed(rank_tables.imbalance_table)
    slowdown = computed(rank_tables.slowdown_table)
    steps = computed(rank_tables.steps_view)
    copies = computed(copy_table)
    """Copies by label, summed over ranks."""
    copies_by_rank = computed(partial(copy_table, by_rank=True))
    reload = computed(reload_view)
    clocks = computed(badge_of)
    """How well the ranks' clocks agree; None for one rank."""
    fleet = computed(
        lambda analysis: spread(analysis) if len(analysis.rank_results) > MANY_RANKS else None
    )
    """Distribution of figures over ranks, for a run of many ranks."""

    @cached_property
    def changes(self) -> Table | None:
        """Predicted step times with changes that were asked for, or that would save most."""
        return changes_table(self.analysis, asked=self.changes_asked)

    @cached_property
    def run_name(self) -> str:
        """Name of the input: the last part of its path; empty if there are several."""
        folder, _, name = (self.input_path or "").partition("?")[0].rstrip("/").rpartition("/")
        if re.match(r"(trace|rank\d+)\b", name):  # such a name says nothing: the folder's does
            name = folder.rpartition("/")[2] or name
        return re.sub(r"(\.pt)?(\.trace)?\.json(\.gz)?$", "", name).strip(".")

    @cached_property
    def role_findings(self) -> tuple[Finding, ...]:
        """The findings about iterations and weight updates, with which the list begins; empty for other runs."""
        return tuple(finding for finding in self.findings if kind_of(finding).of_iterations)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What costs time, those with the largest saving first; small ones are left out."""
        return shown_findings(findings_of(self.analysis))

    @property
    def not_wrong(self) -> str:
        """What costs nothing, in a few words; empty if that is not known."""
        host_recorded = not self.analysis.tables["host_time"].is_empty()
        return absent_costs(
            findings_of(self.analysis),
            self.analysis.step.stated_budget,
            host_recorded=host_recorded,
        )

    @property
    def what_if_hint(self) -> Sentence | None:
        """That other schedules can be predicted, or why not.

        None without a schedule, or if they were predicted.
        """
        schedule = self.analysis.schedule
        if schedule is None or schedule.what_if:
            return None
        if schedule.no_prediction_reason:
            return Sentence(
                f"other schedules cannot be predicted for this run: {schedule.no_prediction_reason}"
            )
        command = ""
        if self.quoted_path is not None:
            command = f"tracekit analyze {self.quoted_path} --what-if"
        return Sentence("`--what-if` predicts other schedules", command=command)

    @cached_property
    def warnings(self) -> tuple[NoticeLine, ...]:
        """The notices for a reader."""
        return tuple(shorten_notices(relevant_notices(self.analysis)))

    @property
    def by_title(self) -> str:
        """The title of that table; empty if it was not asked for."""
        return "" if self.analysis.by is None else WORDS.by_titles[self.analysis.by.kind]

    @property
    def by_meaning(self) -> str:
        """What its figures are; empty if it was not asked for."""
        return "" if self.analysis.by is None else WORDS.by_meanings[self.analysis.by.kind]

    @property
    def definitions(self) -> tuple[tuple[str, str], ...]:
        """Name and meaning of each number."""
        of_schedule = {} if self.schedule is None else WORDS.schedule_definitions
        return tuple({**WORDS.definitions, **of_schedule}.items())

    @cached_property
    def kernels(self) -> tuple[kernel_tables.KernelRow, ...]:
        """The longest kernels, and the evidence for their labels."""
        return kernel_tables.kernels(self.analysis, self.quoted_path)

    @property
    def kernel_table(self) -> Table | None:
        """The longest kernels as a table; None if there are none."""
        return kernel_tables.kernel_table(self.kernels)

    operators = computed(operator_tables.operator_table)
    """The operators that take longest, with what they were given."""

    @property
    def exposure(self) -> tuple[LabelRow, ...]:
        """Communication and copies, the most exposed first."""
        rows = [row for row in self.labels if row.kind != "compute"]
        return tuple(sorted(rows, key=lambda row: -row.exposed_ns))


def view_of(analysis: Analysis, show: Collection[str] = ()) -> View:
    """Return the content of every report of *analysis*, which keeps it for several outputs.

    *show* are the sections that were asked for.

    >>> from tracekit import analyze
    >>> view = view_of(analyze("sample_traces/reload", schedule="none"))
    >>> view.run_name, view.ranks
    ('reload', '4 ranks')
    """
    return analysis.once(_view_with_changes if "changes" in show else View)


def _view_with_changes(analysis: Analysis) -> View:
    return View(analysis, changes_asked=True)
