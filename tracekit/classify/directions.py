"""Forward, backward or optimizer for work the autograd engine did not place: by name, then by its neighbours."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools
from tracekit._util.categories import CategoryColumn
from tracekit.classify._nest import Ints
from tracekit.classify.autograd import Autograd
from tracekit.classify.matmul import Matmuls
from tracekit.classify.neighbours import GRADED, B, F, O, R, W, shared
from tracekit.classify.ranges import Gpu, Launches, Ranges
from tracekit.schema import PATH_SEPARATOR

WGRAD = (
    r"(?i)wgrad|weight_?grad|grad_weight|_acc::GemmKernel|GammaBeta|dgamma|dbeta|gradbias|bias_grad|embedding_backward"
    r"|wrw|bwd_?weight|backward_(weight|filter)|(norm|(?<![a-z])ln)\w*_bwd_finalize"
)
BACKWARD = (
    r"(?i)backward|(?<![a-z])bwd|(?-i:Bwd)|bprop|dgrad|_grad(?![a-z])|grad_?input|fmha_cutlass(?-i:B)"
    r"|dot_do_o|convert_dq|OGradDotO"
)
FORWARD = r"(?i)forward|(?<![a-z])fwd|(?-i:Fwd)|fprop|fmha_cutlass(?-i:F)"
OPTIMIZER = (
    r"(?i)multi_tensor_apply|(?<![a-z])(fused)?_?(adamw?|lamb|muon)(?![a-z])|L2NormFunctor|adafactor|sgd_?kernel"
    r"|k(Precondition)?Optimizer(?-i:[A-Z0-9])|Adam(?-i:[A-Z])"
)
FRAMEWORK = (
    r"(?i)at::native::|flash_?(attn|fwd|infer)|fmha|(?<![a-z])sdpa|rms_?norm|layer_?norm|vllm::|sglang|moe::dev|deep_gemm"
    r"|^triton_(poi|red|per)_|paged_?(kv|attention)|rotary"
)
"""Kernels that only programs running a model launch."""
OPTIMIZER_OP = r"(?i)aten::(_foreach_(?!copy_)|_fused_(adam|sgd|adagrad)|_amp_)|optimizer|clip_grad"
OPTIMIZER_ANNOTATION = (
    r"(?i)^Optimizer\.(step|zero_grad)|optimizer[-_. ]?step|^optimizer$|opt_step|clip_grad|unscale_grads|zero_grad"
)

_VALUES = ("forward", "backward", "wgrad", "recompute", "optimizer")


class Directions(NamedTuple):
    """For every GPU event the direction of the work around it, and how that is known."""

    value: CategoryColumn  # "forward", "backward", "wgrad", "recompute", "optimizer"
    source: CategoryColumn
    """One of "autograd", "seed", "matmul", "name", "parameters", "between", "namesake", "no backward in trace"."""


def read_directions(
    gpu: Gpu, ranges: Ranges, launches: Launches, autograd: Autograd, matmuls: Matmuls, *, comm: Bools
) -> Directions:
    """Place every GPU event in a pass, as far as anything speaks for one."""
    n = len(gpu)
    names = gpu.names
    compute = gpu.is_kernel & ~comm
    value, source = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    open_ = ~comm
    sources: list[str] = []

    def say(why: str, mask: Bools, what: int | Ints) -> None:
        if why not in sources:
            sources.append(why)
        new = np.flatnonzero(mask & open_)
        value[new] = what if isinstance(what, int) else what[new]
        source[new] = sources.index(why)
        open_[new] = False

    site = autograd.site
    say("autograd", site.any_of("recompute"), R)
    say("autograd", site.any_of("backward"), B)
    say("autograd", site.any_of("forward"), F)
    ops = launches.chain
    say("seed", compute & ops.matches(r"^aten::ones_like > ") & _before_engine(launches, autograd), B)
    say("matmul", matmuls.role.any_of("wgrad"), W)
    say("autograd", autograd.made & ~matmuls.role.present, F)
    say("matmul", matmuls.role.any_of("forward"), F)
    say("matmul", matmuls.role.any_of("dgrad"), B)
    opted = launches.annotations.map(_names_optimizer)
    alone = compute & (launches.op < 0)
    say("name", opted | ops.matches(OPTIMIZER_OP) | (names.matches(OPTIMIZER) & alone), O)
    say("name", alone & names.matches(WGRAD), W)
    say("name", alone & names.matches(BACKWARD), B)
    say("name", alone & names.matches(FORWARD), F)
    if autograd.active or bool(opted.any()) or bool(((value == B) | (value == W))[compute].any()):
        for why, what, hit in shared(value, gpu, ranges, launches, autograd, comm=comm):
            say(why, hit, what)
        _unlaunched(say, value, gpu, names, launches)
    else:
        open_[value == O] = True  # without a backward, what updates many tensors at once is no optimizer
        value[value == O] = -1
        # Without an operator or a kernel of a framework's, nothing says that this is a model at all.
        if bool((launches.op >= 0).any()) or bool((names.matches(FRAMEWORK) & compute).any()):
            say("no backward in trace", np.ones(n, np.bool_), F)
    return Directions(CategoryColumn(_VALUES, value), CategoryColumn(tuple(sources), source))


def _before_engine(launches: Launches, autograd: Autograd) -> Bools:
    """Launches right after which the engine launches."""
    out, order = np.zeros(len(launches.at), np.bool_), launches.order
    out[order[:-1]] = (autograd.node_row >= 0)[order[1:]]
    return out


def _names_optimizer(path: str) -> bool:
    return any(re.search(OPTIMIZER_ANNOTATION, part) for part in path.split(PATH_SEPARATOR))


Say = Callable[[str, Bools, int | Ints], None]


def _unlaunched(say: Say, value: Ints, gpu: Gpu, names: CategoryColumn, launches: Launches) -> None:
    """Events whose launch the file lost: as all others of their name, else as both neighbours on their stream."""
    lost = launches.at < 0
    if not lost.any():
        return
    known = (value >= 0) & (names.codes >= 0)
    low, high = np.full(len(names.values) + 1, 9, np.int64), np.full(len(names.values) + 1, -1, np.int64)
    np.minimum.at(low, names.codes[known], value[known])
    np.maximum.at(high, names.codes[known], value[known])
    agreed = names.look_up(np.where(low == high, high, -1))
    say("namesake", lost & (agreed >= 0), agreed)
    decided = pl.when(pl.col("value") >= 0).then("value")
    table = pl.DataFrame({"value": value, "place": gpu.place}).select(
        before=decided.forward_fill().over("place").fill_null(-1),
        after=decided.backward_fill().over("place").fill_null(-1),
    )
    before, after = table["before"].to_numpy(), table["after"].to_numpy()
    say("between", lost & GRADED[before] & GRADED[after], B)
    say("between", lost & (before == F) & (after == F), F)
