"""Work mapped over sources, on as many worker processes as pay and fit in memory.

The number of worker processes is decided once the sources are known.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeVar

from tracekit._util.machine import WORKER_BYTES, available_memory, cores
from tracekit._util.text import terminal
from tracekit._util.workers import ItemResult, MapFunction, map_items
from tracekit.parsers.source_refs import SourceRef

R = TypeVar("R")

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
