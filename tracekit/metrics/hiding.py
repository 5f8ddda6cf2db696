"""What hiding costs: kernels run slower beside communication than alone, since both want memory, links and processors.

A kernel's time beside communication is compared with the median of the same kernel, for the same operator and input
shapes, alone. Groups whose times alone scatter are left out: what differs there may be something else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import group_rows
from tracekit._util.categories import CategoryColumns
from tracekit.metrics.lanes import COMPUTE_SET, Lanes, among_labels

LEAST = 3
"""Kernels of a group, alone and beside communication, from which they are compared."""
BESIDE = 0.9
"""Share of its own time from which a kernel counts as beside communication."""
SCATTER = 1.25
"""Largest ratio of the 90th to the 10th percentile of a group's times alone."""
ENOUGH = 0.5
"""Share of the kernel time beside communication that must be comparable before a net gain is given."""

COSTS = pl.Schema(
    {
        "label": pl.String(),
        "kernels": pl.Int64(),  # compared, of those beside communication
        "beside_ns": pl.Int64(),  # their time
        "alone_ns": pl.Int64(),  # what they would take at the median of their like alone
        "all_ns": pl.Int64(),  # time of all kernels beside communication
    }
)


def hiding_costs(labelled: pl.DataFrame, lanes: Lanes, *, texts: CategoryColumns | None = None) -> pl.DataFrame:
    """Return, for each compute label of one rank, the time of kernels beside communication and of the same alone.

    >>> rows = [("k", 0, 10), ("k", 20, 30), ("k", 40, 50), ("k", 100, 112), ("k", 120, 132), ("k", 140, 152)]
    >>> gpu = pl.DataFrame({"name": [r[0] for r in rows] + ["nccl"], "label": ["forward"] * 6 + ["dp_comm"],
    ...     "start_ns": [r[1] for r in rows] + [95], "end_ns": [r[2] for r in rows] + [160]})
    >>> hiding_costs(gpu, Lanes.of(gpu)).rows()
    [('forward', 3, 36, 30, 36)]
    """
    keys = [c for c in ("label", "name", "op", "shapes", "dtypes") if c in labelled.columns]
    start, end = labelled["start_ns"].to_numpy(), labelled["end_ns"].to_numpy()
    rows = np.flatnonzero(among_labels(lanes.code, COMPUTE_SET) & (end > start))
    if not len(rows) or not len(lanes.communication):
        return COSTS.to_frame()
    ns = end[rows] - start[rows]
    beside = lanes.communication.covered_ns(start[rows], end[rows])
    alone, busy = beside == 0, beside >= BESIDE * ns
    texts = texts or CategoryColumns(labelled)
    kind, first = group_rows(*(texts[key].codes[rows] for key in keys))
    often, kernels = (np.bincount(kind[which], minlength=len(first)) for which in (alone, busy))
    all_ns = np.bincount(kind[busy], ns[busy], len(first)).astype(np.int64)
    many = (often >= LEAST) & (kernels >= LEAST)
    few = np.flatnonzero(many[kind] & alone)
    quantiles = pl.DataFrame({"kind": kind[few], "ns": ns[few]}).group_by("kind").agg(
        pl.col("ns").quantile(q / 100).alias(f"q{q}") for q in (10, 50, 90)
    )  # fmt: skip
    even = quantiles.filter(pl.col("q90") <= SCATTER * pl.col("q10"))
    fits = even["kind"].to_numpy()
    usual = np.zeros((3, len(first)))
    usual[:, fits] = kernels[fits], all_ns[fits], np.round(even["q50"].to_numpy() * kernels[fits])
    place, label = group_rows(texts["label"].codes[rows[first]])
    sums = [np.bincount(place, weights).astype(np.int64) for weights in (*usual, all_ns)]
    named = pl.Series("label", texts["label"].take(rows[first[label]]).strings(), dtype=pl.String)
    table = pl.DataFrame([named, *(pl.Series(c, column) for c, column in zip(list(COSTS)[1:], sums, strict=True))])
    return table.filter(pl.col("all_ns") > 0)


class Hiding(msgspec.Struct, frozen=True, eq=False):
    """What hiding communication saved, and what it cost the compute beside it, over all ranks."""

    saved_ns: int
    """Communication that compute hid."""
    costs: pl.DataFrame
    """COSTS, over all ranks."""

    @property
    def compared(self) -> float | None:
        """Share of the kernel time beside communication that could be compared; None where there is none."""
        every = int(self.costs["all_ns"].sum())
        return int(self.costs["beside_ns"].sum()) / every if every else None

    @property
    def extra_ns(self) -> int | None:
        """How much longer the compared kernels took; None where none could be compared."""
        return int((self.costs["beside_ns"] - self.costs["alone_ns"]).sum()) if self.compared else None

    @property
    def net_ns(self) -> int | None:
        """What hiding saved less what it cost; None where too little could be compared.

        Kernels that could not be compared are taken to have slowed down like the others.
        """
        if self.extra_ns is None or self.compared is None or self.compared < ENOUGH:
            return None
        return self.saved_ns - round(self.extra_ns / self.compared)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        known = self.costs.filter(pl.col("beside_ns") > 0)
        slower = known.with_columns(
            slowdown=pl.col("beside_ns") / pl.col("alone_ns"), extra_ns=pl.col("beside_ns") - pl.col("alone_ns")
        )
        return {
            "saved_ns": self.saved_ns,
            "extra_ns": self.extra_ns,
            "net_ns": self.net_ns,
            "compared": self.compared,
            "by_label": slower.sort("extra_ns", descending=True).to_dicts(),
        }


def hiding(costs: Iterable[pl.DataFrame], saved_ns: int) -> Hiding | None:
    """Return the ranks' costs together; None where no compute ran beside communication."""
    tables = list(costs)
    every = pl.concat(tables) if tables else COSTS.to_frame()
    total = every.group_by("label", maintain_order=True).agg(pl.exclude("label").sum())
    return Hiding(saved_ns, total.select(list(COSTS))) if len(total) else None
