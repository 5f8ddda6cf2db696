"""Ranks that are late together: how a wait is divided among several ranks that were not there yet.

Where two ranks come to a collective equally late, the others wait for both: if one of them came in
time, they would wait for the other one. Ranks are late together if they arrive in the second half
of the time between the first and the last arrival, so that without the last one alone less than half
of that time would be saved. A wait is divided at their arrivals: each piece is shared equally by
those of them that had not arrived, so that the parts sum to the wait.
"""

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints
from tracekit._util.categories import CategoryColumn
from tracekit.align.clock_bounds import MEETS
from tracekit.align.clocks import Clocks

MIN_SHARE_OF_LATEST = 0.5
"""Lateness of a rank, as a share of that of the last one, from which the two are late together:
below it, most of the waiting ends if the last one comes in time."""
MAX_LATE_SHARE = 0.5
"""Share of an operation's ranks up to which some are late together: if most of them arrive at the
end, the others are early."""
MAX_RANKS_LATE_TOGETHER = 8
"""Ranks up to which some are late together; more are no group that one can name or mend."""

WAITED_FOR = pl.List(pl.Struct({"rank": pl.Int32(), "wait_ns": pl.Int64(), "late_ns": pl.Int64()}))
"""The ranks that an operation waited for: each with its share of the wait, and the time from the own
start to its arrival, which is null if the waiting rank is late itself."""


def find_waited_for(members: pl.DataFrame, start_ns: Ints, clocks: Clocks) -> pl.Series:
    """Return for each member the ranks that it waited for (``WAITED_FOR``).

    Null if no ranks are late together in its operation: it waited for the last one alone. So it is
    in messages, in collectives with a root, which ranks leave at different times, and where clocks
    do not tell when ranks arrived.

    Args:
        members: Matched operations with wait_ns and wait_is_bound, match by match.
        start_ns: Their starts on the common clock.
        clocks: Clocks of the ranks.

    >>> from tracekit.align.matching import MEMBERS
    >>> from tracekit.schema import conform
    >>> members = conform(pl.DataFrame({"match": 0, "rank": [0, 1, 2, 3], "what": "allreduce",
    ...     "wait_ns": [50, 10, 50, 0], "wait_is_bound": False}), MEMBERS)
    >>> found = find_waited_for(members, np.array([0, 40, 0, 50]), Clocks.recorded(range(4)))
    >>> [[tuple(part.values()) for part in parts or []] for parts in found.to_list()]
    [[(1, 20, 40), (3, 30, 50)], [(3, 10, None)], [(1, 20, 40), (3, 30, 50)], []]
    """
    is_late = _late_together(members, start_ns, clocks)
    rows = np.arange(len(members))
    columns = members.select("match", "rank", "wait_ns").with_columns(
        row=rows, start_ns=start_ns, is_late=is_late
    )
    late = columns.filter("is_late").select("match", late_rank="rank", arrival_ns="start_ns")
    awaited = columns.join(late, on="match").filter(pl.col("arrival_ns") > pl.col("start_ns"))
    until_ns = pl.min_horizontal(pl.col("arrival_ns") - pl.col("start_ns"), "wait_ns")
    awaited = awaited.with_columns(until_ns=until_ns).sort("row", "until_ns", "late_rank")
    share_ns = _divide(
        awaited["row"].to_numpy(), awaited["until_ns"].to_numpy(), awaited["wait_ns"].to_numpy()
    )
    part = pl.struct(
        rank="late_rank",
        wait_ns=pl.Series(share_ns, dtype=pl.Int64),
        late_ns=pl.when(~pl.col("is_late")).then("until_ns"),
    )
    by_row = awaited.select("row", waited_for=part).group_by("row", maintain_order=True).all()
    found = pl.DataFrame({"row": rows}).join(by_row, on="row", how="left", maintain_order="left")
    return found["waited_for"].cast(WAITED_FOR)


def _divide(row: Ints, until_ns: Ints, wait_ns: Ints) -> Ints:
    """Return the share of a wait that each late rank is charged with.

    The time up to each arrival is shared equally by this rank and those that arrive after it; the
    last one also takes what whole nanoseconds leave.

    Args:
        row: Number of the wait, ascending.
        until_ns: Time until the late rank arrived, ascending within a wait.
        wait_ns: Length of the wait.

    >>> _divide(np.array([0, 0, 4, 4]), np.array([40, 50, 3, 3]), np.array([50, 50, 3, 3])).tolist()
    [20, 30, 1, 2]
    """
    if not len(row):
        return until_ns
    first = np.flatnonzero(np.diff(row, prepend=-1))
    count = np.diff(first, append=len(row))
    of_wait = np.repeat(np.arange(len(first)), count)
    position = np.arange(len(row)) - first[of_wait]
    piece_ns = np.where(position == 0, until_ns, np.diff(until_ns, prepend=0))
    each_ns = piece_ns // (count[of_wait] - position)
    summed_ns = np.cumsum(each_ns)
    share_ns: Ints = summed_ns - (summed_ns - each_ns)[first][of_wait]
    last = first + count - 1
    of_others_ns = np.add.reduceat(share_ns, first) - share_ns[last]
    share_ns[last] = wait_ns[last] - of_others_ns
    return share_ns


def _late_together(members: pl.DataFrame, start_ns: Ints, clocks: Clocks) -> Bools:
    """Return which members are late together with another one of their match."""
    match = members["match"].to_numpy()
    if not len(match):
        return np.zeros(0, np.bool_)
    first = np.flatnonzero(np.diff(match, prepend=-1))
    size = np.diff(first, append=len(match))
    of_match = np.repeat(np.arange(len(first)), size)
    lateness_ns = start_ns - np.minimum.reduceat(start_ns, first)[of_match]
    latest_ns = np.maximum.reduceat(lateness_ns, first)[of_match]
    # A rank is late if clocks cannot be off by as much against the first one.
    rank = members["rank"].to_numpy()
    first_rank = np.empty(len(first), rank.dtype)
    first_rank[of_match[lateness_ns == 0]] = rank[lateness_ns == 0]
    is_certain = lateness_ns > clocks.uncertainty_between(rank, first_rank[of_match])
    is_late: Bools = (lateness_ns >= MIN_SHARE_OF_LATEST * latest_ns) & is_certain
    late_count = np.add.reduceat(is_late, first, dtype=np.int64)
    meets = CategoryColumn.from_series(members["what"]).matches(MEETS)
    by_arrival = meets & ~members["wait_is_bound"].to_numpy()
    is_together = (
        np.logical_and.reduceat(by_arrival & members["sends"].is_null().to_numpy(), first)
        & (late_count >= 2)
        & (late_count <= MAX_RANKS_LATE_TOGETHER)
        & (late_count <= MAX_LATE_SHARE * size)
    )
    return is_late & is_together[of_match]
