"""Roles of the kernels in a convolution's backward: gradient of the input or of the weight.

A call computes the gradient of the input first, then that of the weight. Around each main kernel are helper kernels
that change layouts; a helper prepares the main kernel after it, or finishes the one before it.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints
from tracekit._util.categories import CategoryColumn
from tracekit.classify.host_ranges import GpuEvents, Launches, Ranges

_BACKWARD_OPS = (
    r"^aten::(convolution_backward|\w*convolution\w*_backward\w*|_slow_conv2d_backward|slow_conv\w*_backward)$"
)
_WGRAD_KERNELS = r"(?i)wgrad|wrw|bwd_?weight|backward_(weight|filter)"
_DGRAD_KERNELS = r"(?i)dgrad|igemm_bwd|bwd_?data|backward_(input|data)|(?<![a-z])bwd(?!_?w)"
_HELPER_KERNELS = (
    r"(?i)nchw|nhwc|transpose|scalePacked|kern_precompute|precomputed|fill|SubTensor|cast|computeOffsets|reduce"
    r"|im2col|col2im|elementwise|copy|convertTensor|set_tensor|gridDim|flip|Memset|Memcpy|zero|pad"
)


def convolution_roles(gpu: GpuEvents, ranges: Ranges, launches: Launches) -> CategoryColumn:
    """Return ``dgrad`` or ``wgrad`` for the kernels of every convolution's backward; null elsewhere."""
    call = ranges.op_around(launches.op, _BACKWARD_OPS)
    rows = np.flatnonzero((call >= 0) & gpu.is_kernel)
    if not len(rows):
        return CategoryColumn.constant(None, len(gpu))
    rows = rows[np.lexsort((launches.start_ns[rows], call[rows]))]
    op_name = ranges.name.take(call[rows])  # older versions have one operator for each gradient
    kernel_name = gpu.names.take(rows)
    named_role = CategoryColumn.choose(
        len(rows),
        [
            ("wgrad", op_name.matches(r"backward_weight") | kernel_name.matches(_WGRAD_KERNELS)),
            ("dgrad", op_name.matches(r"backward_input") | kernel_name.matches(_DGRAD_KERNELS)),
        ],
    )
    is_main = named_role.present | ~kernel_name.matches(_HELPER_KERNELS)
    role = named_role.fill(_roles_by_order(call[rows], is_main, named_role))
    return _share_with_helpers(call[rows], role, is_main).spread(rows, len(gpu))


def _roles_by_order(call: Ints, is_main: Bools, named_role: CategoryColumn) -> CategoryColumn:
    """Return the role of main kernels by their order in the call.

    What comes before a kernel that is named as the weight's is dgrad, what comes after it is wgrad. Without such a
    name, of exactly two main kernels the first is dgrad and the second wgrad.
    """
    rows = np.flatnonzero(is_main)
    kernels = (
        pl.DataFrame({"call": call[rows], "is_wgrad": named_role.take(rows).any_of("wgrad")})
        .with_columns(position=pl.int_range(pl.len()).over("call"), count=pl.len().over("call"))
        .with_columns(first_wgrad=pl.when("is_wgrad").then("position").min().over("call"))
    )
    position, first_wgrad, is_pair = pl.col("position"), pl.col("first_wgrad"), pl.col("count") == 2
    cases = kernels.select(
        before_wgrad=position < first_wgrad,
        after_wgrad=position > first_wgrad,
        first_of_pair=is_pair & (position == 0),
        second_of_pair=is_pair & (position == 1),
    ).fill_null(False)
    roles = zip(("dgrad", "wgrad", "dgrad", "wgrad"), (case.to_numpy() for case in cases), strict=True)
    return CategoryColumn.choose(len(rows), list(roles)).spread(rows, len(call))


def _share_with_helpers(call: Ints, role: CategoryColumn, is_main: Bools) -> CategoryColumn:
    """Give helpers the role of the next main kernel of their call, else of the one before."""
    main_code = pl.when("is_main").then("code")
    code = main_code.backward_fill().over("call").fill_null(main_code.forward_fill().over("call")).fill_null(-1)
    kernels = pl.DataFrame({"call": call, "code": role.codes, "is_main": is_main & role.present})
    return CategoryColumn(role.values, kernels.select(code)["code"].to_numpy())
