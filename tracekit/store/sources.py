"""What there is to read, and whether it is one run: ``find`` before reading, the checks once times are known."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

import polars as pl
from msgspec.structs import replace

from tracekit._util.text import listing
from tracekit.errors import InputError, Notice
from tracekit.parsers.discovery import discover
from tracekit.parsers.ranks import absent
from tracekit.parsers.refs import SourceRef, check_unmixed
from tracekit.schema import RankEvents, Source
from tracekit.store.files import open_store

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

APART_NS = 3_600_000_000_000
"""Ranks of one run are profiled together; an hour between one's end and the next one's start means two runs."""
EPOCH_NS = 1_400_000_000_000_000_000
"""Clocks before this (2014) count from a machine's start: they say nothing about when a run was."""


def find(
    paths: Paths, *, ranks: Collection[int] | None = None, rank: int | None = None
) -> tuple[tuple[SourceRef, ...], tuple[Notice, ...]]:
    """Find what there is to read, one source per rank where that can be told; a store is opened into its ranks.

    >>> [ref.rank for ref in find("sample_traces/reload", ranks=[1, 3])[0]]
    [1, 3]
    """
    sources = discover(paths, ranks=ranks, rank=rank)
    refs: list[SourceRef] = []
    notices = list(sources.notices)
    for ref in sources.refs:
        if ref.reader == "store":
            notices += _store_notices(ref)
            refs += _store_refs(ref)
        else:
            refs.append(ref)
    check_unmixed(refs)
    if ranks is not None:
        refs = [ref for ref in refs if ref.rank is None or ref.rank in ranks or ref.reader == "nsight"]
    return tuple(refs), tuple(notices)


def _store_refs(ref: SourceRef) -> list[SourceRef]:
    sources = open_store(ref.path).sources
    if not sources:
        raise InputError(f"{ref.path}: the store holds no rank yet", hint="go on with: tracekit ingest --resume")
    size = ref.bytes // max(1, len(sources))
    return [replace(ref, rank=s.rank, rank_from=s.rank_from, world_size=s.world_size, bytes=size) for s in sources]


def _store_notices(ref: SourceRef) -> list[Notice]:
    store = open_store(ref.path)
    if store.complete:
        return list(store.notices)
    text = f"{ref.path}: writing this store was interrupted; go on with: tracekit ingest --resume"
    return [Notice("store-incomplete", text), *store.notices]


def check_one_run(spans: Sequence[tuple[Source, int | None, int | None]]) -> None:
    """Refuse ranks that reading showed to be of different runs; a span is a source, its first and its last time."""
    sources = [source for source, _, _ in spans]
    check_unmixed([SourceRef(s.path, s.reader, s.rank, s.rank_from, s.world_size) for s in sources])
    runs = defaultdict(list)
    for source in sources:
        if source.run is not None:
            runs[source.run].append(source.path)
    if len(runs) > 1:
        shown = "; ".join(listing(files, most=2) for files in list(runs.values())[:3])
        raise InputError(
            f"these traces come from {len(runs)} different runs: {shown}", hint="name the files of one run"
        )
    _check_times([(start, end or start, source.path) for source, start, end in spans if start and start > EPOCH_NS])


def _check_times(spans: list[tuple[int, int, str]]) -> None:
    reached, last = 0, ""
    for start, end, path in sorted(spans):
        if last and start - reached > APART_NS:
            hours = (start - reached) / 3.6e12
            raise InputError(
                f"these traces come from different runs: {path} begins {hours:.0f} h after {last} ends",
                hint="name the files of one run",
            )
        if end > reached:
            reached, last = end, path


def span(part: RankEvents) -> tuple[Source, int | None, int | None]:
    """Return a rank's source, first and last time."""
    first, last = part.events.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    return part.source, first, last


def missing_notice(sources: Sequence[Source]) -> tuple[Notice, ...]:
    """Return which ranks of the run are not here, where the world size is known."""
    size = max((source.world_size or 0 for source in sources), default=0)
    count, first = absent({source.rank for source in sources}, size, most=4)
    if not count:
        return ()
    more = [f"+{count - len(first)} more"] if count > len(first) else []
    text = f"{count} of {size} ranks {'is' if count == 1 else 'are'} not here: {', '.join([*map(str, first), *more])}"
    return (Notice("missing-ranks", text),)


def check_strict(notices: Sequence[Notice]) -> None:
    """Raise the first notice of a trace that was skipped or is missing: with ``--strict`` they are fatal.

    >>> check_strict([Notice("no-shapes", "input shapes were not recorded")])
    """
    for notice in notices:
        if notice.code in ("not-a-trace", "missing-ranks", "rank-failed", "store-incomplete"):
            raise InputError(notice.message, hint="leave out --strict to go on without them")
