"""Kernels by name, label and module, and shapes of the model's operators: they explain changes between two runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl

MODEL_OPERATORS = ("mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "embedding", "_grouped_mm", "_scaled_mm")
"""Operators whose input shapes are those of the model."""
MAX_SHAPES = 1000
"""Shapes that a result lists; of further ones it has the number."""
_KEYS = ("name", "label", "module")
KERNELS = pl.Schema({**dict.fromkeys(_KEYS, pl.String()), "count": pl.Float64(), "ns": pl.Float64()})
"""GPU events per step: their number and the sum (not the union) of their durations."""


def kernel_table(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return the ``KERNELS`` of one rank, the means over its steps.

    >>> events = pl.DataFrame({"name": ["k", "k"], "label": ["forward", "forward"], "module": ["mlp", "mlp"],
    ...     "step": [2, 3], "start_ns": [0, 10], "end_ns": [4, 16]})
    >>> kernel_table(events).rows()
    [('k', 'forward', 'mlp', 1.0, 5.0)]
    """
    steps = max(labelled["step"].unique().drop_nulls().len(), 1)
    duration_ns = pl.col("end_ns") - pl.col("start_ns")
    table = labelled.group_by(_KEYS).agg(count=pl.len() / steps, ns=duration_ns.sum() / steps)
    return table.cast(KERNELS).sort(_KEYS)


def mean_kernels(tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the mean of the ranks' ``KERNELS``, most time first."""
    if not tables:
        return KERNELS.to_frame()
    # In a fixed order, so that the sums of fractions do not depend on which worker finished first.
    grouped = pl.concat(tables).group_by(_KEYS, maintain_order=True)
    return grouped.agg(pl.sum("count", "ns") / len(tables)).sort("ns", *_KEYS, descending=[True, False, False, False])


def shape_list(events: pl.DataFrame) -> tuple[str, ...]:
    """Return the distinct input shapes of the model's operators, as text.

    >>> shape_list(pl.DataFrame({"kind": ["cpu_op"], "name": ["aten::mm"], "shapes": ["[[8,4],[4,2]]"]}))
    ('mm [[8,4],[4,2]]',)
    """
    if "shapes" not in events.columns:
        return ()
    of_model = (pl.col("kind") == "cpu_op") & pl.col("name").is_in([f"aten::{name}" for name in MODEL_OPERATORS])
    rows = (
        events.select("kind", "name", "shapes")
        .filter(of_model & pl.col("shapes").is_not_null())
        .select("name", "shapes")
        .unique()
        .cast(pl.String)
    )
    return tuple(sorted(f"{name.removeprefix('aten::')} {shapes}" for name, shapes in rows.iter_rows()))


def all_shapes(shapes_by_rank: Iterable[Sequence[str]]) -> list[str]:
    """Return the distinct shapes of all ranks; of more than ``MAX_SHAPES``, the first and the number of the others.

    >>> all_shapes([["mm [[1]]"], ["mm [[1]]", "bmm [[2]]"]])
    ['bmm [[2]]', 'mm [[1]]']
    """
    distinct = sorted({shape for shapes in shapes_by_rank for shape in shapes})
    if len(distinct) <= MAX_SHAPES:
        return distinct
    return [*distinct[: MAX_SHAPES - 1], f"{len(distinct) - MAX_SHAPES + 1} more"]
