"""Workers, each on a pipe of its own: one that dies takes nothing with it but the item it was at.

A worker that is killed while it writes its result leaves half a message in its own pipe and nowhere else, so that
stopping never waits for anybody. Workers end when their parent does, whatever ended it. Some may be started ahead,
before there is work: a third of what a small run takes is importing, which they do while their parent does the same.
All are spawned, but for those that a bare process starts ahead: it forks, which saves them starting Python anew.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any

from tracekit._util.garbage import collect_rarely
from tracekit._util.machine import SYSTEM, cores

PATIENCE_S = 5.0
"""How long a worker that was told to stop may take before it is killed."""

_THREADS = "POLARS_MAX_THREADS"

Made = tuple[Any, bool, Any]
"""An item, whether its worker lived to finish it, and what was made of it."""


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    item: Any = None
    busy: bool = False

    def give(self, function: Callable[[Any], Any], item: Any) -> bool:
        """Hand out an item; False where the worker is gone."""
        self.item, self.busy = item, True
        try:
            self.pipe.send((function, item))
        except OSError:
            return False
        return True

    def take(self) -> tuple[bool, Any]:
        """Return whether the worker lives, and what it made of its item."""
        try:
            made = self.pipe.recv()
        except (EOFError, OSError):
            return False, None
        self.busy = False
        return True, made

    def end(self, *, now: bool) -> None:
        self.pipe.close()  # an idle worker ends at that
        if not now:
            self.process.join(PATIENCE_S)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.process.close()


waiting: list[_Worker] = []
"""Workers that were started ahead."""
_later: list[str] = []


def start_ahead(count: int, module: str, *, later: str | None = None) -> None:
    """Start workers before there is work; they import *module*, and this process *later*, once it waits for them."""
    _later[:] = [] if later is None else [later]
    method = "fork" if _single() else "spawn"
    if method == "fork":  # polars is not here yet: its threads would only get into the way of the workers'
        os.environ.setdefault(_THREADS, _share(count + 1))
    for _ in range(count):
        waiting.append(_start(count + 1, hide_main=True, module=module, method=method))


def _single() -> bool:
    """Return whether this process has one thread, so that it may fork: no library that has its own is here yet."""
    try:
        return len(list((SYSTEM / "self" / "task").iterdir())) == 1
    except OSError:
        return False  # the system does not tell


def _taken(most: int) -> list[_Worker]:
    taken = waiting[:most]
    del waiting[:most]
    return taken


def beside_workers(function: Callable[[Any], Any], items: Sequence[Any]) -> Generator[Made, None, None]:
    """Yield what ``in_workers`` would, from this process and from those that were started ahead, which end with it."""
    queue, done = deque(items), SimpleQueue[Made]()
    crew = _taken(len(items) - 1)
    dealer = threading.Thread(target=_deal, args=(function, queue, list(crew), done), daemon=True)
    dealer.start()
    whole = False
    try:
        for _ in items:
            mine = _next(queue) if done.empty() else ()
            while _later and not mine and done.empty():
                importlib.import_module(_later.pop())
            yield (mine[0], True, function(mine[0])) if mine else done.get()
        whole = True
    finally:
        queue.clear()
        for worker in [] if whole else crew:
            worker.process.kill()
        dealer.join()  # the pipes say that nobody is there
        for worker in crew:
            if whole:
                worker.pipe.close()  # it ends at that, which takes as long as giving back all its memory
            else:
                worker.end(now=True)


def _deal(function: Callable[[Any], Any], queue: deque[Any], crew: list[_Worker], done: SimpleQueue[Made]) -> None:
    """Hand items to idle workers, and what they made of them to *done*, until there are none of either."""
    while crew:
        for worker in [one for one in crew if not one.busy]:
            for item in _next(queue):
                worker.give(function, item)  # where it is gone, its pipe says so next
        crew = [worker for worker in crew if worker.busy]
        ready = wait([worker.pipe for worker in crew]) if crew else []
        for worker in [one for one in crew if one.pipe in ready]:
            alive, made = worker.take()
            done.put((worker.item, alive, made))
            if not alive:
                crew.remove(worker)


def _next(queue: deque[Any]) -> tuple[Any, ...]:
    """Return the next item, or nothing: between looking and taking, another thread may have had the last."""
    try:
        return (queue.popleft(),)
    except IndexError:
        return ()


def in_workers(
    function: Callable[[Any], Any], items: Sequence[Any], count: int, *, hide_main: bool = True
) -> Generator[Made, None, None]:
    """Yield each item with whether its worker lived to finish it, and what *function* made of it.

    *function* must not raise. When the caller stops early, or is interrupted, all workers end at once.
    """
    queue = list(reversed(items))
    crew = _taken(count) if hide_main else []
    whole = False
    try:
        while queue or any(worker.busy for worker in crew):
            while queue and len(crew) < count:
                crew.append(_start(count, hide_main=hide_main))
            for worker in [one for one in crew if not one.busy][: len(queue)]:
                worker.give(function, queue.pop())  # where it is gone, its pipe says so next
            ready = wait([worker.pipe for worker in crew if worker.busy])
            for worker in [one for one in crew if one.pipe in ready]:
                item = worker.item
                alive, made = worker.take()
                if not alive:
                    crew.remove(worker)
                    worker.end(now=True)
                yield item, alive, made
        whole = True
    finally:
        for worker in crew:
            worker.end(now=not whole)


def _start(count: int, *, hide_main: bool, module: str | None = None, method: str = "spawn") -> _Worker:
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    foreign = [ours, *(worker.pipe for worker in waiting)] if method == "fork" else []
    process: BaseProcess = context.Process(target=_serve, args=(theirs, module, foreign), daemon=True)  # type: ignore[attr-defined]
    with _hidden_main() if hide_main else contextlib.nullcontext(), _shared_cores(count), _deaf(method):
        process.start()
    theirs.close()  # so that the worker's end is the worker's alone: when it dies, ours says so
    return _Worker(process, ours)


def _serve(pipe: Connection, module: str | None, foreign: Sequence[Connection]) -> None:
    """Work until the parent hangs up; its ends of pipes, *foreign* here, must be open nowhere else."""
    for one in foreign:
        one.close()
    threading.Thread(target=_follow_parent, daemon=True).start()
    collect_rarely()
    if module is not None:
        importlib.import_module(module)
    with contextlib.suppress(EOFError, OSError):
        while True:
            function, item = pipe.recv()
            pipe.send(function(item))


def _follow_parent() -> None:
    """End this process, in the middle of whatever it does, when its parent has ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextlib.contextmanager
def _deaf(method: str) -> Iterator[None]:
    """Start processes that never see Ctrl-C: it reaches the whole group, and the parent alone decides what to stop.

    They are born with the signal blocked, and there is no moment at which one would not be.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    if method == "spawn":  # their tracker unblocks the signal when it starts, and it starts with the first of them
        resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _shared_cores(count: int) -> Iterator[None]:
    """Let *count* children, started within, share the cores: else each starts one thread per core."""
    if _THREADS in os.environ:
        yield
        return
    os.environ[_THREADS] = _share(count)
    try:
        yield
    finally:
        del os.environ[_THREADS]


def _share(count: int) -> str:
    """Return how many threads each of *count* processes may have."""
    return str(max(1, cores() // count))


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    """Let a script without ``if __name__ == "__main__"`` start processes.

    Spawned children import the caller's main module again, and with it the call that spawned them. Our functions
    live in modules of their own, so the main module is hidden while children start.
    """
    main = sys.modules["__main__"]
    names = [name for name in ("__file__", "__spec__") if name in main.__dict__]
    hidden: dict[str, Any] = {name: main.__dict__.pop(name) for name in names}
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)
