"""Tables of one rank that the graph of events is built from, each loaded when it is needed."""

from dataclasses import dataclass

import polars as pl

from tracekit.schema import Source


class LoadableTable:
    """A table that is loaded when it is needed: in memory (``TableInMemory``) or in a file of a store."""

    def load(self) -> pl.DataFrame:
        """Return the table."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class TableInMemory(LoadableTable):
    """A table that is in memory."""

    frame: pl.DataFrame

    def load(self) -> pl.DataFrame:
        """Return the table."""
        return self.frame


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphTables:
    """Tables of one rank that the graph of events is built from."""

    source: Source
    steps: pl.DataFrame
    """``align.steps.STEPS``; the row is the part."""
    launches_known: bool
    """False if no GPU event has its launch in the file."""
    graph_events: LoadableTable | None
    """Its GPU events with what each waited for (``graph.rank_events.RANK_EVENTS``); None if it has
    none."""
    graph_host_work: LoadableTable | None = None
    """What its host did between launches (``graph.rank_events.HOST_WORK``); None without GPU events."""
