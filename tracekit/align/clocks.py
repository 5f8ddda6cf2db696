"""Clock alignment across ranks: one offset, drift and uncertainty per rank, from matched operations.

Every two ranks with common operations have bounds for the difference of their clocks
(``align.clock_bounds``). Ranks whose bounds allow no difference at all share a clock; the others
take the likeliest offset within the bounds. Offsets are chained over the tightest bounds to the
first rank, and the uncertainty of a rank is how far its true offset may lie from the one used,
within the bounds.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec.structs import replace

from tracekit._util.arrays import Ints, as_int64, find_sorted, take_or_missing
from tracekit._util.columns import to_int64
from tracekit.align.clock_bounds import NO_BOUND_NS, ClockBounds, find_clock_bounds
from tracekit.documents.analysis import RankClock
from tracekit.documents.coding import table_schema
from tracekit.schema import conform

CLOCKS = table_schema(RankClock)


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
    """Median distance from the first to the last end of a match, each match counted once for each
    of its members."""
    worst_ns: int | None = None
    """The largest such distance."""
    pair_uncertainty_ns: dict[tuple[int, int], int] = field(default_factory=dict)
    """How far the difference of two ranks' clocks may be off, lower rank first, for ranks with
    common operations."""

    @classmethod
    def recorded(cls, ranks: Iterable[int]) -> Clocks:
        """Return the clocks of *ranks* as recorded, taken to be exact."""
        everyone = sorted(set(ranks))
        columns = {"rank": everyone, "offset_ns": 0, "drift_ppm": 0.0, "uncertainty_ns": 0}
        return cls(_table(pl.DataFrame(columns)))

    @property
    def offset_ns(self) -> dict[int, int]:
        """What to subtract from each rank's times, before drift.

        0 where nothing ties the rank to the others.
        """
        return dict(self.table.select("rank", pl.col("offset_ns").fill_null(0)).iter_rows())

    def align(self, frame: pl.DataFrame, *columns: str) -> pl.DataFrame:
        """Return *frame*, which has a column ``rank``, with the times in *columns* on the common clock."""
        if self.still:
            return frame
        offset, rate = self._each(frame["rank"].to_numpy())
        return frame.with_columns(self._moved(columns, pl.Series(offset), pl.Series(rate)))

    def uncertainty_between(
        self, ranks: npt.NDArray[np.integer[Any]], others: npt.NDArray[np.integer[Any]]
    ) -> Ints:
        """Return how far a time difference between each of *ranks* and the other one may be off.

        ``NO_BOUND_NS`` where nothing bounds it. Ranks without common operations are compared by way
        of the first rank.

        >>> table = pl.DataFrame({"rank": [0, 1, 2], "offset_ns": 0, "uncertainty_ns": [0, 50, 80]})
        >>> clocks = Clocks(conform(table, CLOCKS), pair_uncertainty_ns={(0, 1): 50, (1, 2): 30})
        >>> clocks.uncertainty_between(np.array([0, 1, 2, 2]), np.array([1, 2, 0, 2])).tolist()
        [50, 30, 80, 0]
        """
        numbers = self.table["rank"].to_numpy()
        own = np.searchsorted(numbers, ranks)
        other = np.searchsorted(numbers, others)
        from_first_ns = to_int64(self.table["uncertainty_ns"], -1)
        is_known = (from_first_ns[own] >= 0) & (from_first_ns[other] >= 0)
        apart = np.where(is_known, from_first_ns[own] + from_first_ns[other], NO_BOUND_NS)
        keys, direct_ns = self._pairs
        key = np.minimum(own, other) * len(numbers) + np.maximum(own, other)
        pair = find_sorted(key, keys)
        apart = np.where(pair >= 0, np.minimum(apart, take_or_missing(direct_ns, pair)), apart)
        return np.where(own == other, 0, apart)

    @cached_property
    def _pairs(self) -> tuple[Ints, Ints]:
        """Pairs of ranks as one number each, ascending, and the uncertainty between the two."""
        numbers = self.table["rank"].to_numpy()
        low = np.searchsorted(numbers, [low for low, _ in self.pair_uncertainty_ns])
        high = np.searchsorted(numbers, [high for _, high in self.pair_uncertainty_ns])
        keys = as_int64(low) * len(numbers) + high
        order = np.argsort(keys)
        uncertainty_ns = np.array(list(self.pair_uncertainty_ns.values()), np.int64)
        return keys[order], uncertainty_ns[order]

    @cached_property
    def still(self) -> bool:
        """Whether no clock is moved: all times are as recorded."""
        moved = self.table.select((pl.col("offset_ns", "drift_ppm").fill_null(0) != 0).any())
        return not any(moved.row(0))

    def ahead_by(self, offset_ns: int) -> Clocks:
        """Return the clocks for a common clock that this one is *offset_ns* ahead of.

        >>> Clocks.recorded([0]).ahead_by(30).to_common(0, np.array([100])).tolist()
        [70]
        """
        table = self.table.with_columns(pl.col("offset_ns").fill_null(0) + offset_ns)
        return dataclasses.replace(self, table=table, origin_ns=self.origin_ns - offset_ns)

    def moved(self, rank: int, *columns: str) -> list[pl.Expr]:
        """Return the times in *columns* of *rank*'s own table, moved to the common clock.

        >>> clocks = Clocks(conform(pl.DataFrame({"rank": [0, 1], "offset_ns": [0, 50], "drift_ppm": 0.0}), CLOCKS))
        >>> pl.DataFrame({"start_ns": [60, 70]}).with_columns(clocks.moved(1, "start_ns"))["start_ns"].to_list()
        [10, 20]
        """
        return self._moved(columns, *self._of(rank))

    def _moved(
        self, columns: Iterable[str], offset: int | pl.Series, rate: float | pl.Series
    ) -> list[pl.Expr]:
        times = []
        for column in columns:
            common_ns = pl.col(column) - offset
            drifted_ns = ((common_ns - self.origin_ns) * (rate / (1 + rate))).round()
            times.append(common_ns - drifted_ns.cast(pl.Int64))
        return times

    def to_common(self, rank: int, times: Ints) -> Ints:
        """Return *rank*'s recorded times on the common clock."""
        return self.to_common_each(np.full(len(times), rank), times)

    def to_common_each(self, ranks: npt.NDArray[np.integer[Any]], times: Ints) -> Ints:
        """Return times that each of *ranks* recorded on the common clock."""
        if self.still or not len(times):
            return times
        offset, rate = self._each(ranks)
        common = times - offset
        return common - np.rint((common - self.origin_ns) * (rate / (1 + rate))).astype(np.int64)

    def to_recorded_each(self, ranks: npt.NDArray[np.integer[Any]], times: Ints) -> Ints:
        """Return times on the common clock as the clock of each of *ranks* shows them."""
        if self.still or not len(times):
            return times
        offset, rate = self._each(ranks)
        return times + offset + np.rint((times - self.origin_ns) * rate).astype(np.int64)

    def _each(self, ranks: npt.NDArray[np.integer[Any]]) -> tuple[Ints, npt.NDArray[np.float64]]:
        distinct, which = np.unique(ranks, return_inverse=True)
        moves = [self._of(rank) for rank in distinct.tolist()]
        return np.array([offset for offset, _ in moves])[which], np.array(
            [rate for _, rate in moves]
        )[which]

    def _of(self, rank: int) -> tuple[int, float]:
        return self._moves.get(rank, (0, 0.0))

    @cached_property
    def _moves(self) -> dict[int, tuple[int, float]]:
        rows = self.table.select("rank", "offset_ns", "drift_ppm").iter_rows()
        return {
            rank: (offset, (ppm or 0.0) / 1e6) for rank, offset, ppm in rows if offset is not None
        }


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
    bounds = find_clock_bounds(members)
    settings = _settings(bounds, everyone, origin)
    matches = members.group_by("rank").agg(matches=pl.col("match").n_unique().cast(pl.Int64))
    pair_uncertainty, uncertainty = _uncertainty(bounds, settings)
    rows = [
        (rank, setting.offset_ns, setting.drift * 1e6, uncertainty[rank])
        for rank, setting in settings.items()
    ]
    columns = {
        "rank": pl.Int32,
        "offset_ns": pl.Int64,
        "drift_ppm": pl.Float64,
        "uncertainty_ns": pl.Int64,
    }
    table = pl.DataFrame({"rank": everyone}, schema={"rank": pl.Int32})
    for facts in (pl.DataFrame(rows, schema=columns, orient="row"), matches):
        table = table.join(facts, on="rank", how="left")
    is_bounded = pl.col("uncertainty_ns") < NO_BOUND_NS
    table = table.with_columns(
        pl.col("matches").fill_null(0), pl.when(is_bounded).then("uncertainty_ns")
    )
    return _with_residuals(
        Clocks(_table(table), origin, pair_uncertainty_ns=pair_uncertainty), members
    )


class _Setting(msgspec.Struct, frozen=True):
    """A rank's clock against the common one."""

    offset_ns: int
    drift: float


def _table(frame: pl.DataFrame) -> pl.DataFrame:
    return conform(frame.sort("rank"), CLOCKS)


def _settings(bounds: list[ClockBounds], ranks: list[int], origin: int) -> dict[int, _Setting]:
    """Return the setting of each rank that is tied to another.

    Ranks that share a clock have the same.
    """
    clock = _shared_clocks(bounds)
    tightest = _between_clocks(bounds, clock)
    settings: dict[int, _Setting] = {}
    for rank in ranks:
        if rank not in clock or clock[rank] in settings:
            continue
        root = clock[rank]
        settings[root] = _Setting(0, 0.0)
        queue: list[tuple[int, int, int, int]] = []
        for link in tightest.get(root, {}).values():
            heapq.heappush(queue, (link.width_ns, link.low, link.high, root))
        while queue:  # the tightest bounds first: a minimum spanning tree
            _, low, high, near = heapq.heappop(queue)
            far = high if near == low else low
            if far not in settings:
                settings[far] = _next_setting(
                    settings[near], tightest[near][far], forward=near == low, origin=origin
                )
                for link in tightest[far].values():
                    heapq.heappush(queue, (link.width_ns, link.low, link.high, far))
    return {rank: settings[representative] for rank, representative in clock.items()}


def _shared_clocks(bounds: list[ClockBounds]) -> dict[int, int]:
    """Return for each rank the lowest one that shares its clock.

    Ranks that may have one clock are joined, those with the least doubt first, unless some bounds
    keep their clocks apart.
    """
    linked_ranks = dict.fromkeys(chain.from_iterable((link.low, link.high) for link in bounds))
    clock = {rank: rank for rank in linked_ranks}  # lowest rank of the clock of each rank
    members = {rank: [rank] for rank in linked_ranks}  # ranks of each clock
    apart: dict[int, set[int]] = {rank: set() for rank in linked_ranks}  # clocks it may not join
    for link in bounds:
        if not link.one_clock:
            apart[link.low].add(link.high)
            apart[link.high].add(link.low)
    for link in sorted(bounds, key=lambda link: (link.doubt, link.width_ns, link.low, link.high)):
        kept, joined = sorted((clock[link.low], clock[link.high]))
        if not link.one_clock or kept == joined or joined in apart[kept]:
            continue
        for rank in members[joined]:
            clock[rank] = kept
        members[kept] += members.pop(joined)
        for other in apart.pop(joined):
            apart[other].discard(joined)
            apart[other].add(kept)
            apart[kept].add(other)
    return clock


def _between_clocks(
    bounds: list[ClockBounds], clock: dict[int, int]
) -> dict[int, dict[int, ClockBounds]]:
    """Return the tightest bounds between every two clocks, from each of them to the other."""
    tightest: dict[int, dict[int, ClockBounds]] = {}
    for link in sorted(bounds, key=lambda link: (link.width_ns, link.low, link.high)):
        low = clock[link.low]
        high = clock[link.high]
        if low != high and high not in tightest.get(low, {}):
            between = replace(link, low=low, high=high)
            tightest.setdefault(low, {})[high] = tightest.setdefault(high, {})[low] = between
    return tightest


def _next_setting(near: _Setting, link: ClockBounds, *, forward: bool, origin: int) -> _Setting:
    """Return the setting at the far end of a link, which is its high end if *forward*."""
    sign = 1 if forward else -1
    low_offset_ns = near.offset_ns if forward else near.offset_ns - link.offset_ns
    drifted = round(link.drift * (origin + low_offset_ns - link.at_ns))
    return _Setting(
        near.offset_ns + sign * (link.offset_ns + drifted), near.drift + sign * link.drift
    )


def _uncertainty(
    bounds: list[ClockBounds], settings: dict[int, _Setting]
) -> tuple[dict[tuple[int, int], int], dict[int, int]]:
    """Return the uncertainty between ranks with common operations, and that of each rank's offset.

    Between two ranks it is how far the difference of their clocks, as they were set, may lie from
    the true one within the bounds; that of an offset is the sum along the way to the first rank
    with the least.
    """
    between: dict[tuple[int, int], int] = {}
    neighbours: dict[int, list[tuple[int, int]]] = {}
    for link in bounds:
        used = settings[link.high].offset_ns - settings[link.low].offset_ns
        if link.drift:
            used = link.offset_ns
        reach = max(link.most_ns - used, used - link.least_ns, 0)
        if reach >= NO_BOUND_NS // 2:  # a bound that does not exist, less the offset
            reach = NO_BOUND_NS
        between[link.low, link.high] = reach
        neighbours.setdefault(link.low, []).append((reach, link.high))
        neighbours.setdefault(link.high, []).append((reach, link.low))
    uncertainty: dict[int, int] = {}
    for root in sorted(neighbours):
        queue = [] if root in uncertainty else [(0, root)]
        while queue:
            total, rank = heapq.heappop(queue)
            if rank not in uncertainty:
                uncertainty[rank] = total
                for reach, other in neighbours[rank]:
                    heapq.heappush(queue, (min(total + reach, NO_BOUND_NS), other))
    return between, uncertainty


def _with_residuals(clocks: Clocks, members: pl.DataFrame) -> Clocks:
    """Return the clocks with how far apart matched ends lie on them."""
    spread = (pl.col("end_ns").max() - pl.col("end_ns").min()).over("match")
    ends = clocks.align(members.select("match", "rank", "end_ns"), "end_ns").with_columns(
        spread=spread
    )
    median = pl.col("spread").median().round().cast(pl.Int64)
    own = ends.group_by("rank").agg(residual_ns=median)
    table = _table(clocks.table.drop("residual_ns").join(own, on="rank", how="left"))
    middle, worst = ends.select(median, w=pl.col("spread").max()).row(0)
    return Clocks(table, clocks.origin_ns, middle, worst, clocks.pair_uncertainty_ns)
