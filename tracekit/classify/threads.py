"""Which thread runs the backward, where no operator was recorded: the one that launches what is named for it.

PyTorch's engine differentiates on threads of its own. A profile of kernels and launches alone still tells them from
the thread that runs the forward and the optimizer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from tracekit.classify._text import Bools, Text
from tracekit.classify.autograd import Autograd
from tracekit.classify.directions import BACKWARD, FORWARD, OPTIMIZER, WGRAD
from tracekit.classify.matmul import layouts
from tracekit.classify.ranges import Launches

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
    engine = _engines(launches, back, ahead | (kernel & names.matches(OPTIMIZER)))
    again = engine & ahead & names.matches(_ONLY_AHEAD)
    sure = engine & kernel
    if again.any():  # some of the forward runs again, and a kernel that says nothing may be part of it
        layout = layouts(names).where(engine & kernel)
        again |= layout.map(lambda v: v == "forward") & ~back
        sure &= back | layout.map(lambda v: v in ("dgrad", "wgrad"))
    site = Text.choose(len(gpu), [("recompute", again), ("backward", sure)])
    return replace(autograd, site=site)


def _engines(launches: Launches, back: Bools, ahead: Bools) -> Bools:
    """Events of threads that run backward work, where another thread runs other work and no backward."""
    threads = int(launches.thread.max(initial=-1)) + 1
    backs = np.bincount(launches.thread[back], minlength=threads) > 0
    aheads = np.bincount(launches.thread[ahead], minlength=threads) > 0
    if not (aheads & ~backs).any():
        return np.zeros(len(back), np.bool_)
    return np.append(backs, False)[launches.thread]
