"""Sources of a run: discovery before reading, and checks that they belong to one run after reading."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
import polars as pl
from msgspec.structs import replace

from tracekit._util.text import listing
from tracekit.errors import InputError, Notice
from tracekit.parsers.discovery import discover
from tracekit.parsers.ranks import missing_ranks
from tracekit.parsers.source_refs import SourceRef, check_single_run
from tracekit.schema import RankEvents, Source
from tracekit.store.files import open_store

PathList = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Paths = PathList | Mapping[str, PathList]
"""Paths of a run, or of each of its roles by the role's name."""


class OneRole(msgspec.Struct, frozen=True):
    """Paths of a run of which only one role is read."""

    paths: PathList
    role: str

    def __iter__(self) -> Iterator[str | os.PathLike[str]]:
        return iter([self.paths] if isinstance(self.paths, str | os.PathLike) else self.paths)


MAX_GAP_WITHIN_RUN_NS = 3_600_000_000_000
"""Largest gap (1 h) between the recordings of one run: its ranks are profiled at the same time."""
EARLIEST_DATE_NS = 1_400_000_000_000_000_000
"""Times before this (2014) count from the start of a machine and tell no date."""


def find(
    paths: PathList, *, ranks: Collection[int] | None = None, rank: int | None = None, check: bool = True
) -> tuple[tuple[SourceRef, ...], tuple[Notice, ...]]:
    """Return the sources at *paths*, one per rank where the rank is known before reading, and notices about them.

    A store becomes one source per rank. *rank* is the rank of a single file that does not name it. Without *check*,
    several sources may have the same rank.

    >>> [ref.rank for ref in find("sample_traces/reload", ranks=[1, 3])[0]]
    [1, 3]
    """
    sources = discover(paths, ranks=ranks, rank=rank, check=check)
    refs: list[SourceRef] = []
    notices = list(sources.notices)
    for ref in sources.refs:
        if ref.reader == "store":
            notices += _store_notices(ref)
            refs += _store_refs(ref)
        else:
            refs.append(ref)
    if check:
        check_single_run(refs)
    if ranks is not None:
        refs = [ref for ref in refs if ref.rank is None or ref.rank in ranks or ref.reader == "nsight"]
    return tuple(refs), tuple(notices)


def _store_refs(ref: SourceRef) -> list[SourceRef]:
    sources = open_store(ref.path).sources
    if not sources:
        raise InputError(f"{ref.path}: the store holds no rank yet", hint="go on with: tracekit ingest --resume")
    size = ref.bytes // max(1, len(sources))
    return [
        replace(
            ref,
            rank=source.rank,
            rank_from=source.rank_from,
            world_size=source.world_size,
            bytes=size,
            role=ref.role or source.role,
        )
        for source in sources
    ]


def _store_notices(ref: SourceRef) -> list[Notice]:
    store = open_store(ref.path)
    if store.complete:
        return list(store.notices)
    text = f"{ref.path}: writing this store was interrupted; go on with: tracekit ingest --resume"
    return [Notice("store-incomplete", text), *store.notices]


def check_one_run(spans: Sequence[tuple[Source, int | None, int | None]]) -> None:
    """Raise if ranks are of different runs; a span is a rank's source, first and last time in ns."""
    sources = [source for source, _, _ in spans]
    check_single_run(
        [SourceRef(source.path, source.reader, source.rank, source.rank_from, source.world_size) for source in sources]
    )
    paths_by_run = defaultdict(list)
    for source in sources:
        if source.run is not None:
            paths_by_run[source.run].append(source.path)
    if len(paths_by_run) > 1:
        examples = "; ".join(listing(paths, most=2) for paths in list(paths_by_run.values())[:3])
        raise InputError(
            f"these traces come from {len(paths_by_run)} different runs: {examples}", hint="name the files of one run"
        )
    _check_gaps([(start, end or start, source.path) for source, start, end in spans if start and _is_date(start)])


def _is_date(time_ns: int) -> bool:
    return time_ns > EARLIEST_DATE_NS


def _check_gaps(spans: list[tuple[int, int, str]]) -> None:
    """Raise if a recording starts long after all earlier ones have ended; a span is start, end and path."""
    latest_end, latest_path = 0, ""
    for start, end, path in sorted(spans):
        if latest_path and start - latest_end > MAX_GAP_WITHIN_RUN_NS:
            hours = (start - latest_end) / 3.6e12
            raise InputError(
                f"these traces come from different runs: {path} begins {hours:.0f} h after {latest_path} ends",
                hint="name the files of one run",
            )
        if end > latest_end:
            latest_end, latest_path = end, path


def span(part: RankEvents) -> tuple[Source, int | None, int | None]:
    """Return a rank's source, and its first and last time in ns."""
    first, last = part.events.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    return part.source, first, last


def missing_notice(sources: Sequence[Source]) -> tuple[Notice, ...]:
    """Return a notice of the run's ranks that are missing, if its world size is known."""
    size = max((source.world_size or 0 for source in sources), default=0)
    count, first = missing_ranks({source.rank for source in sources}, size, most=4)
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
