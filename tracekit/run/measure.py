"""From one source (a file, or a rank of a store) to its ranks' tables: what a worker of a pool does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from tracekit.analysis.tables import RankTables, rank_tables
from tracekit.errors import TracekitError
from tracekit.parsers.refs import SourceRef
from tracekit.schema import RankEvents
from tracekit.store.files import open_store, rank_folder
from tracekit.store.reading import read_ref

if TYPE_CHECKING:
    from tracekit.classify import RuleBook


STACKED = ("layer", "module")
"""Rows that are known best by the Python frames of modules' calls."""


@dataclass(frozen=True, slots=True)
class Options:
    """How each rank is measured; picklable, so that ``source_tables`` can be mapped over any executor."""

    rules: str | Path | RuleBook | None = None
    steps: str | None = None
    pipeline: bool = True
    ranks: frozenset[int] | None = None
    lenient: bool = True
    base: str | None = None
    """What relative paths count from, for workers that run in another folder."""
    by: str | None = None
    """What the step's rows are (``analysis.by``); None: no rows."""

    def measure(
        self, rank: RankEvents, labelled: pl.DataFrame | None = None, modules: pl.DataFrame | None = None
    ) -> RankTables:
        """Measure one rank that is in memory."""
        how = {"rules": self.rules, "steps": self.steps, "pipeline": self.pipeline, "by": self.by}
        return rank_tables(rank, labelled=labelled, modules=modules, **how)  # type: ignore[arg-type]

    def source_tables(self, ref: SourceRef) -> list[RankTables]:
        """Read and measure one source.

        A store's labels are taken as they are unless other rules are asked for, and its tables unless only some steps.
        """
        if self.base is None or "://" in ref.path:
            return self._source_tables(ref)
        there = msgspec.structs.replace(ref, path=str(Path(self.base) / ref.path))
        try:
            tables = self._source_tables(there)
        except TracekitError as error:
            raise type(error)(error.message.replace(there.path, ref.path), hint=error.hint) from error
        if ref.reader == "store":
            return tables
        return [replace(one, source=msgspec.structs.replace(one.source, path=ref.path)) for one in tables]

    def _source_tables(self, ref: SourceRef) -> list[RankTables]:
        if ref.reader == "store" and ref.rank is not None and self.rules is None:
            from tracekit.analysis.persist import FILE, read_tables

            store = open_store(ref.path)
            stored = None
            if (
                self.steps is None and self.by is None and store.intact(ref.rank, FILE)
            ):  # else the labelled events say the same
                stored = read_tables(rank_folder(Path(ref.path), ref.rank))
            if stored is not None:
                return [stored if self.pipeline else stored.without_pipeline()]
            labelled = store.labelled(ref.rank)
            if labelled is not None:
                return [self.measure(store.rank(ref.rank), labelled)]
        parts = read_ref(ref, stacks=self.by in STACKED, lenient=self.lenient)
        wanted = [part for part in parts if self.ranks is None or part.source.rank in self.ranks]
        return [self._without_frames(part) for part in wanted]

    def _without_frames(self, rank: RankEvents) -> RankTables:
        """Measure a rank without its Python frames: only rows by module need them, and of these only modules' calls."""
        if self.by not in STACKED:
            return self.measure(rank)
        from tracekit.analysis.by.frames import module_frames

        plain = RankEvents(rank.events.filter(pl.col("kind") != "python"), rank.source)
        return self.measure(plain, modules=module_frames(rank.events))
