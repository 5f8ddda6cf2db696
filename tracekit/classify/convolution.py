"""Convolution's two gradients: which kernels of one backward call serve the input and which the weight.

A call runs the input's gradient first, then the weight's. Around each main kernel are helpers that change layouts;
a helper prepares the main kernel after it, or finishes the one before.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Int32s
from tracekit._util.categories import CategoryColumn
from tracekit.classify._nest import Ints
from tracekit.classify.ranges import Gpu, Launches, Ranges

_CALLS = r"^aten::(convolution_backward|\w*convolution\w*_backward\w*|_slow_conv2d_backward|slow_conv\w*_backward)$"
_WGRAD = r"(?i)wgrad|wrw|bwd_?weight|backward_(weight|filter)"
_DGRAD = r"(?i)dgrad|igemm_bwd|bwd_?data|backward_(input|data)|(?<![a-z])bwd(?!_?w)"
_HELPERS = (
    r"(?i)nchw|nhwc|transpose|scalePacked|kern_precompute|precomputed|fill|SubTensor|cast|computeOffsets|reduce"
    r"|im2col|col2im|elementwise|copy|convertTensor|set_tensor|gridDim|flip|Memset|Memcpy|zero|pad"
)


def read_convolutions(gpu: Gpu, ranges: Ranges, launches: Launches) -> CategoryColumn:
    """``dgrad`` or ``wgrad`` for the kernels of every convolution's backward; null elsewhere."""
    call = ranges.around(launches.op, _CALLS)
    rows = np.flatnonzero((call >= 0) & gpu.is_kernel)
    if not len(rows):
        return CategoryColumn.constant(None, len(gpu))
    rows = rows[np.lexsort((launches.at[rows], call[rows]))]
    asked = ranges.name.take(call[rows])  # older operators have one call for each gradient
    word = gpu.names.take(rows)
    known = CategoryColumn.choose(
        len(rows),
        [
            ("wgrad", asked.matches(r"backward_weight") | word.matches(_WGRAD)),
            ("dgrad", asked.matches(r"backward_input") | word.matches(_DGRAD)),
        ],
    )
    main = known.present | ~word.matches(_HELPERS)
    role = known.fill(_by_order(call[rows], main, known))
    out = np.full(len(gpu), -1, np.int64)
    filled = _spread(call[rows], role.codes, main)
    out[rows] = filled
    return CategoryColumn(role.values, out)


def _by_order(call: Ints, main: Bools, known: CategoryColumn) -> CategoryColumn:
    """Of two main kernels the first is the input's; of more, what comes before a known weight's kernel is."""
    place = pl.int_range(pl.len()).over("call").alias("place")
    rows = np.flatnonzero(main)
    wgrad = known.take(rows).any_of("wgrad")
    table = (
        pl.DataFrame({"call": call[rows], "wgrad": wgrad})
        .with_columns(place)
        .with_columns(
            total=pl.len().over("call"),
            first=pl.when("wgrad").then("place").min().over("call"),
        )
    )
    pair, first = (table["total"] == 2).to_numpy(), (table["place"] == 0).to_numpy()
    ahead = (table["place"] < table["first"]).fill_null(False).to_numpy()
    behind = (table["place"] > table["first"]).fill_null(False).to_numpy()
    roles = CategoryColumn.choose(
        len(rows), [("dgrad", ahead), ("wgrad", behind), ("dgrad", pair & first), ("wgrad", pair & ~first)]
    )
    codes = np.full(len(call), -1, np.int64)
    codes[rows] = roles.codes
    return CategoryColumn(roles.values, codes)


def _spread(call: Ints, codes: Int32s, main: Bools) -> Int32s:
    """Helpers share the role of the next main kernel of their call, else of the one before."""
    known = pl.when("main").then("code")
    table = pl.DataFrame({"call": call, "code": codes, "main": main & (codes >= 0)}).select(
        known.backward_fill().over("call").fill_null(known.forward_fill().over("call")).fill_null(-1).alias("code")
    )
    return table["code"].to_numpy()
