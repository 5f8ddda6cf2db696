"""Garbage collection kept away while very many small objects, and no garbage, are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collecting() -> Iterator[None]:
    """Switch the garbage collector off for a block: it would look at every op of a large schedule again and again.

    >>> with no_collecting():
    ...     gc.isenabled()
    False
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def collect_rarely() -> None:
    """Let this process collect less often: imports make many objects and no garbage, and looking takes 0.2 s."""
    gc.set_threshold(200_000)
