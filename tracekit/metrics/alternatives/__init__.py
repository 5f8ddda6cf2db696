"""Catalogue of alternatives: what else could do work that a rank does, and what it would take.

A module holds a family of entries; every class in it that names a change is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import ModuleType

import polars as pl

from tracekit.metrics.alternatives import (
    attention,
    fusion,
    gradients,
    host,
    images,
    inference,
    loops,
    messages,
    optimizer,
    precision,
    products,
    recompute,
    repeated,
    stalls,
    tables,
    transforms,
)
from tracekit.metrics.alternatives.entry import NOTHING, Alternative, SitePrice
from tracekit.metrics.alternatives.remedy import REMEDIES, REMEDY
from tracekit.metrics.rank_work import RankWork

__all__ = ["ALTERNATIVES", "NOTHING", "Alternative", "SitePrice", "find_remedies"]


def _entries_of(module: ModuleType) -> Iterator[Alternative]:
    """Yield the entries that a module defines, in its order."""
    for value in vars(module).values():
        is_own = isinstance(value, type) and value.__module__ == module.__name__
        if is_own and issubclass(value, Alternative) and hasattr(value, "change"):
            yield value()


_FAMILIES_IN_ORDER = (
    precision,
    attention,
    fusion,
    recompute,
    optimizer,
    messages,
    stalls,
    tables,
    images,
    loops,
    gradients,
    repeated,
    products,
    inference,
    transforms,
    host,
)
ALTERNATIVES: tuple[Alternative, ...] = tuple(
    entry for family in _FAMILIES_IN_ORDER for entry in _entries_of(family)
)
"""All entries, in the order in which they are asked."""


def find_remedies(
    rank: RankWork,
    *,
    entries: Iterable[Alternative] = ALTERNATIVES,
    own: Callable[[RankWork], Iterator[pl.DataFrame]] | None = None,
) -> pl.Series:
    """Return the remedies of each GPU event as a list of ``REMEDY``; null where it has none.

    Args:
        rank: The rank's work.
        entries: Entries of the catalogue.
        own: What finds the remedies of a user's entries.
    """
    frames = [frame for entry in entries for frame in entry.find(rank)]
    if own is not None:
        frames += own(rank)
    table = pl.concat([REMEDIES.to_frame(), *frames])
    rows = table.group_by("row").agg(remedies=pl.struct([field.name for field in REMEDY.fields]))
    all_rows = pl.DataFrame({"row": pl.int_range(rank.events.height, dtype=pl.Int32, eager=True)})
    return all_rows.join(rows, on="row", how="left", maintain_order="left")["remedies"]
