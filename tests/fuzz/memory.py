"""Room so small that small inputs fill it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tracekit.parsers.kineto import blocks, worker

SMALL = {
    blocks: {"BLOCK_BYTES": 512},
    worker: {"ROWS_PER_CHUNK": 8, "MAX_PAGES": 4096, "FIRST_TEXTS": 16, "FIRST_TEXT_BYTES": 256},
}


@contextmanager
def small_memory() -> Iterator[None]:
    """Give the scanner so little room that small inputs fill it, many times over."""
    before = {
        (module, name): getattr(module, name) for module, names in SMALL.items() for name in names
    }
    for module, names in SMALL.items():
        for name, value in names.items():
            setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name), value in before.items():
            setattr(module, name, value)
