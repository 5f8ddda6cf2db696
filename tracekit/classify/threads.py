"""Which thread runs the backward, where no operator was recorded: the one that launches what is named for it.

PyTorch's engine differentiates on threads of its own. A profile of kernels and launches alone still tells them from
the thread that runs the forward and the optimizer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from tracekit.classify._nest import Ints
from tracekit.classify._text import Bools, Text
from tracekit.classify.autograd import Autograd
from tracekit.classify.directions import BACKWARD, FORWARD, OPTIMIZER, WGRAD
from tracekit.classify.matmul import layouts
from tracekit.classify.ranges import Launches

_WEIGHT = 10
"""The thread that runs the forward launches at least one in so many kernels for those of the backward."""
_ONLY_AHEAD = r"(?i)flash|fmha|sdpa|attn|attention|norm|softmax"
"""What never runs in a backward but to run the forward again; a convolution's forward kernel may serve a gradient."""


def read_threads(gpu: pl.DataFrame, launches: Launches, autograd: Autograd, *, comm: Bools) -> Autograd:
    """Fill the pass of every kernel on a thread that runs the backward; leave all as it is where operators speak."""
    kernel = (gpu["kind"] == "kernel").to_numpy() & ~comm & (launches.thread >= 0)
    if autograd.active or bool((launches.op >= 0).any()) or not kernel.any():
        return autograd
    names = Text.of(gpu["name"])
    back = kernel & (names.matches(BACKWARD) | names.matches(WGRAD))
    ahead = kernel & names.matches(FORWARD) & ~back
    engine = _engines(launches, kernel, back, ahead, kernel & names.matches(OPTIMIZER) & ~back)
    again = engine & ahead & names.matches(_ONLY_AHEAD)
    sure = engine & kernel
    if again.any():  # some of the forward runs again, and a kernel that says nothing may be part of it
        layout = layouts(names).where(engine & kernel)
        again |= layout.map(lambda v: v == "forward") & ~back
        sure &= back | layout.map(lambda v: v in ("dgrad", "wgrad"))
    site = Text.choose(len(gpu), [("recompute", again), ("backward", sure)])
    return replace(autograd, site=site)


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
