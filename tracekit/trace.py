"""Trace: what ``load`` returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from tracekit._html import html_table
from tracekit._words import listing
from tracekit.errors import InputError, Notice
from tracekit.reading import raise_failures, read_all
from tracekit.schema import EVENTS, GPU_KINDS, RankEvents, Source
from tracekit.sources import Paths, check_one_run, find, merged_notices, missing_notice, span

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Trace:
    """The events of one run, every rank's in one table, and where they came from."""

    parts: tuple[RankEvents, ...]
    """One a rank, by rank."""
    notices: tuple[Notice, ...] = ()
    """What was lost, missing or chosen on the way here."""

    @cached_property
    def events(self) -> pl.DataFrame:
        """All ranks' events (columns: ``tracekit.schema.EVENTS``)."""
        return pl.concat([part.events for part in self.parts]) if self.parts else EVENTS.to_frame()

    @property
    def sources(self) -> tuple[Source, ...]:
        """Each rank's source."""
        return tuple(part.source for part in self.parts)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks, ascending."""
        return tuple(part.source.rank for part in self.parts)

    def rank(self, rank: int) -> RankEvents:
        """Return one rank's events and source."""
        for part in self.parts:
            if part.source.rank == rank:
                return part
        held = listing(map(str, self.ranks), most=8)
        raise InputError(f"there is no rank {rank}", hint=f"the trace holds {held}")

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
        return html_table(repr(self)[1:-1], heads, [_html_row(part) for part in self.parts], notes=notes)


def load(
    paths: Paths,
    *,
    ranks: Collection[int] | None = None,
    rank: int | None = None,
    workers: int | None = None,
    stacks: bool = False,
    lenient: bool = True,
) -> Trace:
    """Read traces into a ``Trace``: a file, several, a folder, a glob, a URL or a store.

    *ranks* reads only those; *rank* is the rank of a single file that does not say; *workers* bounds the
    processes (by default one a rank where the files are large, within cores and memory); *stacks* reads Python
    frames too; without *lenient* a damaged file is an error rather than a notice.

    >>> trace = load("sample_traces/reload")
    >>> trace.ranks
    (0, 1, 2, 3)
    """
    refs, notices = find(paths, ranks=ranks, rank=rank)
    done = read_all(refs, workers=workers, stacks=stacks, lenient=lenient)
    raise_failures(done)
    parts = sorted((part for one in done for part in one.unwrap()), key=lambda part: part.source.rank)
    check_one_run([span(part) for part in parts])
    if ranks is not None:
        parts = [part for part in parts if part.source.rank in ranks]
        if missing := sorted(set(ranks) - {part.source.rank for part in parts}):
            raise InputError(f"there is no rank {listing(map(str, missing))}", hint="leave out --ranks to see them all")
    sources = [part.source for part in parts]
    missing_ranks = () if ranks is not None else missing_notice(sources)
    return Trace(tuple(parts), (*notices, *merged_notices(sources), *missing_ranks))


def _html_row(part: RankEvents) -> tuple[object, ...]:
    source, counts = part.source, Counter(dict(part.events["kind"].value_counts().iter_rows()))
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
