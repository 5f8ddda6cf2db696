"""Clocks of different ranks, aligned by the ends of operations they took part in together.

Ranks of one collective finish together, so the difference of their recorded ends is the difference of their clocks.
The two sides of a message may finish up to a transfer apart; taking both directions of a pair cancels most of that, as
NTP does. A clock is corrected only where its offset is clearly larger than the scatter of the ends it comes from (and,
for messages, than a transfer); what is left is reported as the residual.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.schema import conform

CLOCKS = pl.Schema(
    {
        "rank": pl.Int32(),
        "offset_ns": pl.Int64(),  # this clock minus the reference clock; null: nothing ties it to the others
        "drift_ppm": pl.Float64(),
        "matches": pl.Int64(),
        "residual_ns": pl.Int64(),  # median distance of its ends from the matches' middle, after the correction
    }
)
_ENOUGH_FOR_DRIFT = 8
_NOTHING_NS = 5_000  # clocks closer than this are as good as equal: profilers themselves are no better


@dataclass(frozen=True, slots=True)
class _Edge:
    low: int
    high: int
    offset_ns: float  # clock of high minus clock of low
    drift: float  # ns a ns
    spread_ns: float
    floor_ns: float  # how far apart ends may lie for reasons that are not clocks
    count: int

    @property
    def clear(self) -> bool:
        """Return whether the offset stands out from the scatter."""
        return abs(self.offset_ns) > self.spread_ns * max(1.0, 3 / float(self.count**0.5)) + self.floor_ns + _NOTHING_NS


@dataclass(frozen=True, slots=True)
class Clocks:
    """Each rank's offset, and how well the ends agree afterwards."""

    table: pl.DataFrame
    reference_ns: int = 0
    residual_ns: int | None = None  # median over all members of all matches
    worst_ns: int | None = None

    def align(self, frame: pl.DataFrame, *columns: str) -> pl.DataFrame:
        """Move the times in *columns* onto the common clock."""
        known = self.table.select("rank", "offset_ns", "drift_ppm")
        shift = pl.col("offset_ns").fill_null(0)
        joined = frame.join(known, on="rank", how="left", maintain_order="left")
        moved = [
            (
                pl.col(c)
                - shift
                - ((pl.col(c) - self.reference_ns) * pl.col("drift_ppm").fill_null(0) / 1e6).round().cast(pl.Int64)
            ).alias(c)
            for c in columns
        ]
        return joined.with_columns(moved).drop("offset_ns", "drift_ppm")


def align(members: pl.DataFrame, ranks: Iterable[int]) -> Clocks:
    """Estimate every rank's clock from the ends of matched operations.

    >>> members = pl.DataFrame({"match": [0, 0, 1, 1, 2, 2], "rank": [0, 1] * 3, "sends": [None] * 6,
    ...     "start_ns": [0, 0, 0, 0, 0, 0], "end_ns": [10_000, 60_000, 20_000, 70_000, 30_000, 80_001]})
    >>> clocks = align(members, [0, 1])
    >>> clocks.table["offset_ns"].to_list(), clocks.residual_ns
    ([0, 50000], 0)
    """
    everyone = sorted(set(ranks))
    if members.is_empty():
        empty = pl.DataFrame({"rank": everyone, "matches": [0] * len(everyone)})
        return Clocks(_table(empty))
    origin = int(members["end_ns"].min())  # type: ignore[arg-type]
    found = _walk(_tree(_edges(members, origin)), everyone)
    counts = dict(members.group_by("rank").agg(pl.col("match").n_unique()).iter_rows())
    table = pl.DataFrame(
        [
            (r, *((None, None) if r not in found else (round(found[r][0]), found[r][1] * 1e6)), counts.get(r, 0))
            for r in everyone
        ],
        schema=["rank", "offset_ns", "drift_ppm", "matches"],
        orient="row",
        infer_schema_length=None,
    )
    clocks = Clocks(_table(table), origin)
    # Relative to the origin: a median is a float, and an epoch in nanoseconds does not fit one exactly.
    middle = pl.col("end_ns").median().over("match")
    ends = clocks.align(members.select("match", "rank", "end_ns"), "end_ns").with_columns(pl.col("end_ns") - origin)
    off = ends.with_columns(off=(pl.col("end_ns") - middle).abs())
    residual = off.group_by("rank").agg(residual_ns=pl.col("off").median().round().cast(pl.Int64))
    table = clocks.table.drop("residual_ns").join(residual.cast({"rank": pl.Int32}), on="rank", how="left")
    median, worst = off.select(pl.col("off").median().round(), w=pl.col("off").max().round()).row(0)
    return Clocks(_table(table), origin, int(median), int(worst))


def _table(frame: pl.DataFrame) -> pl.DataFrame:
    return conform(frame.sort("rank"), CLOCKS)


def _edges(members: pl.DataFrame, origin: int) -> list[_Edge]:
    """Compare every member with the lowest rank of its match."""
    each = members.with_columns(ns=(pl.col("end_ns") - pl.col("start_ns")).min().over("match"))
    base = each.sort("rank").group_by("match", maintain_order=True).first()
    apart = (
        each.join(base.select("match", low="rank", low_end="end_ns", low_sends="sends"), on="match")
        .filter(pl.col("rank") > pl.col("low"))
        .with_columns(apart=pl.col("end_ns") - pl.col("low_end"), at=pl.col("low_end") - origin)
        # Where a pair meets in collectives too, they know better than its messages.
        .filter(pl.col("sends").is_null() | pl.col("sends").is_not_null().all().over("low", "rank"))
    )
    return [_edge(low, high, rows) for ((low, high), rows) in apart.group_by("low", "rank", maintain_order=True)]


def _edge(low: int, high: int, rows: pl.DataFrame) -> _Edge:
    """Reduce one pair's differences of ends to an offset, a drift and a scatter."""
    apart, at = rows["apart"].to_numpy().astype(float), rows["at"].to_numpy().astype(float)
    sends = rows["low_sends"].to_list()
    messages = sends[0] is not None
    ways = [np.array([way == send for send in sends]) for way in ((True, False) if messages else (None,))]
    ways = [way for way in ways if way.any()]
    offset = float(np.mean([np.median(apart[way]) for way in ways]))
    level = np.zeros(len(apart))
    for way in ways:
        level[way] = np.median(apart[way])
    rest = apart - level
    spread = 1.4826 * float(np.median(np.abs(rest)))
    floor = float(np.median(rows["ns"].to_numpy())) if messages else 0.0
    if messages and len(ways) == 1:
        floor = max(floor, abs(offset))  # one direction only: a late receiver looks like a late clock
    drift = _drift(at, rest, spread)
    if drift:
        offset -= drift * float(np.median(at))
    return _Edge(low, high, offset, drift, spread, floor, len(apart))


def _drift(at: npt.NDArray[np.float64], rest: npt.NDArray[np.float64], spread: float) -> float:
    """Return the slope of the differences over time, where it is clearly more than scatter."""
    if len(at) < _ENOUGH_FOR_DRIFT or np.ptp(at) == 0:
        return 0.0
    slope, start = np.polyfit(at, rest, 1)
    scatter = 1.4826 * float(np.median(np.abs(rest - slope * at - start)))
    grown = abs(slope) * float(np.ptp(at))
    return float(slope) if grown > max(6 * scatter, 2_000) and scatter < spread / 2 else 0.0


def _tree(edges: list[_Edge]) -> list[_Edge]:
    """Keep the surest edges that tie all ranks together (Kruskal's minimum spanning tree)."""
    root: dict[int, int] = {}

    def top(rank: int) -> int:
        while root.setdefault(rank, rank) != rank:
            root[rank] = root[root[rank]]
            rank = root[rank]
        return rank

    kept = []
    for edge in sorted(edges, key=lambda e: (e.floor_ns + e.spread_ns / e.count**0.5, e.low, e.high)):
        a, b = top(edge.low), top(edge.high)
        if a != b:
            root[a] = b
            kept.append(edge)
    return kept


def _walk(tree: list[_Edge], ranks: list[int]) -> dict[int, tuple[float, float]]:
    """Add up offsets from the lowest rank of each connected set outwards."""
    near: dict[int, list[tuple[int, float, float]]] = {}
    for e in tree:
        offset, drift = (e.offset_ns, e.drift) if e.clear or e.drift else (0.0, 0.0)
        near.setdefault(e.low, []).append((e.high, offset, drift))
        near.setdefault(e.high, []).append((e.low, -offset, -drift))
    found: dict[int, tuple[float, float]] = {}
    for start in ranks:
        if start in found or start not in near:
            continue
        found[start] = (0.0, 0.0)
        queue = [start]
        while queue:
            here = queue.pop()
            for there, offset, drift in near[here]:
                if there not in found:
                    found[there] = (found[here][0] + offset, found[here][1] + drift)
                    queue.append(there)
    return found
