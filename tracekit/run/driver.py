"""The one way from paths to work done on every source: find, map, check.

``find_sources`` says what there is to read, ``map_sources`` does the work wherever it pays, ``check_run`` holds what
came back against what was asked. ``load``, ``analyze``, ``ingest`` and ``diagnose`` are these three calls with
their own work in the middle.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from typing import TypeVar

from tracekit._util.notices import merge_notices
from tracekit._util.pool import Done, executor_size, iter_map
from tracekit.errors import Notice
from tracekit.parsers.ranks import unknown_rank
from tracekit.parsers.refs import SourceRef
from tracekit.schema import Source
from tracekit.store.reading import SPAWN_PAYS_BYTES, may_not_fit, prepare, worker_count
from tracekit.store.sources import Paths, check_one_run, check_strict, find, missing_notice

R = TypeVar("R")

Span = tuple[Source, int | None, int | None]
"""A rank's source, and its first and last time."""

MEASURE_PAYS_BYTES = 1 << 28
"""Input above which processes pay where ranks are labelled and measured: that costs more than reading."""


def find_sources(
    paths: Paths, *, ranks: Collection[int] | None = None, rank: int | None = None, strict: bool = False
) -> tuple[tuple[SourceRef, ...], tuple[Notice, ...]]:
    """Return the sources to read, one per rank where that can be told, and what was noticed on the way.

    >>> [ref.rank for ref in find_sources("sample_traces/reload", ranks=[1, 3])[0]]
    [1, 3]
    """
    refs, notices = find(paths, ranks=ranks, rank=rank)
    if strict:
        check_strict(notices)
    return refs, notices


def map_sources(
    work: Callable[[SourceRef], R],
    refs: Sequence[SourceRef],
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: str,
    pays: int = SPAWN_PAYS_BYTES,
    each: Callable[[R], object] | None = None,
    stop_at_failure: bool = False,
) -> list[Done[SourceRef, R]]:
    """Return what became of every source, in their order: in this process, in spawned ones or on an *executor*.

    Input of *pays* bytes and more is worth processes. *each* is called with a value as soon as it is there.
    """
    if executor is not None:
        count = workers or executor_size(executor)
    else:
        count = worker_count(refs, workers, pays=pays)
        if count > 1:
            prepare(refs)
    done = []
    apart = executor is None and any(may_not_fit(ref) for ref in refs)
    stream = iter_map(work, refs, workers=count, executor=executor, progress=progress, apart=apart)
    with contextlib.closing(stream):  # type: ignore[type-var]  # a generator in truth, which stops its workers
        for one in stream:
            done.append(one)
            if one.error is not None and stop_at_failure:
                break
            if one.error is None and each is not None:
                each(one.unwrap())
    return sorted(done, key=lambda one: one.index)


def check_run(
    spans: Sequence[Span], *, ranks: Collection[int] | None = None, failed: bool = False, strict: bool = False
) -> tuple[Notice, ...]:
    """Return what the sources noticed and which ranks are missing; refuse ranks of different runs.

    Ranks that were asked for and did not come are an error, unless sources *failed*: then those say why.
    """
    sources = [source for source, _, _ in spans]
    present = {source.rank for source in sources}
    absent = set(ranks or ()) - present
    if not failed and (absent or not present):
        raise unknown_rank(absent or ranks or (), present)
    check_one_run(spans)
    missing = () if ranks is not None else missing_notice(sources)
    if strict:
        check_strict(missing)
    return (*merge_notices((source.rank, source.notices) for source in sources), *missing)
