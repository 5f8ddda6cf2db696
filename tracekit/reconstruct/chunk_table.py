"""Table of one rank's chunks, over all steps, with measures of their content."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Ints, group_rows
from tracekit._util.columns import to_int64
from tracekit.intervals import Intervals
from tracekit.reconstruct.chunks import CONFIDENCE_ANNOTATED
from tracekit.reconstruct.kernels import LOOSE_WGRAD
from tracekit.reconstruct.overlapped_blocks import find_partners
from tracekit.reconstruct.segment import segment_steps
from tracekit.reconstruct.stalls import Timeline
from tracekit.schema import COMPUTE_LABELS, STALL_CAUSES, conform

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


class ChunkTable(msgspec.Struct, frozen=True, eq=False):
    """Chunks of all steps of a rank, and the kernels they are made of."""

    chunks: pl.DataFrame  # ``CHUNKS``, without measures until ``measure_chunks``
    rows: Ints  # rows of the kernels that belong to a chunk
    chunk: Ints  # chunk of each of these kernels


def cut_chunks(rows: pl.DataFrame) -> ChunkTable:
    """Return the chunks of all steps of a rank; *rows* are its GPU events, as ``prepare`` returns them."""
    steps = [found for found in segment_steps(rows) if (found[2].chunk >= 0).any()]
    if not steps:
        return ChunkTable(pl.DataFrame(schema=CHUNKS), np.zeros(0, np.int64), np.zeros(0, np.int64))
    # Each step numbers its chunks from 0; here they are numbered over all steps.
    sizes = [len(cut.op) for _, _, cut in steps]
    first = np.cumsum([0, *sizes])[:-1].tolist()
    kernels = np.concatenate([step_rows[cut.chunk >= 0] for _, step_rows, cut in steps])
    chunk = np.concatenate(
        [cut.chunk[cut.chunk >= 0] + offset for offset, (_, _, cut) in zip(first, steps, strict=True)]
    )
    chunks = _summarize(rows, kernels, chunk).with_columns(
        pl.Series("step", np.repeat([step for step, _, _ in steps], sizes)),
        pl.Series("op", [op for _, _, cut in steps for op in cut.op], dtype=pl.String),
        pl.Series("pair", np.concatenate([cut.pair for _, _, cut in steps])),
        pl.Series("confidence", [value for _, _, cut in steps for value in cut.confidence], dtype=pl.Float64),
    )
    partners = [
        find_partners(chunks.slice(offset, size), from_ranges=cut.from_ranges)
        for offset, size, (_, _, cut) in zip(first, sizes, steps, strict=True)
    ]
    return ChunkTable(_share_stages(chunks).with_columns(pl.concat(partners)), kernels, chunk)


def _summarize(rows: pl.DataFrame, kernels: Ints, chunk: Ints) -> pl.DataFrame:
    """Return for every chunk its times, the stage, micro-batch and block that its kernels name, and its layers."""
    members = rows[kernels].select(
        pl.Series("chunk", chunk), "category", "host_ns", "start_ns", "end_ns", "stage", "microbatch", "block"
    )
    needed_ns = pl.col("host_ns").filter(pl.col("category") != LOOSE_WGRAD)
    names = to_int64(rows["name"].to_physical())[kernels]
    return (
        members.group_by("chunk")
        .agg(
            pl.col("host_ns").min().alias("launch_ns"),
            pl.coalesce(needed_ns.max(), pl.col("host_ns").max()).alias("last_ns"),
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            pl.col("stage", "microbatch", "block").drop_nulls().first(),
        )
        .sort("chunk")
        .select(
            pl.exclude("chunk"),
            pl.Series("layers", count_layers(chunk, names, (members["end_ns"] - members["start_ns"]).to_numpy())),
        )
    )


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
    chunk_of_kind, count, kind_ns = chunk[first], np.bincount(kind), np.bincount(kind, duration_ns)
    total_ns = np.bincount(chunk_of_kind, kind_ns)
    layers = np.ones(len(total_ns), np.int64)
    for candidate in np.unique(count):  # ascending, so that the largest accepted number stays
        divisible_ns = np.bincount(chunk_of_kind, kind_ns * (count % candidate == 0), len(total_ns))
        layers[divisible_ns >= MIN_SHARE_OF_TIME_IN_LAYERS * total_ns] = candidate
    return layers


def _share_stages(chunks: pl.DataFrame) -> pl.DataFrame:
    """Give backwards without a stage and micro-batch of their own those of their forward."""
    names = ("stage", "microbatch")
    has_both = pl.all_horizontal(pl.col(names).is_not_null())
    of_forward = (pl.col(name).filter(has_both & (pl.col("op") == "F")).first().over("step", "pair") for name in names)
    named = chunks.with_columns(pl.coalesce(name, own) for name, own in zip(names, of_forward, strict=True))
    return named.with_columns(confidence=pl.when(has_both).then(pl.lit(CONFIDENCE_ANNOTATED)).otherwise("confidence"))


def measure_chunks(chunks: pl.DataFrame, timeline: Timeline, stalls: Mapping[str, Intervals]) -> pl.DataFrame:
    """Return the chunks with their compute time and stalls; of an overlapped block, those of the whole block."""
    if chunks.is_empty():
        return chunks
    start, end = _block_spans(chunks)
    measures = {
        "busy_ns": timeline.time((*COMPUTE_LABELS, "other")).covered_ns(start, end),
        "wgrad_ns": timeline.time(("wgrad",)).covered_ns(start, end),
        **{f"{cause}_ns": stall.covered_ns(start, end) for cause, stall in stalls.items()},
    }
    return conform(chunks.with_columns(pl.Series(name, ns) for name, ns in measures.items()), CHUNKS)


def _block_spans(chunks: pl.DataFrame) -> tuple[Ints, Ints]:
    """Return start and end of each chunk; for both halves of an overlapped block those of the block."""
    start, end = chunks["start_ns"].to_numpy().copy(), chunks["end_ns"].to_numpy().copy()
    step, beside = chunks["step"].to_numpy(), chunks["beside"].to_numpy()
    half = np.flatnonzero(beside >= 0)
    other = beside[half] + np.searchsorted(step, step[half])  # beside counts within the step
    start[half], end[half] = np.minimum(start[half], start[other]), np.maximum(end[half], end[other])
    return start, end
