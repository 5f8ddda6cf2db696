"""Delays planted into recordings: a rank comes later to a collective, and all others wait for it there.

The delay is inserted into the time of every rank at a moment of its own: on the late rank before
the collective, where the kernel before it takes longer if that is compute, on the others inside the
collective. All that begins afterwards moves, and what the host was doing meanwhile takes longer.
Nothing else may run on a GPU at that moment, and no other operation may move on some of its ranks
alone: then the run is one that could have happened, and what must be said about it can be counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from tests.mutate import ON_GPU, Ranks
from tracekit.align.matching import match
from tracekit.classify import classify
from tracekit.metrics.label_intervals import COMPUTE_SET, Lanes
from tracekit.metrics.operations import operations
from tracekit.schema import RankEvents


@dataclass(frozen=True)
class Site:
    """A collective before which a rank can be delayed."""

    late_rank: int
    label: str
    operation: dict[int, int]
    """The collective's event on each rank."""
    start_ns: dict[int, int]
    """Arrival of each rank."""
    moment_ns: dict[int, int]
    """When the delay is inserted on each rank."""
    kernel: int | None
    """The late rank's kernel that takes longer."""

    @property
    def slack_ns(self) -> int:
        """Time by which the rank arrived before the last one: it must lose this before anybody waits for it."""
        return max(self.start_ns.values()) - self.start_ns[self.late_rank]

    @property
    def waited_ns(self) -> int:
        """Time for which all ranks waited in the collective before the delay."""
        return sum(max(self.start_ns.values()) - start for start in self.start_ns.values())

    def waited_with_ns(self, delay_ns: int) -> int:
        """Return the time for which the others wait for the late rank if it arrives *delay_ns* after the last one."""
        return self.waited_ns - self.slack_ns + delay_ns * (len(self.start_ns) - 1)


def find_sites(ranks: Ranks) -> dict[int, Site]:
    """Return for each rank a collective of all ranks before which it can be delayed, as far as there is one."""
    labelled = {rank.source.rank: classify(rank.events) for rank in ranks}
    members = match(
        pl.concat([operations(table, Lanes.of(table)) for table in labelled.values()])
    ).members
    collectives = members.filter(pl.col("sends").is_null(), pl.col("step").is_not_null())
    sites: dict[int, Site] = {}
    for (number,), operation in collectives.group_by("match", maintain_order=True):
        if len(operation) < len(labelled):
            continue
        others = members.filter(pl.col("match") != number)
        for rank in labelled.keys() - sites.keys():
            site = _site(labelled[rank], rank, operation)
            if site and _can_happen(labelled, others, site):
                sites[rank] = site
    return sites


def _site(labelled: pl.DataFrame, rank: int, operation: pl.DataFrame) -> Site | None:
    id_of, start, end = (
        dict(operation.select("rank", column).rows()) for column in ("id", "start_ns", "end_ns")
    )
    before = labelled.filter(pl.col("end_ns") <= start[rank]).sort("end_ns")
    if before.is_empty() or max(start.values()) >= end[rank]:
        return None
    last = before.row(-1, named=True)
    kernel = last["id"] if last["label"] in COMPUTE_SET else None
    moment = {**end, rank: start[rank] if kernel is None else last["end_ns"]}
    return Site(rank, operation["label"][0], id_of, start, moment, kernel)


def _can_happen(labelled: dict[int, pl.DataFrame], others: pl.DataFrame, site: Site) -> bool:
    """Whether nothing runs at the moment of the delay on any rank, and all other operations move on all ranks alike."""
    moved = []
    for rank, table in labelled.items():
        operation = pl.col("id") == site.operation[rank]
        moment = begin = until = site.moment_ns[rank]
        # What hides some of the transfer would hide some of the waiting instead.
        if rank != site.late_rank:
            begin = min(moment, max(site.start_ns.values()))
        elif site.slack_ns:  # the collective alone begins later by the slack
            until = table.filter(operation)["end_ns"].item()
        if table.select(
            ((pl.col("start_ns") < until) & (pl.col("end_ns") > begin) & ~operation).any()
        ).item():
            return False
        moved.append(
            others.filter(pl.col("rank") == rank).select(
                "match", moved=pl.col("start_ns") >= moment
            )
        )
    return bool(
        (pl.concat(moved).group_by("match").agg(pl.col("moved").n_unique())["moved"] == 1).all()
    )


def plant(ranks: Ranks, site: Site, delay_ns: int) -> Ranks:
    """Return the run in which the late rank arrives *delay_ns* after the last one, and all that follows comes later."""
    return [_delayed(rank, site, delay_ns) for rank in ranks]


def _delayed(rank: RankEvents, site: Site, delay_ns: int) -> RankEvents:
    is_late, moment = rank.source.rank == site.late_rank, site.moment_ns[rank.source.rank]
    operation = pl.col("id") == site.operation[rank.source.rank]
    longer = pl.col("id").eq_missing(site.kernel) if is_late else operation
    moves = pl.col("start_ns") >= moment
    host_waits = ~ON_GPU & (pl.col("end_ns") > moment)
    slack = site.slack_ns if is_late else 0
    start, end = pl.col("start_ns") + delay_ns, pl.col("end_ns") + delay_ns
    return replace(
        rank,
        events=rank.events.with_columns(
            start_ns=pl.when(moves & operation)
            .then(start + slack)
            .when(moves)
            .then(start)
            .otherwise("start_ns"),
            end_ns=pl.when(longer)
            .then(end + slack)
            .when(moves | host_waits)
            .then(end)
            .otherwise("end_ns"),
        ),
    )
