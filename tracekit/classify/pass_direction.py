"""Direction of the work of every GPU event: forward, backward, wgrad, recompute or optimizer.

The autograd engine tells first, then the roles of matrix products, then names of operators, annotations and kernels,
and last the work that was launched around an event (``surrounding_work``).
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints
from tracekit._util.categories import CategoryColumn
from tracekit.classify.autograd import Autograd
from tracekit.classify.host_ranges import GpuEvents, Launches, Ranges
from tracekit.classify.matmul import Matmuls
from tracekit.classify.row_order import agreed_values, mask_of_rows
from tracekit.classify.surrounding_work import (
    BACKWARD,
    FORWARD,
    IN_BACKWARD,
    OPTIMIZER,
    RECOMPUTE,
    WGRAD,
    directions_by_neighbours,
)
from tracekit.schema import PATH_SEPARATOR

WGRAD_KERNELS = (
    r"(?i)wgrad|weight_?grad|grad_weight|_acc::GemmKernel|GammaBeta|dgamma|dbeta|gradbias|bias_grad|embedding_backward"
    r"|wrw|bwd_?weight|backward_(weight|filter)|(norm|(?<![a-z])ln)\w*_bwd_finalize"
)
BACKWARD_KERNELS = (
    r"(?i)backward|(?<![a-z])bwd|(?-i:Bwd)|bprop|dgrad|_grad(?![a-z])|grad_?input|fmha_cutlass(?-i:B)"
    r"|dot_do_o|convert_dq|OGradDotO"
)
FORWARD_KERNELS = r"(?i)forward|(?<![a-z])fwd|(?-i:Fwd)|fprop|fmha_cutlass(?-i:F)"
OPTIMIZER_KERNELS = (
    r"(?i)multi_tensor_apply|(?<![a-z])(fused)?_?(adamw?|lamb|muon)(?![a-z])|L2NormFunctor|adafactor|sgd_?kernel"
    r"|k(Precondition)?Optimizer(?-i:[A-Z0-9])|Adam(?-i:[A-Z])"
)
_FRAMEWORK_KERNELS = (
    r"(?i)at::native::|flash_?(attn|fwd|infer)|fmha|(?<![a-z])sdpa|rms_?norm|layer_?norm|vllm::|sglang|moe::dev|deep_gemm"
    r"|^triton_(poi|red|per)_|paged_?(kv|attention)|rotary"
)
"""Kernels that only programs which run a model launch."""
_OPTIMIZER_OPS = r"(?i)aten::(_foreach_(?!copy_)|_fused_(adam|sgd|adagrad)|_amp_)|optimizer|clip_grad"
_OPTIMIZER_ANNOTATION = (
    r"(?i)^Optimizer\.(step|zero_grad)|optimizer[-_. ]?step|^optimizer$|opt_step|clip_grad|unscale_grads|zero_grad"
)
_FILL_OPS = r"aten::(fill_|zero_|copy_|_to_copy|clone|cat)$"
"""Innermost operators that fill or copy a buffer, which programs without a model do too."""
_DIRECTIONS = ("forward", "backward", "wgrad", "recompute", "optimizer")
"""Names of the codes ``FORWARD``, ``BACKWARD`` and so on."""


class Directions(NamedTuple):
    """For every GPU event the direction of its work, and the evidence for it."""

    value: CategoryColumn  # "forward", "backward", "wgrad", "recompute", "optimizer"
    source: CategoryColumn
    """One of "autograd", "seed", "matmul", "name", "parameters", "between", "namesake", "no backward in trace"."""


class _Assignment:
    """Direction codes of events and the evidence for each. The evidence that is assigned first counts."""

    def __init__(self, is_open: Bools) -> None:
        self.is_open = is_open  # events that may still get a direction
        self.value, self._source_code = np.full((2, len(is_open)), -1, np.int64)
        self._sources: list[str] = []

    def assign(self, source: str, mask: Bools, direction: int | Ints) -> None:
        """Give the open events of *mask* a direction: one for all, or one for each event."""
        if source not in self._sources:
            self._sources.append(source)
        rows = np.flatnonzero(mask & self.is_open)
        self.value[rows] = direction if isinstance(direction, int) else direction[rows]
        self._source_code[rows] = self._sources.index(source)
        self.is_open[rows] = False

    def withdraw(self, direction: int) -> None:
        """Open the events that were given this direction again."""
        self.is_open[self.value == direction] = True
        self.value[self.value == direction] = -1

    def result(self) -> Directions:
        """Return the directions by name."""
        return Directions(
            CategoryColumn(_DIRECTIONS, self.value), CategoryColumn(tuple(self._sources), self._source_code)
        )


def read_directions(
    gpu: GpuEvents, ranges: Ranges, launches: Launches, autograd: Autograd, matmuls: Matmuls, *, communicates: Bools
) -> Directions:
    """Find the direction of every GPU event that does not communicate, as far as there is evidence."""
    names, chain, site = gpu.names, launches.chain, autograd.site
    compute = gpu.is_kernel & ~communicates
    without_op = compute & (launches.op < 0)
    in_optimizer = launches.annotations.map(_has_optimizer_annotation)
    directions = _Assignment(~communicates)
    assign = directions.assign

    assign("autograd", site.any_of("recompute"), RECOMPUTE)
    assign("autograd", site.any_of("backward"), BACKWARD)
    assign("autograd", site.any_of("forward"), FORWARD)
    assign("seed", compute & chain.matches(r"^aten::ones_like > ") & _right_before_engine(launches, autograd), BACKWARD)
    assign("matmul", matmuls.role.any_of("wgrad"), WGRAD)
    assign("autograd", autograd.made_node & ~matmuls.role.present, FORWARD)
    assign("matmul", matmuls.role.any_of("forward"), FORWARD)
    assign("matmul", matmuls.role.any_of("dgrad"), BACKWARD)
    is_optimizer = in_optimizer | chain.matches(_OPTIMIZER_OPS) | (names.matches(OPTIMIZER_KERNELS) & without_op)
    assign("name", is_optimizer, OPTIMIZER)
    assign("name", without_op & names.matches(WGRAD_KERNELS), WGRAD)
    assign("name", without_op & names.matches(BACKWARD_KERNELS), BACKWARD)
    assign("name", without_op & names.matches(FORWARD_KERNELS), FORWARD)

    is_gradient = (directions.value == BACKWARD) | (directions.value == WGRAD)
    if autograd.active or bool(in_optimizer.any()) or bool(is_gradient[compute].any()):
        cases = directions_by_neighbours(directions.value, gpu, ranges, launches, autograd, communicates=communicates)
        for source, direction, mask in cases:
            assign(source, mask, direction)
        _assign_lost_launches(directions, gpu, launches)
    else:
        # Without a backward, kernels that update many tensors at once are no optimizer.
        directions.withdraw(OPTIMIZER)
        # Without an operator or a framework's kernel nothing shows that this program runs a model. A program whose
        # kernels only fill and copy buffers, such as a parameter server, runs none.
        computes = bool((compute & ~chain.matches(_FILL_OPS)).any())
        if computes and (bool((launches.op >= 0).any()) or bool((names.matches(_FRAMEWORK_KERNELS) & compute).any())):
            assign("no backward in trace", np.ones(len(gpu), np.bool_), FORWARD)
    return directions.result()


def _right_before_engine(launches: Launches, autograd: Autograd) -> Bools:
    """Return the mask of launches right after which the autograd engine launches."""
    order = launches.order
    return mask_of_rows(len(launches.start_ns), order[:-1], (autograd.node_row >= 0)[order[1:]])


def _has_optimizer_annotation(path: str) -> bool:
    return any(re.search(_OPTIMIZER_ANNOTATION, name) for name in path.split(PATH_SEPARATOR))


def _assign_lost_launches(directions: _Assignment, gpu: GpuEvents, launches: Launches) -> None:
    """Assign directions to events whose launch the file lost.

    An event is like all others of its name, else like both neighbours on its stream.
    """
    lost = launches.start_ns < 0
    if not lost.any():
        return
    names = gpu.names
    rows = np.flatnonzero((directions.value >= 0) & names.present)
    of_name = agreed_values(names.codes[rows], directions.value[rows], len(names.values) + 1)  # last: no name
    agreed = names.look_up(of_name)
    directions.assign("namesake", lost & (agreed >= 0), agreed)

    # The nearest event with a direction before and after each event on its stream. Rows are sorted by start.
    known_value = pl.when(pl.col("value") >= 0).then("value")
    neighbours = pl.DataFrame({"value": directions.value, "stream": gpu.stream_number}).select(
        before=known_value.forward_fill().over("stream").fill_null(-1),
        after=known_value.backward_fill().over("stream").fill_null(-1),
    )
    before, after = neighbours["before"].to_numpy(), neighbours["after"].to_numpy()
    directions.assign("between", lost & IN_BACKWARD[before] & IN_BACKWARD[after], BACKWARD)
    directions.assign("between", lost & (before == FORWARD) & (after == FORWARD), FORWARD)
