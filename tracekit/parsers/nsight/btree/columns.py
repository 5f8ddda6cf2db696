"""Columns that grow by one block of pages after the other, and those of several threads joined to one.

Joined to one piece: to gather rows from many pieces takes six times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl

from tracekit.parsers.nsight.btree.layout import SPAN_BITS
from tracekit.parsers.nsight.btree.pages import Bytes, Numbers


class NumberColumn:
    """Integers and nulls, with room for all rows that are expected: small arrays would need twice the memory."""

    def __init__(self) -> None:
        self._values, self._rows = np.empty(0, np.int64), 0
        self._present: Bytes | None = None  # a zero for each null, where there is one

    def add(self, values: Numbers, present: Bytes, expected: int) -> None:
        """Take a copy of one block's numbers, and leave *present* as it was before, all ones."""
        end = self._rows + len(values)
        if end > len(self._values):
            self._grow(max(end, expected, len(self._values) * 3 // 2))
        self._values[self._rows : end] = values
        if not present.all():
            if self._present is None:
                self._present = np.ones(len(self._values), np.uint8)
            self._present[self._rows : end] = present
            present.fill(1)
        self._rows = end

    def _grow(self, room: int) -> None:
        values, self._values = self._values, np.empty(room, np.int64)
        self._values[: self._rows] = values[: self._rows]
        if self._present is not None:
            present, self._present = self._present, np.ones(room, np.uint8)
            self._present[: self._rows] = present[: self._rows]

    @staticmethod
    def join(parts: Sequence[NumberColumn]) -> pl.Series:
        """Return the numbers as one column."""
        column = pl.Series(np.concatenate([part._values[: part._rows] for part in parts]))
        if all(part._present is None for part in parts):
            return column
        ones = (
            np.ones(part._rows, np.uint8) if part._present is None else part._present[: part._rows] for part in parts
        )
        return pl.select(pl.when(pl.Series(np.concatenate(list(ones)).view(np.bool_))).then(column)).to_series()


class BytesColumn:
    """Texts, or bytes; nothing where there is no value."""

    def __init__(self) -> None:
        self._blocks = [pl.Series(dtype=pl.Binary())]

    def add(self, pages: Bytes, values: Numbers, gather: Callable[..., Any]) -> None:
        """Take a copy of what one block's *values* point to on its *pages*."""
        spans = values.copy()
        lengths = spans & ((1 << SPAN_BITS) - 1)
        ends = np.cumsum(lengths)
        data = np.empty(int(lengths.sum()), np.uint8)
        gather(pages, spans, data)
        cut = pl.lit(data.tobytes()).bin.slice(pl.Series(ends - lengths), pl.Series(lengths))
        self._blocks.append(pl.select(cut).to_series())

    @staticmethod
    def join(parts: Sequence[BytesColumn]) -> pl.Series:
        """Return the bytes as one column."""
        return pl.concat([block for part in parts for block in part._blocks]).rechunk()
