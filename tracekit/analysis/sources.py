"""From one source (a file, or a rank of a store) to its ranks' tables: what a worker of a pool does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tracekit.analysis.tables import RankTables, launches, rank_tables
from tracekit.parsers.discovery import SourceRef
from tracekit.schema import RankEvents
from tracekit.store import open_store
from tracekit.trace import read_ref


@dataclass(frozen=True, slots=True)
class Options:
    """How each rank is measured; picklable, so that ``source_tables`` can be mapped over any executor."""

    rules: str | Path | None = None
    steps: str | None = None
    pipeline: bool = True
    ranks: frozenset[int] | None = None
    lenient: bool = True

    def measure(self, rank: RankEvents, labelled: pl.DataFrame | None = None) -> RankTables:
        """Measure one rank that is in memory."""
        return rank_tables(rank, labelled=labelled, rules=self.rules, steps=self.steps, pipeline=self.pipeline)

    def source_tables(self, ref: SourceRef) -> list[RankTables]:
        """Read and measure one source; a store's labels are taken as they are unless other rules are asked for."""
        if ref.reader == "store" and ref.rank is not None and self.rules is None:
            store = open_store(ref.path)
            labelled = store.labelled(ref.rank)
            if labelled is not None:
                source = next(s for s in store.sources if s.rank == ref.rank)
                return [self.measure(RankEvents(_what_labels_lack(store.scan(ref.rank)), source), labelled)]
        parts = read_ref(ref, lenient=self.lenient)
        return [self.measure(part) for part in parts if self.ranks is None or part.source.rank in self.ranks]


def _what_labels_lack(events: pl.LazyFrame) -> pl.DataFrame:
    """Read what labelled events do not hold and the measures need: the launches, and the operators' shapes."""
    kind = pl.col("kind")
    calls = events.select("kind", "name", "correlation").filter(kind.is_in(["runtime", "driver"]))
    ops = events.select("kind", "name", "shapes").filter((kind == "cpu_op") & pl.col("shapes").is_not_null())
    found = pl.collect_all([calls, ops.unique()])
    return pl.concat([launches(found[0]), found[1]], how="diagonal")
