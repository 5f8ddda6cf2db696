"""A function mapped over many items: in this process, in worker processes or on any executor.

A failed item is a result with an error, not an exception: the caller decides whether one unreadable
rank of a thousand is fatal. Only a few items per worker are in flight, so that memory is bounded by
the workers and not by the items.

Worker processes are those of ``concurrent.futures.ProcessPoolExecutor``, which lacks three things
that are added here: workers end at once when their parent ends or stops early, Ctrl-C reaches the
parent alone, and a worker that dies (usually killed because memory ran out) costs only the item
that it died of.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any, Generic, TypeVar

from tracekit._util.machine import cores
from tracekit._util.os_errors import as_tracekit_error
from tracekit.errors import MachineError, OptionError, TracekitError, is_quiet

T = TypeVar("T")
R = TypeVar("R")

MapFunction = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""Calls a function on every item and returns the values in the order of the items, as the built-in
``map`` does."""

ITEMS_IN_FLIGHT_PER_WORKER = 2
"""Items handed out per worker: one in work and one waiting."""
ASSUMED_EXECUTOR_WORKERS = 32
"""Workers of an executor if the caller does not give their number; it only bounds the items in
flight."""
MAX_PIPE_BYTES = 8 << 10
"""Size of a result that is sent through the executor's pipe, which a single write fills; larger
ones go by file."""
POLARS_THREADS = "POLARS_MAX_THREADS"


@dataclass(frozen=True, slots=True)
class ItemResult(Generic[T, R]):
    """The result of one item: its value, or the error that stopped it."""

    index: int
    item: T
    value: R | None = None
    error: TracekitError | None = None

    def unwrap(self) -> R:
        """Return the value, or raise the error.

        >>> ItemResult(0, "a", value=3).unwrap()
        3
        """
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # None is a value like any other


def map_items(
    function: Callable[[T], R],
    items: Sequence[T],
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: str | None = None,
    isolate: bool = False,
) -> Generator[ItemResult[T, R], None, None]:
    """Call *function* on every item and yield each result as soon as it is there, in any order.

    Args:
        function: Called with one item; must be picklable unless the work is done in this process.
        items: The items, picklable as well.
        workers: Number of worker processes, by default one per core; 1 works in this process. With
            *executor*: the number of its workers, which bounds the items in flight.
        executor: Any ``concurrent.futures.Executor``, used instead of worker processes; it stays
            open.
        progress: Label of a progress bar on stderr, shown on a terminal only.
        isolate: Use a worker process even if one worker is enough, so that its death can be
            reported.

    >>> [result.value for result in map_items(len, ["a", "bb"], workers=1)]
    [1, 2]
    >>> next(map_items(int, ["x"], workers=1)).error.message
    "a fault in tracekit: ValueError: invalid literal for int() with base 10: 'x' (tracekit._util.workers, line ...)"

    """
    if workers is not None and workers < 1:
        raise OptionError(f"{workers} workers are too few", hint="give 1 or more")
    _end_if_importing_main()
    count = min(workers or cores(), max(1, len(items)))
    numbered = list(enumerate(items))
    results: Generator[ItemResult[T, R], None, None]
    if executor is not None:
        max_in_flight = ITEMS_IN_FLIGHT_PER_WORKER * (workers or ASSUMED_EXECUTOR_WORKERS)
        results = _map_on_executor(function, numbered, executor, max_in_flight)
    elif count > 1 or isolate:
        results = _map_in_processes(function, numbered, count)
    else:
        results = (_call(function, index, item) for index, item in numbered)
    with contextlib.closing(results), _progress_bar(progress, len(items)) as advance:
        for result in results:
            advance()
            yield result


def _call(function: Callable[[T], R], index: int, item: T) -> ItemResult[T, R]:
    try:
        return ItemResult(index, item, value=function(item))
    except Exception as error:
        return ItemResult(index, item, error=as_tracekit_error(error))


def _map_on_executor(
    function: Callable[[T], R],
    numbered: Sequence[tuple[int, T]],
    executor: Executor,
    max_in_flight: int,
) -> Generator[ItemResult[T, R], None, None]:
    waiting = deque(numbered)
    in_flight: dict[Future[ItemResult[T, R]], tuple[int, T]] = {}
    try:
        while waiting or in_flight:
            while waiting and len(in_flight) < max_in_flight:
                index, item = waiting.popleft()
                try:
                    in_flight[executor.submit(_call, function, index, item)] = (index, item)
                except RuntimeError as error:  # the executor is broken or shut down
                    yield ItemResult(index, item, error=as_tracekit_error(error))
            for future in wait(in_flight, return_when=FIRST_COMPLETED).done:
                index, item = in_flight.pop(future)
                failure = future.exception()
                if failure is None:
                    yield future.result()
                else:
                    yield ItemResult(index, item, error=as_tracekit_error(failure))
    finally:
        for future in in_flight:
            future.cancel()


def _map_in_processes(
    function: Callable[[T], R], numbered: Sequence[tuple[int, T]], count: int
) -> Generator[ItemResult[T, R], None, None]:
    """Use one pool until a worker dies.

    Then run the items in flight again, each alone, and go on with a new pool.

    The executor does not tell which item a worker died of, and a worker may be killed because of
    the memory that the others took.
    """
    waiting = deque(numbered)
    while waiting:
        lost: list[tuple[int, T]] = []
        in_flight: dict[Future[bytes | Path], tuple[int, T]] = {}
        with _WorkerPool(count) as pool:
            while in_flight or (waiting and not lost):
                while waiting and not lost and len(in_flight) < ITEMS_IN_FLIGHT_PER_WORKER * count:
                    index, item = waiting.popleft()
                    in_flight[pool.submit(function, index, item)] = (index, item)
                for future in wait(in_flight, return_when=FIRST_COMPLETED).done:
                    index, item = in_flight.pop(future)
                    if isinstance(future.exception(), BrokenProcessPool):
                        lost.append((index, item))
                    else:
                        yield _received(future, index, item)
        for index, item in lost:
            yield _run_alone(function, index, item)


def _run_alone(function: Callable[[T], R], index: int, item: T) -> ItemResult[T, R]:
    """Run one item in a process of its own."""
    with _WorkerPool(1) as pool:
        future = pool.submit(function, index, item)
        if not isinstance(future.exception(), BrokenProcessPool):
            return _received(future, index, item)
        if not pool.has_started():
            raise OptionError(
                "the worker processes ended before they could start",
                hint='in a script, call tracekit under: if __name__ == "__main__":; or work in one process (workers=1)',
            )
    problem = "the worker process that read this died"
    error = MachineError(problem, hint="usually memory ran out: use fewer workers, or fewer ranks")
    return ItemResult(index, item, error=error)


class _WorkerPool:
    """A process pool that ends at once if its block is left by an exception, or its process is killed.

    Every worker holds one end of a connection and waits for the other end, which is here, to close.
    """

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._count = count
        self._ours, self._theirs = context.Pipe()
        self._results = tempfile.TemporaryDirectory(prefix="tracekit-", ignore_cleanup_errors=True)
        with _no_modules_of_the_working_folder():  # of the resource tracker, which starts here
            self._executor = ProcessPoolExecutor(
                count,
                mp_context=context,
                initializer=_start_worker,
                initargs=(self._theirs, self._results.name),
            )

    def __enter__(self) -> _WorkerPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._ours.close()  # the workers end, whatever they are doing
        self._executor.shutdown()
        self._ours.close()
        self._theirs.close()
        self._results.cleanup()

    def submit(self, function: Callable[[Any], Any], index: int, item: Any) -> Future[bytes | Path]:
        """Hand out an item.

        The future of a pool that is broken fails with ``BrokenProcessPool``.
        """
        try:
            # For the process that this may start.
            with (
                _sigint_blocked(),
                _polars_threads(self._count),
                _no_modules_of_the_working_folder(),
            ):
                return self._executor.submit(
                    _call_in_worker, function, index, item, self._results.name
                )
        except BrokenProcessPool as error:
            failed: Future[bytes | Path] = Future()
            failed.set_exception(error)
            return failed

    def has_started(self) -> bool:
        """Return whether any worker got as far as its first item."""
        return self._ours.poll()


def _start_worker(parent: connection.Connection, results: str) -> None:
    threading.Thread(target=_follow_parent, args=(parent, results), daemon=True).start()
    with contextlib.suppress(OSError):  # the parent is gone already
        parent.send_bytes(b"started")


def _follow_parent(parent: connection.Connection, results: str) -> None:
    """End this worker, in the middle of whatever it does, when its parent stops the work or is killed."""
    connection.wait([parent])
    shutil.rmtree(results, ignore_errors=True)
    os._exit(1)


def _call_in_worker(function: Callable[[T], R], index: int, item: T, results: str) -> bytes | Path:
    """Return the pickled result, or the file that holds it.

    A worker that is killed while it writes to the pipe that all workers share would leave half a
    message there, for the rest of which the executor waits forever. What fits into the pipe is
    written at once.
    """
    result = _call(function, index, item)
    try:
        pickled = pickle.dumps(result, protocol=pickle.HIGHEST_PROTOCOL)
        if len(pickled) <= MAX_PIPE_BYTES:
            return pickled
        file = Path(results, str(index))
        file.write_bytes(pickled)
    except Exception as error:
        # A value that cannot be pickled, or no room for the file, is the item's failure.
        return pickle.dumps(ItemResult(index, item, error=as_tracekit_error(error)))
    return file


def _received(future: Future[bytes | Path], index: int, item: T) -> ItemResult[T, Any]:
    """Return the result that a worker sent."""
    try:
        sent = future.result()
        if isinstance(sent, Path):
            pickled = sent.read_bytes()
            sent.unlink()
        else:
            pickled = sent
        result: ItemResult[T, Any] = pickle.loads(pickled)
    except Exception as error:
        return ItemResult(index, item, error=as_tracekit_error(error))
    return result


def _end_if_importing_main() -> None:
    """End this process if it is a worker that is still importing the caller's script.

    A spawned process imports the script that started it. If the script calls tracekit without a
    main guard, that import arrives here, and working on would start workers of workers. The parent
    then says what is wrong.
    """
    script = sys.modules.get("__mp_main__")
    if script is not None and sys.modules["__main__"] is not script:
        raise SystemExit(1)


@contextlib.contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Start processes that never see Ctrl-C: it is sent to the whole group, and the parent decides what to stop.

    They inherit the blocked signal, so that it cannot interrupt them while they start either.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _polars_threads(processes: int) -> Iterator[None]:
    """Let processes that start in this block share the cores.

    Otherwise polars uses all of them in each.
    """
    with _default_variable(POLARS_THREADS, str(max(1, cores() // processes))):
        yield


@contextlib.contextmanager
def _no_modules_of_the_working_folder() -> Iterator[None]:
    """Let Pythons that start in this block import nothing from the working folder.

    ``multiprocessing`` starts them with ``-c``, for which that folder is the first to be searched:
    a ``multiprocessing.py`` beside somebody's traces would be run. What the caller can import from
    there, its workers can too: they get its ``sys.path``.
    """
    with _default_variable("PYTHONSAFEPATH", "1"):
        yield


@contextlib.contextmanager
def _default_variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable in this block, unless it is set."""
    if os.environ.get(name):
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


@contextlib.contextmanager
def _progress_bar(label: str | None, total: int) -> Iterator[Callable[[], None]]:
    if label is None or is_quiet() or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda: bar.advance(task)
