"""One clock for all ranks, from the operations they took part in together.

A message is not received before it was sent, and a collective of all with all ends nowhere before its last member
began. So every matched operation bounds the difference of two clocks, from above or from below, and the fastest ones
bound it best. Ranks whose recorded times break no such bound share a clock: their offset is 0. Where they do, the
offset is taken from the fastest message of each direction, (fastest forward − fastest backward) / 2, or from the ends
of collectives, within the bounds. A clock is moved only if no message is then received before it was sent, and its
matched ends then lie closer together.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec.structs import replace

from tracekit.align.pairs import FAR, Pair, differences, pairs
from tracekit.schema import conform

CLOCKS = pl.Schema(
    {
        "rank": pl.Int32(),
        "offset_ns": pl.Int64(),  # to subtract from its times to read the first rank's clock; null: nothing ties it
        "drift_ppm": pl.Float64(),  # how much faster it runs than the first rank's clock
        "uncertainty_ns": pl.Int64(),  # how far the true offset may lie from this one, by what was recorded
        "matches": pl.Int64(),
        "residual_ns": pl.Int64(),  # median distance, over its matches, from the first to the last end
    }
)

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Clocks:
    """Each rank's offset, and how far apart the ends of matched operations lie on the common clock.

    >>> Clocks.recorded([0, 1]).offset_ns
    {0: 0, 1: 0}
    """

    table: pl.DataFrame
    """A row for each rank, with the columns of ``CLOCKS``."""
    origin_ns: int = 0
    """When, on the common clock, a drifting clock differs by its offset alone."""
    residual_ns: int | None = None
    """Median distance from the first to the last end of a match, each match counted once for each of its members."""
    worst_ns: int | None = None
    """The largest such distance."""

    @classmethod
    def recorded(cls, ranks: Iterable[int]) -> Clocks:
        """Return the clocks of *ranks* as recorded: nothing is moved."""
        everyone = sorted(set(ranks))
        return cls(_table(pl.DataFrame({"rank": everyone, "offset_ns": 0, "drift_ppm": 0.0})))

    @property
    def offset_ns(self) -> dict[int, int]:
        """What to subtract from each rank's times, before drift; 0 where nothing ties the rank to the others."""
        return dict(self.table.select("rank", pl.col("offset_ns").fill_null(0)).iter_rows())

    def align(self, frame: pl.DataFrame, *columns: str) -> pl.DataFrame:
        """Return *frame*, which has a column ``rank``, with the times in *columns* on the common clock."""
        if self.still:
            return frame
        joined = frame.join(
            self.table.select("rank", _offset="offset_ns", _ppm="drift_ppm"),
            on="rank",
            how="left",
            maintain_order="left",
        )
        moved = [(pl.col(c) - pl.col("_offset").fill_null(0)).alias(c) for c in columns]
        gone = [(pl.col(c) - ((pl.col(c) - self.origin_ns) * _RATE).round().cast(pl.Int64)).alias(c) for c in columns]
        return joined.with_columns(moved).with_columns(gone).drop("_offset", "_ppm")

    @cached_property
    def still(self) -> bool:
        """Whether no clock is moved: all times are as recorded."""
        moved = self.table.select((pl.col("offset_ns", "drift_ppm").fill_null(0) != 0).any())
        return not any(moved.row(0))

    def moved(self, rank: int, *columns: str) -> list[pl.Expr]:
        """Return the times in *columns* of *rank*'s own table, moved to the common clock.

        >>> clocks = Clocks(conform(pl.DataFrame({"rank": [0, 1], "offset_ns": [0, 50], "drift_ppm": 0.0}), CLOCKS))
        >>> pl.DataFrame({"start_ns": [60, 70]}).with_columns(clocks.moved(1, "start_ns"))["start_ns"].to_list()
        [10, 20]
        """
        offset, rate = self._of(rank)
        common = [pl.col(column) - offset for column in columns]
        if not rate:
            return common
        return [time - ((time - self.origin_ns) * (rate / (1 + rate))).round().cast(pl.Int64) for time in common]

    def to_common(self, rank: int, times: Times) -> Times:
        """Return *rank*'s recorded times on the common clock."""
        offset, rate = self._of(rank)
        common = times - offset
        return common - np.rint((common - self.origin_ns) * (rate / (1 + rate))).astype(np.int64) if rate else common

    def to_common_each(self, ranks: npt.NDArray[np.integer[Any]], times: Times) -> Times:
        """Return times that each of *ranks* recorded on the common clock."""
        if self.still or not len(times):
            return times
        offset, rate = self._each(ranks)
        common = times - offset
        return common - np.rint((common - self.origin_ns) * (rate / (1 + rate))).astype(np.int64)

    def to_recorded_each(self, ranks: npt.NDArray[np.integer[Any]], times: Times) -> Times:
        """Return times on the common clock as the clock of each of *ranks* shows them."""
        if self.still or not len(times):
            return times
        offset, rate = self._each(ranks)
        return times + offset + np.rint((times - self.origin_ns) * rate).astype(np.int64)

    def _each(self, ranks: npt.NDArray[np.integer[Any]]) -> tuple[Times, npt.NDArray[np.float64]]:
        distinct, which = np.unique(ranks, return_inverse=True)
        moves = [self._of(rank) for rank in distinct.tolist()]
        return np.array([offset for offset, _ in moves])[which], np.array([rate for _, rate in moves])[which]

    def to_recorded(self, rank: int, times: Times) -> Times:
        """Return times on the common clock as *rank*'s own clock shows them."""
        offset, rate = self._of(rank)
        return times + offset + (np.rint((times - self.origin_ns) * rate).astype(np.int64) if rate else 0)

    def _of(self, rank: int) -> tuple[int, float]:
        return self._moves.get(rank, (0, 0.0))

    @cached_property
    def _moves(self) -> dict[int, tuple[int, float]]:
        rows = self.table.select("rank", "offset_ns", "drift_ppm").iter_rows()
        return {rank: (offset, (ppm or 0.0) / 1e6) for rank, offset, ppm in rows if offset is not None}


_RATE = pl.col("_ppm").fill_null(0.0) / (1e6 + pl.col("_ppm").fill_null(0.0))


def align(members: pl.DataFrame, ranks: Iterable[int]) -> Clocks:
    """Return every rank's clock, found from matched operations (*members*: ``MEMBERS``).

    >>> from tracekit.align.matching import MEMBERS
    >>> members = conform(pl.DataFrame({"match": [0, 0, 1, 1, 2, 2], "rank": [0, 1] * 3, "what": "all_reduce",
    ...     "start_ns": [0, 50_000] * 3, "end_ns": [10_000, 60_000, 20_000, 70_000, 30_000, 80_001]}), MEMBERS)
    >>> clocks = align(members, [0, 1])
    >>> clocks.table["offset_ns"].to_list(), clocks.residual_ns
    ([0, 50000], 0)
    """
    everyone = sorted(set(ranks))
    if members.is_empty():
        return Clocks(_table(pl.DataFrame({"rank": everyone, "matches": [0] * len(everyone)})))
    origin = int(members.filter(pl.col("rank") == members["rank"].min())["end_ns"].min())  # type: ignore[arg-type]
    links = pairs(members)
    places = _offsets(links, everyone, origin)
    counts = dict(members.group_by("rank").agg(pl.col("match").n_unique()).iter_rows())
    moved = _clocks(places, everyone, counts, origin)
    refused = _refused(members, moved)
    if refused:
        places = {rank: _Place(0, 0.0) if rank in refused else place for rank, place in places.items()}
        moved = _clocks(places, everyone, counts, origin)
    return _with_residuals(moved, members, links)


class _Place(msgspec.Struct, frozen=True):
    """Where a rank's clock stands against the common one."""

    offset_ns: int
    drift: float


def _table(frame: pl.DataFrame) -> pl.DataFrame:
    return conform(frame.sort("rank"), CLOCKS)


def _clocks(places: dict[int, _Place], ranks: list[int], counts: dict[int, int], origin: int) -> Clocks:
    rows = [
        (rank, place.offset_ns, place.drift * 1e6, counts.get(rank, 0))
        if (place := places.get(rank))
        else (rank, None, None, counts.get(rank, 0))
        for rank in ranks
    ]
    names = ["rank", "offset_ns", "drift_ppm", "matches"]
    return Clocks(_table(pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None)), origin)


def _offsets(links: list[Pair], ranks: list[int], origin: int) -> dict[int, _Place]:
    """Return each tied rank's place: ranks that nothing separates share a clock."""
    clock = _shared(links)
    near = _between(links, clock)
    places: dict[int, _Place] = {}
    for rank in ranks:
        if rank not in clock or clock[rank] in places:
            continue
        places[clock[rank]] = _Place(0, 0.0)
        queue = [(link.width_ns, link.low, link.high, clock[rank]) for link in near.get(clock[rank], {}).values()]
        heapq.heapify(queue)
        while queue:  # the surest step outwards first: a minimum spanning tree
            _, low, high, here = heapq.heappop(queue)
            there = high if here == low else low
            if there not in places:
                places[there] = _beyond(places[here], near[here][there], forward=here == low, origin=origin)
                for link in near[there].values():
                    heapq.heappush(queue, (link.width_ns, link.low, link.high, there))
    return {rank: places[at] for rank, at in clock.items()}


def _shared(links: list[Pair]) -> dict[int, int]:
    """Return for each rank the one that stands for its clock: joined, the surest first, unless evidence forbids."""
    clock = {rank: rank for link in links for rank in (link.low, link.high)}
    members = {rank: [rank] for rank in clock}
    apart: dict[int, set[int]] = {rank: set() for rank in clock}
    for link in links:
        if not link.one_clock:
            apart[link.low].add(link.high)
            apart[link.high].add(link.low)
    for link in sorted(links, key=lambda pair: (pair.width_ns, pair.low, pair.high)):
        keep, gone = sorted((clock[link.low], clock[link.high]))
        if not link.one_clock or keep == gone or gone in apart[keep]:
            continue
        for rank in members[gone]:
            clock[rank] = keep
        members[keep] += members.pop(gone)
        for other in apart.pop(gone):
            apart[other].discard(gone)
            apart[other].add(keep)
            apart[keep].add(other)
    return clock


def _between(links: list[Pair], clock: dict[int, int]) -> dict[int, dict[int, Pair]]:
    """Return the surest link between every two clocks, from each of them to the other."""
    near: dict[int, dict[int, Pair]] = {}
    for link in sorted(links, key=lambda pair: (pair.width_ns, pair.low, pair.high)):
        low, high = clock[link.low], clock[link.high]
        if low != high and high not in near.get(low, {}):
            near.setdefault(low, {})[high] = near.setdefault(high, {})[low] = replace(link, low=low, high=high)
    return near


def _beyond(here: _Place, link: Pair, *, forward: bool, origin: int) -> _Place:
    """Return the clock at the other end of a link."""
    if forward:
        gone = round(link.drift * (origin + here.offset_ns - link.at_ns))
        return _Place(here.offset_ns + link.offset_ns + gone, here.drift + link.drift)
    gone = round(link.drift * (origin + here.offset_ns - link.offset_ns - link.at_ns))
    return _Place(here.offset_ns - link.offset_ns - gone, here.drift - link.drift)


def _uncertainty(links: list[Pair], clocks: Clocks) -> dict[int, int]:
    """Return how far each rank's true offset may lie from its own: the shortest path to the first rank, by bounds."""
    offset = clocks.offset_ns
    near: dict[int, list[tuple[int, int]]] = {}
    for link in links:
        has = link.offset_ns if link.drift else offset[link.high] - offset[link.low]
        reach = max(link.most_ns - has, has - link.least_ns, 0)
        near.setdefault(link.low, []).append((reach, link.high))
        near.setdefault(link.high, []).append((reach, link.low))
    far: dict[int, int] = {}
    for root in sorted(near):
        queue = [] if root in far else [(0, root)]
        while queue:
            way, rank = heapq.heappop(queue)
            if rank not in far:
                far[rank] = way
                for reach, other in near[rank]:
                    heapq.heappush(queue, (way + reach, other))
    return far


def _refused(members: pl.DataFrame, moved: Clocks) -> set[int]:
    """Return the ranks that their move makes worse: more is received before it was sent, or ends lie further apart."""
    changed = moved.table.filter((pl.col("offset_ns") != 0) | (pl.col("drift_ppm") != 0))["rank"].to_list()
    if not changed:
        return set()
    clock = moved.table.select("rank", clock=pl.struct("offset_ns", "drift_ppm"))
    across = members.join(clock, on="rank", how="left", maintain_order="left").filter(
        pl.col("clock").n_unique().over("match") > 1
    )
    before, after = _judged(across), _judged(moved.align(across, "start_ns", "end_ns"))
    worse = {rank for rank, judged in after.items() if any(a > b for a, b in zip(judged, before[rank], strict=True))}
    return worse & set(changed)


def _judged(members: pl.DataFrame) -> dict[int, tuple[int, int]]:
    """Return for each rank how many bounds its operations break, and how far apart their ends lie in all."""
    compared = differences(members)
    broken = (pl.col("is_most") & (pl.col("most_ns") < 0)) | (pl.col("is_least") & (pl.col("least_ns") > 0))
    wrong = pl.concat([compared.filter(broken).select(rank=side) for side in ("low", "high")]).group_by("rank").len()
    spread = members.with_columns(spread=_SPREAD).group_by("rank").agg(pl.col("spread").sum())
    joined = spread.join(wrong, on="rank", how="left").select("rank", pl.col("len").fill_null(0), "spread")
    return {rank: (count, total) for rank, count, total in joined.iter_rows()}


_SPREAD = (pl.col("end_ns").max() - pl.col("end_ns").min()).over("match")


def _with_residuals(clocks: Clocks, members: pl.DataFrame, links: list[Pair]) -> Clocks:
    """Return the clocks with how far apart matched ends lie on them, and how far they may be off."""
    ends = clocks.align(members.select("match", "rank", "end_ns"), "end_ns").with_columns(spread=_SPREAD)
    median = pl.col("spread").median().round().cast(pl.Int64)
    own = ends.group_by("rank").agg(residual_ns=median)
    within = _uncertainty(links, clocks)
    reach = pl.DataFrame(
        {"rank": list(within), "uncertainty_ns": [ns if ns < FAR // 2 else None for ns in within.values()]},
        schema={"rank": pl.Int32, "uncertainty_ns": pl.Int64},
    )
    table = clocks.table.drop("residual_ns", "uncertainty_ns").join(own, on="rank", how="left")
    middle, worst = ends.select(median, w=pl.col("spread").max()).row(0)
    return Clocks(_table(table.join(reach, on="rank", how="left")), clocks.origin_ns, middle, worst)
