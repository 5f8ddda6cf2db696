"""Padded sizes of products in 16 bits whose rows begin where the GPU cannot read them fast.

Tensor cores are fed fastest where every row of both operands begins at a multiple of 16 bytes. The
sizes that decide are those along which rows lie: the inner size and the columns, and of a weight's
gradient its rows and columns, because its operands are read across.
"""

from __future__ import annotations

from math import prod

import polars as pl

from tracekit._util.shapes import is_shape, parse_list

NARROW = ("bf16", "fp16")
"""16-bit types; the first that the GPU computes in is advised."""
ALIGNED_SIZE = 8
"""Elements that sizes must be a multiple of."""
PADDED_SIZE = 64
"""Elements that sizes are padded to a multiple of."""
_OUTLINE = ("shapes", "is_weight_gradient")


def with_padding(calls: pl.DataFrame) -> pl.DataFrame:
    """Return calls with ``padding``: the work of a padded product over that of the present one.

    Null where sizes are multiples of 8, where types are wider, and where nothing is multiplied.
    """
    is_narrow_product = (pl.col("kind") == "product") & pl.col("dtype").is_in(NARROW)
    outlines = calls.filter(is_narrow_product).select(_OUTLINE).drop_nulls().unique()
    padding = [
        padded_share(shapes, is_weight_gradient=is_weight_gradient)
        for shapes, is_weight_gradient in outlines.iter_rows()
    ]
    odd = outlines.with_columns(padding=pl.Series(padding, dtype=pl.Float64)).drop_nulls("padding")
    if odd.is_empty():
        return calls.with_columns(padding=pl.lit(None, pl.Float64))
    joined = calls.join(odd, on=list(_OUTLINE), how="left", maintain_order="left")
    return joined.with_columns(padding=pl.when(is_narrow_product).then("padding"))


def padded_share(shapes: str, *, is_weight_gradient: bool = False) -> float | None:
    """Return the work of a padded product over that of the present one; None if its sizes are multiples of 8.

    >>> padded_share("[[128,60],[60,128]]"), padded_share("[[128,64],[64,128]]")
    (1.0666666666666667, None)
    >>> round(padded_share("[[50257,4095],[4095,768]]", is_weight_gradient=True), 6)
    1.000935
    """
    matrices = [shape for shape in parse_list(shapes) if is_shape(shape) and len(shape) > 1]
    if len(matrices) < 2:
        return None
    rows, inner = matrices[-2][-2:]
    columns = matrices[-1][-1]
    # The number of tokens, along which no row lies, does not decide.
    sizes = (rows, columns) if is_weight_gradient else (inner, columns)
    if not all(sizes) or all(size % ALIGNED_SIZE == 0 for size in sizes):
        return None
    return prod(map(_padding, sizes))


def _padding(size: int) -> float:
    """Return a size padded to a multiple of 64 over the size; 1 if it is a multiple of 8."""
    if size % ALIGNED_SIZE == 0:
        return 1.0
    return -(-size // PADDED_SIZE) * PADDED_SIZE / size
