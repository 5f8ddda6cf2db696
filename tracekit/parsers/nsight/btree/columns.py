"""Columns of one block of pages after the other, and all blocks' as one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import polars as pl

from tracekit.parsers.nsight.btree.layout import NUMBER
from tracekit.parsers.nsight.btree.pages import Bytes, Numbers


class Numbered(NamedTuple):
    """A column of numbers of one block, and a zero for each that is none, where any is."""

    values: Numbers
    present: Bytes | None


def numbers(values: Numbers, present: Bytes) -> Numbered:
    """Return a copy of a column of numbers, and leave *present* as it was before, all ones."""
    gaps = None
    if not present.all():
        gaps = present.copy()
        present.fill(1)
    return Numbered(values.copy(), gaps)


def joined(parts: list[Any], form: int) -> pl.Series:
    """Return all blocks of a column, of what *form* says, in one piece: to gather from many takes six times as long."""
    if form != NUMBER:
        blocks: list[pl.Series] = [pl.Series(dtype=pl.Binary()), *parts]
        return pl.concat(blocks).rechunk()
    column = pl.Series(np.concatenate([np.empty(0, np.int64), *(part.values for part in parts)]))
    if all(part.present is None for part in parts):
        return column
    present = [np.ones(len(part.values), np.uint8) if part.present is None else part.present for part in parts]
    return pl.select(pl.when(pl.Series(np.concatenate(present).view(np.bool_))).then(column)).to_series()
