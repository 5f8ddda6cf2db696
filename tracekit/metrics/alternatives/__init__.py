"""Catalogue of alternatives: what else could do work that a rank does, and what it would take.

A module holds a family of entries; every class in it that names a change is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from tracekit.metrics.alternatives import (
    attention,
    gradients,
    host,
    images,
    inference,
    loops,
    tables,
    transforms,
)
from tracekit.metrics.alternatives.entry import NOTHING, Alternative, SitePrice

__all__ = ["ALTERNATIVES", "NOTHING", "Alternative", "SitePrice"]


def _entries_of(module: ModuleType) -> Iterator[Alternative]:
    """Yield the entries that a module defines, in its order."""
    for value in vars(module).values():
        is_own = isinstance(value, type) and value.__module__ == module.__name__
        if is_own and issubclass(value, Alternative) and hasattr(value, "change"):
            yield value()


ALTERNATIVES: tuple[Alternative, ...] = tuple(
    entry
    for family in (attention, tables, images, loops, gradients, inference, transforms, host)
    for entry in _entries_of(family)
)
"""All entries, in the order in which they are asked."""
