"""One typed view of an analysis (``view_of``), which terminal, page, Markdown and plots render.

It holds numbers, words and tables without their looks. Times are nanoseconds, shares are 0 to 1 of what the field's
docstring says, None is unknown. Figures *per rank* are means over ranks.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial
from typing import TypeVar

from tracekit._util.text import capitalize
from tracekit.analysis import Analysis
from tracekit.analysis.spread import MANY_RANKS, spread
from tracekit.errors import Notice
from tracekit.report.advice import Advice, advise
from tracekit.report.evidence import collect_evidence, relevant_notices
from tracekit.report.view import rates
from tracekit.report.view.answer import Line, answer
from tracekit.report.view.blocking import blocking
from tracekit.report.view.budget import LabelRow, beside_table, budget_view, hiding_table, label_rows, matrix_table
from tracekit.report.view.copies import copy_table, memory_table, reload_view
from tracekit.report.view.inputs import describe_ranks, describe_steps, input_path, run_title
from tracekit.report.view.kernels import Kernel, kernels
from tracekit.report.view.lateness import imbalance_table, lateness_map, slowdown_table
from tracekit.report.view.path import changes_table, path_view
from tracekit.report.view.pipeline import schedule_view, unnamed_phases
from tracekit.report.view.ranks import host_activity_table, idle_table, steps_view, straggler_table, stragglers
from tracekit.report.view.roles import role_advice, role_tables
from tracekit.report.words import WORDS

__all__ = ["View", "shorten_notices", "view_of"]

MAX_NOTICES_OF_A_KIND = 5
"""Warnings of one kind that are shown one by one."""


Result = TypeVar("Result")


def computed(function: Callable[[Analysis], Result]) -> cached_property[Result]:
    """Return an attribute of the view: what *function* returns for its analysis, computed when it is first read."""
    return cached_property(lambda view: function(view.analysis))


class View:
    """The content of a report, in the order it is read."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.paths = tuple(analysis.paths or (source.path for source in analysis.sources))
        self.devices = rates.device_names(analysis.sources)
        self.reader = "+".join(sorted({source.reader for source in analysis.sources}))
        self.input_path = input_path(analysis)
        self.quoted_path = None if self.input_path is None else shlex.quote(self.input_path)
        self.pipelined = analysis.total.pipeline
        """Whether the run has a pipeline; without one it has idle time and no bubble."""

    title = computed(run_title)
    ranks = computed(describe_ranks)
    """``8 ranks``, or ``4 of 8 ranks``, with those that are missing or damaged."""
    steps_named = computed(describe_steps)
    budget = computed(budget_view)
    labels = computed(label_rows)
    matrix = computed(matrix_table)
    """Compute labels that hide each label."""
    beside = computed(beside_table)
    """Compute that ran beside each label."""
    idle = computed(idle_table)
    """Idle time of the ranks by cause, and their bubbles."""
    schedule = computed(schedule_view)
    phases = computed(unnamed_phases)
    """Hidden shares by phase for a run that overlaps micro-batches, if its schedule was not recognised."""
    blocking = computed(blocking)
    """What blocks the step; None where the critical path does not tell."""
    critical = computed(path_view)
    """The critical path, if it was asked for."""
    changes = computed(changes_table)
    """Predicted step times with changes, if they were asked for."""
    by = computed(rates.by_view)
    """The step by layer, module, annotation or shape, if it was asked for."""
    products = computed(rates.products_table)
    communication = computed(rates.communication_table)
    experts = computed(rates.experts_table)
    below_peak = computed(rates.below_peak)
    instead = computed(host_activity_table)
    """Activities of the host while the GPU waited for its next launch."""
    hiding = computed(hiding_table)
    """Slowdown of compute that runs beside communication."""
    memory = computed(memory_table)
    stragglers = computed(stragglers)
    waited_for = computed(straggler_table)
    """The stragglers as a table."""
    lateness = computed(lateness_map)
    imbalance = computed(imbalance_table)
    slowdown = computed(slowdown_table)
    steps = computed(steps_view)
    copies = computed(copy_table)
    """Copies by label, summed over ranks."""
    copies_by_rank = computed(partial(copy_table, by_rank=True))
    reload = computed(reload_view)
    roles = computed(role_tables)
    """Tables of roles, iterations and weight updates of a run whose ranks have several processes."""
    fleet = computed(lambda analysis: spread(analysis) if len(analysis.rank_results) > MANY_RANKS else None)
    """Distribution of figures over ranks, for a run of many ranks."""

    @cached_property
    def answer(self) -> tuple[Line, ...]:
        """The answer in a few lines."""
        return answer(self)

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """What to do next, the most important first."""
        lines = [Advice(text) for text in role_advice(self.analysis)]
        lines = lines or advise(collect_evidence(self.analysis), path=self.quoted_path)
        return tuple(Advice(capitalize(line.text), line.command) for line in lines)

    @property
    def what_if_hint(self) -> Advice | None:
        """That other schedules can be predicted, or why not; None without a schedule, or if they were predicted."""
        schedule = self.analysis.schedule
        if schedule is None or schedule.what_if:
            return None
        if schedule.no_prediction_reason:
            return Advice(f"other schedules cannot be predicted for this run: {schedule.no_prediction_reason}")
        command = None if self.quoted_path is None else f"tracekit analyze {self.quoted_path} --what-if"
        return Advice("`--what-if` predicts other schedules", command)

    @cached_property
    def warnings(self) -> tuple[Notice, ...]:
        """The notices for a reader, without what is uncertain about the critical path, which stands beside it."""
        critical = self.analysis.critical
        beside_path = () if self.critical is None or critical is None else critical.notices
        notices = [notice for notice in relevant_notices(self.analysis) if notice not in beside_path]
        return tuple(shorten_notices(notices))

    @property
    def definitions(self) -> tuple[tuple[str, str], ...]:
        """Name and meaning of each number."""
        of_schedule = {} if self.schedule is None else WORDS.schedule_definitions
        return tuple({**WORDS.definitions, **of_schedule}.items())

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """The longest kernels, and the evidence for their labels."""
        return kernels(self.analysis, self.quoted_path)

    @property
    def exposure(self) -> tuple[LabelRow, ...]:
        """Communication and copies, the most exposed first."""
        rows = [row for row in self.labels if row.kind != "compute"]
        return tuple(sorted(rows, key=lambda row: -row.exposed_ns))


@lru_cache(maxsize=4)
def view_of(analysis: Analysis) -> View:
    """Return the content of every report of *analysis*; the latest views are kept, for several outputs of one analysis.

    >>> from tracekit import analyze
    >>> view = view_of(analyze("sample_traces/reload", schedule="none"))
    >>> view.title, view.ranks, view.steps_named
    ('tracekit: reload, 4 ranks', '4 ranks', 'step 2')
    """
    return View(analysis)


def shorten_notices(notices: Sequence[Notice]) -> list[Notice]:
    """Return the first notices of each kind and how many more there are; failed ranks are all listed.

    >>> [note.message for note in shorten_notices([Notice("cut", f"rank {n} ends early") for n in range(7)])][-2:]
    ['rank 4 ends early', '2 more like this']
    """
    totals = Counter(notice.code for notice in notices)
    count_so_far: Counter[str] = Counter()
    shown: list[Notice] = []
    for notice in notices:
        count_so_far[notice.code] += 1
        count, more = count_so_far[notice.code], totals[notice.code] - MAX_NOTICES_OF_A_KIND
        if count <= MAX_NOTICES_OF_A_KIND or notice.code == "rank-failed":
            shown.append(notice)
        if count == MAX_NOTICES_OF_A_KIND and more > 0 and notice.code != "rank-failed":
            shown.append(Notice(notice.code, f"{more} more like this"))
    return shown
