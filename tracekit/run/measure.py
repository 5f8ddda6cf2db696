"""Measurement of one source (a file, or a rank of a store): the work of one worker in ``analyze``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import polars as pl

from tracekit.analysis.measure.rank_timeline import (
    MAX_RANKS_WITH_EVENTS,
    RankTimeline,
    rank_timeline,
)
from tracekit.analysis.measure.tables import (
    LabelledRank,
    RankTables,
    label_rank,
    measure_rank,
)
from tracekit.classify import RuleBook
from tracekit.classify.model_position import MODULE_PREFIX
from tracekit.errors import OptionError, TracekitError
from tracekit.memory.snapshot_file import read_memory_snapshot
from tracekit.metrics.alternatives.own import NO_OWN_ADVICE, OwnAdvice
from tracekit.metrics.host.events import find_calls
from tracekit.metrics.host.waiting_calls import find_waiting_calls
from tracekit.metrics.peaks import find_gpu
from tracekit.parsers.source_refs import SourceRef
from tracekit.rooms import ROOM_MEASURES
from tracekit.schema import RankEvents
from tracekit.store.files import Store, open_single_store, rank_folder
from tracekit.store.sources import read_ref

MAX_RANKS_READ_TOGETHER = 16
"""Ranks whose tables are checked together: half the time of one by one; more save little and take memory."""
_IS_FRAME = pl.col("kind") == "python"


@dataclass(frozen=True, slots=True)
class SourceWorker:
    """Reads and measures sources as the options say; picklable, so that ``measure`` can run on any executor."""

    rules: str | Path | RuleBook | None = None
    steps: str | None = None
    with_pipeline: bool = True
    """Whether to find the pipeline's work, for the comparison with a schedule."""
    ranks: frozenset[int] | None = None
    lenient: bool = True
    base: str | None = None
    """Folder that relative paths start from, for workers that run in another folder."""
    by: str | None = None
    """Kind of rows (``analysis.by``); None for no rows."""
    keep_events: bool = False
    """Keep single events, for the page's timeline."""
    stacks: bool = False
    """Read Python frames, for the source lines of these events."""
    gpu: str | None = None
    """Name of the GPU, for traces that do not name it."""
    advice: OwnAdvice = NO_OWN_ADVICE
    """What a user adds to the catalogue of alternatives."""
    compress_graph: bool = False
    """Keep what the events of each rank waited for (``graph.event_graph``) as it is in a store."""

    def for_ranks(self, count: int) -> SourceWorker:
        """Return the worker for a run of *count* ranks: those of large runs keep no events for the page's timeline."""
        if count <= MAX_RANKS_WITH_EVENTS:
            return self
        return replace(self, keep_events=False, compress_graph=True)

    def label(self, rank: RankEvents, labelled: pl.DataFrame | None = None) -> LabelledRank:
        """Label one rank; the result does not hold the events that measuring does not read."""
        named = rank.source.devices[0] if rank.source.devices else ""
        if self.gpu is not None and find_gpu(named) not in (None, find_gpu(self.gpu)):
            raise OptionError(
                f"--gpu {self.gpu!r}: the trace of rank {rank.source.rank} names another GPU, {named}",
                hint="--gpu is for traces that do not name theirs",
            )
        # A name without known peaks ("AMD Radeon Graphics", say) tells as little as none.
        if self.gpu is not None and find_gpu(named) is None:
            rank = replace(rank, source=msgspec.structs.replace(rank.source, devices=(self.gpu,)))
        return label_rank(
            rank, labelled=labelled, rules=self.rules, all_columns=self.by is not None
        )

    def measure_events(self, rank: RankEvents) -> RankTables:
        """Label and measure one rank whose events are in memory."""
        return self._tables(self.label(rank), self._frames_of(rank))

    def _tables(self, labelled_rank: LabelledRank, frames: pl.DataFrame | None) -> RankTables:
        """Measure one rank that is labelled."""
        tables = measure_rank(
            labelled_rank,
            steps=self.steps,
            pipeline=self.with_pipeline,
            by=self.by,
            keep_events=self.keep_events,
            frames=frames,
            advice=self.advice,
            rooms=ROOM_MEASURES,
        )
        return _with_compressed_graph(tables) if self.compress_graph else tables

    def measure(self, ref: SourceRef) -> list[RankTables]:
        """Read and measure one source; return the tables of each of its ranks.

        Labels in a store are used unless other rules are given, and its tables unless steps are
        selected.
        """
        if self.base is None or ref.url is not None:
            return self._read_and_measure(ref)
        absolute = msgspec.structs.replace(ref, path=str(Path(self.base) / ref.path))
        try:
            tables = self._read_and_measure(absolute)
        except TracekitError as error:
            path = error.path
            if path.startswith(absolute.path):  # the source, or a file of it
                path = ref.path + path.removeprefix(absolute.path)
            raise error.copy(path=path) from error
        if ref.reader == "store":
            return tables
        renamed = []
        for table in tables:
            source = msgspec.structs.replace(table.source, path=ref.path)
            renamed.append(replace(table, source=source))
        return renamed

    def stored_tables(self, refs: Sequence[SourceRef]) -> dict[int, RankTables]:
        """Return the tables that ``ingest`` measured, of the *refs* that have some, by their index.

        None are taken if other rules, some of the steps or more than ``ingest`` measures is asked
        for.
        """
        asks_for_more = self.steps is not None or self.by is not None or self.gpu is not None
        asks_for_more = asks_for_more or self.advice != NO_OWN_ADVICE
        if self.rules is not None or asks_for_more:
            return {}
        from tracekit.analysis.persistence import FILE, read_tables_of_ranks

        folders = {
            index: rank_folder(Path(ref.path), _rank_of(ref))
            for index, ref in enumerate(refs)
            if _is_rank_of_store(ref) and open_single_store(ref.path).intact(_rank_of(ref), FILE)
        }
        stored: dict[int, RankTables] = {}
        in_store = list(folders)
        for first in range(0, len(in_store), MAX_RANKS_READ_TOGETHER):
            batch = in_store[first : first + MAX_RANKS_READ_TOGETHER]
            tables_of_batch = read_tables_of_ranks(
                [folders[index] for index in batch], rooms=ROOM_MEASURES
            )
            for index, tables in zip(batch, tables_of_batch, strict=True):
                source = open_single_store(refs[index].path).source(_rank_of(refs[index]))
                if tables is not None and tables.source == source:
                    stored[index] = tables
        return stored

    def _read_and_measure(self, ref: SourceRef) -> list[RankTables]:
        if _is_rank_of_store(ref) and self.rules is None:
            if stored := self.stored_tables([ref]):
                return [self.as_asked_for(stored[0], ref)]
            store = open_single_store(ref.path)
            rank = _rank_of(ref)
            events = store.rank(rank)
            labelled_rank = self.label(events, store.labelled(rank))
            return [self._tables(labelled_rank, self._frames_of(events))]
        parts = read_ref(
            ref,
            ranks=self.ranks,
            stacks=self.stacks,
            lenient=self.lenient,
            read_snapshot=read_memory_snapshot,
        )
        tables = []
        while parts:  # a rank's events are let go when it is labelled, before it is measured
            labelled_rank, frames = self._label_without_frames(parts.pop(0))
            tables.append(self._tables(labelled_rank, frames))
        return tables

    def _label_without_frames(self, rank: RankEvents) -> tuple[LabelledRank, pl.DataFrame | None]:
        """Label a rank without its Python frames, apart from calls of modules, which labels rest on.

        Return its frames beside it, if source lines are wanted.
        """
        if not self.stacks:
            return self.label(rank), None
        is_module = pl.col("name").cast(pl.String).str.starts_with(MODULE_PREFIX)
        plain = replace(rank, events=rank.events.filter(~_IS_FRAME | is_module))
        return self.label(plain), self._frames_of(rank)

    def _frames_of(self, rank: RankEvents) -> pl.DataFrame | None:
        """Return the Python frames of a rank, if source lines are wanted."""
        return rank.events.filter(_IS_FRAME) if self.stacks else None

    def as_asked_for(self, stored: RankTables, ref: SourceRef) -> RankTables:
        """Return tables of a store with what was asked for, and without what was not."""
        tables = stored if self.with_pipeline else replace(stored, pipeline=None)
        if self.keep_events:
            store = open_single_store(ref.path)
            tables = replace(tables, events=self._timeline(store, _rank_of(ref)))
        return tables

    def _timeline(self, store: Store, rank: int) -> RankTimeline:
        """Return the rank's single events for the page, which the store's tables leave out."""
        events = store.rank(rank)
        waiting_calls = find_waiting_calls(find_calls(events.events))
        return rank_timeline(events, store.labelled(rank), waiting_calls, self._frames_of(events))


def _is_rank_of_store(ref: SourceRef) -> bool:
    return ref.reader == "store" and ref.rank is not None


def _rank_of(ref: SourceRef) -> int:
    """Return the rank of a source whose rank is known before it is read."""
    assert ref.rank is not None
    return ref.rank


def _with_compressed_graph(tables: RankTables) -> RankTables:
    """Return the tables of a rank with its events for the replay as they are in a store."""
    from tracekit.analysis.persistence import CompressedTable

    events = tables.graph_events
    work = tables.graph_host_work
    return replace(
        tables,
        graph_events=None if events is None else CompressedTable.of("graph_events", events),
        graph_host_work=None if work is None else CompressedTable.of("graph_host_work", work),
    )
