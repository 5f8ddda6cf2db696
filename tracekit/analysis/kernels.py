"""A rank's kernels by name, label and module, and its model's shapes: what explains a change between two runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl

from tracekit._util.arrays import group_rows
from tracekit._util.categories import CategoryColumns

SHAPED = ("mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "embedding", "_grouped_mm", "_scaled_mm")
"""Operators whose input shapes are the model's."""
MOST_SHAPES = 24
KERNELS = pl.Schema({"name": pl.String(), "label": pl.String(), "module": pl.String(), "count": pl.Float64(),
                     "ns": pl.Float64()})  # fmt: skip


def kernel_table(labelled: pl.DataFrame, *, texts: CategoryColumns | None = None) -> pl.DataFrame:
    """Return one rank's GPU events per step: how many, and the sum of their durations (not their union).

    >>> events = pl.DataFrame({"name": ["k", "k"], "label": ["forward", "forward"], "module": ["mlp", "mlp"],
    ...     "step": [2, 3], "start_ns": [0, 10], "end_ns": [4, 16]})
    >>> kernel_table(events).rows()
    [('k', 'forward', 'mlp', 1.0, 5.0)]
    """
    steps = max(labelled["step"].unique().drop_nulls().len(), 1)
    texts = texts or CategoryColumns(labelled)
    columns = [texts[name] for name in ("name", "label", "module")]
    kind, first = group_rows(*(column.codes for column in columns))
    took = labelled["end_ns"].to_numpy() - labelled["start_ns"].to_numpy()
    sums = {"count": np.bincount(kind), "ns": np.bincount(kind, took).astype(np.int64)}
    spelled = {name: column.take(first).strings() for name, column in zip(KERNELS, columns, strict=False)}
    table = pl.DataFrame({**spelled, **sums}, schema_overrides=dict.fromkeys(spelled, pl.String))
    return table.with_columns(pl.col(*sums) / steps).sort(list(spelled))


def together(tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the mean of the ranks' tables, largest first."""
    if not tables:
        return KERNELS.to_frame()
    # In a fixed order, so that sums of fractions come out the same however the ranks were worked on.
    grouped = pl.concat(tables).group_by("name", "label", "module", maintain_order=True)
    total = grouped.agg(pl.sum("count", "ns") / len(tables))
    return total.sort(["ns", "name", "label", "module"], descending=[True, False, False, False])


def shape_list(events: pl.DataFrame) -> tuple[str, ...]:
    """Return the distinct input shapes of the model's products, as text.

    >>> shape_list(pl.DataFrame({"kind": ["cpu_op"], "name": ["aten::mm"], "shapes": ["[[8,4],[4,2]]"]}))
    ('mm [[8,4],[4,2]]',)
    """
    if "shapes" not in events.columns:
        return ()
    wanted = (pl.col("kind") == "cpu_op") & pl.col("name").is_in([f"aten::{name}" for name in SHAPED])
    rows = (
        events.select("kind", "name", "shapes")
        .filter(wanted & pl.col("shapes").is_not_null())
        .select("name", "shapes")
        .unique()
        .cast(pl.String)
    )
    return tuple(sorted(f"{name.removeprefix('aten::')} {shapes}" for name, shapes in rows.iter_rows()))


def all_shapes(ranks: Iterable[Sequence[str]]) -> list[str]:
    """Return the shapes of all ranks; where there are many, the first and a digest of the rest.

    >>> all_shapes([["mm [[1]]"], ["mm [[1]]", "bmm [[2]]"]])
    ['bmm [[2]]', 'mm [[1]]']
    """
    every = sorted({shape for shapes in ranks for shape in shapes})
    if len(every) <= MOST_SHAPES:
        return every
    digest = hashlib.sha256("\n".join(every).encode()).hexdigest()[:12]
    return [*every[: MOST_SHAPES - 1], f"{len(every) - MOST_SHAPES + 1} more, digest {digest}"]
