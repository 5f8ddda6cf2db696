"""Which thread runs the backward, where no operator was recorded: the one that launches what is named for it.

PyTorch's engine differentiates on threads of its own. A profile of kernels and launches alone still tells them from
the thread that runs the forward and the optimizer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Int32s
from tracekit._util.categories import CategoryColumn
from tracekit.classify._nest import Ints
from tracekit.classify.autograd import Autograd
from tracekit.classify.directions import BACKWARD, FORWARD, OPTIMIZER, WGRAD
from tracekit.classify.matmul import KERNELS, layouts
from tracekit.classify.ranges import Gpu, Launches

_WEIGHT = 10
"""The thread that runs the forward launches at least one in so many kernels for those of the backward."""
REPEATED = 4
"""Kernels in a row that are the same on both threads, where the forward runs again."""
_ONLY_AHEAD = r"(?i)flash|fmha|sdpa|attn|attention|norm|softmax"
"""What never runs in a backward but to run the forward again; a convolution's forward kernel may serve a gradient."""


def read_threads(gpu: Gpu, launches: Launches, autograd: Autograd, *, comm: Bools) -> Autograd:
    """Fill the pass of every kernel on a thread that runs the backward; leave all as it is where operators speak."""
    kernel = gpu.is_kernel & ~comm & (launches.thread >= 0)
    if autograd.active or bool((launches.op >= 0)[kernel].any()) or not kernel.any():
        return autograd
    names = gpu.names
    back = kernel & (names.matches(BACKWARD) | names.matches(WGRAD))
    ahead = kernel & names.matches(FORWARD) & ~back
    engine = _engines(launches, kernel, back, ahead, kernel & names.matches(OPTIMIZER) & ~back)
    again = engine & ahead & names.matches(_ONLY_AHEAD)
    sure = engine & kernel
    if again.any():  # some of the forward runs again
        telling = again | names.matches(KERNELS)
        repeated = _reruns(names.codes, launches, kernel & engine, kernel & ~engine, telling) & ~back
        if not (repeated & ~again).any():  # not kernel by kernel: one that says nothing may be part of it
            layout = layouts(names).where(engine & kernel)
            repeated = layout.any_of("forward") & ~back
            sure &= back | layout.any_of("dgrad", "wgrad")
        again |= repeated
    site = CategoryColumn.choose(len(gpu), [("recompute", again), ("backward", sure)])
    return replace(autograd, site=site)


def _reruns(name: Int32s, launches: Launches, engine: Bools, forward: Bools, telling: Bools) -> Bools:
    """Kernels of the engine that repeat a stretch of the forward, name by name, with something *telling* in it.

    A backward shares a few kernels in a row with its forward by chance: elementwise ones, and no product among them.
    """
    ahead, behind = (_in_order(launches, mask) for mask in (forward, engine))
    known, asked = (_windows(name[rows]) for rows in (ahead, behind))
    begins = asked.join(known, on=known.columns[1:], how="semi")["at"].to_numpy()
    inside = np.zeros(len(behind) + 1, np.int64)
    np.add.at(inside, begins, 1)
    np.add.at(inside, np.minimum(begins + REPEATED, len(behind)), -1)
    repeated = np.cumsum(inside[:-1]) > 0
    run = np.cumsum(np.diff(repeated, prepend=False) != 0)
    telling_runs = np.bincount(run, weights=telling[behind] & repeated) > 0
    out = np.zeros(len(name), np.bool_)
    out[behind[repeated & telling_runs[run]]] = True
    return out


def _in_order(launches: Launches, mask: Bools) -> Ints:
    rows = np.flatnonzero(mask)
    return rows[np.lexsort((launches.at[rows], launches.thread[rows]))]


def _windows(name: Int32s) -> pl.DataFrame:
    """Return every stretch of ``REPEATED`` names, and where it begins (``at``)."""
    count = max(len(name) - REPEATED + 1, 0)
    columns = {f"name{k}": name[k : k + count] for k in range(REPEATED)}
    return pl.DataFrame({"at": np.arange(count), **columns})


def _engines(launches: Launches, kernel: Bools, back: Bools, ahead: Bools, updates: Bools) -> Bools:
    """Events of threads that run the backward and no optimizer, where one of weight runs other work and no backward.

    A thread that only prepares data has little weight, and says nothing of who runs the backward.
    """
    threads = int(launches.thread.max(initial=-1)) + 1

    def count(mask: Bools) -> Ints:
        return np.bincount(launches.thread[mask], minlength=threads)

    engine = (count(back) > 0) & (count(updates) == 0)
    other = (count(back) == 0) & (count(ahead | updates) > 0)
    launched = count(kernel)
    if _WEIGHT * launched[other].max(initial=0) < launched[engine].sum():
        return np.zeros(len(back), np.bool_)
    return np.append(engine, False)[launches.thread]
