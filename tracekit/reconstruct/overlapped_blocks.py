"""Overlapped blocks: a forward and a backward of different micro-batches that ran at the same time on one rank."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

MAX_CHUNKS_BETWEEN_HALVES = 3
"""Chunks before and behind a forward, in launch order, among which its backward is looked for."""
MIN_SHARED_TIME = 1 / 3
"""Share of the shorter half that must be launched, or run, at the same time as the other for the two to be a block."""
MIN_SHARED_GPU_TIME = 0.05
"""Share of the shorter half of a named block that must run at the same time as the other for the block to be real."""
MIN_SHARE_OF_REAL_BLOCKS = 0.1
"""Share of a step's named blocks that must be real for the names to be believed."""

_Span = tuple[int, int]


class _Chunk(NamedTuple):
    block: str | None  # name of the block, where a range gives one
    op: str
    pair: int
    host: _Span  # first and last launch
    gpu: _Span  # start and end


def find_partners(chunks: pl.DataFrame, *, from_ranges: bool) -> pl.Series:
    """Return for each chunk the row of the chunk with which it forms a block; -1: none.

    A forward and a backward are a block if they were launched interleaved or were on the GPU at the same time, for more
    than a third of the shorter one. If the step was cut by ranges (*from_ranges*), only those count that the ranges
    call a block; unless hardly any of these ran as one, then the runtime runs the halves one after the other.

    >>> chunks = pl.DataFrame({"block": [None, None], "op": ["F", "B"], "pair": [1, 0], "launch_ns": [0, 5],
    ...     "last_ns": [9, 14], "start_ns": [0, 5], "end_ns": [10, 15]})
    >>> find_partners(chunks, from_ranges=False).to_list()
    [1, 0]
    """
    columns = chunks.select("block", "op", "pair", "launch_ns", "last_ns", "start_ns", "end_ns").rows()
    rows = [
        _Chunk(block, op, pair, (launch, last), (start, end)) for block, op, pair, launch, last, start, end in columns
    ]
    forwards = [row for row, chunk in enumerate(rows) if chunk.op == "F"]
    believe_names = _are_blocks_real(rows, forwards)
    partner = [-1] * len(rows)
    for forward in forwards:
        own = rows[forward]
        best, best_share = -1, MIN_SHARED_TIME
        for backward in _nearby_backwards(rows, forward):
            other = rows[backward]
            is_named = believe_names and own.block is not None and own.block == other.block
            if (from_ranges and not is_named) or other.pair == own.pair or partner[backward] >= 0:
                continue
            share = 2.0 if is_named else max(_shared(own.host, other.host), _shared(own.gpu, other.gpu))
            if share > best_share:
                best, best_share = backward, share
        if best >= 0:
            partner[forward], partner[best] = best, forward
    return pl.Series("beside", partner, dtype=pl.Int64)


def _nearby_backwards(rows: list[_Chunk], forward: int) -> list[int]:
    """Return the rows of the backwards launched near a forward."""
    nearby = range(max(0, forward - MAX_CHUNKS_BETWEEN_HALVES), forward + MAX_CHUNKS_BETWEEN_HALVES + 1)
    return [row for row in nearby if row < len(rows) and rows[row].op in ("B", "I")]


def _are_blocks_real(rows: list[_Chunk], forwards: list[int]) -> bool:
    """Return whether enough of the named blocks had both halves launched interleaved, or on the GPU at the same time.

    One runtime runs all blocks the same way, so a block whose halves happened not to meet is one if others are.
    """
    named, real = 0, 0
    for forward in forwards:
        own = rows[forward]
        for backward in _nearby_backwards(rows, forward):
            other = rows[backward]
            if own.block is not None and own.block == other.block:
                named += 1
                real += _shared(own.host, other.host) > 0 or _shared(own.gpu, other.gpu) > MIN_SHARED_GPU_TIME
    return real > MIN_SHARE_OF_REAL_BLOCKS * named


def _shared(a: _Span, b: _Span) -> float:
    """Return the overlap of two spans as a share of the shorter one."""
    overlap = min(a[1], b[1]) - max(a[0], b[0])
    return max(0, overlap) / max(1, min(a[1] - a[0], b[1] - b[0]))
