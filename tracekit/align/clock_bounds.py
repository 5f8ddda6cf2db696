"""Bounds of the difference between the clocks of two ranks, and its drift, from matched operations.

A message ends on the receiver after it began on the sender: an upper bound of the difference, and a
message of the other direction a lower bound. Where it has its kernels for itself, the receive does
not end before the send either. A collective in which everyone hears from everyone gives both
bounds, and its members end together but for a scatter, which may be alike in most operations (one
rank's part of a ring is done first). Over many operations the median of the differences between
ends gives the difference of the clocks, and the shortest interval with half of them how far it may
be off: a few operations that end far apart change neither. Collectives with a root (a broadcast may
be over on the root before another rank begins) only show that no rank lags behind by more than the
longest time between two of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Floats, Int32s, SortedGroups
from tracekit._util.categories import CategoryColumn

DRIFT_WINDOWS = 16
"""Parts that a recording is cut into to see its clocks drift apart."""
MIN_DRIFT_WINDOWS = 8
"""Parts that must hold an operation before a drift is believed."""
MIN_DRIFT_TO_SCATTER_RATIO = 6.0
"""Drift over the recording, in units of the largest distance of a part from the fitted line, to be
believed."""
MIN_DRIFT_NS = 2_000
"""Drift over the whole recording that is worth a correction: profilers themselves are no better."""
MAX_DRIFT = 5e-4
"""Clocks of computers drift by less than this; a larger slope is work, not a clock."""
MAX_ACKNOWLEDGE_NS = 20_000
"""Time by which a send may end after its receive: the sender waits to hear that all has arrived."""
MIN_OPERATIONS_FOR_SPREAD = 8
"""Collectives of two ranks, or of all, from which the spread of their ends bounds the clocks'
difference."""
MIN_OPERATIONS_OF_PAIR = 4
"""Collectives of two ranks from which their ends bound the difference, if all ranks have enough for
the spread."""
SPREAD_TO_SHORTEST_HALF = 1.645 / 1.349
"""Distance from the median of the differences between ends at which the clocks' difference may lie,
in units of the shortest interval that holds half of them: the interval with nine tenths of a normal
distribution."""
MIN_END_SCATTER_NS = 100_000
"""Time by which the ends of one collective may lie apart even if it always does so in the same
way."""
MEETS = r"(?i)all_?reduce|all_?gather|all_?to_?all|reduce_?scatter|barrier"
"""Collectives that end nowhere before everyone has begun."""
NO_BOUND_NS = 2**62
"""Stands for a bound that does not exist."""
MAX_MEMBERS_FOR_ALL_PAIRS = 8
"""Members of a match up to which all of them are compared with each other."""
ROWS_AT_ONCE = 1 << 17
"""Comparisons of two ranks' operations that are reduced together, to limit the memory for them."""


class ClockBounds(msgspec.Struct, frozen=True):
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
        """Whether the two may be one clock.

        >>> ClockBounds(0, 1, 0, 30, -10, 70).one_clock, ClockBounds(0, 1, 0, 30, 1, 59).one_clock
        (True, False)
        """
        return not self.drift and self.least_ns <= 0 <= self.most_ns

    @property
    def width_ns(self) -> int:
        """Distance between the bounds."""
        return self.most_ns - self.least_ns

    @property
    def doubt(self) -> float:
        """Likeliest offset over the distance between the bounds: near 0, the two clocks are surely one."""
        return abs(self.offset_ns) / max(self.width_ns, 1)


class Compared(msgspec.Struct, frozen=True, eq=False):
    """Members, and which of them bound clocks; to be compared with each other."""

    members: pl.DataFrame
    """Members match by match, ranks ascending.

    ``alone``: of a message that has its kernels for itself. ``meets``: of a collective that ends
    nowhere before all have begun.
    """
    rank: Int32s
    collectives: int
    """Number of collectives that end nowhere before all have begun."""

    @classmethod
    def of(cls, members: pl.DataFrame) -> Compared:
        """Look for the members that bound clocks."""
        members = _without_unnamed(members)
        members = members.with_columns(
            alone=(pl.col("messages") == 1).fill_null(False).all().over("match"),
            meets=pl.Series(CategoryColumn.from_series(members["what"]).matches(MEETS))
            & pl.col("sends").is_null(),
        )
        return cls(members, members["rank"].to_numpy(), members.filter("meets")["match"].n_unique())

    def pairs(self) -> tuple[Int32s, Int32s]:
        """Return pairs of members to compare: all of a small match, else each with the lowest and the next lower."""
        matches = SortedGroups.of(self.members["match"].to_numpy())
        lowest = matches.spread(matches.first.astype(np.int32))
        size_of_match = matches.spread(matches.size.astype(np.int32))
        all_rows = np.arange(len(self.rank), dtype=np.int32)
        lows = [lowest]
        highs = [all_rows]
        # Ranks ascend within a match: the member with the next lower rank is the row before.
        largest = int(matches.size.max(initial=1))
        for distance in range(1, min(MAX_MEMBERS_FOR_ALL_PAIRS, largest)):
            # Those at just this distance were compared with the lowest.
            own = all_rows[all_rows - lowest > distance]
            if distance > 1:
                own = own[size_of_match[own] <= MAX_MEMBERS_FOR_ALL_PAIRS]
            lows.append(own - distance)
            highs.append(own)
        low = np.concatenate(lows)
        high = np.concatenate(highs)
        different = self.rank[high] > self.rank[low]
        return low[different], high[different]

    def by_pair(self) -> Iterator[tuple[Int32s, Int32s]]:
        """Yield the same pair of ranks by pair of ranks, some at a time."""
        low, high = self.pairs()
        key = (
            self.rank[low].astype(np.int64) * (int(self.rank.max(initial=0)) + 1) + self.rank[high]
        )
        order = np.argsort(key, kind="stable")
        pairs_of_ranks = SortedGroups.of(key[order])
        begin = 0  # of what is not yielded yet
        for start, end in pairwise(pairs_of_ranks.edges):
            # With this pair of ranks it would be too much: yield what is before it.
            if end - begin > ROWS_AT_ONCE and start > begin:
                yield low[order[begin:start]], high[order[begin:start]]
                begin = start
        if begin < len(order):
            yield low[order[begin:]], high[order[begin:]]

    def table(self, low: Int32s, high: Int32s) -> pl.DataFrame:
        """Return the differences between pairs of members.

        ``low``, ``high``: the two ranks; ``ends_ns``, ``most_ns``, ``least_ns``: how far high's end
        lies behind low's end, high's end behind low's start, and high's start behind low's end; the
        last two are bounds of the clocks' difference where ``is_most`` and ``is_least`` say so.
        ``alone``: a message that has its kernels for itself on both sides.
        """
        low_side = self.members.select(
            low="rank", low_start="start_ns", at_ns="end_ns", low_sends="sends"
        )[low]
        high_side = self.members.select(
            "alone", "meets", "start_ns", "end_ns", high="rank", high_sends="sends"
        )[high]
        sent = pl.col("low_sends").fill_null(False)
        heard = pl.col("high_sends").fill_null(False)
        return pl.concat([low_side, high_side], how="horizontal").select(
            *("low", "high", "at_ns", "alone", "meets", "low_sends"),
            ends_ns=pl.col("end_ns") - pl.col("at_ns"),
            most_ns=pl.col("end_ns") - pl.col("low_start"),
            least_ns=pl.col("start_ns") - pl.col("at_ns"),
            is_most=pl.col("meets") | (sent & ~heard),
            is_least=pl.col("meets") | (heard & ~sent),
        )


def _without_unnamed(members: pl.DataFrame) -> pl.DataFrame:
    """Return the *members* without collectives of unnamed groups, unless they are all that a rank has.

    Operations of several groups look like one if their groups have no names.
    """
    is_unnamed = (
        members["sends"].is_null() & members["group"].is_null() & members["group_ranks"].is_null()
    ).to_numpy()
    if not is_unnamed.any():
        return members
    match = members["match"].to_numpy()
    rank = members["rank"].to_numpy()
    lacks_named = ~np.isin(rank, np.unique(rank[~is_unnamed]))
    is_needed = np.bincount(match, weights=lacks_named)[match] > 0
    return members.filter(~is_unnamed | is_needed)


def find_clock_bounds(members: pl.DataFrame) -> list[ClockBounds]:
    """Return the bounds for every two ranks that a match brings together (*members*: ``MEMBERS``).

    >>> from tracekit.align.matching import MEMBERS
    >>> from tracekit.schema import conform
    >>> members = conform(pl.DataFrame({"match": [0, 0, 1, 1], "rank": [0, 1] * 2, "sends": [True, False, False, True],
    ...     "messages": 1, "start_ns": [0, 110, 70, 160], "end_ns": [20, 120, 90, 180]}), MEMBERS)
    >>> (bounds,) = find_clock_bounds(members)
    >>> bounds.offset_ns, bounds.least_ns, bounds.most_ns
    (95, 70, 120)
    """
    compared = Compared.of(members)
    facts = []
    for low, high in compared.by_pair():
        facts += _reduce(compared.table(low, high))
    worst_spread_ns = _worst_spreads(facts)
    usual_spread_ns = None
    if compared.collectives >= MIN_OPERATIONS_FOR_SPREAD:
        usual_spread_ns = max(worst_spread_ns.values(), default=MIN_END_SCATTER_NS)
    return [_clock_bounds(row, worst_spread_ns, usual_spread_ns) for row in facts]


def _reduce(table: pl.DataFrame) -> list[dict[str, Any]]:
    """Return one row of ``_extremes``, and the drift, for every two ranks of the *table*."""
    pair = ("low", "high")
    surest = pl.col("meets") | ~pl.col("meets").any().over(pair)
    table = table.with_columns(
        since_ns=pl.col("at_ns") - pl.col("at_ns").min().over(pair), surest=surest
    )
    drifts = find_drift(table)
    if drifts:
        rates = pl.DataFrame(
            [(low, high, rate) for (low, high), rate in drifts.items()],
            schema={"low": pl.Int32, "high": pl.Int32, "rate": pl.Float64},
            orient="row",
        )
        drifted = (pl.col("since_ns") * pl.col("rate").fill_null(0.0)).round().cast(pl.Int64)
        table = table.join(rates, on=["low", "high"], how="left", maintain_order="left")
        table = table.with_columns(pl.col("ends_ns", "most_ns", "least_ns") - drifted)
    rows = _extremes(table).iter_rows(named=True)
    return [{**row, "drift": drifts.get((row["low"], row["high"]), 0.0)} for row in rows]


def _extremes(table: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each two ranks: the tightest bounds, the fastest messages, the range of ends."""
    ends = pl.col("ends_ns")
    forth = pl.col("low_sends")
    ordered = ends.filter("surest").sort()
    half = ordered.len() // 2
    # A median is a float, and an epoch in nanoseconds does not fit one exactly: count from one of
    # the ends.
    middle = ordered.first() + (ordered - ordered.first()).median().round().cast(pl.Int64)
    return table.group_by("low", "high", maintain_order=True).agg(
        pl.col("at_ns").min(),
        most_ns=pl.col("most_ns").filter("is_most").min(),
        least_ns=pl.col("least_ns").filter("is_least").max(),
        round_ns=pl.col("at_ns").sort().diff().max(),
        loose_most_ns=pl.col("most_ns").max(),
        loose_least_ns=pl.col("least_ns").min(),
        fastest_forward_ns=ends.filter(pl.col("alone") & forth).min(),
        fastest_backward_ns=(-ends).filter(pl.col("alone") & ~forth).min(),
        middle_ns=middle,
        shortest_half_ns=(ordered.slice(half) - ordered.head(ordered.len() - half)).min(),
        earliest_meeting_ns=ends.filter("meets").min(),
        latest_meeting_ns=ends.filter("meets").max(),
        earliest_ns=ends.min(),
        latest_ns=ends.max(),
        two_way=(forth.any() & (~forth).any()).fill_null(False),
        meetings=pl.col("meets").sum(),
    )


def _worst_spreads(facts: list[dict[str, Any]]) -> dict[int, int]:
    """Return by rank the spread of ends of its collectives with the rank with which they agree worst."""
    worst_ns: dict[int, int] = {}
    for row in facts:
        if row["meetings"] > 1:
            for rank in (row["low"], row["high"]):
                worst_ns[rank] = max(worst_ns.get(rank, 0), _spread(row))
    return worst_ns


def _spread(row: dict[str, Any]) -> int:
    """Return how far from the middle of the differences between ends the clocks' difference may lie."""
    spread_ns: float = SPREAD_TO_SHORTEST_HALF * row["shortest_half_ns"]
    return max(round(spread_ns), MIN_END_SCATTER_NS)


def _end_bounds(row: dict[str, Any], usual_spread_ns: int | None) -> tuple[int, int] | None:
    """Return the bounds from the ends of collectives, which members leave together.

    None if these are too few.

    Of few collectives of two ranks, all ends count, and those of other ranks say how far off each
    may be.
    """
    if row["meetings"] >= MIN_OPERATIONS_FOR_SPREAD:
        return row["middle_ns"] - _spread(row), row["middle_ns"] + _spread(row)
    if usual_spread_ns is None or row["meetings"] < MIN_OPERATIONS_OF_PAIR:
        return None
    return row["earliest_meeting_ns"] - usual_spread_ns, row["latest_meeting_ns"] + usual_spread_ns


def _are_ends_a_clock(row: dict[str, Any], worst_spread_ns: dict[int, int]) -> bool:
    """Return whether the clocks of two ranks must differ, because their collectives always end as far apart.

    Where ranks share a GPU, one may leave its collectives later than another without a cause in the
    clocks. Then its ends do not agree with those of the other ranks either.
    """
    if row["meetings"] < MIN_OPERATIONS_FOR_SPREAD:
        return False
    return bool(
        abs(row["middle_ns"]) > max(worst_spread_ns[row["low"]], worst_spread_ns[row["high"]])
    )


def _clock_bounds(
    row: dict[str, Any], worst_spread_ns: dict[int, int], usual_spread_ns: int | None
) -> ClockBounds:
    """Return the bounds that one row of facts describes, and the likeliest offset within them.

    What happened in an order that one clock allows leaves one clock possible, unless ends rule it
    out.
    """
    least = -NO_BOUND_NS if row["least_ns"] is None else row["least_ns"]
    most = NO_BOUND_NS if row["most_ns"] is None else row["most_ns"]
    contradict = least > most
    offset = None if contradict else offset_of_messages(row, least, most)
    if contradict or (row["least_ns"] is None and row["most_ns"] is None):
        # All that is sure is that nobody lags a whole round behind.
        lag = NO_BOUND_NS if row["round_ns"] is None else row["round_ns"]
        least = row["loose_least_ns"] - lag
        most = row["loose_most_ns"] + lag
    else:
        least, most = _tighten(least, most, *bounds_of_messages(row))
    end_bounds = _end_bounds(row, usual_spread_ns)
    if end_bounds is not None:
        lower, upper = end_bounds
        if offset is None or upper - lower < most - least:
            offset = row["middle_ns"]
        is_one_clock_possible = not row["drift"] and least <= 0 <= most
        if is_one_clock_possible and not _are_ends_a_clock(row, worst_spread_ns):
            lower = min(lower, 0)
            upper = max(upper, 0)
        least, most = _tighten(least, most, lower, upper)
    if offset is None:
        offset = one_way_offset(row)
    offset = min(max(offset, least), most)
    return ClockBounds(row["low"], row["high"], row["at_ns"], offset, least, most, row["drift"])


def _tighten(least: int, most: int, lower: int, upper: int) -> tuple[int, int]:
    """Return the part of [least, most] that lies in [lower, upper] too.

    All of it if there is no such part.
    """
    inner = max(least, lower), min(most, upper)
    return inner if inner[0] <= inner[1] else (least, most)


def bounds_of_messages(row: dict[str, Any]) -> tuple[int, int]:
    """Return the bounds from messages with kernels of their own: a receive does not end before its send."""
    forward = row["fastest_forward_ns"]
    backward = row["fastest_backward_ns"]
    lower = -NO_BOUND_NS if backward is None else -backward - MAX_ACKNOWLEDGE_NS
    upper = NO_BOUND_NS if forward is None else forward + MAX_ACKNOWLEDGE_NS
    return lower, upper


def offset_of_messages(row: dict[str, Any], least: int, most: int) -> int | None:
    """Return the offset for which the fastest messages of both directions take equally long.

    None without both.
    """
    if not row["two_way"]:
        return None
    if row["fastest_forward_ns"] is None or row["fastest_backward_ns"] is None:
        return (least + most) // 2
    return int(row["fastest_forward_ns"] - row["fastest_backward_ns"]) // 2


def one_way_offset(row: dict[str, Any]) -> int:
    """Return the likeliest offset from few collectives, or from messages of one direction."""
    if row["meetings"] or (row["least_ns"] is None) == (row["most_ns"] is None):
        return int(row["middle_ns"])
    if row["least_ns"] is None:
        return int(row["earliest_ns"])
    return int(row["latest_ns"])


def find_drift(table: pl.DataFrame) -> dict[tuple[int, int], float]:
    """Return by how much the clocks of two ranks drift apart, where that is beyond doubt."""
    windows = _drift_windows(table)
    is_long_enough = pl.len().over("low", "high") >= MIN_DRIFT_WINDOWS
    rates: dict[tuple[int, int], float] = {}
    for (low, high), of_pair in windows.filter(is_long_enough).group_by(
        "low", "high", maintain_order=True
    ):
        since_ns = of_pair["since_ns"].to_numpy()
        fits = []
        for column in ("bounds", "ends"):
            values = of_pair[column].cast(pl.Float64).to_numpy()  # NaN where nothing tells
            is_known = ~np.isnan(values)
            fits.append(fit_drift(since_ns[is_known], values[is_known]))
        rate, _ = min(fits, key=lambda fit: fit[1])
        if rate:
            rates[int(low), int(high)] = rate
    return rates


def _drift_windows(table: pl.DataFrame) -> pl.DataFrame:
    """Return how far the clocks of two ranks differ in each of ``DRIFT_WINDOWS`` equal stretches of time.

    ``since_ns``: mean time in the window. ``bounds`` and ``ends``: the difference as the middle of
    its bounds, and as the median difference of collectives' ends, from the first end of the pair;
    null where nothing tells.
    """
    pair = ("low", "high")
    length_ns = pl.col("since_ns").max().over(pair)
    first_end_ns = pl.col("ends_ns").first().over(pair)
    in_windows = table.with_columns(
        pl.col("most_ns", "least_ns", "ends_ns") - first_end_ns,
        window=pl.col("since_ns") * DRIFT_WINDOWS // (length_ns + 1),
    )
    most_ns = pl.col("most_ns").filter("is_most").min()
    least_ns = pl.col("least_ns").filter("is_least").max()
    is_collective = pl.col("low_sends").is_null()
    return in_windows.group_by(*pair, "window", maintain_order=True).agg(
        pl.col("since_ns").mean(),
        bounds=(most_ns + least_ns) / 2,
        ends=pl.col("ends_ns").filter(pl.col("surest") & is_collective).median(),
    )


def fit_drift(times: Floats, values: Floats) -> tuple[float, float]:
    """Return the slope of the values and the largest distance of one from the line.

    (0, inf) if it is not clear.
    """
    if len(times) < MIN_DRIFT_WINDOWS or np.ptp(times) == 0:
        return 0.0, np.inf
    rate, start = np.polyfit(times - times[0], values, 1)
    off = float(np.abs(values - rate * (times - times[0]) - start).max())
    grown = abs(rate) * float(np.ptp(times))
    clear = grown > max(MIN_DRIFT_TO_SCATTER_RATIO * off, MIN_DRIFT_NS) and abs(rate) < MAX_DRIFT
    return (float(rate), off) if clear else (0.0, np.inf)
