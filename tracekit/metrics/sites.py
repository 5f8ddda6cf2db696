"""Operator sites: the GPU work of a rank by operator and by what it was given.

A site is an operator with the sizes, types and strides of its inputs, its concrete inputs, its node of
autograd and its label. Kernels of one site do the same work.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import group_rows
from tracekit._util.categories import CategoryColumns
from tracekit._util.shapes import is_shape, parse_list

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
        "calls": pl.Int64(),  # of the operator, over all steps
        "launches": pl.Int64(),
        "ns": pl.Int64(),  # of its kernels, over all steps
    }
)
"""Sites of one rank; those whose inputs were not recorded have nulls."""
_KEYS = ("op", "shapes", "dtypes", "strides", "concrete", "node", "label")


class RankSites(NamedTuple):
    """The sites of one rank."""

    sites: pl.DataFrame
    """``SITES``."""
    of_event: pl.Series
    """Of each GPU event: its site."""


def find_sites(labelled: pl.DataFrame, texts: CategoryColumns) -> RankSites:
    """Return the sites of a rank's labelled GPU events; *texts* are their text columns.

    >>> from tracekit.schema import LABELLED, conform
    >>> event = {"op": "aten::mul", "op_id": 1, "shapes": "[[4],[4]]", "start_ns": 0, "end_ns": 9}
    >>> labelled = conform(pl.DataFrame([event, {**event, "op_id": 2}]), LABELLED)
    >>> sites, of_event = find_sites(labelled, CategoryColumns(labelled))
    >>> sites.select("op", "calls", "launches", "ns").rows(), of_event.to_list()
    ([('aten::mul', 2, 2, 18)], [0, 0])
    """
    columns = {name: texts[name] for name in _KEYS}
    site, first_rows = group_rows(*(column.codes for column in columns.values()))
    of_event = pl.Series("site", site.astype(np.int32))
    sums = (
        labelled.select("op_id", ns=pl.col("end_ns") - pl.col("start_ns"))
        .with_columns(of_event)
        .group_by("site")
        .agg(
            # Events without an operator are calls of their own.
            calls=pl.col("op_id").filter(pl.col("op_id") >= 0).n_unique()
            + (pl.col("op_id").fill_null(-1) < 0).sum(),
            launches=pl.len(),
            ns=pl.col("ns").sum(),
        )
    )
    keys = pl.DataFrame(
        [column.take(first_rows).series(name, pl.String()) for name, column in columns.items()]
    ).with_columns(site=pl.int_range(pl.len(), dtype=pl.Int32))
    sites = keys.join(sums, on="site", how="left", maintain_order="left")
    return RankSites(sites.select(SITES.names()).cast(SITES), of_event)


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
