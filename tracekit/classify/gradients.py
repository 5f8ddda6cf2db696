"""Which gradient a kernel of the engine's thread computes, where no operator was recorded: the weight's or the input's.

A product whose result is summed into the weight's gradient right after it is the weight's; attention differentiates
with the same layouts and sums nothing. Every micro-batch launches the same sequence, so products between the same
kernels are one and the same: a first micro-batch, whose gradients need no summing, follows the others.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Int32s
from tracekit._util.categories import CategoryColumn
from tracekit.classify._nest import Ints
from tracekit.classify.autograd import Autograd
from tracekit.classify.matmul import Matmuls
from tracekit.classify.ranges import Gpu, Launches

SUMS = r"(?i)(^|[^a-z])add(functor)?([^a-z]|$)"
"""Names of kernels that add one tensor to another."""
MOST = 0.5
"""Share of products in weight layout that are summed, above which being summed is what tells a weight's gradient."""
_AHEAD = 2
"""A sum follows its product at once, or after the one other product of its layer."""


def read_gradients(gpu: Gpu, launches: Launches, autograd: Autograd, matmuls: Matmuls) -> CategoryColumn:
    """Return "weight" or "input" for every kernel of a backward told by its thread; null elsewhere."""
    n = len(gpu)
    if autograd.active:
        return CategoryColumn.constant(None, n)
    back = autograd.site.any_of("backward") & (launches.thread >= 0)
    role = matmuls.role.where(back)
    weights = role.any_of("wgrad")
    if not weights.any() or not role.any_of("dgrad").any():
        return CategoryColumn.constant(None, n)
    rows = np.flatnonzero(back & gpu.is_kernel & ~(matmuls.is_gemm & ~matmuls.whole))
    rows = rows[np.lexsort((launches.at[rows], launches.thread[rows]))]
    names = gpu.names
    sums = (names.matches(SUMS) & ~matmuls.is_gemm)[rows]
    summed_by = _summed_by(matmuls.is_gemm[rows], sums, launches.thread[rows])
    of_weights = weights[rows]
    if (summed_by[of_weights] >= 0).mean() < MOST:  # nothing tells sums of weight gradients from the rest
        return CategoryColumn.constant(None, n)
    of_weights = of_weights & _usually(summed_by >= 0, of_weights, ~sums, names.codes[rows])
    weight, sum_places = np.zeros(n, np.bool_), summed_by[of_weights & (summed_by >= 0)]
    weight[rows[of_weights]] = True
    weight[rows[sum_places]] = True
    return CategoryColumn.choose(n, [("weight", weight), ("input", back)])


def _summed_by(product: Bools, sums: Bools, thread: Ints) -> Ints:
    """Return, for each product, the place of the sum that takes its result: the first non-product after it."""
    places = np.arange(len(product))
    following = np.minimum.accumulate(np.where(product, len(product), places)[::-1])[::-1]
    candidate = np.minimum(following, max(len(product) - 1, 0))
    near = (following < len(product)) & (candidate - places <= _AHEAD) & (thread[candidate] == thread)
    return np.where(product & near & sums[candidate], candidate, -1)


def _usually(summed: Bools, of_weights: Bools, kept: Bools, name: Int32s) -> Bools:
    """Return whether most products of the same name between the same kernels, sums left out, are summed."""
    at = np.flatnonzero(kept)
    codes = np.concatenate([[-1], name[at], [-1]])
    table = pl.DataFrame({"before": codes[:-2], "own": codes[1:-1], "after": codes[2:], "summed": summed[at]})
    usual = (
        table.filter(pl.Series(of_weights[at])).group_by("before", "own", "after").agg(pl.col("summed").mean() >= MOST)
    )
    known = table.drop("summed").join(usual, on=["before", "own", "after"], how="left", maintain_order="left")
    out = np.zeros(len(kept), np.bool_)
    out[at] = known["summed"].fill_null(False).to_numpy()
    return out
