"""The one way from paths to work done on every source: find, map, check.

``find_sources`` says what there is to read, ``map_sources`` does the work wherever it pays, ``check_run`` holds what
came back against what was asked. ``load``, ``analyze``, ``ingest`` and ``diagnose`` are these three calls with
their own work in the middle.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

from tracekit._util.machine import cores
from tracekit._util.notices import merge_notices
from tracekit._util.pool import Done, Spread, executor_size, in_turn, iter_map, started_ahead
from tracekit.errors import Notice
from tracekit.parsers.ranks import unknown_rank
from tracekit.parsers.refs import SourceRef
from tracekit.schema import Source
from tracekit.store.reading import SPAWN_PAYS_BYTES, may_not_fit, worker_count
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
    count = worker_count(refs, workers, pays=pays) if executor is None else workers or executor_size(executor)
    done = []
    apart = executor is None and any(may_not_fit(ref) for ref in refs)
    beside = executor is None and workers is None and count == 1 < len(refs) and started_ahead() > 0 and not apart
    stream = iter_map(work, refs, workers=count, executor=executor, progress=progress, apart=apart, beside=beside)
    with contextlib.closing(stream):  # type: ignore[type-var]  # a generator in truth, which stops its workers
        for one in stream:
            done.append(one)
            if one.error is not None and stop_at_failure:
                break
            if one.error is None and each is not None:
                each(one.unwrap())
    return sorted(done, key=lambda one: one.index)


SPREAD_PAYS_ITEMS = 4
"""Shares of the work of putting ranks together (64 pipelines) from which processes pay: one takes a second to start."""


def spread_over(workers: int | None, executor: Executor | None) -> Spread:
    """Return who works on what is left when ranks are put together: *workers* processes, or an *executor*.

    An item that failed on a worker, or whose worker died twice, is an error: the answer would not be whole.

    >>> list(spread_over(1, None)(len, ["a", "bb"]))
    [1, 2]
    """

    def spread(function: Callable[[Any], R], items: Sequence[Any]) -> Iterable[R]:
        count = workers if workers is not None else cores() if len(items) >= SPREAD_PAYS_ITEMS else 1
        if len(items) < 2 or (count < 2 and executor is None):
            return in_turn(function, items)
        count = workers or executor_size(executor) if executor is not None else count
        done = iter_map(function, items, workers=count, executor=executor, progress="comparing")
        return [one.unwrap() for one in sorted(done, key=lambda one: one.index)]

    return spread


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
