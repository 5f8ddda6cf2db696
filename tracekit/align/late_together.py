"""Ranks that are late together: how a wait is divided among several ranks that were not there yet.

Where two ranks come to a collective equally late, the others wait for both: if one of them came in
time, they would wait for the other one. Ranks are late together if they arrive in the second half
of the time between the first and the last arrival, so that without the last one alone less than half
of that time would be saved. A wait is divided at their arrivals: each piece is shared equally by
those of them that had not arrived, so that the parts sum to the wait.
"""

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints, SortedGroups
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
    >>> waited_for = find_waited_for(members, np.array([0, 40, 0, 50]), Clocks.recorded(range(4)))
    >>> [tuple(charge.values()) for charge in waited_for[0]]
    [(1, 20, 40), (3, 30, 50)]
    >>> [tuple(charge.values()) for charge in waited_for[1]]
    [(3, 10, None)]
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
    all_rows = pl.DataFrame({"row": rows})
    of_members = all_rows.join(by_row, on="row", how="left", maintain_order="left")
    return of_members["waited_for"].cast(WAITED_FOR)


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
    waits = SortedGroups.of(row)
    position = waits.positions()
    # The pieces of a wait: up to the first arrival, then from each arrival to the next.
    piece_ns = np.where(position == 0, until_ns, np.diff(until_ns, prepend=0))
    # At the arrival of rank number ``position``, this one and all after it had not arrived.
    not_arrived = waits.spread(waits.size) - position
    each_ns = piece_ns // not_arrived
    # A rank is charged with each piece up to its own arrival: a running sum of ``each_ns`` that
    # begins anew in each wait, which is the running sum over all minus what it was before the wait.
    summed_ns = np.cumsum(each_ns)
    before_wait_ns = summed_ns[waits.first] - each_ns[waits.first]
    share_ns: Ints = summed_ns - waits.spread(before_wait_ns)
    of_others_ns = waits.total(share_ns) - share_ns[waits.last]
    share_ns[waits.last] = wait_ns[waits.last] - of_others_ns
    return share_ns


def _late_together(members: pl.DataFrame, start_ns: Ints, clocks: Clocks) -> Bools:
    """Return which members are late together with another one of their match."""
    matches = SortedGroups.of(members["match"].to_numpy())
    lateness_ns = start_ns - matches.spread(matches.lowest(start_ns))
    latest_ns = matches.spread(matches.highest(lateness_ns))
    is_certain = lateness_ns > _uncertainty_to_first(members, matches, lateness_ns == 0, clocks)
    is_late: Bools = (lateness_ns >= MIN_SHARE_OF_LATEST * latest_ns) & is_certain
    late_count = matches.count(is_late)
    meets = CategoryColumn.from_series(members["what"]).matches(MEETS)
    is_collective = members["sends"].is_null().to_numpy()
    is_by_arrival = meets & is_collective & ~members["wait_is_bound"].to_numpy()
    is_together = (
        (matches.count(is_by_arrival) == matches.size)
        & (late_count >= 2)
        & (late_count <= MAX_RANKS_LATE_TOGETHER)
        & (late_count <= MAX_LATE_SHARE * matches.size)
    )
    is_late_together: Bools = is_late & matches.spread(is_together)
    return is_late_together


def _uncertainty_to_first(
    members: pl.DataFrame, matches: SortedGroups, is_first: Bools, clocks: Clocks
) -> Ints:
    """Return how far each member's clock may be off against that of the first of its match to arrive.

    Of several that arrive first, the one of the highest rank.
    """
    rank = members["rank"].to_numpy()
    first_rank = np.empty(len(matches), rank.dtype)
    # Ranks ascend within a match: of several assignments to one match the last one stays.
    first_rank[matches.number_of_rows()[is_first]] = rank[is_first]
    return clocks.uncertainty_between(rank, matches.spread(first_rank))
