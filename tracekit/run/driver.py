"""The steps that every call over traces shares: find the sources, map work over them, check the run.

``load``, ``analyze``, ``ingest`` and ``diagnose`` call ``find_sources``, ``map_sources`` and
``check_run`` with their own work in the middle. The number of worker processes is decided here,
once the sources are known.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from tracekit._util.machine import WORKER_BYTES, available_memory, cores
from tracekit._util.notices import merge_notices
from tracekit._util.text import terminal
from tracekit._util.workers import ItemResult, MapFunction, map_items
from tracekit.errors import Notice, OptionError
from tracekit.parsers.discovery import Discovery
from tracekit.parsers.rank_numbers import unknown_rank_error
from tracekit.parsers.source_refs import SourceRef
from tracekit.roles.assign import find_roles
from tracekit.roles.combine import check_roles
from tracekit.schema import Source
from tracekit.store.sources import (
    OneRole,
    Paths,
    check_one_run,
    check_strict,
    copied_ranks_notices,
    missing_notice,
)

R = TypeVar("R")

Span = tuple[Source, int | None, int | None]
"""A rank's source, and its first and last time in ns."""

READ_BYTES_FOR_PROCESSES = 1 << 30
"""Size of the traces' text from which worker processes pay if traces are only read: each takes a
second to start."""
MEASURE_BYTES_FOR_PROCESSES = 1 << 28
"""The same if ranks are labelled and measured too, which costs more than reading."""
SHARES_FOR_PROCESSES = 4
"""Shares of pipelines (``compare.lines``) from which worker processes pay for comparing them."""
GZIP_RATIO = 15
"""Size of a trace's text over the size of its gzip file; traces are repetitive."""
MAX_MEMORY_RATIO = 4
"""Upper bound of the memory for reading and measuring a trace, over the size of its text."""


def find_sources(
    paths: Paths | OneRole,
    *,
    ranks: Collection[int] | None = None,
    rank: int | None = None,
    strict: bool = False,
) -> Discovery:
    """Return what to read at *paths*: one source per rank where the rank is known before reading.

    >>> [ref.rank for ref in find_sources("sample_traces/reload", ranks=[1, 3]).refs]
    [1, 3]
    """
    discovery = find_roles(paths, ranks=ranks, rank=rank)
    if strict:
        check_strict(discovery.notices)
    return discovery


def map_sources(
    work: Callable[[SourceRef], R],
    refs: Sequence[SourceRef],
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: str,
    measures: bool = False,
    on_value: Callable[[R], object] | None = None,
    stop_at_failure: bool = False,
) -> list[ItemResult[SourceRef, R]]:
    """Call *work* on every source: in this process, in worker processes or on an executor.

    Args:
        work: Reads one source; must be picklable.
        refs: The sources.
        workers: Number of worker processes, or of the executor's workers; by default as many as
            pay.
        executor: Any ``concurrent.futures`` executor, used instead of worker processes.
        progress: Label of the progress bar; if there is one source, its name is added.
        measures: Whether the work labels and measures ranks too, so that worker processes pay for
            smaller traces.
        on_value: Called with each value as soon as it is there.
        stop_at_failure: Stop at the first source that fails.

    Returns:
        The results in the order of the sources; with *stop_at_failure* up to the first failure.

    """
    count = worker_count(refs, workers, measures=measures) if executor is None else workers
    isolate = executor is None and any(may_exceed_memory(ref) for ref in refs)
    label = f"{progress} {terminal(Path(refs[0].path).name)}" if len(refs) == 1 else progress
    results = []
    stream = map_items(
        work, refs, workers=count, executor=executor, progress=label, isolate=isolate
    )
    with contextlib.closing(stream):
        for result in stream:
            results.append(result)
            if result.error is not None and stop_at_failure:
                break
            if result.error is None and on_value is not None:
                on_value(result.unwrap())
    return sorted(results, key=lambda result: result.index)


def worker_count(
    refs: Sequence[SourceRef], workers: int | None = None, *, measures: bool = False
) -> int:
    """Return the number of worker processes to read with: *workers* if given, else as many as pay and fit in memory.

    >>> worker_count([SourceRef("a.json", "kineto", bytes=1000)] * 4)
    1
    >>> worker_count([SourceRef("a.json", "kineto", bytes=1000)] * 4, workers=3)
    3
    """
    if workers is not None:
        return min(workers, max(1, len(refs))) if workers > 0 else workers
    sizes = [estimated_bytes(ref) for ref in refs]
    bytes_for_processes = MEASURE_BYTES_FOR_PROCESSES if measures else READ_BYTES_FOR_PROCESSES
    if (
        len(refs) < 2
        or sum(sizes) < bytes_for_processes
        or all(ref.reader == "store" for ref in refs)
    ):
        return 1
    bytes_per_worker = max(sizes) + WORKER_BYTES
    return max(1, min(cores(), len(refs), available_memory() * 3 // 4 // bytes_per_worker))


def estimated_bytes(ref: SourceRef) -> int:
    """Return the size of a trace's text, about the memory that reading it takes.

    >>> estimated_bytes(SourceRef("a.json.gz", "kineto", bytes=100))
    1500
    """
    return ref.bytes * (GZIP_RATIO if ref.path.endswith(".gz") else 1)


def may_exceed_memory(ref: SourceRef) -> bool:
    """Return whether reading a source may take all the memory there is, so that it needs a process of its own.

    >>> may_exceed_memory(SourceRef("a.json", "kineto", bytes=1 << 60))
    True
    """
    return MAX_MEMORY_RATIO * estimated_bytes(ref) + WORKER_BYTES > available_memory()


def pipeline_map(workers: int | None, executor: Executor | None) -> MapFunction:
    """Return the function that maps the comparison over shares of pipelines: on workers where that pays.

    A share that fails, or whose worker dies twice, raises: the answer would be incomplete without
    it.

    >>> list(pipeline_map(1, None)(len, ["a", "bb"]))
    [1, 2]
    """

    def map_shares(function: Callable[[Any], R], shares: Sequence[Any]) -> Iterable[R]:
        count = workers
        if executor is None and count is None:
            count = cores() if len(shares) >= SHARES_FOR_PROCESSES else 1
        if len(shares) < 2 or (executor is None and count == 1):
            return map(function, shares)
        results = map_items(
            function, shares, workers=count, executor=executor, progress="comparing"
        )
        return [result.unwrap() for result in sorted(results, key=lambda result: result.index)]

    return map_shares


def check_run(
    spans: Sequence[Span],
    *,
    ranks: Collection[int] | None = None,
    failed: bool = False,
    strict: bool = False,
    named: bool = False,
) -> tuple[Notice, ...]:
    """Return the notices of the sources, of ranks that are copies of each other, and of missing ones.

    Raise if the ranks are of different runs.

    A rank of *ranks* that was not read raises, unless sources *failed*: their own notices tell why.
    Roles, which the caller may have *named*, are checked one by one, and that they ran at the same
    time.
    """
    sources = [source for source, _, _ in spans]
    present = {source.rank for source in sources}
    absent = set(ranks or ()) - present
    if not failed and (absent or not present):
        raise unknown_rank_error(absent or ranks or (), present)
    by_role = _spans_by_role(spans)
    check_same_run(spans, named=named)
    missing: list[Notice] = []
    for role, of_role in by_role.items() if ranks is None else ():
        missing += missing_notice([source for source, _, _ in of_role], role=role)
    of_run = (*copied_ranks_notices(sources), *missing)
    if strict:
        check_strict(of_run)
    return (*merge_notices((source.rank, source.notices) for source in sources), *of_run)


def check_same_run(spans: Sequence[Span], *, named: bool = False) -> None:
    """Raise if the ranks of a role are of different runs, or if the roles did not run at the same time.

    *named* if the caller named the roles.
    """
    for of_role in _spans_by_role(spans).values():
        check_one_run(of_role)
    check_roles(spans, named=named)


def _spans_by_role(spans: Sequence[Span]) -> dict[str | None, list[Span]]:
    by_role: dict[str | None, list[Span]] = {}
    for source_span in spans:
        by_role.setdefault(source_span[0].role, []).append(source_span)
    return by_role


OnDamage = Literal["warn", "skip", "error"]
"""Treatment of damaged or missing ranks: use what can be read, with a notice (``warn``); leave out
ranks whose file is damaged, with a notice (``skip``); or raise (``error``)."""


def check_on_damage(on_damage: str) -> None:
    """Raise if there is no such treatment of damaged ranks.

    >>> check_on_damage("ignore")
    Traceback (most recent call last):
    tracekit.errors.OptionError: on_damage cannot be 'ignore' (use warn, skip or error)
    """
    if on_damage not in get_args(OnDamage):
        raise OptionError(f"on_damage cannot be {on_damage!r}", hint="use warn, skip or error")
