"""Communication of all ranks: peers named, operations matched across ranks and set to one clock.

NCCL in Nsight's traces numbers peers within their communicator. They become ranks of the run
through the communicator's members, or, where these were not recorded, through the order of messages
in the pipeline.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import msgspec
import polars as pl

from tracekit._util.columns import concat_ranks
from tracekit.align.clocks import Clocks, align
from tracekit.align.matching import MEMBERS, match
from tracekit.align.peers import by_communicator
from tracekit.align.waits import find_stragglers, with_waits
from tracekit.analysis.combine.replayed_ranks import ReplayedRanks, choose_replayed_ranks
from tracekit.analysis.measure.tables import RankTables
from tracekit.analysis.measured import total_of
from tracekit.documents.analysis import (
    Bandwidth,
    ExpertCost,
    ExpertLayer,
    ExpertLoad,
    LabelRate,
    ModuleRate,
    ProductRate,
    Rates,
    Uncounted,
)
from tracekit.documents.coding import rows
from tracekit.errors import Notice
from tracekit.graph.critical_path import CriticalPath, critical_path
from tracekit.graph.event_graph import EventGraph
from tracekit.metrics.bandwidth import bandwidth
from tracekit.metrics.expert_balance import EXPERT_WORK, expert_cost, measure_expert_balance
from tracekit.metrics.measured_collectives import find_rank_gpu
from tracekit.metrics.operations import add_waits
from tracekit.metrics.rates import PRODUCTS, ProductTotals
from tracekit.pipeline.reconstruct import RankPipeline
from tracekit.pipeline.reconstruct.messages import RANK_MESSAGES
from tracekit.pipeline.reconstruct.parallel_groups import name_peers
from tracekit.schema import conform

MAX_PRODUCTS = 40
"""Kinds of matrix products in a document, those with the most time."""
MAX_EXPERT_LAYERS = 256
"""Rows of expert layers in a document, the most uneven first."""
_TEXT_COLUMNS = ("label", "pass", "what", "group", "group_ranks")


class Communication(msgspec.Struct, frozen=True, eq=False):
    """The results of matching all ranks' operations."""

    operations: pl.DataFrame
    """All ranks' operations, rank by rank, with their waits (``metrics.operations``); text is
    categorical."""
    lost: pl.DataFrame
    """Operations that were launched and not recorded, to match the others by their order."""
    clocks: Clocks
    rates: RunRates
    critical: CriticalPath
    stragglers: pl.DataFrame
    """``align.waits.STRAGGLERS``."""
    by_step: bool
    """Whether ranks number steps alike, so that operations of different steps are never matched."""
    notices: tuple[Notice, ...]
    graph: EventGraph | None = None
    """The events of all ranks, or of those replayed, with what each waited for; None without
    GPU events."""
    replayed: ReplayedRanks | None = None
    """The ranks whose events are in the graph; None if all are."""

    @classmethod
    def of(
        cls,
        ranks: Sequence[RankTables],
        *,
        ranks_per_node: int | None,
        changed_ranks: Collection[int] = (),
    ) -> Communication:
        """Match the operations of *ranks*, which are in the order of their numbers.

        *changed_ranks* are those that a change names.
        """
        operations, lost = _all_operations(ranks)
        by_step = all(rank.steps_marked for rank in ranks)
        matching = match(pl.concat([operations, lost]), by_step=by_step)
        clocks = align(matching.members, [rank.source.rank for rank in ranks])
        members = with_waits(matching.members, clocks)
        rates = run_rates(ranks, operations, members, ranks_per_node=ranks_per_node)
        with_lost = (
            members if matching.with_lost is None else with_waits(matching.with_lost, clocks)
        )
        stragglers = find_stragglers(with_lost, clocks)
        figures = ("match", "row", "last_rank", "late_ns", "wait_ns", "wait_is_bound", "waited_for")
        with_lost = with_lost.select(
            *figures, *(name for name in ("recorded",) if name in with_lost.columns)
        )
        waited = add_waits(
            operations,
            with_lost,
            ranks=[rank.source.rank for rank in ranks],
            all_recorded=_all_recorded(ranks),
        )
        parts: Sequence[RankTables] = ranks
        replayed = choose_replayed_ranks(ranks, members, stragglers, named=changed_ranks)
        left_out: frozenset[int] = frozenset()
        if replayed is not None:
            parts = [rank for rank in ranks if rank.source.rank in replayed.ranks]
            left_out = frozenset(rank.source.rank for rank in ranks).difference(replayed.ranks)
        graph = EventGraph.build(parts, operations, members, clocks, ranks_left_out=left_out)
        critical = critical_path(
            graph,
            ranks,
            waited,
            members,
            clocks,
            exposed={rank.source.rank: rank.window.exposed for rank in ranks},
        )
        return cls(
            waited,
            lost,
            clocks,
            rates,
            critical,
            stragglers,
            by_step,
            matching.notices,
            graph,
            replayed,
        )

    def matched(self) -> pl.DataFrame:
        """Return the members of matched operations (``MEMBERS``) on the common clock.

        They are matched again: keeping them would take as much memory as the operations.
        """
        operations = pl.concat([self.operations, self.lost], how="diagonal")
        members = with_waits(match(operations, by_step=self.by_step).members, self.clocks)
        return conform(self.clocks.align(members, "start_ns", "end_ns"), MEMBERS)


def _all_recorded(ranks: Sequence[RankTables]) -> bool:
    """Return whether the traces are of all ranks of the run, as far as they say how many there are."""
    return len(ranks) >= max((rank.source.world_size or 0 for rank in ranks), default=0)


def _all_operations(ranks: Sequence[RankTables]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the operations of all ranks that were recorded, and those that were only launched.

    Text becomes categorical, because few texts repeat often.
    """
    frames = [
        rank.operations.with_columns(pl.col(_TEXT_COLUMNS).cast(pl.Categorical)) for rank in ranks
    ]
    operations = pl.concat(frames, rechunk=True)
    is_lost = operations.select((pl.col("id") < 0).fill_null(False)).to_series()
    if not is_lost.any():
        return operations, operations.clear()
    return operations.filter(~is_lost), operations.filter(is_lost)


def with_peers(
    ranks: Sequence[RankTables], layout: str | None
) -> tuple[list[RankTables], tuple[Notice, ...]]:
    """Return the ranks' tables with every peer that can be named, and notices of how peers were found."""
    nsight_ranks = [rank for rank in ranks if rank.source.reader == "nsight"]
    if not nsight_ranks:
        return list(ranks), ()
    pipelines, notices = name_peers(
        [rank.pipeline for rank in nsight_ranks if rank.pipeline is not None], layout
    )
    messages = _split_messages(pl.concat([rank.operations for rank in nsight_ranks]))
    messages = messages.with_columns(by_communicator(messages))
    if notices:  # some peers follow from the order of messages
        tables = {}
        for pipeline in pipelines:
            if pipeline.peers_by_order:
                tables[pipeline.rank] = pipeline.messages
        index = pl.int_range(pl.len()).over("rank", "kernel")
        by_order = concat_ranks(tables, RANK_MESSAGES).select(
            "rank", peer_by_order="peer", id="kernel", index=index
        )
        messages = messages.join(
            by_order, on=["rank", "id", "index"], how="left", maintain_order="left"
        ).with_columns(peer=pl.coalesce("peer", "peer_by_order"))
    named = messages.group_by("rank", "id", maintain_order=True).agg(
        named=pl.struct("send", "peer")
    )
    pipeline_of_rank = {pipeline.rank: pipeline for pipeline in pipelines}
    named_ranks = []
    for rank in ranks:
        if rank in nsight_ranks:
            named_ranks.append(_with_named_peers(rank, named, pipeline_of_rank))
        else:
            named_ranks.append(rank)
    return named_ranks, notices


def _with_named_peers(
    rank: RankTables, named: pl.DataFrame, pipeline_of_rank: dict[int, RankPipeline]
) -> RankTables:
    operations = rank.operations.join(named, on=["rank", "id"], how="left", maintain_order="left")
    operations = operations.with_columns(messages=pl.coalesce("named", "messages")).drop("named")
    return replace(
        rank, operations=operations, pipeline=pipeline_of_rank.get(rank.source.rank, rank.pipeline)
    )


def _split_messages(operations: pl.DataFrame) -> pl.DataFrame:
    """Return one row per message of the operations, in the order they were issued.

    ``index`` counts them within the operation.
    """
    return (
        operations.filter(
            (pl.col("what") == "p2p")
            & pl.col("messages").is_not_null()
            & pl.col("id").is_not_null()
        )
        .select("rank", "id", "group", "messages")
        .explode("messages")
        .unnest("messages")
        .with_columns(index=pl.int_range(pl.len()).over("rank", "id"))
    )


# ---- Speed of a run: rates of matrix products, messages and collectives, and the balance of experts.


_PRODUCT_KEYS = ["label", "module", "op", "kernel", "shapes", "dtype"]


class RunRates(msgspec.Struct, frozen=True, eq=False):
    """ProductTotals of a run: work and time are sums over ranks, rates are ratios of these sums."""

    total: ProductTotals
    products: pl.DataFrame
    """Matrix products by label, module, operator, shapes and dtype, over all ranks, most time
    first."""
    communication: pl.DataFrame
    experts: pl.DataFrame
    expert_layers: pl.DataFrame
    """Tokens received and computed per forward exchange and rank
    (``metrics.expert_balance.EXPERT_LAYERS``)."""
    expert_cost: ExpertCost | None = None
    """Upper bound of the cost of imbalance; None if no dispatch and combine were matched."""

    def by(self, column: str) -> pl.DataFrame:
        """Return the rates of products by ``label``, ``module``, ``shapes``, ``op`` or ``dtype``."""
        return rated(_sum_products(self.products, [column]))

    @property
    def uncounted(self) -> pl.DataFrame:
        """Products without known FLOP by label, module, operator and family of the kernel, most time first."""
        unknown = self.products.filter(pl.col("flop").is_null())
        keys = ["label", "module", "op", "kernel"]
        return unknown.group_by(keys).agg(pl.col("calls", "ns").sum()).sort(-pl.col("ns"), *keys)

    def to_document(self) -> Rates:
        """Return the ``rates`` of the document."""
        total = self.total
        return Rates(
            flop=total.flop or None,
            model_flop=total.model_flop or None,
            product_ns=total.product_ns,
            uncounted_ns=total.uncounted_ns,
            tflop_s=total.tflop_s,
            utilisation=total.utilisation,
            below_peak_ns=below_peak_ns(self.products),
            by_label=rows(self.by("label"), LabelRate),
            by_module=rows(self.by("module"), ModuleRate),
            products=rows(self.products.head(MAX_PRODUCTS), ProductRate),
            communication=rows(self.communication, Bandwidth),
            experts=rows(self.experts, ExpertLoad),
            expert_layers=rows(self.expert_layers.head(MAX_EXPERT_LAYERS), ExpertLayer),
            expert_cost=self.expert_cost,
            lower_bound=total.uncounted_ns > 0,
            uncounted=rows(self.uncounted.head(MAX_PRODUCTS), Uncounted),
        )


def run_rates(
    ranks: Sequence[RankTables],
    operations: pl.DataFrame,
    members: pl.DataFrame,
    *,
    ranks_per_node: int | None,
) -> RunRates:
    """Return the rates of all ranks together.

    Args:
        ranks: Tables of each rank.
        operations: Communication of all ranks.
        members: Its operations matched across ranks.
        ranks_per_node: Number of consecutive ranks on one machine; None if not known.

    """
    layers, cost = expert_cost(
        pl.concat([EXPERT_WORK.to_frame(), *(rank.experts for rank in ranks)]), operations, members
    )
    products = pl.concat([PRODUCTS.to_frame(), *(rank.products for rank in ranks)])
    gpus = {}
    for rank in ranks:
        gpu = find_rank_gpu(rank.source, rank.gpu_number)
        if gpu is not None:
            gpus[rank.source.rank] = gpu
    return RunRates(
        total=total_of([rank.rates for rank in ranks]),
        products=rated(_sum_products(products, _PRODUCT_KEYS)),
        communication=bandwidth(
            members.with_columns(operations["dtype"].gather(members["row"])),
            node=ranks_per_node,
            gpus=gpus,
        ),
        experts=measure_expert_balance(operations, members),
        expert_layers=layers,
        expert_cost=cost,
    )


def below_peak_ns(products: pl.DataFrame) -> int | None:
    """Return the time that products would save at the GPU's peak rate, over all ranks.

    None without a known peak.
    """
    if products.is_empty() or products["at_peak_ns"].null_count():
        return None
    return int((products["ns"] - products["at_peak_ns"]).sum())


def _sum_products(products: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return the sums of products with equal *keys*, most time first.

    ``flop`` is a lower bound where ``uncounted_ns``, the time of products without known FLOP, is
    not 0; null if none is known. The time at peak is null if it is unknown for any product.
    """
    at_peak_ns = pl.col("at_peak_ns")
    is_counted = pl.col("flop").is_not_null()
    grouped = products.group_by(keys, maintain_order=True).agg(
        pl.col("calls", "ns").sum(),
        flop=pl.when(is_counted.any()).then(pl.col("flop").sum()),
        at_peak_ns=pl.when(at_peak_ns.is_not_null().all()).then(at_peak_ns.sum()),
        uncounted_ns=pl.col("ns").filter(~is_counted).sum(),
    )
    return grouped.sort(["ns", *keys], descending=[True, *(False for _ in keys)], nulls_last=True)


def rated(products: pl.DataFrame) -> pl.DataFrame:
    """Return *products* with TFLOP/s over their own time and the share of the GPU's peak, where all are counted."""
    has_time = (pl.col("ns") > 0) & (pl.col("uncounted_ns") == 0)
    return products.with_columns(
        tflop_s=pl.when(has_time).then(pl.col("flop") / pl.col("ns") / 1e3),
        share_of_peak=pl.when(has_time).then(pl.col("at_peak_ns") / pl.col("ns")),
    )
