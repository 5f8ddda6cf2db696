"""Communication of all ranks: operations matched across ranks and set to one clock."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import polars as pl

from tracekit.align.clocks import Clocks, align
from tracekit.align.matching import MEMBERS, match
from tracekit.align.waits import find_stragglers, with_waits
from tracekit.analysis.rates import RunRates, run_rates
from tracekit.analysis.tables import RankTables
from tracekit.critical_path.graph import EventGraph
from tracekit.critical_path.path import CriticalPath, critical_path
from tracekit.errors import Notice
from tracekit.metrics.waits import add_waits
from tracekit.schema import conform

_TEXT_COLUMNS = ("label", "pass", "what", "group", "group_ranks", "p2p")


class Communication(msgspec.Struct, frozen=True, eq=False):
    """The results of matching all ranks' operations."""

    operations: pl.DataFrame
    """All ranks' operations, rank by rank, with their waits (``metrics.waits``); text is categorical."""
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
    """The events of all ranks with what each waited for, if it was asked for."""

    @classmethod
    def of(cls, ranks: Sequence[RankTables], *, ranks_per_node: int | None) -> Communication:
        """Match the operations of *ranks*, which are in the order of their numbers."""
        operations, lost = _all_operations(ranks)
        by_step = all(rank.steps_marked for rank in ranks)
        matching = match(pl.concat([operations, lost]), by_step=by_step)
        clocks = align(matching.members, [rank.source.rank for rank in ranks])
        members = with_waits(matching.members, clocks)
        critical = critical_path(ranks, operations, members, clocks)
        graph = EventGraph.build(ranks, operations, members, clocks)
        rates = run_rates(
            [rank.products for rank in ranks],
            [rank.rates for rank in ranks if rank.rates is not None],
            [rank.experts for rank in ranks],
            operations,
            members,
            ranks_per_node=ranks_per_node,
        )
        stragglers = find_stragglers(members, clocks)
        members = members.select("match", "row", "rank", "last", "late_ns", "wait_ns", "wait_is_bound")
        waited = add_waits(operations, members, all_recorded=_all_recorded(ranks))
        return cls(waited, lost, clocks, rates, critical, stragglers, by_step, matching.notices, graph)

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
    frames = [rank.operations.with_columns(pl.col(_TEXT_COLUMNS).cast(pl.Categorical)) for rank in ranks]
    operations = pl.concat(frames, rechunk=True)
    is_lost = (pl.col("id") < 0).fill_null(False)
    return operations.filter(~is_lost), operations.filter(is_lost)
