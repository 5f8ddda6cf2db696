"""One function mapped over many items, in this process, in spawned ones or on any executor.

A failed item is data, not an exception: the caller decides whether one unreadable rank of a thousand is fatal.
At most a few items a worker are in flight, so that memory is bounded by the workers and not by the items.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from tracekit._util.machine import cores
from tracekit._util.os_errors import as_tracekit_error
from tracekit.errors import InputError, OptionError, TracekitError

T = TypeVar("T")
R = TypeVar("R")

Spread = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""Who does the work: calls a function on every item and returns what it made of them, in their order."""


def in_turn(function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Yield what *function* makes of every item, one after the other in this process.

    >>> list(in_turn(len, ["a", "bb"]))
    [1, 2]
    """
    return map(function, items)


def started_ahead() -> int:
    """Return how many workers wait for work: none where what starts them is not even imported.

    >>> started_ahead()
    0
    """
    processes = sys.modules.get("tracekit._util.processes")
    return 0 if processes is None else len(processes.waiting)


IN_FLIGHT = 2
"""Items handed out per worker: one in work and one waiting."""


@dataclass(frozen=True, slots=True)
class Done(Generic[T, R]):
    """What became of one item: its value, or the error that stopped it."""

    index: int
    item: T
    value: R | None = None
    error: TracekitError | None = None

    def unwrap(self) -> R:
        """Return the value, or raise the error.

        >>> Done(0, "a", value=3).unwrap()
        3
        """
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # None is a value like any other


def run_map(
    function: Callable[[T], R],
    items: Sequence[T],
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: str | None = None,
) -> list[Done[T, R]]:
    """Call *function* on every item; return what became of each, in the order of the items.

    *workers* is the number of spawned processes; 1 works in this process. *executor* takes their place: any
    ``concurrent.futures.Executor``, which stays open. *progress* names the bar on stderr, shown on a terminal only.

    >>> [done.value for done in run_map(len, ["a", "bb", ""], workers=1)]
    [1, 2, 0]
    >>> run_map(int, ["7", "x"], workers=1)[1].error.message
    "a fault in tracekit: ValueError: invalid literal for int() with base 10: 'x' (tracekit._util.pool, line ...)"
    """
    done = iter_map(function, items, workers=workers, executor=executor, progress=progress)
    return sorted(done, key=lambda one: one.index)


def iter_map(
    function: Callable[[T], R],
    items: Sequence[T],
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: str | None = None,
    apart: bool = False,
    beside: bool = False,
) -> Iterator[Done[T, R]]:
    """Like ``run_map``, but yield each item as it is done, in whatever order that is.

    *apart*: even one worker is a process of its own, so that one that dies of its item can be reported. *beside*: this
    process works too, beside those that were started ahead.

    >>> sorted(done.value for done in iter_map(len, ["a", "bb"], workers=1))
    [1, 2]
    """
    if workers is not None and workers < 1:
        raise OptionError(f"{workers} workers are too few", hint="give 1 or more")
    count = min(workers or cores(), max(1, len(items)))
    pending = list(enumerate(items))
    stream: Generator[Done[T, R], None, None]
    if executor is not None:
        stream = _on_executor(function, pending, executor, IN_FLIGHT * (workers or executor_size(executor)))
    elif beside:
        stream = _in_processes(function, pending, None)
    elif count == 1 and not apart:
        stream = (_attempt(function, index, item) for index, item in pending)
    else:
        stream = _in_processes(function, pending, count)
    with contextlib.closing(stream), _bar(progress, len(items)) as advance:
        for one in stream:
            advance()
            yield one


def executor_size(executor: Executor) -> int:
    """Return how many items an executor works on at once, as far as it says; else as many as there are cores.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> executor_size(ThreadPoolExecutor(3))
    3
    """
    workers = getattr(executor, "num_workers", None) or getattr(executor, "_max_workers", None)  # mpi4py, and ours
    return workers if isinstance(workers, int) and workers > 0 else cores()


def _attempt(function: Callable[[T], R], index: int, item: T) -> Done[T, R]:
    try:
        return Done(index, item, value=function(item))
    except Exception as error:
        return Done(index, item, error=as_tracekit_error(error))


def _on_executor(
    function: Callable[[T], R], pending: list[tuple[int, T]], executor: Executor, window: int
) -> Generator[Done[T, R], None, None]:
    queue = list(reversed(pending))
    flying: dict[Future[Done[T, R]], tuple[int, T]] = {}
    try:
        while queue or flying:
            while queue and len(flying) < window:
                index, item = queue.pop()
                try:
                    flying[executor.submit(_attempt, function, index, item)] = (index, item)
                except BrokenExecutor as error:
                    yield Done(index, item, error=as_tracekit_error(error))
            for future in wait(flying, return_when=FIRST_COMPLETED).done if flying else ():
                index, item = flying.pop(future)
                yield _result(future, index, item)
    finally:
        for future in flying:
            future.cancel()


def _result(future: Future[Done[T, R]], index: int, item: T) -> Done[T, R]:
    error = future.exception()
    return Done(index, item, error=as_tracekit_error(error)) if error is not None else future.result()


def _in_processes(
    function: Callable[[T], R], pending: list[tuple[int, T]], count: int | None
) -> Generator[Done[T, R], None, None]:
    """*count* spawned workers, or those that were started ahead and this process beside them.

    When one dies its item runs again, alone: it may have died of what others did, or was killed.
    """
    from tracekit._util.processes import beside_workers, in_workers

    hide_main = getattr(function, "__module__", None) != "__main__"
    work = partial(_attempt_pair, function)
    orphans: list[tuple[int, T]] = []
    made = beside_workers(work, pending) if count is None else in_workers(work, pending, count, hide_main=hide_main)
    with contextlib.closing(made) as stream:
        for pair, alive, done in stream:
            if alive:
                yield pickle.loads(done)
            else:
                orphans.append(pair)
    for pair in orphans:
        with contextlib.closing(in_workers(work, [pair], 1, hide_main=hide_main)) as stream:
            for (index, item), alive, done in stream:
                yield pickle.loads(done) if alive else Done(index, item, error=_died())


def _attempt_pair(function: Callable[[T], R], pair: tuple[int, T]) -> bytes:
    """Return what became of an item, packed to travel."""
    done = _attempt(function, *pair)
    try:
        return pickle.dumps(done, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # what cannot travel is the item's failure, not the worker's
        return pickle.dumps(Done(*pair, error=as_tracekit_error(error)))


def _died() -> TracekitError:
    return InputError(
        "the worker process that read this died", hint="usually memory ran out: use fewer workers, or fewer ranks"
    )


@contextlib.contextmanager
def _bar(label: str | None, total: int) -> Iterator[Callable[[], None]]:
    if label is None or total < 2 or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(label, total=total)
        yield lambda: shown.advance(task)
