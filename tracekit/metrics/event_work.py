"""Work of each GPU event: what kind of kernel it is, the tensors that it reads and writes, FLOP and bytes.

Everything follows from the operator, its recorded shapes and types, and the kernel's name. Kernels
with equal operator, shapes, types and name are alike, so that each combination is read once.
"""

from __future__ import annotations

import re
import tomllib
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import group_rows
from tracekit._util.categories import CategoryColumns
from tracekit._util.shapes import is_shape, parse_list
from tracekit.metrics.kernel_limits import ELEMENT_BYTES, MIN_LIST_ELEMENT_BYTES
from tracekit.metrics.sites import RankSites, find_sites

PATTERNS: dict[str, str] = tomllib.loads(
    Path(__file__).with_name("operators.toml").read_text(encoding="utf-8")
)
"""Patterns of operators and kernels by what can be done with them."""
MEMORY_KINDS = ("loss", "softmax", "norm", "reduction", "elementwise")
"""Kinds of operators that move memory; the first whose pattern fits counts."""
FUSED_ATTENTION = "fused_attention"
"""Kind of an attention that runs in one kernel."""

WORK = pl.Schema(
    {
        "row": pl.Int32(),  # row of the rank's GPU events
        "kind": pl.String(),  # one of MEMORY_KINDS, "product", "convolution", "fused_attention"; null: anything else
        "op": pl.String(),
        "name": pl.String(),
        "shapes": pl.String(),
        "dtypes": pl.String(),
        "dtype": pl.String(),  # of a product's or attention's inputs; null if unknown
        "flop": pl.Int64(),  # of the whole call; null if unknown
        "dims": pl.List(
            pl.Int64()
        ),  # shape of the largest tensor among the inputs; null if unknown
        "elements": pl.Int64(),  # of that tensor
        "width": pl.Int32(),  # bytes of one of its elements
        "narrow_width": pl.Int32(),  # bytes of an element of the narrowest floating-point input of that size
        "bytes": pl.Int64(),  # moved at least: inputs read once, a result as large as the largest written
        "has_fp64": pl.Boolean(),  # whether an input tensor is of float64
        "has_fp32": pl.Boolean(),  # whether the largest input tensor is of float32
        "is_masked": pl.Boolean(),  # whether a further input has the last two sizes of the largest tensor
    }
)
"""Work of one rank's GPU events, one row each."""

_FLOATS = ("c10::BFloat16", "c10::Half", "BFloat16", "Half", "Float", "Double", "float", "double")


class _Tensors(msgspec.Struct, frozen=True):
    """Figures of an operator's input tensors."""

    dims: list[int] | None = None
    elements: int | None = None
    width: int | None = None
    narrow_width: int | None = None
    bytes: int | None = None
    has_fp64: bool = False
    has_fp32: bool = False
    is_masked: bool = False


def describe_work(
    labelled: pl.DataFrame, *, texts: CategoryColumns | None = None, sites: RankSites | None = None
) -> pl.DataFrame:
    """Return ``WORK`` of a rank's labelled GPU events.

    Args:
        labelled: The events.
        texts: Their text columns, if they were converted already.
        sites: Their sites, if they were found already.

    >>> from tracekit.schema import LABELLED, conform
    >>> event = {"kind": "kernel", "name": "k", "op": "aten::mul", "op_id": 1,
    ...          "shapes": "[[4,8],[4,8]]", "dtypes": '["float","float"]', "start_ns": 0, "end_ns": 9}
    >>> describe_work(conform(pl.DataFrame([event]), LABELLED)).select("kind", "elements", "bytes").row(0)
    ('elementwise', 32, 384)
    """
    texts = texts or CategoryColumns(labelled)
    sites = sites or find_sites(labelled, texts)
    if labelled.is_empty():
        return WORK.to_frame()
    kind_and_name = [texts["kind"], texts["name"]]
    site = sites.of_event.to_numpy().astype(np.int64)
    alike, first_rows = group_rows(site, *(column.codes for column in kind_and_name))
    columns = ("op", "shapes", "dtypes", "dtype", "is_product", "flop")
    distinct = sites.sites.select(columns)[site[first_rows]].with_columns(
        event_kind=texts["kind"].take(first_rows).series("event_kind", pl.String()),
        name=texts["name"].take(first_rows).series("name", pl.String()),
    )
    tensors: dict[tuple[str | None, str | None], _Tensors] = {}
    rows = []
    for group in distinct.iter_rows(named=True):
        sizes_and_types = (group["shapes"], group["dtypes"])
        if sizes_and_types not in tensors:
            tensors[sizes_and_types] = read_tensors(*sizes_and_types)
        figures = msgspec.structs.asdict(tensors[sizes_and_types])
        rows.append({**group, **figures, "kind": _kind(group)})
    described = pl.DataFrame(rows, infer_schema_length=None)
    multiplies = pl.col("kind").is_in(["product", "convolution", FUSED_ATTENTION])
    described = described.with_columns(flop=pl.when(multiplies).then("flop")).cast(
        {name: dtype for name, dtype in WORK.items() if name != "row"}
    )
    row = pl.int_range(pl.len(), dtype=pl.Int32).alias("row")
    return described[alike].with_columns(row).select(WORK.names())


def _kind(group: dict[str, Any]) -> str | None:
    """Return the kind of work of kernels that are alike."""
    op = group["op"] or ""
    name = group["name"] or ""
    is_kernel = group["event_kind"] == "kernel"
    if group["event_kind"] == "memcpy":
        is_on_device = re.search("(?i)DtoD|DeviceToDevice", name) is not None
        return "elementwise" if is_on_device and op.startswith("aten::") else None
    if is_kernel and group["is_product"]:
        return _kind_of_product(op)
    kinds = [(kind, re.search(PATTERNS[kind], op)) for kind in MEMORY_KINDS]
    kinds += [
        (kind, re.search(PATTERNS[f"{kind}_kernel"], name)) for kind in ("elementwise", "reduction")
    ]
    return next((kind for kind, match in kinds if match and is_kernel), None)


def _kind_of_product(op: str) -> str:
    """Return the kind of an operator that multiplies."""
    if "attention" in op or "attn" in op:
        return FUSED_ATTENTION
    return "convolution" if "conv" in op else "product"


def read_tensors(shapes: str | None, dtypes: str | None) -> _Tensors:
    """Return the figures of an operator's inputs; all unknown without shapes and types."""
    inputs = parse_list(shapes or "")
    types = parse_list(dtypes or "")
    sizes: list[tuple[list[int], str | None]] = []
    for index, shape in enumerate(inputs):
        dtype = str(types[index]) if index < len(types) else None
        if _is_tensor(shape):
            sizes.append((shape, dtype))
        elif isinstance(shape, list) and shape and all(map(_is_tensor, shape)):
            # A list of tensors does not record its type.
            sizes.append(([sum(prod(each) for each in shape)], None))
    if not sizes:
        return _Tensors()
    largest, dtype = max(sizes, key=lambda size: prod(size[0]))
    elements = prod(largest)
    widths = [ELEMENT_BYTES.get(each or "") for _, each in sizes]
    of_largest = []
    for (shape, each), width in zip(sizes, widths, strict=True):
        if prod(shape) == elements and each in _FLOATS and width is not None:
            of_largest.append(width)
    moved = None
    if all(
        width is not None or each is None for width, (_, each) in zip(widths, sizes, strict=True)
    ):
        read = [prod(shape) * (width or MIN_LIST_ELEMENT_BYTES)
                for (shape, _), width in zip(sizes, widths, strict=True)]  # fmt: skip
        moved = sum(read) + max(read)
    others = [shape for shape, _ in sizes if shape is not largest]
    return _Tensors(
        dims=largest,
        elements=elements,
        width=ELEMENT_BYTES.get(dtype or ""),
        narrow_width=min(of_largest, default=None),
        bytes=moved,
        has_fp64=any(each in ("double", "Double") for _, each in sizes),
        has_fp32=dtype in ("float", "Float"),
        is_masked=any(is_mask_of(shape, largest) for shape in others),
    )


def read_inputs(shapes: str, dtypes: str | None) -> list[tuple[int, int]]:
    """Return elements and bytes of an element of each input tensor; lists of tensors count as one.

    >>> read_inputs("[[8,4],[],[4]]", '["float","Scalar","c10::BFloat16"]')
    [(32, 4), (4, 2)]
    """
    inputs = parse_list(shapes)
    types = parse_list(dtypes or "")
    sizes = []
    for index, shape in enumerate(inputs):
        dtype = str(types[index]) if index < len(types) else ""
        width = ELEMENT_BYTES.get(dtype, MIN_LIST_ELEMENT_BYTES)
        if _is_tensor(shape):
            sizes.append((prod(shape), width))
        elif isinstance(shape, list) and shape and all(map(_is_tensor, shape)):
            sizes.append((sum(prod(each) for each in shape), width))
    return sizes


def is_mask_of(shape: list[int], scores: list[int]) -> bool:
    """Return whether *shape* is that of a mask by positions: the last two sizes of the scores, others broadcast."""
    if len(shape) < 2 or len(scores) < 3 or shape[-2:] != scores[-2:]:
        return False
    return prod(shape[:-2]) < prod(scores[:-2]) and min(shape[-2:]) > 1


def _is_tensor(shape: Any) -> bool:
    return bool(shape) and is_shape(shape)
