"""The events of a run in memory: the result of ``tracekit.load``."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from tracekit._util.notebook import html_table
from tracekit._util.text import listing
from tracekit.classify.classify_events import classify_rank
from tracekit.classify.rules import RuleBook
from tracekit.errors import Notice, OptionError
from tracekit.parsers.rank_numbers import unknown_rank_error
from tracekit.schema import EVENTS, GPU_KINDS, LABELLED, MEMORY, RankEvents, Source
from tracekit.store.sources import span

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Trace:
    """The events of a run, rank by rank and in one table, and their sources.

    >>> from tracekit import load
    >>> trace = load("sample_traces/reload", ranks=[0, 1])
    >>> trace.ranks, trace.events["kind"].n_unique() > 3
    ((0, 1), True)
    """

    parts: tuple[RankEvents, ...]
    """Events and source of each rank, in the order of their numbers; of several roles, one role
    after the other."""
    notices: tuple[Notice, ...] = ()
    """Notices about files and ranks that are damaged, missing or were left out."""
    rules: RuleBook | None = None
    """Rules that its events are labelled with, before the built-in ones."""

    @cached_property
    def events(self) -> pl.DataFrame:
        """All ranks' events (columns: ``tracekit.schema.EVENTS``)."""
        return pl.concat([part.events for part in self.parts]) if self.parts else EVENTS.to_frame()

    @cached_property
    def labelled(self) -> pl.DataFrame:
        """The GPU events of all ranks with their labels (columns: ``tracekit.schema.LABELLED``).

        Each process is labelled by its own events, with the rules that it was loaded with and the
        built-in ones.

        >>> from tracekit import load
        >>> trace = load("sample_traces/reload", ranks=[0, 1])
        >>> trace.labelled.filter(label="reload")["rank"].value_counts(sort=True).rows()
        [(0, 8), (1, 8)]
        """
        labelled = [classify_rank(part, rules=self.rules) for part in self.parts]
        return pl.concat([LABELLED.to_frame(), *labelled])

    @cached_property
    def memory(self) -> pl.DataFrame:
        """All ranks' allocator events (columns: ``tracekit.schema.MEMORY``).

        Empty if none were recorded.
        """
        return pl.concat([part.memory for part in self.parts]) if self.parts else MEMORY.to_frame()

    @property
    def sources(self) -> tuple[Source, ...]:
        """Each rank's source."""
        return tuple(part.source for part in self.parts)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The numbers of the ranks, ascending."""
        return tuple(sorted({part.source.rank for part in self.parts}))

    @property
    def roles(self) -> tuple[str, ...]:
        """The names of the roles; empty if ranks have one process each."""
        return tuple(
            dict.fromkeys(part.source.role for part in self.parts if part.source.role is not None)
        )

    def role(self, name: str) -> Trace:
        """Return the trace of one role."""
        if name not in self.roles:
            raise OptionError(
                f"there is no role {name!r}", hint=f"there are: {', '.join(self.roles) or 'none'}"
            )
        parts = tuple(part for part in self.parts if part.source.role == name)
        return replace(self, parts=parts)

    def rank(self, rank: int) -> RankEvents:
        """Return one rank's events and source.

        Of a run with several roles, take a ``role`` first.
        """
        parts = [part for part in self.parts if part.source.rank == rank]
        if not parts:
            raise unknown_rank_error([rank], self.ranks)
        if len(parts) > 1:
            problem = f"rank {rank} has {len(parts)} processes"
            raise OptionError(problem, hint=f"take a role first: trace.role({self.roles[0]!r})")
        return parts[0]

    def to_pandas(self) -> pd.DataFrame:
        """Return the events as a pandas table; repeated text stays categorical."""
        return self.events.to_pandas()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.events.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        rows = sum(part.events.height for part in self.parts)
        return f"<Trace: {len(self.parts)} ranks, {rows:,} events>"

    def _repr_html_(self) -> str:
        heads = ("rank", "events", "GPU", "CPU", "steps", "span", "device", "source")
        notes = [notice.message for notice in self.notices[:8]]
        return html_table(
            repr(self)[1:-1], heads, [_html_row(part) for part in self.parts], notes=notes
        )


def _html_row(part: RankEvents) -> tuple[object, ...]:
    source = part.source
    counts = Counter(dict(part.events["kind"].value_counts().iter_rows()))
    gpu = sum(counts[kind] for kind in GPU_KINDS)
    steps = part.events["step"].drop_nulls().unique().sort().to_list()
    _, first, last = span(part)
    return (
        source.rank,
        f"{part.events.height:,}",
        f"{gpu:,}",
        f"{counts['cpu_op']:,}",
        f"{steps[0]}–{steps[-1]}" if len(steps) > 1 else listing(map(str, steps)),
        f"{((last or 0) - (first or 0)) / 1e6:,.1f} ms",
        listing(sorted(set(source.devices)), most=1),
        source.path.rsplit("/", 1)[-1],
    )
