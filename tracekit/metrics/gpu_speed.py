"""Speed of GPUs: times of kernels on one rank over those of the same kernels on the other ranks.

What is usual for a kernel is the median over the ranks that run it; of two ranks, the faster one
counts as usual. Two questions are asked of it, which need different thresholds:

- Is a slow GPU the reason why others wait for a rank (``analysis.combine.stragglers``)? A rank is
  compared in every step, so that noise between steps is known, and a small difference beyond it
  counts: ``MIN_SLOW_RATIO``.
- How much faster would a stage run on the GPU of another rank (``gpu_slowdowns``)? Kernels are
  compared over all steps together, so that noise is not known, and only a difference that equal
  GPUs never show counts: ``MIN_GPU_SLOWDOWN``.
"""

from collections.abc import Sequence

import polars as pl

MIN_SLOW_RATIO = 1.03
"""A GPU is slow in a step if kernels with most of the compared time take this many times as long as
elsewhere."""

MIN_GPU_SLOWDOWN = 1.1
"""Time of kernels on a rank over that of the same kernels on the others from which its GPU counts
as slower; below its inverse, as faster. Equal GPUs come out at up to 1.05."""

MIN_TIMES_ALONE = 3
"""Times a kernel must have run alone on a rank before its median there is compared with other
ranks."""

MIN_KERNELS_TO_COMPARE = 30
"""Kernels of a rank that must be compared before its GPU can count as slower or faster."""


def usual_ns(ns: str) -> pl.Expr:
    """Return what is usual for the same work on several ranks, from a column with one value per rank."""
    return pl.col(ns).quantile(0.5, "lower")


def gpu_slowdowns(contention: Sequence[pl.DataFrame]) -> dict[int, float]:
    """Return by index the ranks whose GPU is slower or faster than usual, and how much longer kernels take there.

    Kernels with the same index in chunks of as many kernels are the same; their times alone are
    compared. A rank's slowdown is the median over its kernels: some ran alone only when all GPUs
    were busy, and after some the GPU waits.

    Args:
        contention: Contention tables of the ranks (``reconstruct.messages.CONTENTION``).

    >>> row = {"op": "F", "size": 30, "alone": 4, "beside": 0, "took_ns": 0, "beside_ns": 0}
    >>> usual, slower = ([{**row, "place": k, "alone_ns": ns * (k + 1)} for k in range(30)] for ns in (10.0, 15.0))
    >>> gpu_slowdowns([pl.DataFrame(kernels) for kernels in (usual, usual, slower)])
    {2: 1.5}
    """
    kernel = ["op", "size", "place"]
    table = pl.concat(t.with_columns(rank=pl.lit(rank)) for rank, t in enumerate(contention))
    table = table.filter(pl.col("alone") >= MIN_TIMES_ALONE)
    table = table.with_columns(
        usual_ns=usual_ns("alone_ns").over(kernel), ranks=pl.len().over(kernel)
    )
    shared = table.filter(pl.col("ranks") > 1)
    slowdown = (pl.col("alone_ns") / pl.col("usual_ns")).median()
    by_rank = shared.group_by("rank").agg(slowdown=slowdown, kernels=pl.len()).sort("rank")
    is_known = pl.col("kernels") >= MIN_KERNELS_TO_COMPARE
    is_usual = pl.col("slowdown").is_between(1 / MIN_GPU_SLOWDOWN, MIN_GPU_SLOWDOWN, closed="none")
    return dict(by_rank.filter(is_known & ~is_usual).select("rank", "slowdown").rows())
