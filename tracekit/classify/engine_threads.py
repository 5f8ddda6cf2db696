"""Backward work told by its thread, where no operator was recorded.

PyTorch's autograd engine differentiates on threads of its own. In a profile of kernels and launches alone, the thread
that launches kernels named for a backward is told from the thread that runs the forward and the optimizer.

On such a thread a product whose result is added to a gradient right after it is the gradient of a weight; attention
differentiates with the same layouts and adds nothing. Every micro-batch launches the same sequence, so products between
the same kernels are alike: the first micro-batch, whose gradients need no adding, follows the others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Int32s, Ints
from tracekit._util.categories import CategoryColumn
from tracekit.classify.autograd import Autograd
from tracekit.classify.host_ranges import GpuEvents, Launches
from tracekit.classify.matmul import MATMUL_KERNELS, Matmuls, roles_by_layout
from tracekit.classify.pass_direction import BACKWARD_KERNELS, FORWARD_KERNELS, OPTIMIZER_KERNELS, WGRAD_KERNELS
from tracekit.classify.row_order import mask_of_rows, nearest_at_or_after

_MAX_ENGINE_KERNELS_PER_OTHER = 10
"""The thread that runs the forward launches at least one kernel for so many of the backward's threads."""
RECOMPUTE_RUN_LENGTH = 4
"""Kernels in a row that are the same on both threads where the forward runs again."""
_FORWARD_ONLY_KERNELS = r"(?i)flash|fmha|sdpa|attn|attention|norm|softmax"
"""Kernels whose forward runs in a backward only to run again; that of a convolution may compute a gradient."""
_ADDING_KERNELS = r"(?i)(^|[^a-z])add(functor)?([^a-z]|$)"
MIN_ADDED_SHARE = 0.5
"""Share of products in weight layout that must be added to a gradient for that to identify gradients of weights."""
_MAX_KERNELS_TO_SUM = 2
"""Distance of a sum from its product: at once, or after the one other product of its layer."""


def read_engine_threads(gpu: GpuEvents, launches: Launches, autograd: Autograd, *, communicates: Bools) -> Autograd:
    """Fill in the pass of every kernel on a thread that runs the backward; only where no operators were recorded."""
    kernel = gpu.is_kernel & ~communicates & (launches.thread >= 0)
    if autograd.active or bool((launches.op >= 0)[kernel].any()) or not kernel.any():
        return autograd
    names = gpu.names
    named_backward = kernel & (names.matches(BACKWARD_KERNELS) | names.matches(WGRAD_KERNELS))
    named_forward = kernel & names.matches(FORWARD_KERNELS) & ~named_backward
    named_optimizer = kernel & names.matches(OPTIMIZER_KERNELS) & ~named_backward
    engine = kernel & _on_engine_threads(launches, kernel, named_backward, named_forward, named_optimizer)
    recompute = engine & named_forward & names.matches(_FORWARD_ONLY_KERNELS)
    backward = engine
    if recompute.any():
        telling = recompute | names.matches(MATMUL_KERNELS)
        repeated = _repeats_of_forward(names.codes, launches, engine, kernel & ~engine, telling) & ~named_backward
        if not (repeated & ~recompute).any():
            # The forward does not run again kernel by kernel. A kernel whose name does not tell may be part of it.
            layout = roles_by_layout(names).where(engine)
            repeated = layout.any_of("forward") & ~named_backward
            backward = engine & (named_backward | layout.any_of("dgrad", "wgrad"))
        recompute |= repeated
    site = CategoryColumn.choose(len(gpu), [("recompute", recompute), ("backward", backward)])
    return replace(autograd, site=site)


def _on_engine_threads(
    launches: Launches, kernel: Bools, named_backward: Bools, named_forward: Bools, named_optimizer: Bools
) -> Bools:
    """Return the mask of events on threads that run the backward and no optimizer.

    There are none unless another thread runs other work and no backward, and enough of it: a thread that only prepares
    data does not tell who runs the backward.
    """
    threads = int(launches.thread.max(initial=-1)) + 1

    def count_per_thread(mask: Bools) -> Ints:
        return np.bincount(launches.thread[mask], minlength=threads)

    runs_backward = count_per_thread(named_backward) > 0
    is_engine = runs_backward & (count_per_thread(named_optimizer) == 0)
    is_other = ~runs_backward & (count_per_thread(named_forward | named_optimizer) > 0)
    launched = count_per_thread(kernel)
    if _MAX_ENGINE_KERNELS_PER_OTHER * launched[is_other].max(initial=0) < launched[is_engine].sum():
        return np.zeros(len(kernel), np.bool_)
    return np.append(is_engine, False)[launches.thread]


def _repeats_of_forward(name: Int32s, launches: Launches, engine: Bools, forward: Bools, telling: Bools) -> Bools:
    """Return the kernels of the *engine* that repeat a stretch of the *forward*, name by name.

    A backward shares a few kernels in a row with its forward by chance: elementwise ones, and no product among them. So
    a stretch counts only if it contains a *telling* kernel.
    """
    forward_rows, engine_rows = (launches.by_thread(np.flatnonzero(mask)) for mask in (forward, engine))
    forward_windows, engine_windows = (name_windows(name[rows]) for rows in (forward_rows, engine_rows))
    begin = engine_windows.join(forward_windows, on=forward_windows.columns[1:], how="semi")["begin"].to_numpy()
    # Cover every matching window: add one where it begins, take one away where it ends, and sum up.
    steps = np.zeros(len(engine_rows) + 1, np.int64)
    np.add.at(steps, begin, 1)
    np.add.at(steps, np.minimum(begin + RECOMPUTE_RUN_LENGTH, len(engine_rows)), -1)
    is_repeated = np.cumsum(steps[:-1]) > 0
    run = np.cumsum(np.diff(is_repeated, prepend=False) != 0)
    run_tells = np.bincount(run, weights=telling[engine_rows] & is_repeated) > 0
    return mask_of_rows(len(name), engine_rows[is_repeated & run_tells[run]])


def name_windows(name: Int32s) -> pl.DataFrame:
    """Return every stretch of ``RECOMPUTE_RUN_LENGTH`` names, and the row at which it begins."""
    count = max(len(name) - RECOMPUTE_RUN_LENGTH + 1, 0)
    columns = {f"name{k}": name[k : k + count] for k in range(RECOMPUTE_RUN_LENGTH)}
    return pl.DataFrame({"begin": np.arange(count), **columns})


def read_gradients(gpu: GpuEvents, launches: Launches, autograd: Autograd, matmuls: Matmuls) -> CategoryColumn:
    """Return ``weight`` or ``input`` for every kernel of a backward that is told by its thread; null elsewhere."""
    none = CategoryColumn.constant(None, len(gpu))
    backward = autograd.site.any_of("backward") & (launches.thread >= 0)
    role = matmuls.role.where(backward)
    if autograd.active or not role.any_of("wgrad").any() or not role.any_of("dgrad").any():
        return none
    # From here on: one row per kernel of the backward, in launch order of each thread.
    rows = np.flatnonzero(backward & gpu.is_kernel & ~(matmuls.is_gemm & ~matmuls.whole))
    rows = launches.by_thread(rows)
    is_product = matmuls.is_gemm[rows]
    is_sum = gpu.names.matches(_ADDING_KERNELS)[rows] & ~is_product
    sum_of = _sums_of_products(is_product, is_sum, launches.thread[rows])
    is_added, is_weight = sum_of >= 0, role.any_of("wgrad")[rows]
    if is_added[is_weight].mean() < MIN_ADDED_SHARE:  # sums do not identify gradients of weights
        return none
    is_weight &= _is_mostly_added(is_added, is_weight, ~is_sum, gpu.names.codes[rows])
    weight_rows = np.concatenate([rows[is_weight], rows[sum_of[is_weight & is_added]]])
    is_weight_event = mask_of_rows(len(gpu), weight_rows)
    return CategoryColumn.choose(len(gpu), [("weight", is_weight_event), ("input", backward)])


def _sums_of_products(is_product: Bools, is_sum: Bools, thread: Ints) -> Ints:
    """Return for each product the row of the sum that adds its result to a gradient; -1 where none.

    It is the first kernel after the product that is no product, if that is near and on the same thread.
    """
    row = np.arange(len(is_product))
    following = nearest_at_or_after(~is_product)
    is_near = (following >= 0) & (following - row <= _MAX_KERNELS_TO_SUM) & (thread[following] == thread)
    return np.where(is_product & is_near & is_sum[following], following, -1)


def _is_mostly_added(is_added: Bools, is_weight: Bools, is_no_sum: Bools, name: Int32s) -> Bools:
    """Return whether most products of a kernel's name between the same kernels, sums left out, are added."""
    rows = np.flatnonzero(is_no_sum)
    codes = np.concatenate([[-1], name[rows], [-1]])
    kernels = pl.DataFrame({"before": codes[:-2], "own": codes[1:-1], "after": codes[2:], "added": is_added[rows]})
    key = ["before", "own", "after"]
    products = kernels.filter(pl.Series(is_weight[rows]))
    mostly = products.group_by(key).agg(pl.col("added").mean() >= MIN_ADDED_SHARE)
    matched = kernels.drop("added").join(mostly, on=key, how="left", maintain_order="left")
    return mask_of_rows(len(is_no_sum), rows, matched["added"].fill_null(False).to_numpy())
