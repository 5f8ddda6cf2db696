"""What more or fewer micro-batches and chunks would do: points of two curves."""

from __future__ import annotations

from collections.abc import Iterator

from tracekit.errors import ScheduleError
from tracekit.schedules import Schedule, generate
from tracekit.schedules.registry import describe

MICROBATCHES = (1, 2, 4, 8)
"""Micro-batches tried, in multiples of the ranks."""

CHUNKS = (1, 2, 3, 4)
"""Chunks per rank tried."""

MOST_POINT_OPS = 600
"""Ops of a schedule up to which it is a point of a curve: these are many."""


def by_microbatches(own: Schedule) -> Iterator[Schedule]:
    """Return the run's schedule with other numbers of micro-batches, its own among them."""
    counts = sorted({own.pp * k for k in MICROBATCHES} | {own.microbatches})
    for count in counts:
        virtual = own.virtual if describe(own.name).virtual is None else None
        yield from _made(own.name, own.pp, count, virtual)


def by_chunks(own: Schedule, layers: int | None) -> Iterator[Schedule]:
    """Return 1F1B over other numbers of chunks; only those that divide a rank's *layers*, where these are known."""
    for chunks in CHUNKS:
        if layers is None and chunks > 2:
            return
        if layers is not None and layers % chunks:
            continue
        name = "1f1b" if chunks == 1 else "interleaved"
        yield from _made(name, own.pp, own.microbatches, None if chunks == 1 else chunks)


def _made(name: str, pp: int, microbatches: int, virtual: int | None) -> Iterator[Schedule]:
    try:
        made = generate(name, pp=pp, microbatches=microbatches, virtual=virtual)
    except ScheduleError:
        return
    if sum(len(order) for order in made.ranks) <= MOST_POINT_OPS:
        yield made
