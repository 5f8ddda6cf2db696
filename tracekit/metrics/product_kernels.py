"""Kernels that multiply matrices, as their operator or own name tells, and what else the operator launched."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit._util.categories import CategoryColumn, CategoryColumns
from tracekit._util.columns import to_int64
from tracekit._util.shapes import parse_list
from tracekit.classify.rules import family_of, kernel_pattern
from tracekit.metrics.flop import CONVOLUTION_BACKWARD, FORMULAS, PRODUCT_TABLES

DTYPE_NAMES: Mapping[str, str] = PRODUCT_TABLES["dtypes"]
"""Short names of the types in which products compute, by their names in a recording."""
DTYPES_NARROW_TO_WIDE = ("fp4", "fp8", "int8", "bf16", "fp16", "fp32", "fp64")


class ProductKernels(msgspec.Struct, frozen=True, eq=False):
    """Kernels that multiply, and helpers of their calls.

    All kernels of a call belong to its longest, so that helpers form no group.
    """

    rows: Ints
    """Rows of the labelled table."""
    main_rows: Ints
    """Rows of the longest kernel of each one's call, which stands for all of them."""
    kernel: CategoryColumn
    """Family of that kernel, of products whose operator has no formula."""
    dtype: CategoryColumn
    """Type of the operator's recorded inputs, else from the kernel's name."""

    @classmethod
    def find(cls, labelled: pl.DataFrame, texts: CategoryColumns) -> ProductKernels:
        """Return the product kernels of a labelled table; *texts* are its text columns."""
        has_formula = texts["op"].map(FORMULAS.__contains__)
        named = texts["name"].matches(kernel_pattern("product")) | texts["name"].matches(
            kernel_pattern("attention")
        )
        is_kernel = (labelled["kind"] == "kernel").to_numpy()
        # Other than kernels, only what certainly belongs to one product: one convolution's backward
        # is two.
        is_helper = has_formula & ~texts["op"].any_of(CONVOLUTION_BACKWARD)
        rows = np.flatnonzero(np.where(is_kernel, has_formula | named, is_helper))
        name, op, dtypes = (texts[column].take(rows) for column in ("name", "op", "dtypes"))
        ns = (labelled["end_ns"] - labelled["start_ns"]).to_numpy()[rows]
        # A memset may take longer than a short kernel: it is never the longest kernel.
        op_id = to_int64(labelled["op_id"][rows])
        main = _longest_kernel_of_call(op, op_id, np.where(is_kernel[rows], ns, -1))
        dtype = _input_dtypes(dtypes, name).take(main)
        kernel = _families(name.take(main).where(~has_formula[rows]))
        return cls(rows, rows[main], kernel, dtype)


def _families(names: CategoryColumn) -> CategoryColumn:
    """Return the kernel family of each name; only names of some row are searched."""
    is_used = np.zeros(len(names.values), np.bool_)
    is_used[names.codes[names.present]] = True
    families = []
    for name, used in zip(names.values, is_used.tolist(), strict=True):
        families.append(family_of(name) if used else None)
    return names.replace(families)


def _longest_kernel_of_call(op: CategoryColumn, op_id: Ints, ns: Ints) -> Ints:
    """Return for each kernel the longest kernel of its operator call.

    The backward of a convolution computes two gradients in one call: each of its kernels stands for
    itself.
    """
    longest = np.arange(len(ns))
    rows = np.flatnonzero((op_id >= 0) & op.map(lambda name: name != CONVOLUTION_BACKWARD))
    # By call, then by time: the last kernel of each call is its longest; repeat it for every kernel
    # of the call.
    order = rows[np.lexsort((ns[rows], op_id[rows]))]
    last_of_call = np.flatnonzero(np.diff(op_id[order], append=-1))
    kernels_of_call = np.diff(last_of_call, prepend=-1)
    longest[order] = np.repeat(order[last_of_call], kernels_of_call)
    return longest


def _input_dtypes(recorded: CategoryColumn, name: CategoryColumn) -> CategoryColumn:
    """Return each kernel's input type, from the recorded types of its operator's inputs or else from its name."""
    from_record = recorded.replace([_recorded_dtype(text) for text in recorded.values])
    # A column may share its values with a longer one: search only the names that occur.
    occurrences = np.bincount(name.codes + 1, minlength=len(name.values) + 1)[1:]
    dtypes_in_names: list[str | None] = [None] * len(name.values)
    for code in np.flatnonzero(occurrences).tolist():
        dtypes_in_names[code] = _dtype_in_name(name.values[code])
    from_name = name.replace(dtypes_in_names)
    # Products of 32-bit inputs may run on tensor cores in TF32: only the kernel's name tells.
    is_tf32 = from_record.any_of("fp32") & from_name.any_of("tf32")
    return from_record.where(~is_tf32).fill(from_name)


def _recorded_dtype(text: str) -> str | None:
    """Return the narrowest of the recorded types: a bias or scale may be wider than the operands of the product."""
    recorded = [dtype for dtype in parse_list(text) if isinstance(dtype, str)]
    dtypes = [DTYPE_NAMES[dtype] for dtype in recorded if dtype in DTYPE_NAMES]
    return min(dtypes, key=DTYPES_NARROW_TO_WIDE.index, default=None)


def _dtype_in_name(name: str) -> str | None:
    return next(
        (
            dtype
            for dtype, pattern in PRODUCT_TABLES["kernel_names"].items()
            if re.search(pattern, name)
        ),
        None,
    )
