"""Table of one rank's chunks, over all steps, with measures of their content.

Chunks of different micro-batches that ran at the same time, a forward and a backward, form an
overlapped block.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from tracekit._util.arrays import Ints, group_rows
from tracekit._util.columns import to_int64
from tracekit.intervals import Intervals
from tracekit.metrics.label_intervals import COMPUTE_SET
from tracekit.pipeline.reconstruct.kernels import LOOSE_WGRAD
from tracekit.pipeline.reconstruct.segment import CONFIDENCE_ANNOTATED, segment_steps
from tracekit.pipeline.reconstruct.stalls import time_of
from tracekit.schema import STALL_CAUSES, conform

MAX_CHUNKS_BETWEEN_HALVES = 3
"""Chunks before and behind a forward, in launch order, among which its backward is looked for."""
MIN_SHARED_TIME = 1 / 3
"""Share of the shorter half that must be launched, or run, at the same time as the other for the
two to be a block."""
MIN_SHARED_GPU_TIME = 0.05
"""Share of the shorter half of a named block that must run at the same time as the other for the
block to be real."""
MIN_SHARE_OF_REAL_BLOCKS = 0.1
"""Share of a step's named blocks that must be real for the names to be believed."""

_Chunk = Mapping[str, Any]
"""Row of a table of chunks."""


def find_partners(chunks: pl.DataFrame, *, from_ranges: bool) -> pl.Series:
    """Return for each chunk the row of the chunk with which it forms a block; -1: none.

    A forward and a backward are a block if they were launched interleaved or were on the GPU at the
    same time, for more than a third of the shorter one. If the step was cut by ranges
    (*from_ranges*), only those count that the ranges call a block; unless hardly any of these ran
    as one, then the runtime runs the halves one after the other.

    >>> chunks = pl.DataFrame({"block": [None, None], "op": ["F", "B"], "pair": [1, 0], "launch_ns": [0, 5],
    ...     "last_ns": [9, 14], "start_ns": [0, 5], "end_ns": [10, 15]})
    >>> find_partners(chunks, from_ranges=False).to_list()
    [1, 0]
    """
    rows = chunks.select("block", "op", "pair", "launch_ns", "last_ns", "start_ns", "end_ns").rows(
        named=True
    )
    backwards_near: dict[int, list[int]] = {}  # by forward
    for forward, row in enumerate(rows):
        if row["op"] == "F":
            backwards_near[forward] = _find_backwards_near(rows, forward)
    named = _named_blocks(rows, backwards_near)
    partner = [-1] * len(rows)
    for forward, backwards in backwards_near.items():
        best = -1
        best_share = MIN_SHARED_TIME
        for backward in backwards:
            is_named = (forward, backward) in named
            is_own_backward = rows[backward]["pair"] == rows[forward]["pair"]
            is_taken = partner[backward] >= 0
            if (from_ranges and not is_named) or is_own_backward or is_taken:
                continue
            share = _NAMED_BLOCK if is_named else _shared_time(rows[forward], rows[backward])
            if share > best_share:
                best = backward
                best_share = share
        if best >= 0:
            partner[forward] = best
            partner[best] = forward
    return pl.Series("beside", partner, dtype=pl.Int64)


def _find_backwards_near(rows: Sequence[Mapping[str, Any]], forward: int) -> list[int]:
    """Return the backwards at most ``MAX_CHUNKS_BETWEEN_HALVES`` rows before or behind a forward."""
    first = max(0, forward - MAX_CHUNKS_BETWEEN_HALVES)
    end = min(len(rows), forward + MAX_CHUNKS_BETWEEN_HALVES + 1)
    return [row for row in range(first, end) if rows[row]["op"] in ("B", "I")]


def _named_blocks(
    rows: Sequence[Mapping[str, Any]], backwards_near: Mapping[int, Sequence[int]]
) -> set[tuple[int, int]]:
    """Return the forwards and backwards that ranges call a block, unless hardly any of these ran as one.

    One runtime runs all blocks the same way, so a block whose halves happened not to meet is one if
    others are.
    """
    named: set[tuple[int, int]] = set()
    real_count = 0
    for forward, backwards in backwards_near.items():
        for backward in backwards:
            name = rows[forward]["block"]
            if name and name == rows[backward]["block"]:
                named.add((forward, backward))
                real_count += _is_real_block(rows[forward], rows[backward])
    return named if real_count > MIN_SHARE_OF_REAL_BLOCKS * len(named) else set()


def _is_real_block(forward: _Chunk, backward: _Chunk) -> bool:
    """Return whether the halves of a named block were launched interleaved, or on the GPU at the same time."""
    return (
        _shared_on_host(forward, backward) > 0
        or _shared_on_gpu(forward, backward) > MIN_SHARED_GPU_TIME
    )


def _shared(start: str, end: str, a: _Chunk, b: _Chunk) -> float:
    """Return the overlap of two chunks, each from *start* to *end*, as a share of the shorter one."""
    overlap = min(a[end], b[end]) - max(a[start], b[start])
    return float(max(0, overlap) / max(1, min(a[end] - a[start], b[end] - b[start])))


_shared_on_host = partial(_shared, "launch_ns", "last_ns")
_shared_on_gpu = partial(_shared, "start_ns", "end_ns")
_NAMED_BLOCK = float("inf")  # more than any share, so that names decide before times


def _shared_time(forward: _Chunk, backward: _Chunk) -> float:
    """Return the share of the shorter half that is launched, or runs, at the same time as the other."""
    return max(_shared_on_host(forward, backward), _shared_on_gpu(forward, backward))


CHUNKS = pl.Schema(
    {
        "step": pl.Int64(),
        "op": pl.String(),  # F, I, W or B
        "pair": pl.Int64(),  # index of the forward in its step, in launch order; a backward has its forward's
        "beside": pl.Int64(),  # row, within its step, of the chunk it overlaps with (FB), else -1
        "launch_ns": pl.Int64(),  # of its first kernel
        "last_ns": pl.Int64(),  # launch of the last kernel that its output needs: loose weight gradients do not count
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "busy_ns": pl.Int64(),  # union of compute inside it
        "wgrad_ns": pl.Int64(),  # of that, weight gradients
        **{f"{cause}_ns": pl.Int64() for cause in STALL_CAUSES},
        "layers": pl.Int64(),  # equal layers it is made of
        "stage": pl.Int32(),
        "microbatch": pl.Int32(),
        "confidence": pl.Float64(),
    }
)

MIN_SHARE_OF_TIME_IN_LAYERS = 0.95
"""Share of a chunk's time in kernels whose count is a multiple of N, to accept N layers."""


def cut_chunks(rows: pl.DataFrame) -> tuple[pl.DataFrame, Ints, Ints]:
    """Cut the GPU events of a rank into chunks; *rows* are as ``prepare`` returns them.

    Returns:
        The chunks of all steps (``CHUNKS``, without measures until ``measure_chunks``), the rows of
        the kernels that belong to one, and the chunk of each of these kernels.
    """
    kernels: list[Ints] = []
    chunk_of_kernel: list[Ints] = []
    tables: list[pl.DataFrame] = []
    from_ranges: list[bool] = []  # of each step
    chunk_count = 0
    for step, step_rows, cut in segment_steps(rows):
        in_chunk = cut.chunk >= 0
        if not in_chunk.any():
            continue
        kernels.append(step_rows[in_chunk])
        # Each step numbers its chunks from 0; here they are numbered over all steps.
        chunk_of_kernel.append(cut.chunk[in_chunk] + chunk_count)
        chunk_count += len(cut.op)
        columns = {"op": cut.op, "pair": cut.pair, "confidence": cut.confidence}
        table = pl.DataFrame(columns, schema_overrides={"op": pl.String, "confidence": pl.Float64})
        tables.append(table.with_columns(step=pl.lit(step, pl.Int64)))
        from_ranges.append(cut.from_ranges)
    if not tables:
        return pl.DataFrame(schema=CHUNKS), np.zeros(0, np.int64), np.zeros(0, np.int64)
    all_kernels = np.concatenate(kernels)
    all_chunks = np.concatenate(chunk_of_kernel)
    chunks = _summarize(rows, all_kernels, all_chunks)
    chunks = chunks.with_columns(pl.concat(tables).select("step", "op", "pair", "confidence"))
    partners = []
    first = 0
    for table, is_from_ranges in zip(tables, from_ranges, strict=True):
        partners.append(
            find_partners(chunks.slice(first, table.height), from_ranges=is_from_ranges)
        )
        first += table.height
    return _share_stages(chunks).with_columns(pl.concat(partners)), all_kernels, all_chunks


def _summarize(rows: pl.DataFrame, kernels: Ints, chunk: Ints) -> pl.DataFrame:
    """Return for every chunk its times, the stage, micro-batch and block that its kernels name, and its layers."""
    columns = ("category", "host_ns", "start_ns", "end_ns", "stage", "microbatch", "block")
    members = rows.select(columns)[kernels].with_columns(pl.Series("chunk", chunk))
    needed_ns = pl.col("host_ns").filter(pl.col("category") != LOOSE_WGRAD)
    names = to_int64(rows["name"].to_physical())[kernels]
    duration_ns = (members["end_ns"] - members["start_ns"]).to_numpy()
    layers = count_layers(chunk, names, duration_ns)
    chunks = members.group_by("chunk").agg(
        pl.col("host_ns").min().alias("launch_ns"),
        pl.coalesce(needed_ns.max(), pl.col("host_ns").max()).alias("last_ns"),
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.col("stage", "microbatch", "block").drop_nulls().first(),
    )
    return chunks.sort("chunk").drop("chunk").with_columns(pl.Series("layers", layers))


def count_layers(chunk: Ints, name: Ints, duration_ns: Ints) -> Ints:
    """Return for every chunk the largest number of equal layers that nearly all its kernels divide into.

    Kernels that occur once (an embedding, a loss) count against it.

    Args:
        chunk: Chunk of each kernel.
        name: Code of each kernel's name.
        duration_ns: Duration of each kernel.

    >>> count_layers(np.zeros(9, np.int64), np.array([0, 1, 1] * 3), np.ones(9, np.int64)).tolist()
    [3]

    """
    # A kind is a kernel name within a chunk.
    kind, first = group_rows(chunk, name)
    chunk_of_kind = chunk[first]
    count = np.bincount(kind)
    kind_ns = np.bincount(kind, duration_ns)
    total_ns = np.bincount(chunk_of_kind, kind_ns)
    layers = np.ones(len(total_ns), np.int64)
    for candidate in np.unique(count):  # ascending, so that the largest accepted number stays
        divisible_ns = np.bincount(chunk_of_kind, kind_ns * (count % candidate == 0), len(total_ns))
        layers[divisible_ns >= MIN_SHARE_OF_TIME_IN_LAYERS * total_ns] = candidate
    return layers


def _share_stages(chunks: pl.DataFrame) -> pl.DataFrame:
    """Give backwards without a stage and micro-batch of their own those of their forward."""
    stage_and_microbatch = pl.col("stage", "microbatch")
    has_both = pl.all_horizontal(stage_and_microbatch.is_not_null())
    is_named_forward = has_both & (pl.col("op") == "F")
    of_forward = stage_and_microbatch.filter(is_named_forward).first().over("step", "pair")
    named = chunks.with_columns(stage_and_microbatch.fill_null(of_forward))
    return named.with_columns(
        confidence=pl.when(has_both).then(pl.lit(CONFIDENCE_ANNOTATED)).otherwise("confidence")
    )


def measure_chunks(
    chunks: pl.DataFrame, rows: pl.DataFrame, stalls: Mapping[str, Intervals]
) -> pl.DataFrame:
    """Return the chunks with their compute time (of *rows*) and stalls.

    Of an overlapped block, those of the block.
    """
    if chunks.is_empty():
        return chunks
    start, end = _block_spans(chunks)
    measured = {"busy_ns": time_of(rows, COMPUTE_SET), "wgrad_ns": time_of(rows, ("wgrad",))}
    for cause, stall in stalls.items():
        measured[f"{cause}_ns"] = stall
    measures = [
        pl.Series(name, intervals.covered_ns(start, end)) for name, intervals in measured.items()
    ]
    return conform(chunks.with_columns(measures), CHUNKS)


def _block_spans(chunks: pl.DataFrame) -> tuple[Ints, Ints]:
    """Return start and end of each chunk.

    For both halves of an overlapped block those of the block.
    """
    start = chunks["start_ns"].to_numpy()
    end = chunks["end_ns"].to_numpy()
    step = chunks["step"].to_numpy()
    beside = chunks["beside"].to_numpy()
    half = np.flatnonzero(beside >= 0)
    # ``beside`` counts rows within the step: the step's first row makes it a row of the table.
    other_half = beside[half] + np.searchsorted(step, step[half])
    block_start = start.copy()
    block_start[half] = np.minimum(start[half], start[other_half])
    block_end = end.copy()
    block_end[half] = np.maximum(end[half], end[other_half])
    return block_start, block_end
