"""Operator sites: the GPU work of a rank by operator and by what it was given.

A site is an operator with the sizes, types and strides of its inputs, its concrete inputs, its node of
autograd, its label and its module. Kernels of one site do the same work; all of a product's call are one site.
Rates, limits of kernels, rows by shape, the page's operators and the entries of the catalogue read this table.
"""

from __future__ import annotations

from math import prod
from typing import Any

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Int32s, Ints, group_rows
from tracekit._util.categories import CategoryColumns
from tracekit._util.shapes import is_shape, parse_list
from tracekit.classify.row_order import mask_of_rows
from tracekit.metrics.flop import (
    TRTLLM_EXPERTS,
    convolution_outputs,
    convolutions_of,
    flop,
    shares_experts,
)
from tracekit.metrics.product_kernels import ProductKernels

SITES = pl.Schema(
    {
        "site": pl.Int32(),
        "op": pl.String(),
        "shapes": pl.String(),
        "dtypes": pl.String(),
        "strides": pl.String(),
        "concrete": pl.String(),
        "node": pl.String(),
        "label": pl.String(),
        "module": pl.String(),
        "kind": pl.String(),  # of its events: "kernel", "memcpy", "memset"
        "is_product": pl.Boolean(),  # whether its kernels multiply
        "kernel": pl.String(),  # family of a product's kernel whose operator has no formula; name of a copy
        "dtype": pl.String(),  # in which a product computes, "bf16", …; null if unknown
        "flop": pl.Int64(),  # of one call; null if unknown
        "calls": pl.Int64(),  # of the operator, over all steps
        "launches": pl.Int64(),
        "ns": pl.Int64(),  # of its kernels, over all steps
        "copied_bytes": pl.Int64(),  # by copies, over all steps
    }
)
"""Sites of one rank; those whose inputs were not recorded have nulls."""
MAX_SITES_PER_OPERATOR = 4096
"""Sites of one operator that are told apart, the longest; what the others were given is unknown."""
_INPUTS = ("shapes", "dtypes", "strides", "concrete")
_TEXT_KEYS = ("op", "shapes", "dtypes", "strides", "concrete", "node", "label", "module", "kind")


class RankSites(msgspec.Struct, frozen=True, eq=False):
    """The sites of one rank."""

    sites: pl.DataFrame
    """``SITES``."""
    of_event: pl.Series
    """Of each GPU event: its site."""
    main_rows: Ints
    """Of each GPU event: the row of the event that stands for all of its call, of products; its own of others."""

    def column(self, name: str) -> pl.Series:
        """Return a column of the sites, of each GPU event."""
        return self.sites[name].gather(self.of_event)


def find_sites(labelled: pl.DataFrame, texts: CategoryColumns | None = None) -> RankSites:
    """Return the sites of a rank's labelled GPU events; *texts* are their text columns.

    >>> from tracekit.schema import LABELLED, conform
    >>> event = {"op": "aten::mul", "op_id": 1, "shapes": "[[4],[4]]", "start_ns": 0, "end_ns": 9}
    >>> labelled = conform(pl.DataFrame([event, {**event, "op_id": 2}]), LABELLED)
    >>> found = find_sites(labelled)
    >>> found.sites.select("op", "calls", "launches", "ns").rows(), found.of_event.to_list()
    ([('aten::mul', 2, 2, 18)], [0, 0])
    """
    texts = texts or CategoryColumns(labelled)
    count = labelled.height
    products = ProductKernels.find(labelled, texts)
    main_rows = np.arange(count)
    main_rows[products.rows] = products.main_rows
    is_copy = (labelled["kind"] == "memcpy").fill_null(value=False).to_numpy()
    columns = {name: texts[name].take(main_rows) for name in _TEXT_KEYS}
    columns["dtype"] = products.dtype.spread(products.rows, count)
    columns["kernel"] = products.kernel.spread(products.rows, count).fill(
        texts["name"].where(is_copy)
    )
    is_product = mask_of_rows(count, products.rows)
    site, first_rows = group_rows(is_product, *(column.codes for column in columns.values()))
    ns = (labelled["end_ns"] - labelled["start_ns"]).to_numpy()
    is_beyond = _is_beyond_limit(
        columns["op"].codes[first_rows], np.bincount(site, ns).astype(np.int64)
    )
    if is_beyond.any():
        kept = ~is_beyond[site]
        columns |= {name: columns[name].where(kept) for name in _INPUTS}
        site, first_rows = group_rows(is_product, *(column.codes for column in columns.values()))
    of_event = pl.Series("site", site.astype(np.int32))
    sums = (
        labelled.select("op_id", "bytes", "kind", ns=pl.col("end_ns") - pl.col("start_ns"))
        .with_columns(of_event)
        .group_by("site")
        .agg(
            # Events without an operator are calls of their own.
            calls=pl.col("op_id").filter(pl.col("op_id") >= 0).n_unique()
            + (pl.col("op_id").fill_null(-1) < 0).sum(),
            launches=pl.len(),
            ns=pl.col("ns").sum(),
            copied_bytes=pl.col("bytes").filter(pl.col("kind") == "memcpy").sum(),
        )
    )
    keys = pl.DataFrame(
        [column.take(first_rows).series(name, pl.String()) for name, column in columns.items()]
    ).with_columns(
        site=pl.int_range(pl.len(), dtype=pl.Int32), is_product=pl.Series(is_product[first_rows])
    )
    sites = keys.join(sums, on="site", how="left", maintain_order="left")
    sites = sites.with_columns(flop=_flop_of_calls(sites))
    return RankSites(sites.select(SITES.names()).cast(SITES), of_event, main_rows)


def _is_beyond_limit(op: Int32s, ns: Ints) -> Bools:
    """Return which sites are not among the longest ``MAX_SITES_PER_OPERATOR`` of their operator (a code)."""
    order = np.lexsort((-ns, op))
    first_of_op = np.searchsorted(op[order], op[order])
    is_beyond = np.zeros(len(op), np.bool_)
    is_beyond[order] = np.arange(len(op)) - first_of_op >= MAX_SITES_PER_OPERATOR
    return is_beyond


def _flop_of_calls(sites: pl.DataFrame) -> pl.Series:
    """Return the FLOP of one call of each site; null where they are not known."""
    outputs = convolution_outputs(*convolutions_of(sites))
    flops: list[int | None] = []
    columns = ("is_product", "op", "shapes", "concrete")
    for is_product, op, shapes, concrete in sites.select(columns).iter_rows():
        is_unknown = op == TRTLLM_EXPERTS and shares_experts(concrete or "")
        is_counted = is_product and op and shapes and not is_unknown
        flops.append(flop(op, shapes, outputs=outputs) if is_counted else None)
    return pl.Series(flops, dtype=pl.Int64)


class Inputs(msgspec.Struct, frozen=True):
    """Inputs of an operator, as far as they were recorded."""

    sizes: list[Any]
    """Of each input: sizes of a tensor, a list of these, or an empty list."""
    strides: list[Any]
    values: list[Any]
    """Concrete inputs: numbers, booleans and short lists of them; None for tensors and what is not kept."""

    @classmethod
    def of(cls, site: dict[str, Any]) -> Inputs:
        """Return the inputs of a row of ``SITES``."""
        texts = (site["shapes"], site["strides"], site["concrete"])
        return cls(*(parse_list(text or "") for text in texts))

    def size(self, index: int) -> list[int]:
        """Return the sizes of a tensor; empty if the input is none, or was not recorded."""
        size = self.sizes[index] if index < len(self.sizes) else []
        return size if is_shape(size) else []

    def tensors(self, index: int) -> list[list[int]]:
        """Return the sizes of the tensors in a list; empty if the input is none, or was not recorded."""
        sizes = self.sizes[index] if index < len(self.sizes) else []
        is_list = isinstance(sizes, list) and bool(sizes) and all(map(is_shape, sizes))
        return sizes if is_list else []

    def value(self, index: int) -> Any:
        """Return a concrete input; None if it was not recorded."""
        return self.values[index] if index < len(self.values) else None


def count_elements(sizes: list[int]) -> int:
    """Return the elements of a tensor."""
    return prod(sizes)
