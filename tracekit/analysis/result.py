"""The result of an analysis, which every report, gate and picture is made from.

``BaseAnalysis`` is what an ``Analysis`` and one read back from JSON (``analysis.persistence``) have
in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, overload

import msgspec
import polars as pl

from tracekit._util.notebook import html_table
from tracekit._util.text import counted, ms, percent
from tracekit.align.clocks import Clocks
from tracekit.analysis.combine.stragglers import Stragglers
from tracekit.analysis.measured import Measured, RankResult
from tracekit.documents.analysis import AnalysisDocument, Hiding, Slowdown, StepKind
from tracekit.documents.coding import HasDocument
from tracekit.documents.roles import Iteration, PhaseBand, WeightUpdate
from tracekit.errors import Notice, OptionError
from tracekit.metrics.budget import Budget
from tracekit.metrics.overlap import ratio
from tracekit.metrics.step_time import FreeStep, StepSummary, summarize_steps
from tracekit.parsers.source_refs import unknown_rank_error
from tracekit.schema import Source
from tracekit.weight_updates import ReloadSummary

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tracekit.against_ideal import ScheduleComparison
    from tracekit.analysis.combine.communication import RunRates
    from tracekit.analysis.combine.memory import RunMemory
    from tracekit.analysis.measure.by import By
    from tracekit.analysis.measure.rank_timeline import RankTimeline
    from tracekit.critical_path.path import CriticalPath
    from tracekit.documents.analysis import ChangedStep
    from tracekit.documents.findings import Finding
    from tracekit.report.view import View
    from tracekit.whatif.changes import WhatIfGraph
    from tracekit.whole_run.result import WholeRun


class UnknownTableError(OptionError, KeyError):
    """There is no table of this name; the hint names those there are."""


class Tables(Mapping[str, pl.DataFrame]):
    """Tables by name, each computed when it is first used: most uses need few of them.

    >>> tables = Tables({"steps": lambda: pl.DataFrame({"step": [1, 2]})})
    >>> tables, len(tables), tables["steps"].height
    (<Tables: steps>, 1, 2)
    >>> tables["labels"]
    Traceback (most recent call last):
    tracekit.analysis.result.UnknownTableError: there is no table 'labels' (there are: steps)
    """

    def __init__(self, functions: Mapping[str, Callable[[], pl.DataFrame]]) -> None:
        self._functions = {name: cache(function) for name, function in functions.items()}

    @classmethod
    def of(cls, computed: Mapping[str, pl.DataFrame]) -> Tables:
        """Return tables that are computed already."""
        return cls({name: table.clone for name, table in computed.items()})

    def __getitem__(self, name: str) -> pl.DataFrame:
        if name not in self._functions:
            raise UnknownTableError(
                f"there is no table {name!r}", hint=f"there are: {', '.join(self)}"
            )
        return self._functions[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._functions

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def __repr__(self) -> str:
        return f"<Tables: {', '.join(self)}>"

    def __reduce__(self) -> tuple[Callable[..., Tables], tuple[dict[str, pl.DataFrame]]]:
        return Tables.of, (dict(self),)  # the functions cannot be pickled


class BaseAnalysis(HasDocument):
    """The figures of every rank.

    ``tables`` holds them as polars tables; ``to_dict`` is the JSON.
    """

    rank_results: tuple[RankResult, ...]
    tables: Mapping[str, pl.DataFrame]

    @cached_property
    def total(self) -> Measured:
        """The figures of all ranks together: times are sums over ranks, shares are ratios of these sums."""
        return Measured.total(result.whole for result in self.rank_results)

    @property
    def free_step(self) -> FreeStep | None:
        """The step without the profiler; None if it is not known."""
        return None

    @cached_property
    def step(self) -> StepSummary:
        """The step time of the run, as recorded and without the profiler."""
        recorded = summarize_steps(
            {result.rank: result.timed_steps for result in self.rank_results}
        )
        return msgspec.structs.replace(recorded, free=self.free_step)

    def rank(self, rank: int) -> RankResult:
        """Return one rank's result."""
        for result in self.rank_results:
            if result.rank == rank:
                return result
        raise unknown_rank_error([rank], (result.rank for result in self.rank_results))

    @overload
    def to_pandas(self) -> dict[str, pd.DataFrame]: ...

    @overload
    def to_pandas(self, name: str) -> pd.DataFrame: ...

    def to_pandas(self, name: str | None = None) -> dict[str, pd.DataFrame] | pd.DataFrame:
        """Return the table *name* as a pandas data frame; without a name all tables, by name."""
        if name is not None:
            return self.tables[name].to_pandas()
        return {table_name: table.to_pandas() for table_name, table in self.tables.items()}

    def _repr_html_(self) -> str:
        step = self.step
        rows = [_notebook_row("run", step.time_ns, step.budget, self.total)]
        for result in self.rank_results:
            budget = summarize_steps({result.rank: result.timed_steps}).budget
            rows.append(
                _notebook_row(str(result.rank), step.by_rank.get(result.rank), budget, result.whole)
            )
        heads = (
            "rank",
            "step ms",
            "compute",
            "exposed",
            "idle",
            *(["bubble"] if self.total.pipeline else []),
        )
        title = repr(self)[1:-1].partition(": ")[2]
        return html_table(title, heads, rows)

    def __repr__(self) -> str:
        count = len(self.rank_results)
        steps: set[int | None] = set()
        for result in self.rank_results:
            steps.update(result.steps)
        parts = [counted(count, "rank"), *([counted(len(steps), "step")] if steps else [])]
        what = "step time" if self.step.is_marked else "extent"
        time = "unknown" if self.step.time_ns is None else ms(self.step.time_ns, digits=3)
        return f"<{type(self).__name__}: {', '.join(parts)}, {what} {time}>"


def _notebook_row(name: str, time_ns: int | None, budget: Budget, figures: Measured) -> list[str]:
    """Return a row of the notebook's table: the step time, the shares of its parts, and the bubble of *figures*."""
    from tracekit.report.text import at_least

    shares = [
        ratio(budget.compute_ns, budget.span_ns),
        ratio(sum(budget.exposed_ns.values()), budget.span_ns),
        ratio(budget.idle_ns, budget.span_ns) if figures.idle_known else None,
    ]
    bubble = (
        [at_least(percent(figures.bubble_fraction), figures.lower_bound)]
        if figures.pipeline
        else []
    )
    time = "–" if time_ns is None else f"{time_ns / 1e6:,.3f}"
    return [name, time, *map(percent, shares), *bubble]


class Role(msgspec.Struct, frozen=True, eq=False):
    """One kind of process, analysed as a run of its own."""

    name: str
    kind: str
    """``trainer``, ``rollout``, ``inference`` (forward only, no growing cache),
    ``parameter_server``, ``inference_worker`` (takes weights only) or ``unknown``."""
    ranks: tuple[int, ...]
    analysis: Analysis
    clocks: Clocks
    """Clocks of its ranks on the time axis that all roles share."""


class RoleResults(msgspec.Struct, frozen=True, eq=False):
    """Everything about a run that its roles' own analyses do not hold."""

    main_role: str | None = None
    roles: tuple[Role, ...] = ()
    iterations: tuple[Iteration, ...] = ()
    weight_updates: tuple[WeightUpdate, ...] = ()
    bands: tuple[PhaseBand, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class Analysis(BaseAnalysis):
    """The analysis of a run: where the step's time went on every rank. ``to_dict`` is its JSON.

    >>> from tracekit.run.analyze import analyze
    >>> analysis = analyze("sample_traces/reload", schedule="none")
    >>> analysis
    <Analysis: 4 ranks, 1 step, step time 105.362 ms>
    >>> analysis.rank_results[0].whole.budget.span_ns
    104587652
    >>> analysis.to_dict()["source"]["ranks"]
    [0, 1, 2, 3]
    """

    sources: tuple[Source, ...]
    rank_results: tuple[RankResult, ...]
    """One result per rank, in the order of their numbers."""
    tables: Mapping[str, pl.DataFrame]
    clocks: Clocks
    reload: ReloadSummary | None = None
    """The longest weight update by rank and lane, if the same processes broadcast and reload."""
    rates: RunRates | None = None
    """Speed of matrix products and communication, if shapes and sizes were recorded."""
    memory: RunMemory | None = None
    """Memory that the ranks' allocators held; None if it was not recorded."""
    schedule: ScheduleComparison | None = None
    """Comparison of the run with its ideal (``tracekit.against_ideal``); if None, the notices tell
    why."""
    stragglers: Stragglers = field(default_factory=Stragglers)
    """Ranks that others wait for, in which steps and why."""
    hiding: Hiding | None = None
    """Time that hiding communication saved and cost; None if no compute ran beside
    communication."""
    critical: CriticalPath | None = None
    """The critical path across ranks, if it was asked for."""
    walked_path: CriticalPath | None = None
    """The same path in any case, without pipeline cells and causes: what blocks the step is read
    from it."""
    graph: WhatIfGraph | None = None
    """The run's events with what each waited for; with ``analyze(..., what_if=True)``."""
    replay_graph: WhatIfGraph | None = None
    """The same in any case, for runs of few enough ranks: savings of findings are predicted with
    it."""
    changed_steps: tuple[ChangedStep, ...] = ()
    """Predicted step times with the changes that were asked for, or that would save most."""
    by: By | None = None
    """The step by layer, module, annotation or shape, if it was asked for."""
    notices: tuple[Notice, ...] = ()
    paths: tuple[str, ...] = field(default=())
    shapes: tuple[str, ...] = ()
    """Input shapes of the model's matrix products, if they were recorded."""
    tokens_per_step: float | None = None
    """Tokens of a step over all ranks, a mean over steps; None if no token embedding was
    recorded."""
    step_kinds: tuple[StepKind, ...] = ()
    """Prefill and decode steps, if an inference server marked them."""
    events: tuple[RankTimeline, ...] = ()
    """Single events of each rank, for the page; empty for runs of more ranks than can be kept."""
    whole_run: WholeRun | None = None
    """Lateness and hangs over the whole run, if flight-recorder dumps or NCCL Inspector logs lie
    beside the traces."""
    role_results: RoleResults = field(default_factory=RoleResults)
    """Roles, weight updates and iterations of a run whose ranks have several processes."""

    def __post_init__(self) -> None:
        from tracekit.report.notices import with_messages

        object.__setattr__(self, "notices", with_messages(self.notices))

    @property
    def free_step(self) -> FreeStep | None:
        """The step without the profiler; None if it is not known."""
        return None if self.replay_graph is None else self.replay_graph.free_step

    @property
    def world_size(self) -> int | None:
        """Number of ranks in the run, as far as the files show."""
        return max(
            (source.world_size for source in self.sources if source.world_size is not None),
            default=None,
        )

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What costs time, why, what to do and what it would save, those with the largest saving first."""
        from tracekit.findings import find
        from tracekit.report.findings import with_sentences

        return with_sentences(find(self))

    def without_critical_path(self) -> Analysis:
        """Return the analysis as if its critical path had not been asked for."""
        if self.critical is None:
            return self
        hidden = {"critical_path", "slack"}
        shown_tables = {}
        for name in self.tables:
            if name not in hidden:
                shown_tables[name] = partial(self.tables.__getitem__, name)
        tables = Tables(shown_tables)
        notices = tuple(notice for notice in self.notices if notice not in self.critical.notices)
        return replace(self, critical=None, tables=tables, notices=notices)

    @cached_property
    def slowdown(self) -> Slowdown | None:
        """Slowdown of the pipeline by stage, kind of cell and rank; None without one."""
        if self.schedule is None:
            return None
        from tracekit.against_ideal.replay import pipeline_slowdown

        return pipeline_slowdown(self.schedule)

    def to_document(self) -> AnalysisDocument:
        """Return the JSON document (``format: tracekit.analysis/2``)."""
        from tracekit.analysis.document import build_document

        return build_document(self)

    def what_if(self, *changes: str) -> ChangedStep:
        """Return the predicted step with all *changes* at once, such as ``rank 2 like others`` or ``dp_comm x0.5``.

        The analysis must have been made with ``analyze(..., what_if=True)``, which keeps the run's
        events.

        >>> from tracekit.run.analyze import analyze
        >>> analysis = analyze("sample_traces/reload", schedule="none", what_if=True)
        >>> step = analysis.what_if("broadcast x0.5")
        >>> step.measured_ns > step.predicted_ns
        True
        """
        if self.graph is None:
            raise OptionError(
                "the run's events were not kept", hint="use analyze(..., what_if=True)"
            )
        return self.graph.predict(changes)

    @cached_property
    def view(self) -> View:
        """Its content as reports show it: lines of the answer, tables, advice.

        Made once for all of them.

        >>> from tracekit.run.analyze import analyze
        >>> analyze("sample_traces/reload", schedule="none").view.title
        'tracekit: reload, 4 ranks'
        """
        from tracekit.report.view import View

        return View(self)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: all but the view, which is made again."""
        state = dict(vars(self))
        state.pop("view", None)
        return state

    @property
    def plot(self) -> Plots:
        """Its pictures: ``analysis.plot.schedule()`` and others, each a matplotlib ``Figure``."""
        return Plots(self)

    def save(self, path: str | PathLike[str], *, plot: str | None = None) -> None:
        """Write it to *path*.

        The extension selects the format: .html .json .md .parquet .csv .xlsx .png .svg .pdf.

        *plot* names the content of a picture; by default the schedule if there is one, else the
        budget.

        >>> import tempfile
        >>> from tracekit import analyze, read_analysis
        >>> file = tempfile.mkdtemp() + "/reload.json"
        >>> analyze("sample_traces/reload", schedule="none").save(file)
        >>> read_analysis(file).rank_results[0].whole.budget.span_ns
        104587652
        """
        from tracekit.report.write import write

        write(self, path, plot=plot)


class Plots:
    """The pictures of an analysis (``Analysis.plot``), one method each.

    A picture is drawn on *ax* if it is given.

    >>> from tracekit import analyze
    >>> figure = analyze("sample_traces/reload", schedule="none").plot.budget()
    >>> figure.axes[0].get_title(loc="left")
    'Where the time of each rank went'
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis

    def schedule(
        self, *, show: Literal["both", "measured", "ideal"] = "both", ax: Axes | None = None
    ) -> Figure:
        """Draw the pipeline as it ran above its ideal, or one of them."""
        return self._draw("schedule", show=show, ax=ax)

    def budget(self, *, ax: Axes | None = None) -> Figure:
        """Draw where the time of each rank went: compute, exposed communication and copies, idle."""
        return self._draw("budget", ax=ax)

    def overlap(self, *, ax: Axes | None = None) -> Figure:
        """Draw which compute hides how much of each communication and copy label."""
        return self._draw("overlap", ax=ax)

    def gap(self, *, ax: Axes | None = None) -> Figure:
        """Draw the way from the ideal makespan to the measured one, cause by cause."""
        return self._draw("gap", ax=ax)

    def lanes(
        self, *, rank: int | None = None, step: int | None = None, ax: Axes | None = None
    ) -> Figure:
        """Draw one rank's compute, communication and copies in one step.

        By default the first rank's.
        """
        return self._draw("lanes", rank=rank, step=step, ax=ax)

    def timeline(
        self,
        *,
        ranks: Iterable[int] | None = None,
        start_ms: float | None = None,
        end_ms: float | None = None,
        ax: Axes | None = None,
    ) -> Figure:
        """Draw several ranks' lanes between two times after the step's first event.

        By default from its middle.
        """
        return self._draw("timeline", ranks=ranks, start_ms=start_ms, end_ms=end_ms, ax=ax)

    def memory(self, *, ax: Axes | None = None) -> Figure:
        """Draw the ranks' memory over time above the pipeline's cells."""
        return self._draw("memory", ax=ax)

    def flame(self, *, rank: int | None = None, ax: Axes | None = None) -> Figure:
        """Draw what allocated the memory at the peak, by stack.

        By default that of the fullest rank.
        """
        return self._draw("flame", rank=rank, ax=ax)

    def curve(self, *, ax: Axes | None = None) -> Figure:
        """Draw the predicted time per micro-batch over their number.

        Needs ``analyze(..., what_if=True)``.
        """
        return self._draw("curve", ax=ax)

    def __repr__(self) -> str:
        names = [name for name in vars(type(self)) if not name.startswith("_")]
        return f"<Plots: {', '.join(names)}>"

    def _draw(self, name: str, **options: Any) -> Figure:
        from tracekit.report.plot import draw

        return draw(self._analysis, name, **options)
