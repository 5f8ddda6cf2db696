"""What a saved analysis does not hold: kernels, modules and cells, and the facts that make runs comparable.

Times are nanoseconds a step, summed over a rank's own durations and averaged over ranks: kernels that run side by side
each count, as one wants when asking which of them became slower.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import polars as pl

if TYPE_CHECKING:
    from tracekit.trace import Trace

SHAPED = ("mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "embedding", "_grouped_mm", "_scaled_mm")
"""Operators whose input shapes are the model's."""
MOST_SHAPES = 24
NAME_LENGTH = 160


def trace_facts(trace: Trace) -> dict[str, Any]:
    """Return the GPUs and the model's shapes, as far as the trace recorded them."""
    devices = sorted({d for s in trace.sources for d in s.devices})
    shapes = shape_list(part.events for part in trace.parts)
    return {**({"devices": devices} if devices else {}), **({"shapes": shapes} if shapes else {})}


def shape_list(events: Iterable[pl.DataFrame]) -> list[str]:
    """Return the distinct input shapes of the model's products, as text; many are cut short and end in a digest.

    >>> shape_list([pl.DataFrame({"kind": ["cpu_op"], "name": ["aten::mm"], "shapes": ["[[8,4],[4,2]]"]})])
    ['mm [[8,4],[4,2]]']
    """
    wanted = [f"aten::{name}" for name in SHAPED]
    found: set[str] = set()
    for frame in events:
        rows = frame.lazy().select(pl.col("kind", "name", "shapes").cast(pl.String))
        rows = rows.filter(pl.col("kind") == "cpu_op", pl.col("name").is_in(wanted), pl.col("shapes").is_not_null())
        found |= {f"{n.removeprefix('aten::')} {s}" for n, s in rows.select("name", "shapes").unique().collect().rows()}
    every = sorted(found)
    if len(every) <= MOST_SHAPES:
        return every
    digest = hashlib.sha256("\n".join(every).encode()).hexdigest()[:12]
    return [*every[: MOST_SHAPES - 1], f"{len(every) - MOST_SHAPES + 1} more, digest {digest}"]


def trace_tables(trace: Trace) -> dict[str, Any]:
    """Label every rank and add up its kernels and modules."""
    from tracekit.classify import classify

    frames = [_totals(classify(part.events)) for part in trace.parts if part.events.height]
    if not frames:
        return {}
    # Dividing each rank by its own steps first keeps ranks that recorded more steps from counting more.
    total = pl.concat(frames).group_by("name", "label", "module").agg(pl.sum("count"), pl.sum("ns"))
    total = total.with_columns(pl.col("count", "ns") / len(frames))
    return {"kernels": _kernels(total), "modules": _modules(total)}


def _totals(labelled: pl.DataFrame) -> pl.DataFrame:
    steps = max(labelled["step"].drop_nulls().n_unique(), 1)
    return (
        labelled.select(
            pl.col("name", "label", "module").cast(pl.String),
            ns=(pl.col("end_ns") - pl.col("start_ns")),
        )
        .group_by("name", "label", "module")
        .agg(count=pl.len() / steps, ns=pl.sum("ns") / steps)
    )


def _kernels(total: pl.DataFrame) -> list[dict[str, Any]]:
    rows = total.group_by("name", "label").agg(pl.sum("count"), pl.sum("ns"))
    rows = rows.sort("ns", "name", "label", descending=[True, False, False])
    return [{**row, "name": row["name"][:NAME_LENGTH], "count": round(row["count"], 3), "ns": round(row["ns"])}
            for row in rows.iter_rows(named=True)]  # fmt: skip


def _modules(total: pl.DataFrame) -> list[dict[str, Any]]:
    rows = total.filter(pl.col("module").is_not_null()).group_by("module", "label").agg(pl.sum("ns"))
    rows = rows.sort("ns", "module", "label", descending=[True, False, False])
    return [{**row, "ns": round(row["ns"])} for row in rows.iter_rows(named=True)]
