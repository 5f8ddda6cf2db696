"""What uneven experts cost: their work after each dispatch, and the waiting for the slowest in the combine behind it.

A rank that is sent more tokens computes longer and comes late to the combine, where the others wait for it. What of
that waiting imbalance explains is at most the difference in the experts' own work (and, where bytes were recorded, no
more than they account for), and what of it the step feels is at most the part that no compute hides. The forward alone
is measured: both bounds hold for it, nothing is said of more.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import asdict

from tracekit.intervals import union
from tracekit.schema import conform

WORK = pl.Schema({"rank": pl.Int32(), "id": pl.Int64(), "expert_ns": pl.Int64()})
"""Per dispatch (its event): the time of forward compute launched between it and its combine."""

LAYERS = pl.Schema(
    {
        "exchange": pl.Int64(),  # which dispatch of the forward, counted in a step of its group
        "group": pl.String(),
        "rank": pl.Int32(),
        "received": pl.Int64(),  # bytes, over all steps; null where sizes were not recorded
        "received_over_mean": pl.Float64(),  # of its group
        "expert_ns": pl.Int64(),  # union of compute between dispatch and combine
        "expert_over_mean": pl.Float64(),
        "wait_ns": pl.Int64(),  # in the combine, at most what the others' longer work explains
        "exposed_ns": pl.Int64(),  # of that, at most what no compute hides
    }
)


class ExpertCost(msgspec.Struct, frozen=True):
    """What imbalance costs in the forward, over all steps. Upper bounds."""

    exchanges: int
    """Dispatches with a combine behind them, matched on several ranks."""
    transfer_ns: int | None
    """How much shorter dispatches would be if every rank received the mean and time went with bytes."""
    wait_ns: int
    """Waiting in combines behind longer expert work, summed over ranks."""
    step_ns: int
    """What the step feels of it: of each exchange the rank that waits longest with nothing to hide it."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def expert_work(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return ``WORK`` of one rank: what it computed for each dispatch of its forward, told by the order of launches.

    >>> from tracekit.schema import LABELLED
    >>> rows = [("ep_dispatch", 0, 5), ("forward", 5, 9), ("dgrad", 6, 30), ("ep_combine", 9, 12), ("forward", 12, 20)]
    >>> events = [{"rank": 0, "id": k, "label": a, "pass": "backward" if a == "dgrad" else "forward", "launch_ns": k,
    ...            "start_ns": s, "end_ns": e} for k, (a, s, e) in enumerate(rows)]
    >>> expert_work(conform(pl.DataFrame(events), LABELLED)).rows()
    [(0, 0, 4)]
    """
    order = pl.coalesce("launch_ns", "start_ns").alias("order_ns")
    label = pl.col("label").cast(pl.String)
    marks = labelled.filter(label.is_in(["ep_dispatch", "ep_combine"]) & (pl.col("pass") == "forward"))
    if marks.is_empty():
        return WORK.to_frame()
    marks = marks.select(order, "rank", "id", dispatch=label == "ep_dispatch").sort("order_ns")
    work = labelled.filter(label == "forward").select(order, "start_ns", "end_ns").sort("order_ns")
    work = work.join_asof(marks, on="order_ns").filter(pl.col("dispatch").fill_null(False))
    if work.is_empty():
        return WORK.to_frame()
    ids, group = np.unique(work["id"].to_numpy(), return_inverse=True)
    covered = union(work["start_ns"].to_numpy(), work["end_ns"].to_numpy(), group.astype(np.int64))
    table = pl.DataFrame({"id": ids, "expert_ns": covered.totals_ns(len(ids))})
    return conform(table.with_columns(rank=pl.lit(marks["rank"][0], pl.Int32)), WORK)


def expert_cost(
    work: pl.DataFrame, operations: pl.DataFrame, members: pl.DataFrame
) -> tuple[pl.DataFrame, ExpertCost | None]:
    """Return ``LAYERS`` and what imbalance costs; nothing where no dispatch and combine were matched.

    *operations* are the ranks' operations as they were matched, *members* the matching's rows, *work* the ``WORK`` of
    all ranks. Where bytes are known, work counts as longer only as far as it should be for what was received.
    """
    rows = work if work.is_empty() else _exchanges(work, operations, members)
    if rows.is_empty():
        return LAYERS.to_frame(), None
    rows = rows.with_columns(
        behind=pl.max("expert_ns").over("match") - pl.col("expert_ns"),
        mean=pl.when(pl.col("received").is_not_null().all().over("match")).then(pl.mean("received").over("match")),
        most=pl.max("received").over("match"),
    )
    due = pl.max("expert_ns").over("match") * (1 - pl.col("received") / pl.col("most"))
    due = pl.when(pl.col("mean").is_not_null() & (pl.col("most") > 0)).then(due.ceil().cast(pl.Int64))
    rows = rows.with_columns(explained=pl.min_horizontal("behind", "combine_wait_ns", due).clip(0))
    rows = rows.with_columns(felt=pl.min_horizontal("explained", "combine_exposed_ns").clip(0))
    one = rows.group_by("match").agg(
        pl.max("felt"), saved=pl.first("transfer_ns") * (1 - pl.first("mean") / pl.first("most"))
    )
    known = one["saved"].drop_nulls()
    cost = ExpertCost(
        exchanges=len(one),
        transfer_ns=round(float(known.sum())) if len(known) == len(one) else None,
        wait_ns=int(rows["explained"].sum()),
        step_ns=int(one["felt"].sum()),
    )
    return _layers(rows), cost


def _exchanges(work: pl.DataFrame, operations: pl.DataFrame, members: pl.DataFrame) -> pl.DataFrame:
    """Return matched dispatches with their ranks' work, and with the waiting in the combine behind it.

    A model may dispatch in several operations (tokens, then weights): what lies before one combine is one exchange.
    """
    ep = operations["label"].is_in(["ep_dispatch", "ep_combine"]) & (operations["pass"] == "forward")
    at = np.flatnonzero(ep.fill_null(False).to_numpy())
    own = operations.select(
        "rank", "id", "label", "step", "group", "order_ns", "start_ns", "end_ns", "hidden_ns", "received"
    )[at]
    row = members["row"].to_numpy()
    first = np.full(len(operations), -1, np.int64)
    first[row[::-1]] = np.arange(len(row))[::-1]  # of several matches the first
    matched = pl.Series(first[at])
    matched = matched.set(matched < 0, None)
    own = own.with_columns(members[name].gather(matched) for name in ("match", "wait_ns", "transfer_ns"))
    is_combine = pl.col("label") == "ep_combine"
    rows = own.sort("rank", "order_ns").with_columns(run=is_combine.cum_sum().over("rank") - is_combine.cast(pl.UInt32))
    rows = rows.join(work, on=["rank", "id"], how="left", maintain_order="left")
    exposed = pl.col("end_ns") - pl.col("start_ns") - pl.col("hidden_ns")
    combines = rows.filter(is_combine).drop_nulls("match").group_by("rank", "run").agg(
        combine_wait_ns=pl.first("wait_ns"), combine_exposed_ns=exposed.first()
    )  # fmt: skip
    sums = rows.filter(~is_combine).group_by("rank", "run", maintain_order=True).agg(
        pl.col("match", "step", "group", "order_ns").last(),
        pl.sum("transfer_ns", "expert_ns"),
        pl.when(pl.col("received").is_not_null().all()).then(pl.sum("received")).alias("received"),
        whole=pl.col("match").is_not_null().all() & pl.col("expert_ns").is_not_null().any(),
    )  # fmt: skip
    found = sums.filter("whole").join(combines, on=["rank", "run"])
    return found.filter(pl.len().over("match") > 1)


def _layers(rows: pl.DataFrame) -> pl.DataFrame:
    """Return ``LAYERS``, the most uneven work first."""
    first = rows.group_by("match").agg(pl.first("step", "group"), pl.min("order_ns"))
    number = pl.col("order_ns").rank("ordinal").over("step", "group").cast(pl.Int64) - 1
    rows = rows.join(first.select("match", exchange=number), on="match")
    table = rows.group_by("exchange", "group", "rank").agg(
        pl.when(pl.col("received").is_not_null().all()).then(pl.sum("received")).alias("received"),
        pl.col("expert_ns").sum(),
        wait_ns=pl.col("explained").sum(),
        exposed_ns=pl.col("felt").sum(),
    )
    shares = {
        "received_over_mean": pl.col("received") / pl.mean("received").over("exchange", "group"),
        "expert_over_mean": pl.col("expert_ns") / pl.mean("expert_ns").over("exchange", "group"),
    }
    uneven = pl.max("expert_over_mean").over("exchange", "group")
    return conform(
        table.with_columns(**shares).sort(uneven, "exchange", "group", "rank", descending=[True, False, False, False]),
        LAYERS,
    )
