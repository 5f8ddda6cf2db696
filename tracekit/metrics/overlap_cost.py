"""Cost of overlap: kernels run slower beside communication than alone, since both use memory, links and processors.

The time of a kernel beside communication is compared with the median of the same kernel, for the same operator and
input shapes, alone. Groups whose times alone vary much are left out: differences there may have another reason.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import group_rows
from tracekit._util.categories import CategoryColumns
from tracekit.metrics.label_intervals import COMPUTE_SET, Lanes, has_label

MIN_KERNELS_TO_COMPARE = 3
"""Kernels of a group that must run alone, and as many beside communication, for a comparison."""
MIN_OVERLAPPED_SHARE = 0.9
"""Share of a kernel's time under communication from which it counts as beside communication."""
MAX_SPREAD_ALONE = 1.25
"""Largest ratio of the 90th to the 10th percentile of a group's times alone, for a comparison."""
MIN_COMPARED_SHARE = 0.5
"""Share of the kernel time beside communication that must be comparable before a net gain is given."""

OVERLAP_COSTS = pl.Schema(
    {
        "label": pl.String(),
        "kernels": pl.Int64(),  # compared kernels beside communication
        "beside_ns": pl.Int64(),  # their time
        "alone_ns": pl.Int64(),  # their time at the median of their group alone
        "all_ns": pl.Int64(),  # time of all kernels beside communication
    }
)


def measure_overlap_costs(
    labelled: pl.DataFrame, lanes: Lanes, *, texts: CategoryColumns | None = None
) -> pl.DataFrame:
    """Return time beside communication and time alone of one rank's kernels, by compute label (``OVERLAP_COSTS``).

    >>> rows = [("k", 0, 10), ("k", 20, 30), ("k", 40, 50), ("k", 100, 112), ("k", 120, 132), ("k", 140, 152)]
    >>> gpu = pl.DataFrame({"name": [r[0] for r in rows] + ["nccl"], "label": ["forward"] * 6 + ["dp_comm"],
    ...     "start_ns": [r[1] for r in rows] + [95], "end_ns": [r[2] for r in rows] + [160]})
    >>> measure_overlap_costs(gpu, Lanes.of(gpu)).rows()
    [('forward', 3, 36, 30, 36)]
    """
    start, end = labelled["start_ns"].to_numpy(), labelled["end_ns"].to_numpy()
    rows = np.flatnonzero(has_label(lanes.code, COMPUTE_SET) & (end > start))
    if not len(rows) or not len(lanes.communication):
        return OVERLAP_COSTS.to_frame()
    texts = texts or CategoryColumns(labelled)
    keys = [name for name in ("label", "name", "op", "shapes", "dtypes") if name in labelled.columns]
    group, first = group_rows(*(texts[key].codes[rows] for key in keys))
    overlapped_ns = lanes.communication.covered_ns(start[rows], end[rows])
    kernels = pl.DataFrame({"group": group, "ns": end[rows] - start[rows], "overlapped_ns": overlapped_ns})
    is_beside, is_alone = pl.col("overlapped_ns") >= MIN_OVERLAPPED_SHARE * pl.col("ns"), pl.col("overlapped_ns") == 0
    beside = kernels.filter(is_beside).group_by("group").agg(kernels=pl.len().cast(pl.Int64), all_ns=pl.sum("ns"))
    # Percentiles take time: only for groups with enough kernels beside communication.
    often_beside = beside.filter(pl.col("kernels") >= MIN_KERNELS_TO_COMPARE)
    alone = (
        kernels.filter(is_alone)
        .join(often_beside, on="group", how="semi")
        .group_by("group")
        .agg(pl.len(), *(pl.col("ns").quantile(q / 100).alias(f"q{q}") for q in (10, 50, 90)))
        .filter((pl.col("len") >= MIN_KERNELS_TO_COMPARE) & (pl.col("q90") <= MAX_SPREAD_ALONE * pl.col("q10")))
    )
    groups = pl.DataFrame({"label": pl.Series(texts["label"].take(rows[first]).strings(), dtype=pl.String)})
    is_compared = pl.col("q50").is_not_null()
    return (
        groups.with_columns(group=pl.int_range(pl.len()))
        .join(beside, on="group", how="left", maintain_order="left")
        .join(alone, on="group", how="left", maintain_order="left")
        .group_by("label", maintain_order=True)
        .agg(
            kernels=pl.col("kernels").filter(is_compared).sum(),
            beside_ns=pl.col("all_ns").filter(is_compared).sum(),
            alone_ns=(pl.col("q50") * pl.col("kernels")).round().sum().cast(pl.Int64),
            all_ns=pl.sum("all_ns"),
        )
        .filter(pl.col("all_ns") > 0)
    )


class OverlapCost(msgspec.Struct, frozen=True, eq=False):
    """Time that overlap saved, and time that it cost the compute beside communication, over all ranks."""

    saved_ns: int
    """Communication that ran under compute."""
    costs: pl.DataFrame
    """``OVERLAP_COSTS`` of all ranks together."""

    @property
    def compared(self) -> float | None:
        """Share of the kernel time beside communication that was compared; None if there is none."""
        all_ns = int(self.costs["all_ns"].sum())
        return int(self.costs["beside_ns"].sum()) / all_ns if all_ns else None

    @property
    def extra_ns(self) -> int | None:
        """Time by which compared kernels took longer than alone; None if none was compared."""
        return int((self.costs["beside_ns"] - self.costs["alone_ns"]).sum()) if self.compared else None

    @property
    def net_ns(self) -> int | None:
        """Saved time minus extra time; None if too little was compared.

        Kernels that were not compared are assumed to have slowed down like the others.
        """
        if self.extra_ns is None or self.compared is None or self.compared < MIN_COMPARED_SHARE:
            return None
        return self.saved_ns - round(self.extra_ns / self.compared)

    @property
    def by_label(self) -> pl.DataFrame:
        """Compared labels with ``slowdown`` (time beside communication / alone) and ``extra_ns``, costliest first."""
        compared = self.costs.filter(pl.col("beside_ns") > 0)
        return compared.with_columns(
            slowdown=pl.col("beside_ns") / pl.col("alone_ns"), extra_ns=pl.col("beside_ns") - pl.col("alone_ns")
        ).sort("extra_ns", descending=True)


def combine_overlap_costs(costs: Iterable[pl.DataFrame], saved_ns: int) -> OverlapCost | None:
    """Sum the costs of all ranks; None if no compute ran beside communication."""
    table = pl.concat([OVERLAP_COSTS.to_frame(), *costs])
    total = table.group_by("label", maintain_order=True).agg(pl.exclude("label").sum())
    return OverlapCost(saved_ns, total.select(OVERLAP_COSTS.names())) if len(total) else None
