"""Ranks whose events are replayed: all of them, or in a large run those that others wait for and usual ones.

A replay takes time and memory for every event, and most ranks of a large run do the same work at
the same time. Ranks are chosen in units that exchange messages, or are in small groups, with each
other, so that whoever waits for a chosen rank is there as well: a pipeline, or a single rank where
all reduce with all. First come the units that others wait for most; then, of each kind of unit,
those whose compute is nearest to the median, and of these first the ones that are in a group with a
unit that others wait for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
import numpy as np
import polars as pl

from tracekit.analysis.measure.tables import RankTables

MAX_REPLAYED_RANKS = 32
"""Ranks up to which all are replayed, and that are replayed of a larger run."""
MAX_RANKS_OF_MESSAGES = MAX_REPLAYED_RANKS // 2
"""Most ranks of a unit that exchanges messages: two units must fit."""
MAX_RANKS_OF_GROUPS = MAX_REPLAYED_RANKS // 4
"""Most ranks of a unit that groups join."""
MAX_SHARE_WAITED_FOR = 1 / 3
"""Share of the replayed ranks in units that are chosen because others wait for them: the others
must stay usual ones, with which they are compared."""


class ReplayedRanks(msgspec.Struct, frozen=True):
    """Ranks of a large run whose events are replayed, chosen by its structure."""

    ranks: tuple[int, ...]
    """Their numbers, ascending."""
    count: int
    """Ranks of the run."""
    waited_for: tuple[int, ...]
    """Of the replayed ones, those in units that others wait for most."""
    spread: float
    """Largest difference of a unit's compute that is not replayed from the median of its kind, as a
    share of that."""


class _Unit(msgspec.Struct):
    """Ranks that are replayed together or not at all."""

    ranks: tuple[int, ...]
    kind: tuple[int, ...]
    """Operations of each of its ranks in a step: units of one kind have equal numbers."""
    compute_ns: float
    caused_ns: int
    """Waiting of others for its ranks."""
    differs: float = 0.0
    """Difference of its compute from the median of its kind, as a share of that."""


def choose_replayed_ranks(
    ranks: Sequence[RankTables],
    members: pl.DataFrame,
    stragglers: pl.DataFrame,
    *,
    named: Collection[int] = (),
) -> ReplayedRanks | None:
    """Return the ranks to replay; None if all are.

    Args:
        ranks: Tables of all ranks.
        members: Matched operations (``align.matching.MEMBERS``).
        stragglers: Who waits for whom (``align.waits.STRAGGLERS``).
        named: Ranks that a change names, which are replayed in any case.

    """
    count = len(ranks)
    if count <= MAX_REPLAYED_RANKS:
        return None
    groups = _groups(members)
    units = _find_units(ranks, groups, stragglers)
    waited_for = _units_waited_for(units)
    ranks_waited_for = _ranks_of(waited_for)
    chosen = list(waited_for)
    for unit in units:
        if unit.ranks[0] not in ranks_waited_for and not set(named).isdisjoint(unit.ranks):
            chosen.append(unit)
    ranks_chosen = _ranks_of(chosen)
    others = [unit for unit in units if unit.ranks[0] not in ranks_chosen]
    links = _links(groups, ranks_waited_for)
    room = max(MAX_REPLAYED_RANKS - len(ranks_chosen), 0)
    replayed = _ranks_of([*chosen, *_usual_units(others, links, room=room)])
    left_out = [unit for unit in units if unit.ranks[0] not in replayed]
    return ReplayedRanks(
        ranks=replayed,
        count=count,
        waited_for=ranks_waited_for,
        spread=max((unit.differs for unit in left_out), default=0.0),
    )


def _usual_units(units: Sequence[_Unit], links: Mapping[int, int], *, room: int) -> list[_Unit]:
    """Return the most usual units of each kind, as many of a kind as its share of all, in *room* ranks.

    *links* tells of each rank in how many groups it is with ranks that others wait for.
    """

    def order(unit: _Unit) -> tuple[int, float, tuple[int, ...]]:
        return -max(links.get(rank, 0) for rank in unit.ranks), unit.differs, unit.ranks

    usual: list[_Unit] = []
    left = room
    for of_kind in sorted(_by_kind(units).values(), key=len, reverse=True):
        room_of_kind = max(room * len(of_kind) / len(units), len(of_kind[0].ranks))
        for unit in sorted(of_kind, key=order):
            room_of_kind -= len(unit.ranks)
            if room_of_kind < 0 or len(unit.ranks) > left:
                break
            usual.append(unit)
            left -= len(unit.ranks)
    return usual


def _ranks_of(units: Iterable[_Unit]) -> tuple[int, ...]:
    """Return the ranks of units, ascending."""
    return tuple(sorted(rank for unit in units for rank in unit.ranks))


def _groups(members: pl.DataFrame) -> list[tuple[bool, tuple[int, ...]]]:
    """Return the sets of ranks that take part in operations together, and whether these are messages."""
    pairs = members.filter(pl.col("peer").is_not_null()).select("rank", "peer").unique()
    groups: set[tuple[bool, tuple[int, ...]]] = set()
    for rank, peer in pairs.iter_rows():
        groups.add((True, (min(rank, peer), max(rank, peer))))
    name = pl.coalesce(pl.col("group_ranks", "group").cast(pl.String))
    collectives = (
        members.filter(pl.col("peer").is_null())
        .select("rank", "group_ranks", "group")
        .unique()
        .group_by(name.alias("name"))
        .agg(pl.col("rank").unique().sort())
    )
    for in_group in collectives["rank"]:
        groups.add((False, tuple(in_group)))
    return sorted(groups, key=lambda group: (not group[0], len(group[1]), group[1]))


def _find_units(
    ranks: Sequence[RankTables],
    groups: Sequence[tuple[bool, tuple[int, ...]]],
    stragglers: pl.DataFrame,
) -> list[_Unit]:
    """Return the units of a run: ranks are joined by messages, then by groups from the smallest on.

    Groups of one size join none where that makes a unit too large.
    """
    unit_of_rank = {rank.source.rank: rank.source.rank for rank in ranks}
    levels: dict[tuple[bool, int], list[tuple[int, ...]]] = {}
    for are_messages, in_group in groups:
        levels.setdefault((are_messages, len(in_group)), []).append(in_group)
    for (are_messages, size), of_size in levels.items():
        limit = MAX_RANKS_OF_MESSAGES if are_messages else MAX_RANKS_OF_GROUPS
        if size > limit:
            continue
        joined = _joined(unit_of_rank, of_size)
        _, sizes = np.unique(list(joined.values()), return_counts=True)
        if sizes.max() <= limit:
            unit_of_rank = joined
    caused_ns = dict(stragglers.group_by("rank").agg(pl.col("caused_ns").sum()).iter_rows())
    members_of_unit: dict[int, list[RankTables]] = {}
    for rank in ranks:
        members_of_unit.setdefault(unit_of_rank[rank.source.rank], []).append(rank)
    units = []
    for tables in members_of_unit.values():
        numbers = tuple(table.source.rank for table in tables)
        unit = _Unit(
            ranks=numbers,
            kind=tuple(
                round(table.operations.height / max(table.steps.height, 1)) for table in tables
            ),
            compute_ns=sum(_compute_ns(table) for table in tables),
            caused_ns=sum(caused_ns.get(rank, 0) for rank in numbers),
        )
        units.append(unit)
    for of_kind in _by_kind(units).values():
        usual_ns = float(np.median([unit.compute_ns for unit in of_kind]))
        for unit in of_kind:
            unit.differs = abs(unit.compute_ns - usual_ns) / max(usual_ns, 1.0)
    return units


def _joined(unit_of_rank: Mapping[int, int], groups: Iterable[tuple[int, ...]]) -> dict[int, int]:
    """Return the unit of each rank once the ranks of each group are in one unit, named by its lowest rank."""
    parent = dict(unit_of_rank)

    def find(rank: int) -> int:
        while parent[rank] != rank:
            parent[rank] = parent[parent[rank]]
            rank = parent[rank]
        return rank

    for in_group in groups:
        roots = sorted({find(rank) for rank in in_group if rank in parent})
        for root in roots[1:]:
            parent[root] = roots[0]
    return {rank: find(rank) for rank in parent}


def _compute_ns(rank: RankTables) -> float:
    """Return the compute of a rank in a step, as the mean of its steps."""
    budgets = rank.by_step.budgets
    return sum(budget.compute_ns for budget in budgets) / max(len(budgets), 1)


def _by_kind(units: Iterable[_Unit]) -> dict[tuple[int, ...], list[_Unit]]:
    """Return units by their kind."""
    kinds: dict[tuple[int, ...], list[_Unit]] = {}
    for unit in units:
        kinds.setdefault(unit.kind, []).append(unit)
    return kinds


def _units_waited_for(units: Sequence[_Unit]) -> list[_Unit]:
    """Return the units that others wait for most, at least one if there is any waiting."""
    chosen: list[_Unit] = []
    taken = 0
    for unit in sorted(units, key=lambda unit: (-unit.caused_ns, unit.ranks)):
        taken += len(unit.ranks)
        is_full = bool(chosen) and taken > MAX_SHARE_WAITED_FOR * MAX_REPLAYED_RANKS
        if not unit.caused_ns or is_full:
            break
        chosen.append(unit)
    return chosen


def _links(
    groups: Iterable[tuple[bool, tuple[int, ...]]], ranks: Collection[int]
) -> dict[int, int]:
    """Return for each rank in how many groups it is with some of *ranks*."""
    links: dict[int, int] = {}
    for _, in_group in groups:
        if set(ranks).isdisjoint(in_group):
            continue
        for rank in in_group:
            links[rank] = links.get(rank, 0) + 1
    return links
