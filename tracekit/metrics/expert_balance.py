"""Balance of expert parallelism: bytes received by each rank, work of its experts, and the cost of imbalance.

A rank that is sent more tokens computes longer and arrives late at the combine, where the others
wait for it. Imbalance explains at most as much of that wait as the experts' own work differs (and,
where bytes were recorded, no more than they account for); the step loses at most the part of it
that no compute hides. Only the forward is measured: both bounds hold for it.
"""

import numpy as np
import polars as pl

from tracekit.documents.analysis import ExpertCost, ExpertLayer, ExpertLoad
from tracekit.documents.coding import table_schema
from tracekit.intervals import union
from tracekit.schema import conform

EXPERT_BALANCE = table_schema(ExpertLoad)

EXPERT_WORK = pl.Schema({"rank": pl.Int32(), "id": pl.Int64(), "expert_ns": pl.Int64()})
"""Time of forward compute launched between a dispatch (event ``id``) and its combine."""

EXPERT_LAYERS = table_schema(ExpertLayer)


def measure_expert_balance(operations: pl.DataFrame, members: pl.DataFrame) -> pl.DataFrame:
    """Return the bytes each rank's experts received (``EXPERT_BALANCE``).

    Empty where sizes were not recorded.

    Args:
        operations: Operations of all ranks.
        members: Matched operations (``align.matching.MEMBERS``), whose ``row`` is a row of
            *operations*.

    """
    dispatched = members.filter(pl.col("label") == "ep_dispatch").select(
        "match", "rank", "group", "wait_ns", "row"
    )
    dispatches = (
        dispatched.hstack(operations.select("received", "pass")[dispatched["row"]])
        .filter(
            (pl.col("pass") == "forward") & pl.col("received").is_not_null().all().over("match")
        )
        .with_columns(
            mean=pl.col("received").mean().over("match"),
            # No rank received most where all received the same.
            is_largest=(pl.col("received") == pl.col("received").max().over("match"))
            & (pl.col("received").n_unique().over("match") > 1),
        )
    )
    table = dispatches.group_by("rank", "group").agg(
        pl.col("received").sum(),
        pl.col("wait_ns").sum(),
        exchanges=pl.len(),
        over_mean=_ratio(pl.sum("received"), pl.sum("mean")),
        largest=pl.col("is_largest").sum(),
    )
    table = table.sort("over_mean", "rank", descending=[True, False], nulls_last=True)
    return conform(table, EXPERT_BALANCE)


def _ratio(value: pl.Expr, mean: pl.Expr) -> pl.Expr:
    """Return a value over the mean.

    Null where the mean is 0, as no rank is above or below it then.
    """
    return pl.when(mean > 0).then(value / mean)


def measure_expert_work(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return ``EXPERT_WORK`` of one rank: forward compute belongs to the dispatch launched last before it.

    >>> from tracekit.schema import LABELLED
    >>> rows = [("ep_dispatch", 0, 5), ("forward", 5, 9), ("dgrad", 6, 30), ("ep_combine", 9, 12), ("forward", 12, 20)]
    >>> events = [{"rank": 0, "id": k, "label": a, "pass": "backward" if a == "dgrad" else "forward", "launch_ns": k,
    ...            "start_ns": s, "end_ns": e} for k, (a, s, e) in enumerate(rows)]
    >>> measure_expert_work(conform(pl.DataFrame(events), LABELLED)).rows()
    [(0, 0, 4)]
    """
    order_ns = pl.coalesce("launch_ns", "start_ns").alias("order_ns")
    label = pl.col("label").cast(pl.String)
    is_exchange = label.is_in(["ep_dispatch", "ep_combine"]) & (pl.col("pass") == "forward")
    exchanges = labelled.filter(is_exchange).select(
        order_ns, "rank", "id", is_dispatch=label == "ep_dispatch"
    )
    if exchanges.is_empty():
        return EXPERT_WORK.to_frame()
    work = (
        labelled.filter(label == "forward")
        .select(order_ns, "start_ns", "end_ns")
        .sort("order_ns")
        .join_asof(exchanges.sort("order_ns"), on="order_ns")
        .filter(pl.col("is_dispatch").fill_null(False))
    )
    if work.is_empty():
        return EXPERT_WORK.to_frame()
    ids, dispatch = np.unique(work["id"].to_numpy(), return_inverse=True)
    covered = union(work["start_ns"].to_numpy(), work["end_ns"].to_numpy(), dispatch)
    table = pl.DataFrame(
        {"rank": exchanges["rank"][0], "id": ids, "expert_ns": covered.totals_ns(len(ids))}
    )
    return conform(table, EXPERT_WORK)


def expert_cost(
    work: pl.DataFrame, operations: pl.DataFrame, members: pl.DataFrame
) -> tuple[pl.DataFrame, ExpertCost | None]:
    """Return ``EXPERT_LAYERS`` and the cost of imbalance.

    Empty and None where no dispatch and combine were matched.

    Where bytes are known, work counts as longer only as far as the received bytes account for.

    Args:
        work: ``EXPERT_WORK`` of all ranks.
        operations: Operations of all ranks.
        members: Matched operations (``align.matching.MEMBERS``), whose ``row`` is a row of
            *operations*.

    """
    exchanges = work if work.is_empty() else _find_exchanges(work, operations, members)
    if exchanges.is_empty():
        return EXPERT_LAYERS.to_frame(), None
    longest_work = pl.max("expert_ns").over("match")
    most_received = pl.max("received").over("match")
    all_sized = pl.col("received").is_not_null().all().over("match")
    # By how much this rank's work should be shorter than the longest, if work is proportional to
    # bytes.
    expected_lead = (longest_work * (1 - pl.col("received") / most_received)).ceil()
    exchanges = exchanges.with_columns(
        mean_received=pl.when(all_sized).then(pl.mean("received").over("match")),
        most_received=most_received,
        lead_ns=longest_work - pl.col("expert_ns"),
        expected_lead_ns=pl.when(all_sized & (most_received > 0))
        .then(expected_lead)
        .cast(pl.Int64),
    )
    exchanges = exchanges.with_columns(
        explained_ns=pl.min_horizontal("lead_ns", "combine_wait_ns", "expected_lead_ns").clip(0)
    ).with_columns(lost_ns=pl.min_horizontal("explained_ns", "combine_exposed_ns").clip(0))
    # Where no rank received any byte, an even dispatch would save nothing: 0 / 1.
    saved_share = pl.first("most_received").sub(pl.first("mean_received")) / pl.first(
        "most_received"
    ).clip(1)
    by_match = exchanges.group_by("match").agg(
        pl.max("lost_ns"), saved_ns=pl.first("transfer_ns") * saved_share
    )
    transfer_ns = None
    if not by_match["saved_ns"].null_count():
        transfer_ns = round(float(by_match["saved_ns"].sum()))
    cost = ExpertCost(
        exchanges=len(by_match),
        transfer_ns=transfer_ns,
        wait_ns=int(exchanges["explained_ns"].sum()),
        step_ns=int(by_match["lost_ns"].sum()),
    )
    return _sum_by_layer(exchanges), cost


def _find_exchanges(
    work: pl.DataFrame, operations: pl.DataFrame, members: pl.DataFrame
) -> pl.DataFrame:
    """Return matched dispatches with their ranks' work and with the wait in the following combine.

    A model may dispatch in several operations (tokens, then weights): all dispatches of a rank
    before one combine form one exchange.

    Args:
        work: Expert work behind each dispatch: rank, id, expert_ns.
        operations: Operations of all ranks.
        members: Members of matched operations; ``row`` is the row in *operations*.

    Returns:
        A row per rank and exchange: match, step, group and order_ns of the last dispatch;
        transfer_ns, expert_ns and received over all its dispatches; combine_wait_ns and
        combine_exposed_ns.

    """
    is_exchange = operations["label"].is_in(["ep_dispatch", "ep_combine"]) & (
        operations["pass"] == "forward"
    )
    columns = (
        "rank",
        "id",
        "label",
        "step",
        "group",
        "order_ns",
        "start_ns",
        "end_ns",
        "hidden_ns",
        "received",
    )
    # An operation may be a member of several matches: the first counts.
    first_match = members.select("row", "match", "wait_ns", "transfer_ns").unique(
        "row", keep="first", maintain_order=True
    )
    is_combine = pl.col("label") == "ep_combine"
    # Combines before this one.
    exchange_number = is_combine.cum_sum().over("rank") - is_combine.cast(pl.UInt32)
    exchange_ops = (
        operations.select(*columns, row=pl.int_range(pl.len()))
        .filter(is_exchange.fill_null(False))
        .join(first_match, on="row", how="left", maintain_order="left")
        .sort("rank", "order_ns")
        .with_columns(exchange=exchange_number)
        .join(work, on=["rank", "id"], how="left", maintain_order="left")
    )
    exposed_ns = pl.col("end_ns") - pl.col("start_ns") - pl.col("hidden_ns")
    combines = (
        exchange_ops.filter(is_combine)
        .drop_nulls("match")
        .group_by("rank", "exchange")
        .agg(combine_wait_ns=pl.first("wait_ns"), combine_exposed_ns=exposed_ns.first())
    )
    return (
        exchange_ops.filter(~is_combine)
        .group_by("rank", "exchange", maintain_order=True)
        .agg(
            # The last dispatch stands for the exchange.
            pl.col("match", "step", "group", "order_ns").last(),
            pl.sum("transfer_ns", "expert_ns"),
            pl.when(pl.col("received").is_not_null().all())
            .then(pl.sum("received"))
            .alias("received"),
            # The experts' work follows the last dispatch: one dispatch has it, so that any() is
            # meant.
            is_complete=pl.col("match").is_not_null().all()
            & pl.col("expert_ns").is_not_null().any(),
        )
        .filter("is_complete")
        .join(combines, on=["rank", "exchange"])
        .filter(pl.len().over("match") > 1)  # a rank without others has no balance
        .drop("exchange")
    )


def _sum_by_layer(exchanges: pl.DataFrame) -> pl.DataFrame:
    """Return ``EXPERT_LAYERS``, the most uneven work first."""
    matches = exchanges.group_by("match").agg(pl.first("step", "group"), pl.min("order_ns"))
    # The k-th exchange of a group in a step is taken as the same layer in every step.
    exchange_in_step = pl.col("order_ns").rank("ordinal").over("step", "group").cast(pl.Int64) - 1
    table = (
        exchanges.join(matches.select("match", exchange=exchange_in_step), on="match")
        .group_by("exchange", "group", "rank")
        .agg(
            pl.when(pl.col("received").is_not_null().all())
            .then(pl.sum("received"))
            .alias("received"),
            pl.col("expert_ns").sum(),
            # Of the wait in combines, the part that imbalance explains.
            wait_ns=pl.col("explained_ns").sum(),
            exposed_ns=pl.col("lost_ns").sum(),  # the part of that which no compute hides
        )
        .with_columns(
            received_over_mean=_ratio(
                pl.col("received"), pl.mean("received").over("exchange", "group")
            ),
            expert_over_mean=_ratio(
                pl.col("expert_ns"), pl.mean("expert_ns").over("exchange", "group")
            ),
        )
    )
    unevenness = pl.max("expert_over_mean").over("exchange", "group")
    table = table.sort("exchange", "group", "rank").sort(
        unevenness, descending=True, nulls_last=True, maintain_order=True
    )
    return conform(table, EXPERT_LAYERS)
