"""One function mapped over many items, in this process, in spawned ones or on any executor.

A failed item is data, not an exception: the caller decides whether one unreadable rank of a thousand is fatal.
At most a few items a worker are in flight, so that memory is bounded by the workers and not by the items.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tracekit._util.machine import cores
from tracekit.errors import InputError, OptionError, TracekitError

T = TypeVar("T")
R = TypeVar("R")

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
    "ValueError: invalid literal for int() with base 10: 'x'"
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
) -> Iterator[Done[T, R]]:
    """Like ``run_map``, but yield each item as it is done, in whatever order that is.

    >>> sorted(done.value for done in iter_map(len, ["a", "bb"], workers=1))
    [1, 2]
    """
    if workers is not None and workers < 1:
        raise OptionError(f"{workers} workers cannot work", hint="give 1 or more")
    count = min(workers or cores(), max(1, len(items)))
    pending = list(enumerate(items))
    stream: Generator[Done[T, R], None, None]
    if executor is not None:
        stream = _on_executor(function, pending, executor, IN_FLIGHT * (workers or executor_size(executor)))
    elif count == 1:
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
    said = getattr(executor, "num_workers", None) or getattr(executor, "_max_workers", None)  # mpi4py, and ours
    return said if isinstance(said, int) and said > 0 else cores()


def _attempt(function: Callable[[T], R], index: int, item: T) -> Done[T, R]:
    try:
        return Done(index, item, value=function(item))
    except Exception as error:
        return Done(index, item, error=_as_data(error))


def _as_data(error: BaseException) -> TracekitError:
    """Return an error that can travel between processes and be printed on one line."""
    if isinstance(error, TracekitError):
        return error
    if isinstance(error, MemoryError):
        return InputError("ran out of memory", hint="use fewer workers")
    text = " ".join(str(error).split())
    wrapped = TracekitError(f"{type(error).__name__}: {text}" if text else type(error).__name__)
    wrapped.__cause__ = error  # within this process, whoever debugs still sees where it came from
    return wrapped


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
                    yield Done(index, item, error=_as_data(error))
            for future in wait(flying, return_when=FIRST_COMPLETED).done if flying else ():
                index, item = flying.pop(future)
                yield _result(future, index, item)
    finally:
        for future in flying:
            future.cancel()


def _result(future: Future[Done[T, R]], index: int, item: T) -> Done[T, R]:
    error = future.exception()
    return Done(index, item, error=_as_data(error)) if error is not None else future.result()


def _in_processes(
    function: Callable[[T], R], pending: list[tuple[int, T]], count: int
) -> Generator[Done[T, R], None, None]:
    """Spawned workers. When one dies, what was in flight runs again, one item alone, to find the item to blame."""
    queue = pending
    while queue:
        suspects: list[tuple[int, T]] = []
        seen: set[int] = set()
        with _pool(function, count) as pool:
            for one, broken in _until_broken(function, queue, pool, IN_FLIGHT * count):
                seen.add(one.index)
                if broken:
                    suspects.append((one.index, one.item))
                else:
                    yield one
        for index, item in suspects:
            with _pool(function, 1) as pool:
                for one, broken in _until_broken(function, [(index, item)], pool, 1):
                    yield Done(index, item, error=_died()) if broken else one
        queue = [(index, item) for index, item in queue if index not in seen]


def _until_broken(
    function: Callable[[T], R], pending: list[tuple[int, T]], pool: Executor, window: int
) -> Iterator[tuple[Done[T, R], bool]]:
    """Yield what is done, and whether the pool broke under it; stop handing out once it broke."""
    queue = list(reversed(pending))
    flying: dict[Future[Done[T, R]], tuple[int, T]] = {}
    broken = False
    while flying or (queue and not broken):
        while queue and not broken and len(flying) < window:
            index, item = queue.pop()
            try:
                flying[pool.submit(_attempt, function, index, item)] = (index, item)
            except BrokenExecutor:
                broken = True
                queue.append((index, item))
        if flying:
            finished, _ = wait(flying, return_when=FIRST_COMPLETED)
            for future in finished:
                index, item = flying.pop(future)
                dead = isinstance(future.exception(), BrokenExecutor)
                broken |= dead
                yield _result(future, index, item), dead


def _died() -> TracekitError:
    return InputError(
        "the worker process that read this died", hint="usually memory ran out: use fewer workers, or fewer ranks"
    )


class _SpawnPool(ProcessPoolExecutor):
    """A process pool that a script without ``if __name__ == "__main__"`` can use.

    Spawned children import the caller's main module again, and with it the call that spawned them. Our functions
    live in modules of their own, so the main module is hidden while children start.
    """

    hide_main = True
    count = 1

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with _hidden_main() if self.hide_main else contextlib.nullcontext(), _shared_cores(self.count):
            return super().submit(fn, *args, **kwargs)


@contextlib.contextmanager
def _shared_cores(count: int) -> Iterator[None]:
    """Let *count* children, started within, share the cores: else each would start a thread a core for its tables."""
    if "POLARS_MAX_THREADS" in os.environ:
        yield
        return
    os.environ["POLARS_MAX_THREADS"] = str(max(1, cores() // count))
    try:
        yield
    finally:
        del os.environ["POLARS_MAX_THREADS"]


@contextlib.contextmanager
def _pool(function: Callable[..., Any], count: int) -> Iterator[Executor]:
    before = set(multiprocessing.active_children())
    pool = _SpawnPool(count, mp_context=multiprocessing.get_context("spawn"), initializer=_ignore_interrupt)
    pool.hide_main = getattr(function, "__module__", None) != "__main__"
    pool.count = count
    try:
        yield pool
    except BaseException:
        # Interrupted, or the caller stopped early: do not wait for work nobody wants.
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    pool.shutdown()


def _ignore_interrupt() -> None:
    # Ctrl-C reaches the whole group; the parent alone decides what to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    main = sys.modules["__main__"]
    names = [name for name in ("__file__", "__spec__") if name in main.__dict__]
    hidden: dict[str, Any] = {name: main.__dict__.pop(name) for name in names}
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)


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
