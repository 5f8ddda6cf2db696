"""Operators whose time the memory's bandwidth limits, and the bytes that they and products move at least.

The bytes follow from the sizes and types of an operator's inputs and are a lower bound: every input
is read once, every result written once. Calls of one operator with equal sizes and types are one
row.
"""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import polars as pl

from tracekit._util.shapes import is_shape, parse_list
from tracekit.metrics.flop import CONVOLUTIONS, OUTPUT_FIRST, FusedExperts
from tracekit.metrics.peaks import find_gpu
from tracekit.metrics.sites import RankSites, find_sites

_TABLES: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("kernel_limits.toml").read_text(encoding="utf-8")
)
ELEMENT_BYTES: dict[str, int] = _TABLES["element_bytes"]
"""Bytes of one element by type as the profiler writes it."""
KINDS = ("elementwise", "normalization", "softmax", "reduction", "optimizer", "embedding")
"""Kinds of operators that move memory, by the patterns of ``kernel_limits.toml``."""
BYTES_BY_DTYPE = {
    "fp4": 0.5,
    "fp8": 1,
    "int8": 1,
    "bf16": 2,
    "fp16": 2,
    "tf32": 4,
    "fp32": 4,
    "fp64": 8,
}
"""Bytes of one element by the short name of its type."""
MIN_LIST_ELEMENT_BYTES = 2
"""Bytes of an element of a parameter, gradient or state, whose types lists of tensors do not
record."""
MAX_CACHED_SHAPES = 4096
"""Shapes and types whose bytes are remembered: ranks and modules repeat them."""
MAX_ROWS_PER_RANK = 100
"""Rows that are kept of each rank, those that take longest."""

MEMORY_BOUND = pl.Schema(
    {
        "kind": pl.String(),  # one of KINDS, or "copy"
        "op": pl.String(),
        "module": pl.String(),
        "shapes": pl.String(),
        "calls": pl.Int64(),
        "ns": pl.Int64(),  # sum of its kernels' time
        "bytes": pl.Int64(),  # moved at least, by all calls
        "limit_ns": pl.Float64(),  # time of these bytes at the memory's bandwidth; null if that is unknown
    }
)
"""One rank's operators that move memory, and its copies on the device; those that take longest
first."""


def memory_gb_s(device: str | None, *, multiprocessors: int | None = None) -> float | None:
    """Return the bandwidth of a GPU's memory in GB/s; None if unknown.

    A part of a GPU has its share.

    >>> memory_gb_s("NVIDIA H200"), memory_gb_s("NVIDIA H200", multiprocessors=33), memory_gb_s("Abacus")
    (4800.0, 1200.0, None)
    """
    gpu = None if device is None else find_gpu(device)
    if gpu is None or gpu.memory_gb_s is None:
        return None
    share = min(1.0, multiprocessors / gpu.multiprocessors) if multiprocessors else 1.0
    return gpu.memory_gb_s * share


def find_memory_bound(
    labelled: pl.DataFrame,
    *,
    device: str | None = None,
    multiprocessors: int | None = None,
    sites: RankSites | None = None,
) -> pl.DataFrame:
    """Return the operators of one rank that move memory (``MEMORY_BOUND``), from its labelled GPU events.

    *sites* are those of the events, if they were found already.
    """
    found = sites or find_sites(labelled)
    columns = ("op", "module", "shapes", "dtypes")
    is_known = (pl.col("kind") == "kernel") & pl.col("shapes").is_not_null()
    kernels = found.sites.filter(is_known).select("site", "ns", *columns)
    # A call may launch kernels of several labels: it counts once.
    groups = (
        labelled.select("op_id", found.of_event)
        .group_by("site")
        .agg("op_id")
        .join(kernels, on="site", how="inner")
        .group_by(columns)
        .agg(pl.col("ns").sum(), calls=pl.col("op_id").explode().n_unique().cast(pl.Int64))
    )
    rows: list[dict[str, Any]] = []
    for group in groups.iter_rows(named=True):
        kind = kind_of(group["op"])
        moved = None if kind is None else moved_bytes(kind, group["shapes"], group["dtypes"] or "")
        if moved:
            rows.append({**group, "kind": kind, "bytes": moved * group["calls"]})
    is_on_device = pl.col("kernel").str.contains("(?i)DtoD|DeviceToDevice")
    copies = (
        found.sites.filter((pl.col("kind") == "memcpy") & is_on_device)
        .select(pl.col("ns").sum(), pl.col("copied_bytes", "launches").sum())
        .row(0, named=True)
    )
    if copies["copied_bytes"]:  # read and written
        moved = 2 * copies["copied_bytes"]
        of_copies = {"ns": copies["ns"], "calls": copies["launches"], "bytes": moved}
        rows.append({**of_copies, "kind": "copy", "op": "Memcpy DtoD"})
    table = (
        pl.DataFrame(rows, schema_overrides=MEMORY_BOUND, infer_schema_length=None)
        if rows
        else pl.DataFrame()
    )
    bandwidth = memory_gb_s(device, multiprocessors=multiprocessors)
    limit_ns = pl.lit(None, pl.Float64) if bandwidth is None else pl.col("bytes") / bandwidth
    if table.is_empty():
        return MEMORY_BOUND.to_frame()
    # A row that would be faster than the memory found its data in a cache: no claim.
    is_plausible = limit_ns <= pl.col("ns")
    missing = []
    for name, dtype in MEMORY_BOUND.items():
        if name not in table.columns:
            missing.append(pl.lit(None, dtype).alias(name))
    return (
        table.with_columns(missing)
        .with_columns(limit_ns=pl.when(is_plausible).then(limit_ns))
        .select(list(MEMORY_BOUND))
        .sort(-pl.col("ns"), "op", "module", "shapes")
        .head(MAX_ROWS_PER_RANK)
    )


def kind_of(op: str | None) -> str | None:
    """Return the kind of an operator that moves memory; None for any other.

    >>> kind_of("aten::add_"), kind_of("aten::_softmax"), kind_of("aten::mm")
    ('elementwise', 'softmax', None)
    """
    if op is None:
        return None
    return next((kind for kind in KINDS if re.search(_TABLES[kind], op)), None)


@lru_cache(maxsize=MAX_CACHED_SHAPES)
def moved_bytes(kind: str, shapes: str, dtypes: str) -> int | None:
    """Return the bytes that one call moves at least.

    None if the sizes or types of its inputs are not known.

    >>> moved_bytes("elementwise", "[[1024,8],[8],[]]", '["float","float","Scalar"]')  # reads both, writes the first
    65568
    >>> moved_bytes("elementwise", "[[16,1,8],[1,32,8]]", '["float","float"]')  # writes 16×32×8, larger than both
    17920
    >>> moved_bytes("embedding", "[[50000,64],[16]]", '["c10::BFloat16","long int"]')  # 16 rows of 64, twice
    4096
    """
    inputs = parse_list(shapes)
    types = parse_list(dtypes)
    if not inputs or len(types) < len(inputs):
        return None
    if kind == "embedding":
        width = ELEMENT_BYTES.get(str(types[0]))
        if (
            len(inputs) < 2
            or width is None
            or not _is_tensor(inputs[0])
            or not _is_tensor(inputs[1])
        ):
            return None
        return 2 * int(prod(inputs[1])) * int(prod(inputs[0][1:])) * width
    sizes: list[int] = []
    tensors: list[list[int]] = []
    widths: list[int] = []
    for shape, dtype in zip(inputs, types, strict=False):
        if _is_tensor(shape):
            width = ELEMENT_BYTES.get(str(dtype))
            if width is None:
                return None
            sizes.append(prod(shape) * width)
            tensors.append(shape)
            widths.append(width)
        elif (
            kind == "optimizer"
            and isinstance(shape, list)
            and shape
            and all(map(_is_tensor, shape))
        ):
            # A list of tensors does not record its type: an element has two bytes or more.
            sizes.append(MIN_LIST_ELEMENT_BYTES * sum(prod(each) for each in shape))
    if not sizes:
        return None
    written = 0 if kind == "reduction" else max(sizes)
    if kind == "elementwise" and len(tensors) > 1:
        # Inputs of unlike sizes are repeated along the dimensions that they lack: the result has all of them.
        written = max(written, prod(broadcast_dims(tensors)) * min(widths))
    return sum(sizes) + written


def broadcast_dims(shapes: list[list[int]]) -> list[int]:
    """Return the sizes of the result of an operator on tensors of these sizes, element by element.

    >>> broadcast_dims([[16, 1, 8], [32, 8]])
    [16, 32, 8]
    """
    longest = max(map(len, shapes))
    # Sizes are aligned at the last dimension; a tensor with fewer has size 1 in those before.
    aligned = [[1] * (longest - len(shape)) + shape for shape in shapes]
    return [max(sizes) for sizes in zip(*aligned, strict=True)]


def product_bytes(
    op: str, shapes: str, dtype: str | None, flop: int | None, calls: int
) -> float | None:
    """Return the bytes that all calls of a product move at least: their inputs, and the result that FLOP tells.

    >>> product_bytes("aten::mm", "[[1024,64],[64,32]]", "bf16", 2 * 1024 * 64 * 32, 1)
    200704.0
    >>> product_bytes("aten::convolution", "[[1,8,6,6],[16,8,3,3]]", "fp32", 2 * 16 * 4 * 4 * 8 * 9, 1)
    6784.0
    """
    width = BYTES_BY_DTYPE.get(dtype or "")
    tensors = [shape for shape in parse_list(shapes) if _is_tensor(shape)]
    if op in OUTPUT_FIRST:
        tensors = tensors[1:]
    matrices = [shape for shape in tensors if len(shape) > 1]
    if width is None or len(matrices) < 2 or flop is None:
        return None
    read = sum(prod(shape) for shape in tensors)
    inner = 0  # unknown
    if op in CONVOLUTIONS:
        inner = prod(matrices[1][1:])
    elif "mm" in op or "linear" in op:
        inner = matrices[0][-1]
    written = flop / calls / 2 / inner if inner else prod(matrices[0])
    return float(read + written) * width * calls


def experts_bytes(experts: FusedExperts, dtype: str | None) -> tuple[float, float] | None:
    """Return the bytes that one call of fused experts moves at least and at most: their weights, tokens and results.

    Which experts the tokens go to is not recorded: as many as one token has, or each token others.

    >>> experts_bytes(FusedExperts(2, 8, 16, 3, 100), "bf16")  # 3 or 6 of 16 experts; 2 × 8 tokens in and out
    (664.0, 1264.0)
    """
    width = BYTES_BY_DTYPE.get(dtype or "")
    if width is None:
        return None
    tokens = 2 * experts.tokens * experts.width
    most_experts = min(experts.experts, experts.tokens * experts.experts_per_token)
    least = experts.experts_per_token * experts.weights_per_expert + tokens
    most = most_experts * experts.weights_per_expert + tokens
    return float(least * width), float(most * width)


def _is_tensor(shape: Any) -> bool:
    return bool(shape) and is_shape(shape)
