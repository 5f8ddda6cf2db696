"""Forwards and backwards of different micro-batches that ran as one block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

NEAR = 3
"""Chunks before and after one, in launch order, among which the one it ran beside is looked for."""

TOUCH = 0.05
"""Share of the shorter half of a named block that must run beside the other for the two to have met."""
SOME = 0.1
"""Share of a step's named blocks whose halves must have met for the names to be believed."""

COLUMNS = ("block", "op", "pair", "launch_ns", "last_ns", "start_ns", "end_ns")
"""What is looked at of chunks."""

_Spans = list[tuple[int, int]]


def beside(chunks: pl.DataFrame, *, from_ranges: bool) -> pl.Series:
    """Return for each forward the backward it ran together with, and the other way round; -1 for none.

    Together: launched interleaved, or on the GPU at once for a third of the shorter one. Where annotations say all,
    only those they call a block, unless hardly any of these had its halves at once: then they ran one after the other.

    >>> chunks = pl.DataFrame({"block": [None, None], "op": ["F", "B"], "pair": [1, 0], "launch_ns": [0, 5],
    ...     "last_ns": [9, 14], "start_ns": [0, 5], "end_ns": [10, 15]})
    >>> beside(chunks, from_ranges=False).to_list()
    [1, 0]
    """
    found = partners([chunks[name].to_list() for name in COLUMNS], from_ranges=from_ranges)
    return pl.Series("beside", found, dtype=pl.Int64)


def partners(columns: Sequence[list[Any]], *, from_ranges: bool) -> list[int]:
    """Return what ``beside`` does, from the *columns* it looks at."""
    block, op, pair, launch, last, start, end = columns
    host, gpu = list(zip(launch, last, strict=True)), list(zip(start, end, strict=True))
    partner = [-1] * len(op)
    meeting = _meeting(block, op, host, gpu, from_ranges=from_ranges)
    real = _real_blocks(meeting, block, op, host, gpu)
    for i in meeting:
        best, most = -1, 0.0
        for j in range(max(0, i - NEAR), min(len(op), i + NEAR + 1)):
            apart = host[j][0] > host[i][1] or host[i][0] > host[j][1]
            apart &= gpu[j][0] >= gpu[i][1] or gpu[i][0] >= gpu[j][1]
            same = block[i] is not None and block[i] == block[j] and real
            if (from_ranges or (apart and block[i] is None)) and not same:
                continue
            if op[j] in ("B", "I") and pair[j] != pair[i] and partner[j] < 0:
                share = max(2.0 * same, _share(host[i], host[j], inner=True), _share(gpu[i], gpu[j]))
                if share > max(most, 1 / 3):
                    best, most = j, share
        if best >= 0:
            partner[i], partner[best] = best, i
    return partner


def _meeting(block: list[str | None], op: list[str], host: _Spans, gpu: _Spans, *, from_ranges: bool) -> list[int]:
    """Return the forwards that may have run beside another chunk: named as one block, or near it in time."""
    near = np.array([name is not None for name in block], np.bool_)
    if not from_ranges:
        (launch, last), (start, end) = (np.array(spans, np.int64).reshape(-1, 2).T for spans in (host, gpu))
        for k in range(1, NEAR + 1):
            meets = (launch[k:] <= last[:-k]) & (launch[:-k] <= last[k:])
            meets |= (start[k:] < end[:-k]) & (start[:-k] < end[k:])
            near[k:] |= meets
            near[:-k] |= meets
    return [i for i in np.flatnonzero(near).tolist() if op[i] == "F"]


def _real_blocks(meeting: list[int], block: list[str | None], op: list[str], host: _Spans, gpu: _Spans) -> bool:
    """Return whether what ranges call blocks ran as such: some halves were launched interleaved, or ran at once.

    One runtime runs all of them the same way, so a block whose halves happened not to meet is one where others are.
    """
    named, touched = 0, 0
    for i in meeting:
        for j in range(max(0, i - NEAR), min(len(block), i + NEAR + 1)):
            if block[i] is not None and block[i] == block[j] and op[j] in ("B", "I"):
                named += 1
                touched += _share(host[i], host[j]) > 0 or _share(gpu[i], gpu[j]) > TOUCH
    return touched > SOME * named


def _share(a: tuple[int, int], b: tuple[int, int], *, inner: bool = False) -> float:
    both = min(a[1], b[1]) - max(a[0], b[0])
    return both / max(1, min(a[1] - a[0], b[1] - b[0])) if both > 0 or (inner and both == 0) else 0.0
