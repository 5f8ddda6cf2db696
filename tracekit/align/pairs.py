"""What matched operations show about the clocks of two ranks: bounds of their difference, and its drift.

A message from one rank to the other ends there after it began here: an upper bound of the difference, and one from the
other side a lower bound. Where it has its kernels for itself, the receive does not end before the send either. A
collective in which everyone hears from everyone gives both. Collectives with a root (a broadcast may be over on the
root before another rank begins) give none: of them only this is used, that no rank lags behind by more than the longest
time between two of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.arrays import is_in_sorted
from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import to_int64

ENOUGH = 8
"""Windows of the recording that must speak before a drift is believed."""
WINDOWS = 16
"""Parts that a recording is cut into to see its clocks drift apart."""
STEADY = 6.0
"""Times that the drift over the recording must exceed the largest distance of a window from it."""
NEGLIGIBLE_NS = 2_000
"""Drift over the whole recording that is not worth a correction: profilers themselves are no better."""
FASTEST_DRIFT = 5e-4
"""Clocks of computers drift by less than this; what looks like more is work, not a clock."""
ACKNOWLEDGED_NS = 20_000
"""By how much a send may end after its receive: the sender waits to hear that all has arrived."""
MEETS = r"(?i)all_?reduce|all_?gather|all_?to_?all|reduce_?scatter|barrier"
"""Collectives that end nowhere before everyone has begun."""
FAR = 2**62
"""A bound that is not there."""

AT_ONCE = 1 << 17
"""Comparisons of two ranks' operations that are looked at in one go."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]


class Pair(msgspec.Struct, frozen=True):
    """The clock of rank ``high`` minus that of ``low``: ``offset_ns`` when low's shows ``at_ns``, within two bounds."""

    low: int
    high: int
    at_ns: int
    offset_ns: int
    least_ns: int
    most_ns: int
    drift: float = 0.0  # ns per ns

    @property
    def one_clock(self) -> bool:
        """Whether nothing separates the two clocks.

        >>> Pair(0, 1, 0, 30, -10, 70).one_clock, Pair(0, 1, 0, 30, 1, 59).one_clock
        (True, False)
        """
        return not self.drift and self.least_ns <= 0 <= self.most_ns

    @property
    def width_ns(self) -> int:
        """How much the bounds leave open."""
        return self.most_ns - self.least_ns


def differences(members: pl.DataFrame) -> pl.DataFrame:
    """Return each member of each match against the lowest rank of the match, and against the next lower one.

    ``low``, ``high``: the two ranks; ``ends_ns``, ``most_ns``, ``least_ns``: how far high's end lies behind low's end,
    high's end behind low's start, and high's start behind low's end; the last two are bounds of the clocks' difference
    where ``is_most`` and ``is_least`` say so. ``alone``: a message that has its kernels for itself on both sides.
    """
    told = _Told.of(members)
    return told.table(*told.pairs())


class _Told(msgspec.Struct, frozen=True, eq=False):
    """Members match by match, ranks ascending, with what each tells about clocks."""

    members: pl.DataFrame
    match: Ints
    rank: Ints
    alone: Bools
    meets: Bools

    @classmethod
    def of(cls, members: pl.DataFrame) -> _Told:
        match, rank = members["match"].to_numpy(), members["rank"].to_numpy()
        step = np.diff(match)
        if not ((step > 0) | ((step == 0) & (np.diff(rank) >= 0))).all():
            members = members.sort("match", "rank", maintain_order=True)
            match, rank = members["match"].to_numpy(), members["rank"].to_numpy()
        several = np.unique(match[to_int64(members["messages"], 0) != 1])
        collective = members["sends"].is_null().to_numpy()
        return cls(
            members,
            match,
            rank,
            ~is_in_sorted(match, several),
            collective & CategoryColumn.from_series(members["what"]).matches(MEETS),
        )

    def pairs(self) -> tuple[Places, Places]:
        """Return members that are compared, two by two: each with the lowest rank's, then with the next lower one's."""
        first = np.flatnonzero(np.diff(self.match, prepend=-1))
        lowest = np.repeat(first, np.diff(first, append=len(self.match))).astype(np.int32)
        every = np.arange(len(self.match), dtype=np.int32)
        own = every[self.rank > self.rank[lowest]]
        next_lower = own[(self.rank[own - 1] != self.rank[lowest[own]]) & (self.rank[own] > self.rank[own - 1])]
        return np.concatenate([lowest[own], next_lower - 1]), np.concatenate([own, next_lower])

    def by_pair(self) -> Iterator[tuple[Places, Places]]:
        """Yield the same pair of ranks by pair of ranks, some at a time."""
        low, high = self.pairs()
        key = self.rank[low].astype(np.int64) * (int(self.rank.max(initial=0)) + 1) + self.rank[high]
        order = np.argsort(key, kind="stable")
        edges = [*np.flatnonzero(np.diff(key[order], prepend=-1)).tolist(), len(order)]
        begin = 0
        for a, b in pairwise(edges):
            if b - begin > AT_ONCE and a > begin:
                yield low[order[begin:a]], high[order[begin:a]]
                begin = a
        if begin < len(order):
            yield low[order[begin:]], high[order[begin:]]

    def table(self, low: Places, high: Places) -> pl.DataFrame:
        """Return what the members *low* and *high* tell (see ``differences``)."""
        start, end, rank, sends = (self.members[c] for c in ("start_ns", "end_ns", "rank", "sends"))
        low_sends, meets = sends.gather(low), self.meets[high]
        sent, heard = low_sends.fill_null(False).to_numpy(), sends.gather(high).fill_null(False).to_numpy()
        starts, ends = start.to_numpy(), end.to_numpy()
        return pl.DataFrame(
            {
                "low": rank.gather(low),
                "high": rank.gather(high),
                "at_ns": ends[low],
                "alone": self.alone[high],
                "meets": meets,
                "low_sends": low_sends,
                "ends_ns": ends[high] - ends[low],
                "most_ns": ends[high] - starts[low],
                "least_ns": starts[high] - ends[low],
                "is_most": meets | (sent & ~heard),
                "is_least": meets | (heard & ~sent),
            }
        )


def pairs(members: pl.DataFrame) -> list[Pair]:
    """Return what is known about the clocks of every two ranks that a match brings together (*members*: ``MEMBERS``).

    >>> from tracekit.align.matching import MEMBERS
    >>> from tracekit.schema import conform
    >>> members = conform(pl.DataFrame({"match": [0, 0, 1, 1], "rank": [0, 1] * 2, "sends": [True, False, False, True],
    ...     "messages": 1, "start_ns": [0, 110, 70, 160], "end_ns": [20, 120, 90, 180]}), MEMBERS)
    >>> pairs(members)
    [Pair(low=0, high=1, at_ns=20, offset_ns=95, least_ns=70, most_ns=120, drift=0.0)]
    """
    told = _Told.of(members)
    return [pair for low, high in told.by_pair() for pair in _pairs(told.table(low, high))]


def _pairs(table: pl.DataFrame) -> list[Pair]:
    pair = ("low", "high")
    surest = pl.col("meets") | ~pl.col("meets").any().over(pair)
    table = table.with_columns(since_ns=pl.col("at_ns") - pl.col("at_ns").min().over(pair), surest=surest)
    drifts = _drifts(table)
    if drifts:
        known = pl.DataFrame(
            [(low, high, rate) for (low, high), rate in drifts.items()],
            schema={"low": pl.Int32, "high": pl.Int32, "rate": pl.Float64},
            orient="row",
        )
        gone = (pl.col("since_ns") * pl.col("rate").fill_null(0.0)).round().cast(pl.Int64)
        table = table.join(known, on=["low", "high"], how="left", maintain_order="left")
        table = table.with_columns(pl.col("ends_ns", "most_ns", "least_ns") - gone)
    return [_pair(row, drifts.get((row["low"], row["high"]), 0.0)) for row in _reduced(table).iter_rows(named=True)]


def _reduced(table: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each two ranks: the tightest bounds, the fastest messages, the range of ends."""
    ends, forth = pl.col("ends_ns"), pl.col("low_sends")
    # A median is a float, and an epoch in nanoseconds does not fit one exactly: count from one of the ends.
    surest = ends.filter("surest")
    return table.group_by("low", "high", maintain_order=True).agg(
        pl.col("at_ns").min(),
        most_ns=pl.col("most_ns").filter("is_most").min(),
        least_ns=pl.col("least_ns").filter("is_least").max(),
        round_ns=pl.col("at_ns").sort().diff().max(),
        loose_most_ns=pl.col("most_ns").max(),
        loose_least_ns=pl.col("least_ns").min(),
        fastest_forward_ns=ends.filter(pl.col("alone") & forth).min(),
        fastest_backward_ns=(-ends).filter(pl.col("alone") & ~forth).min(),
        middle_ns=surest.first() + (surest - surest.first()).median().round().cast(pl.Int64),
        earliest_ns=ends.min(),
        latest_ns=ends.max(),
        two_way=(forth.any() & (~forth).any()).fill_null(False),
        meets=pl.col("meets").any(),
    )


def _pair(row: dict[str, Any], drift: float) -> Pair:
    """Return the pair described by one row of ``_reduced``: the offset, within the bounds."""
    least = -FAR if row["least_ns"] is None else row["least_ns"]
    most = FAR if row["most_ns"] is None else row["most_ns"]
    offset = _offset(row, least, most)
    if least > most or (row["least_ns"] is None and row["most_ns"] is None):
        # No bound, or bounds that contradict each other: all that is sure is that nobody lags a whole round behind.
        lag = FAR if row["round_ns"] is None else row["round_ns"]
        least, most = row["loose_least_ns"] - lag, row["loose_most_ns"] + lag
    elif row["fastest_forward_ns"] is not None or row["fastest_backward_ns"] is not None:
        closer = (
            least if row["fastest_backward_ns"] is None else max(least, -row["fastest_backward_ns"] - ACKNOWLEDGED_NS),
            most if row["fastest_forward_ns"] is None else min(most, row["fastest_forward_ns"] + ACKNOWLEDGED_NS),
        )
        least, most = closer if closer[0] <= closer[1] else (least, most)
    return Pair(row["low"], row["high"], row["at_ns"], min(max(offset, least), most), least, most, drift)


def _offset(row: dict[str, Any], least: int, most: int) -> int:
    """Return the likeliest offset: the messages' where they went both ways, else the collectives'."""
    if row["two_way"] and least <= most:
        if row["fastest_forward_ns"] is None or row["fastest_backward_ns"] is None:
            return (least + most) // 2
        return int(row["fastest_forward_ns"] - row["fastest_backward_ns"]) // 2
    if row["meets"] or (row["least_ns"] is None) == (row["most_ns"] is None):
        return int(row["middle_ns"])
    return int(row["earliest_ns"] if row["least_ns"] is None else row["latest_ns"])


def _drifts(table: pl.DataFrame) -> dict[tuple[int, int], float]:
    """Return by how much the clocks of two ranks drift apart, where that is beyond doubt."""
    length = pl.col("since_ns").max().over("low", "high")
    ends = pl.col("ends_ns")
    windows = (
        table.with_columns(window=pl.col("since_ns") * WINDOWS // (length + 1), base=ends.first().over("low", "high"))
        .group_by("low", "high", "window", maintain_order=True)
        .agg(
            pl.col("since_ns").mean(),
            bounds=(
                (pl.col("most_ns") - pl.col("base")).filter("is_most").min()
                + (pl.col("least_ns") - pl.col("base")).filter("is_least").max()
            )
            / 2,
            ends=(ends - pl.col("base")).filter(pl.col("surest") & pl.col("low_sends").is_null()).median(),
        )
    )
    many = windows.filter(pl.len().over("low", "high") >= ENOUGH).sort("low", "high", maintain_order=True)
    low, high, since = (many[name].to_numpy() for name in ("low", "high", "since_ns"))
    values = [many[name].cast(pl.Float64).to_numpy() for name in ("bounds", "ends")]  # nulls as NaN
    first = np.flatnonzero((np.diff(low, prepend=-1) != 0) | (np.diff(high, prepend=-1) != 0)).tolist()
    rates = {}
    likely = np.stack([_may_drift(since, of, first) for of in values]) if first else np.zeros((2, 0), np.bool_)
    for pair in np.flatnonzero(likely.any(axis=0)).tolist():
        a, b = [*first, len(low)][pair : pair + 2]
        told = [(since[a:b], of[a:b], ~np.isnan(of[a:b])) for of in values]
        rate, _ = min((_slope(at[there], of[there]) for at, of, there in told), key=lambda fit: fit[1])
        if rate:
            rates[int(low[a]), int(high[a])] = rate
    return rates


def _may_drift(since: Floats, values: Floats, first: list[int]) -> Bools:
    """Return which pairs, beginning at *first*, may drift clearly: all at once, so that few lines need to be fitted."""
    size = np.diff([*first, len(since)])
    there = ~np.isnan(values)

    def each(summed: Floats) -> Floats:
        return np.repeat(np.add.reduceat(summed, first), size)

    count = np.maximum(each(there.astype(np.float64)), 1)
    x, y = np.where(there, since, 0), np.where(there, values, 0)
    x, y = (np.where(there, of - each(of) / count, 0) for of in (x, y))
    rate = each(x * y) / np.maximum(each(x * x), np.finfo(np.float64).tiny)
    off = np.maximum.reduceat(np.abs(y - rate * x), first)
    grown = np.abs(rate[first]) * (np.maximum.reduceat(x, first) - np.minimum.reduceat(x, first))
    clear: Bools = grown > _ROUNDED * np.maximum(STEADY * off, NEGLIGIBLE_NS)
    return clear


_ROUNDED = 0.999
"""What arithmetic may have cost an estimate of what is fitted exactly where it is near the bound."""


def _slope(at: Floats, values: Floats) -> tuple[float, float]:
    """Return how fast the values grow and how far one lies from that at most; nothing where they do not clearly."""
    if len(at) < ENOUGH or np.ptp(at) == 0:
        return 0.0, np.inf
    rate, start = np.polyfit(at - at[0], values, 1)
    off = float(np.abs(values - rate * (at - at[0]) - start).max())
    grown = abs(rate) * float(np.ptp(at))
    clear = grown > max(STEADY * off, NEGLIGIBLE_NS) and abs(rate) < FASTEST_DRIFT
    return (float(rate), off) if clear else (0.0, np.inf)
