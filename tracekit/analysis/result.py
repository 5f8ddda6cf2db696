"""The result of an analysis, which every report, gate and picture is made from.

Its figures have the names and types of the JSON document. What only events tell stands beside them
under names of its own (``comparison``, ``rate_tables``, ``graph``, …), and is None in an analysis that was
read back from JSON (``analysis.saved``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, overload

import msgspec
import polars as pl

from tracekit._util.arguments import checked_words
from tracekit._util.text import counted, ms
from tracekit.align.clocks import Clocks
from tracekit.analysis.combine.stragglers import Stragglers
from tracekit.analysis.measured import total_figures
from tracekit.documents.analysis import (
    AnalysisDocument,
    ByTable,
    ComparedSchedule,
    Figures,
    Hiding,
    Imbalance,
    Lateness,
    Memory,
    RankFigures,
    Rates,
    Reload,
    Slowdown,
    Step,
    StepKind,
    Straggler,
    Workload,
)
from tracekit.documents.coding import known
from tracekit.documents.findings import Place
from tracekit.documents.roles import Iteration, PhaseBand, WeightUpdate
from tracekit.errors import Notice, OptionError
from tracekit.graph.change import parse_change
from tracekit.metrics.alternatives.own import NO_OWN_ADVICE, OwnAdvice
from tracekit.metrics.step_time import summarize_steps, with_free_step
from tracekit.parsers.rank_numbers import unknown_rank_error
from tracekit.schema import Source, has_stacks

if TYPE_CHECKING:
    import pandas as pd

    from tracekit.analysis.combine.communication import RunRates
    from tracekit.analysis.measure.by import By
    from tracekit.analysis.measure.rank_timeline import RankTimeline
    from tracekit.documents.analysis import ChangedStep
    from tracekit.graph.changes import WhatIfGraph
    from tracekit.graph.critical_path import CriticalPath
    from tracekit.pipeline.against_ideal import ScheduleComparison


Result = TypeVar("Result")


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


class Computed(Generic[Result]):
    """A value that is computed when it is first asked for, and kept.

    >>> answer = Computed(lambda: 42)
    >>> answer(), answer()
    (42, 42)
    """

    def __init__(self, compute: Callable[[], Result]) -> None:
        self._compute = cache(compute)

    def __call__(self) -> Result:
        """Return the value."""
        return self._compute()

    @classmethod
    def of(cls, value: Result) -> Computed[Result]:
        """Return a value that is computed already."""
        return cls(lambda: value)

    def __reduce__(self) -> tuple[Callable[[Result], Computed[Result]], tuple[Result]]:
        return Computed.of, (self(),)  # the function cannot be pickled


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


class MemoryOfRun(Protocol):
    """Memory that the allocators of all ranks held, as the room ``memory`` combines it."""

    @property
    def figures(self) -> Memory:
        """The figures of the document."""

    def with_needs(self, comparison: ScheduleComparison) -> ScheduleComparison:
        """Return the comparison with the memory that each other schedule would need, if that can be estimated."""

    def needed_with_microbatches(
        self, comparison: ScheduleComparison, count: int
    ) -> tuple[tuple[int, int | None] | None, bool | None]:
        """Return the range of the fullest rank's peak with *count* micro-batches, and if it fits; None: unknown."""


class LineReader(Protocol):
    """What reads the lines of the program at places of a rank (``metrics.host.time_by_activity.HOST_PLACES``)."""

    @property
    def ranks_read(self) -> Collection[int]:
        """Ranks whose stacks were read so far."""

    def __call__(self, rank: int, places: pl.DataFrame) -> Mapping[tuple[int, int], str] | None:
        """Return the line of each place in a recorded function by its start and end; None if it cannot be read."""


class Finder(Protocol):
    """What looks for findings in an analysis: a class of findings, or an entry of a catalogue of them."""

    @property
    def independent_of_steps(self) -> bool:
        """Whether it is asked also where all that was recorded is start-up, or the capture of graphs."""

    @property
    def of_iterations(self) -> bool:
        """Whether it is asked also where there are no steps, about the iterations of an RL loop."""

    def find(self, context: Any) -> Iterator[Any]:
        """Yield what it finds in a ``findings.context.Context``, as ``findings.kind.FindingKind``."""


@dataclass(frozen=True, slots=True)
class Rooms:
    """What side rooms add to an analysis, so that what finds and shows imports none of them."""

    finders: tuple[Finder, ...] = ()
    """What looks for findings besides the families of every run."""
    sections: tuple[Any, ...] = ()
    """All sections of its reports (``report.sections.Section``), those of rooms in their places; empty: the core's."""


@dataclass(frozen=True, eq=False, repr=False)
class Analysis:
    """The analysis of a run as data: where the step's time went on every rank.

    People get it as ``tracekit.results.AnalysisResult``, which can also be shown and saved.
    """

    sources: tuple[Source, ...]
    ranks: tuple[RankFigures, ...]
    """One result per rank, in the order of their numbers."""
    tables: Mapping[str, pl.DataFrame]
    clocks: Clocks
    reload: Reload | None = None
    """The longest weight update by rank and lane, if the same processes broadcast and reload."""
    rate_tables: RunRates | None = None
    """All matrix products and operations behind ``rates``; None if it was read from JSON."""
    allocations: MemoryOfRun | None = None
    """What is known of single allocations behind ``memory``; None if it was read from JSON."""
    comparison: ScheduleComparison | None = None
    """Every pipeline and step beside its ideal, with the cells behind ``schedule``
    (``tracekit.pipeline.against_ideal``); None if it was read from JSON."""
    waiting: Stragglers = field(default_factory=Stragglers)
    """Tables of who waits for whom behind ``stragglers``, ``lateness`` and ``imbalance``; empty if it was
    read from JSON."""
    hiding: Hiding | None = None
    """Time that hiding communication saved and cost; None if no compute ran beside
    communication."""
    walked_path: CriticalPath | None = None
    """The critical path across ranks, without pipeline cells and causes: what blocks the step is read
    from it."""
    described_path: Computed[CriticalPath] | None = None
    """The same path with pipeline cells and causes."""
    graph: WhatIfGraph | None = None
    """The run's events with what each waited for, which predicts it with changes; None if it was read
    from JSON, or has no GPU events."""
    changed_steps: tuple[ChangedStep, ...] = ()
    """Predicted step times with the changes that were asked for, or that would save most."""
    places: By | None = None
    """The table behind ``by``; None if it was read from JSON."""
    notices: tuple[Notice, ...] = ()
    paths: tuple[str, ...] = field(default=())
    shapes: tuple[str, ...] = ()
    """Input shapes of the model's matrix products, if they were recorded."""
    tokens_per_step: float | None = None
    """Tokens of a step over all ranks, a mean over steps; None if no token embedding was
    recorded."""
    step_kinds: tuple[StepKind, ...] = ()
    """Prefill and decode steps, if an inference server marked them."""
    workload: Workload | None = None
    """Whether the program trains a model or only runs it forward; None if that is not known."""
    events: tuple[RankTimeline, ...] = ()
    """Single events of each rank, for the page; empty for runs of more ranks than can be kept."""
    role_results: RoleResults = field(default_factory=RoleResults)
    """Roles, weight updates and iterations of a run whose ranks have several processes."""
    read_lines: LineReader | None = None
    """Reads the lines of the program at a rank's places, from stacks that were not read with its events."""
    advice: OwnAdvice = NO_OWN_ADVICE
    """What the caller, or an installed package, added to the catalogue of alternatives and its prices."""
    rooms: ClassVar[Rooms] = Rooms()
    """What the side rooms add to what is found and shown: nothing to the core alone, their own in ``results``."""
    document: AnalysisDocument | None = None
    """The document that it was read from; None if it was measured."""

    @cached_property
    def total(self) -> Figures:
        """The figures of all ranks together: times are sums over ranks, shares are ratios of these sums."""
        return total_figures(self.ranks) if self.document is None else self.document.total

    @cached_property
    def schedule(self) -> ComparedSchedule | None:
        """The pipeline compared with its ideal; if None, the notices tell why."""
        if self.document is not None:
            return self.document.schedule
        return None if self.comparison is None else self.comparison.to_document()

    @cached_property
    def rates(self) -> Rates | None:
        """Rates of matrix products and communication; None if shapes and sizes were not recorded."""
        if self.document is not None:
            return self.document.rates
        return None if self.rate_tables is None else self.rate_tables.to_document()

    @property
    def memory(self) -> Memory | None:
        """Memory that the ranks' allocators held; None if it was not recorded."""
        if self.document is not None:
            return self.document.memory
        return None if self.allocations is None else self.allocations.figures

    @property
    def stragglers(self) -> Sequence[Straggler]:
        """Ranks that others wait for, in which steps and why."""
        return self.waiting.rows

    @cached_property
    def lateness(self) -> Lateness | None:
        """Lateness by rank and step; None with one rank."""
        return self.waiting.late_ranks() if self.document is None else self.document.lateness

    @cached_property
    def imbalance(self) -> Imbalance | None:
        """Cost of unequal work; None if shapes were not recorded."""
        if self.document is not None:
            return self.document.imbalance
        return self.waiting.imbalance_of_steps()

    @cached_property
    def by(self) -> ByTable | None:
        """The step by layer, module, annotation or shape; None if it was not asked for."""
        if self.document is not None:
            return known(self.document.by, None)
        return None if self.places is None else self.places.to_document()

    @cached_property
    def step(self) -> Step:
        """The step time of the run, as recorded and without the profiler."""
        if self.document is not None:
            return self.document.step
        recorded = summarize_steps({rank.rank: rank.timed_steps for rank in self.ranks})
        step = with_free_step(recorded, None if self.graph is None else self.graph.free_step)
        if not self.total.idle_known:
            step = step.without_idle()
        return msgspec.structs.replace(step, kinds=list(self.step_kinds) or msgspec.UNSET)

    def rank(self, rank: int) -> RankFigures:
        """Return one rank's result."""
        for result in self.ranks:
            if result.rank == rank:
                return result
        raise unknown_rank_error([rank], (result.rank for result in self.ranks))

    @overload
    def to_pandas(self) -> dict[str, pd.DataFrame]: ...

    @overload
    def to_pandas(self, name: str) -> pd.DataFrame: ...

    def to_pandas(self, name: str | None = None) -> dict[str, pd.DataFrame] | pd.DataFrame:
        """Return the table *name* as a pandas data frame; without a name all tables, by name."""
        if name is not None:
            return self.tables[name].to_pandas()
        return {table_name: table.to_pandas() for table_name, table in self.tables.items()}

    def __repr__(self) -> str:
        count = len(self.ranks)
        steps: set[int | None] = set()
        for result in self.ranks:
            steps.update(result.steps)
        parts = [counted(count, "rank"), *([counted(len(steps), "step")] if steps else [])]
        what = "step time" if self.step.marked else "extent"
        time = "unknown" if self.step.time_ns is None else ms(self.step.time_ns, digits=3)
        return f"<Analysis: {', '.join(parts)}, {what} {time}>"

    @property
    def critical_path(self) -> CriticalPath | None:
        """The critical path across ranks, computed when it is first used; None if it was read from JSON."""
        return None if self.described_path is None else self.described_path()

    def with_lines(
        self, places: Sequence[Place], *, if_read: bool = False
    ) -> tuple[Place, ...] | None:
        """Return places of the host with the lines of the program, from stacks that were recorded and not read.

        None if there are no such stacks, or they cannot be read. With *if_read* only lines of ranks that
        were read for other places are used.
        """
        if self.read_lines is None:
            return None
        ranks = {place.rank for place in places}
        ranks &= {source.rank for source in self.sources if has_stacks(source)}
        if if_read:
            ranks.intersection_update(self.read_lines.ranks_read)
        lines_by_rank = {}
        for rank in ranks:
            of_rank = self.tables["host_places"].filter(pl.col("rank") == rank)
            lines = self.read_lines(rank, of_rank)
            if lines is None:
                return None
            lines_by_rank[rank] = lines
        if not lines_by_rank:
            return None
        return tuple(
            msgspec.structs.replace(
                place,
                source=lines_by_rank.get(place.rank, {}).get(
                    (place.start_ns, place.end_ns), place.source
                ),
            )
            for place in places
        )

    @property
    def world_size(self) -> int | None:
        """Number of ranks in the run, as far as the files show."""
        return max(
            (source.world_size for source in self.sources if source.world_size is not None),
            default=None,
        )

    @cached_property
    def slowdown(self) -> Slowdown | None:
        """Slowdown of the pipeline by stage, kind of cell and rank; None without one."""
        if self.document is not None:
            return self.document.slowdown
        if self.comparison is None:
            return None
        from tracekit.pipeline.against_ideal.replay import pipeline_slowdown

        return pipeline_slowdown(self.comparison)

    def what_if(self, *changes: str) -> ChangedStep:
        """Return the predicted step with all *changes* at once, such as ``rank 2 like others`` or ``dp_comm x0.5``.

        >>> from tracekit.run.analyze import analyze
        >>> analysis = analyze("sample_traces/reload", schedule="none")
        >>> step = analysis.what_if("broadcast x0.5")
        >>> step.measured_ns > step.predicted_ns
        True
        """
        if self.graph is None:
            raise OptionError(
                "changes are predicted from a run's GPU events",
                hint="analyze the traces, or a store of them",
            )
        words = checked_words(changes, "changes")
        return self.graph.predict([parse_change(text) for text in words])

    def once(self, compute: Callable[[Analysis], Result]) -> Result:
        """Return what a function computes of this analysis, computed once for all that ask."""
        kept: dict[Callable[[Analysis], Any], Any] = vars(self).setdefault("_kept", {})
        if compute not in kept:
            kept[compute] = compute(self)
        result: Result = kept[compute]
        return result

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: all but what was computed of it, which is computed again."""
        state = dict(vars(self))
        state.pop("_kept", None)
        return state
