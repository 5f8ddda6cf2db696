"""Waiting inside matched operations: how long each member waited for the last one, and who that was.

A member waits from its own start to the start of the last member, on aligned clocks and at most for
its own duration. A collective with a root may be over for one member before another begins: it
waited for the last one that began before its own end, and not while that one still moved the data
of operations before. Arrival times are used where clocks are aligned to better than the waits:
where most of a label's waiting lies in operations whose wait exceeds the uncertainty of the clocks,
and clocks that had to be set to each other may change little of it. Elsewhere a member waited at
most for its own duration minus the shortest duration among the members, and this bound is used.
"""

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Int32s, Ints, SortedGroups
from tracekit._util.categories import CategoryColumn
from tracekit.align.clock_bounds import MEETS, NO_BOUND_NS
from tracekit.align.clocks import Clocks
from tracekit.align.late_together import WAITED_FOR, find_waited_for
from tracekit.align.matching import last_of_match
from tracekit.schema import conform

MIN_CERTAIN_SHARE = 0.5
"""Share of a label's waiting in operations that waited longer than clocks may be off, for arrival
times to be used."""
MAX_ERROR_SHARE = 0.05
"""Share of a label's waiting that clocks which were set by matched operations may be off by, to use
arrival times."""
MAX_OPERATIONS_AHEAD = 8
"""Operations by which a member may be ahead of another: NCCL's buffers have as many slots."""

STRAGGLERS = pl.Schema(
    {
        "rank": pl.Int32(),
        "label": pl.String(),
        # Waiting of all other ranks for this one; ranks that are late together share it.
        "caused_ns": pl.Int64(),
        "operations": pl.Int64(),
        "uncertain": pl.Boolean(),  # another rank may have been last
        # Ranks that may have been last in more than half of that waiting.
        "candidates": pl.List(pl.Int32()),
        # Part of caused_ns after the arrival of all others: it ends if this rank alone comes in time.
        "alone_ns": pl.Int64(),
        # Ranks that were late together with it in operations with more than half of caused_ns, unless
        # most of that ends if this rank alone comes in time.
        "late_with": pl.List(pl.Int32()),
    }
)


def with_waits(members: pl.DataFrame, clocks: Clocks) -> pl.DataFrame:
    """Return the members of matched operations with their waits on aligned clocks.

    Adds ``last`` (row of the member it waited for, see ``last_awaited``), ``last_rank`` (its rank),
    ``late_ns`` (time after the arrival of the first member) and ``waited_for`` (the ranks it waited
    for where several are late together, see ``align.late_together``). A side that was launched and
    not recorded arrived at its launch or later: waits for it are lower bounds.

    >>> from tracekit.align.matching import MEMBERS
    >>> from tracekit.schema import conform
    >>> members = conform(pl.DataFrame({"match": [0, 0, 1, 1], "rank": [0, 1, 0, 1], "label": "dp_comm",
    ...     "start_ns": [0, 70, 200, 150], "end_ns": [100, 110, 230, 230], "transfer_ns": [40, 40, 30, 30]}), MEMBERS)
    >>> clocks = Clocks.recorded([0, 1])
    >>> with_waits(members, clocks).select("last", "wait_ns", "wait_is_bound").rows()
    [(1, 70, False), (1, 0, False), (2, 0, False), (2, 50, False)]
    """
    if members.is_empty():
        no_number = pl.lit(None, pl.Int64)
        return members.with_columns(
            last=no_number,
            last_rank=pl.lit(None, pl.Int32),
            late_ns=no_number,
            waited_for=pl.lit(None, WAITED_FOR),
        )
    match = members["match"].to_numpy()
    rank = members["rank"].to_numpy()
    duration = members["end_ns"].to_numpy() - members["start_ns"].to_numpy()
    start = clocks.to_common_each(rank, members["start_ns"].to_numpy())
    last = last_awaited(members, start)
    first = last_of_match(match, -start)
    uncertainty = clocks.uncertainty_between(rank, rank[last])
    transferring = _still_transferring(members, start, last)
    by_arrival = np.minimum(start[last] - start - transferring, duration)
    # Clocks that were set differently by what was found leave as much of each wait open as they may
    # be off.
    offset = clocks.to_common_each(rank, np.zeros(len(rank), np.int64))
    error = np.where(offset == offset[last], 0, np.minimum(uncertainty, duration))
    # Whoever began after the own end may have begun before it, if clocks are off by as much.
    latest = last_of_match(match, start)
    to_latest = clocks.uncertainty_between(rank, rank[latest])
    is_open = (latest != last) & (start[latest] - start - duration < to_latest)
    possible, possible_error = np.where(
        is_open, (duration, np.maximum(duration, to_latest)), (by_arrival, uncertainty)
    )
    is_bound = is_uncertain_wait(members["label"], possible, possible_error, error)
    at_most = duration - members["transfer_ns"].to_numpy()
    # Durations of a broadcast differ by transfer as well: arrival times bound the wait better.
    at_most = np.where(transferring > 0, np.minimum(at_most, possible + possible_error), at_most)
    waited = members.with_columns(
        last=pl.Series(last.astype(np.int64)),
        last_rank=pl.Series(rank[last], dtype=pl.Int32),
        late_ns=pl.Series(start - start[first]),
        wait_ns=pl.Series(np.where(is_bound, at_most, by_arrival)),
        wait_is_bound=pl.Series(is_bound),
    )
    return waited.with_columns(waited_for=find_waited_for(waited, start, clocks))


def last_awaited(members: pl.DataFrame, start: Ints) -> Int32s:
    """Return for each member the last one that it had to wait for: the latest to arrive before its own end.

    A root that is done before the others arrive may still have waited: for them to arrive at the
    operations before, whose data fill its buffers.

    Args:
        members: Matched operations, match by match.
        start: Their starts on the common clock.

    >>> from tracekit.align.matching import MEMBERS
    >>> from tracekit.schema import conform
    >>> members = conform(pl.DataFrame({"match": 0, "rank": [0, 1, 2], "what": "broadcast",
    ...     "start_ns": [0, 20, 90], "end_ns": [50, 99, 99]}), MEMBERS)
    >>> last_awaited(members, members["start_ns"].to_numpy()).tolist()
    [1, 2, 2]
    """
    match = members["match"].to_numpy()
    last = last_of_match(match, start)
    end = start + (members["end_ns"] - members["start_ns"]).to_numpy()
    rooted = _is_rooted(members)
    early = np.flatnonzero(rooted & (end <= start[last]))
    if not len(early):
        return last
    complete = np.empty(int(match.max()) + 1, np.int64)
    complete[match] = start[last]
    arrived = pl.DataFrame({"match": match, "start": start, "row": np.arange(len(match))}).filter(
        rooted
    )
    arrived = arrived.sort("start", "row")
    before = _match_before(members.with_columns(start=start).filter(rooted), len(complete))
    last[early] = early
    pending = pl.DataFrame({"own": early, "match": match[early], "end": end[early]}).sort("end")
    for _ in range(MAX_OPERATIONS_AHEAD):
        latest = pending.join_asof(
            arrived,
            left_on="end",
            right_on="start",
            by="match",
            allow_exact_matches=False,
            check_sortedness=False,
        ).filter(pl.col("row").is_not_null())
        own = latest["own"].to_numpy()
        row = latest["row"].to_numpy()
        is_later = start[row] > start[last[own]]
        last[own[is_later]] = row[is_later]
        # Go on to the operation before where someone had not arrived at this one yet.
        is_incomplete = pl.Series(complete[pending["match"].to_numpy()]) >= pending["end"]
        pending = pending.filter(is_incomplete)
        pending = pending.with_columns(match=before[pending["match"].to_numpy()]).filter(
            pl.col("match") >= 0
        )
        if pending.is_empty():
            break
    return last


_GROUP = ["group", "group_ranks"]


def _is_rooted(members: pl.DataFrame) -> Bools:
    """Return which members are of a collective with a root: not everyone hears from everyone before the end."""
    meets = CategoryColumn.from_series(members["what"]).matches(MEETS)
    is_rooted: Bools = ~meets & members["sends"].is_null().to_numpy()
    return is_rooted


def _match_before(members: pl.DataFrame, matches: int) -> Ints:
    """Return for each match the one before it in its group; -1 if there is none."""
    by_match = (
        members.group_by("match").agg(pl.col(_GROUP).first(), pl.col("start").min()).sort("start")
    )
    ordered = by_match.with_columns(before=pl.col("match").shift(1).over(_GROUP)).drop_nulls(
        "before"
    )
    before = np.full(matches, -1)
    before[ordered["match"].to_numpy()] = ordered["before"].to_numpy()
    return before


def _still_transferring(members: pl.DataFrame, start: Ints, last: Int32s) -> Ints:
    """Return how long the last member was in operations before, between each member's own start and that of the last.

    Counted in collectives with a root, which ranks leave at different times: a rank that still
    moves the data of one that has left is not late.
    """
    busy_ns = np.zeros(len(start), np.int64)
    awaits = _is_rooted(members) & (start[last] > start)
    if not awaits.any():
        return busy_ns
    group = pl.col(_GROUP).cast(pl.String).fill_null("")  # a join takes no null for equal
    table = members.select("rank", group, ns=pl.col("end_ns") - pl.col("start_ns")).with_columns(
        start=start
    )
    ordered = table.filter(members["sends"].is_null()).sort("start")
    ordered = ordered.with_columns(
        before_ns=pl.col("ns").cum_sum().over("rank", *_GROUP) - pl.col("ns")
    )
    in_operations = pl.col("before_ns") + pl.min_horizontal("ns", pl.col("time") - pl.col("start"))
    sought = members.select(group).with_columns(
        rank=members["rank"].gather(last), row=np.arange(len(start))
    )

    def until(time: Ints) -> Ints:
        """Return how long the last member of each row was in the group's operations until *time*."""
        times = sought.with_columns(time=time).filter(awaits).sort("time")
        joined = times.join_asof(
            ordered, left_on="time", right_on="start", by=["rank", *_GROUP], check_sortedness=False
        )
        return joined.sort("row").select(in_operations.fill_null(0)).to_series().to_numpy()

    busy_ns[awaits] = until(start[last]) - until(start)
    return busy_ns


def is_uncertain_wait(label: pl.Series, by_arrival: Ints, uncertainty: Ints, error: Ints) -> Bools:
    """Return the members whose wait by arrival times is not certain enough."""
    unbounded = uncertainty >= NO_BOUND_NS
    bounded_wait, bounded_error = np.where(unbounded, 0, (by_arrival, error))
    certain_wait = np.where(by_arrival > uncertainty, by_arrival, 0)
    waits = pl.DataFrame(
        {"label": label, "wait": bounded_wait, "certain": certain_wait, "error": bounded_error}
    )
    certain = pl.col("certain").sum()
    wait = pl.col("wait").sum()
    error_sum = pl.col("error").sum()
    is_certain = waits.select(
        ((certain >= MIN_CERTAIN_SHARE * wait) & (error_sum <= MAX_ERROR_SHARE * wait)).over(
            "label"
        )
    ).to_series()
    is_bound: Bools = ~is_certain.to_numpy() | unbounded
    return is_bound


def longest_waits(members: pl.DataFrame, operation_count: int) -> Ints:
    """Return for each operation the member of its matches that waited longest, of several the first; -1: none.

    A kernel that carries several messages is a member of as many matches, and waits once: for the
    last of them.

    Args:
        members: Matched operations with their waits (``with_waits``), whose ``row`` numbers the
            operations.
        operation_count: Number of operations.

    """
    row = members["row"].to_numpy()
    wait = members["wait_ns"].to_numpy()
    longest = np.full(operation_count, -1)
    np.maximum.at(longest, row, wait)
    # In reverse, so that the first one stays.
    candidates = np.flatnonzero(wait == longest[row])[::-1]
    member = np.full(operation_count, -1, np.int64)
    member[row[candidates]] = candidates
    return member


def find_stragglers(members: pl.DataFrame, clocks: Clocks) -> pl.DataFrame:
    """Return ``STRAGGLERS``: by rank and label, the waiting for the rank.

    Each kernel's wait counts once, whatever number of messages it carries, and is charged to the
    rank that arrived last; ranks that are late together share it (``align.late_together``).

    Another rank is a candidate if it may have been last instead in more than half of that waiting:
    it arrived before the last one by less than the clocks of the two may be off, and is not charged
    itself. For the first rank of each label those are candidates, too, that may have caused as much,
    if all waits are off by what the clocks may be.

    Args:
        members: Matched operations with their waits (``with_waits``).
        clocks: Clocks of the ranks.

    """
    if members.is_empty():
        return STRAGGLERS.to_frame()
    key = ["rank", "label"]
    charges = _charges(members, clocks)
    in_match = (
        charges.group_by("match", *key)
        .agg(
            pl.col("arrival_ns").max(),
            pl.col("wait_ns", "off_ns", "alone_ns").sum(),
            pl.col("wait_is_bound", "is_shared").any(),
        )
        .filter(pl.col("wait_ns") > 0)
        .with_columns(pl.col("label").cast(pl.String))
    )
    by_rank = in_match.group_by(key).agg(
        pl.col("off_ns").sum(),
        caused_ns=pl.col("wait_ns").sum(),
        operations=pl.len().cast(pl.Int64),
        alone_ns=pl.when(~pl.col("wait_is_bound").any()).then(pl.col("alone_ns").sum()),
    )
    by_rank = by_rank.sort("caused_ns", *key, descending=[True, False, False])
    late_with = _late_with(in_match, by_rank)
    rank = members["rank"].to_numpy()
    start = clocks.to_common_each(rank, members["start_ns"].to_numpy())
    arrivals = members.select("match", candidate="rank").with_columns(start_ns=start)
    charged = in_match.filter("is_shared").select("match", "label", candidate="rank")
    compared = in_match.join(arrivals, on="match").join(
        charged, on=["match", "label", "candidate"], how="anti"
    )
    uncertainty = clocks.uncertainty_between(
        compared["rank"].to_numpy(), compared["candidate"].to_numpy()
    )
    instead = (
        compared.filter(
            (compared["arrival_ns"] - compared["start_ns"]).abs() <= pl.Series(uncertainty)
        )
        .group_by(*key, "candidate")
        .agg(possible_ns=pl.col("wait_ns").sum())
        .join(by_rank, on=key)
        .filter(2 * pl.col("possible_ns") > pl.col("caused_ns"))
    )
    first = by_rank.unique("label", keep="first", maintain_order=True)
    as_much = first.join(by_rank, on="label", suffix="_other").filter(
        pl.col("caused_ns_other") + pl.col("off_ns_other") >= pl.col("caused_ns") - pl.col("off_ns")
    )
    as_much = as_much.select(*key, candidate="rank_other").join(
        late_with, on=[*key, "candidate"], how="anti"
    )
    itself = by_rank.select(*key, candidate="rank")
    candidates = pl.concat([itself, instead.select(*key, "candidate"), as_much])
    candidates = candidates.group_by(key).agg(candidates=pl.col("candidate").unique().sort())
    together = late_with.group_by(key).agg(late_with=pl.col("candidate").sort())
    joined = by_rank.join(candidates, on=key, how="left", maintain_order="left")
    joined = joined.join(together, on=key, how="left", maintain_order="left")
    no_ranks = pl.lit([], pl.List(pl.Int32))
    return conform(
        joined.with_columns(
            uncertain=pl.col("candidates").list.len() > 1,
            late_with=pl.col("late_with").fill_null(no_ranks),
        ),
        STRAGGLERS,
    )


def _charges(members: pl.DataFrame, clocks: Clocks) -> pl.DataFrame:
    """Return a row for each wait and each rank that it is charged to.

    Columns: match, label, rank (that was waited for), arrival_ns, wait_ns (its share), off_ns (what
    clocks may be off by), alone_ns (waiting after all others had arrived), wait_is_bound and
    is_shared (whether ranks are late together in the operation).
    """
    rank = members["rank"].to_numpy()
    last = members["last"].to_numpy()
    start = clocks.to_common_each(rank, members["start_ns"].to_numpy())
    is_longest = np.zeros(len(members), np.bool_)
    longest = longest_waits(members, int(members["row"].max()) + 1)  # type: ignore[arg-type]
    is_longest[longest[longest >= 0]] = True
    duration = (members["end_ns"] - members["start_ns"]).to_numpy()
    off_ns = np.minimum(clocks.uncertainty_between(rank, rank[last]), duration)
    wait_ns = np.where((rank == rank[last]) | ~is_longest, 0, members["wait_ns"].to_numpy())
    is_last_of_all = last == last_of_match(members["match"].to_numpy(), start)
    lead_ns = _lead_of_last(members["match"].to_numpy(), start)
    waits = members.select("match", "label", "waited_for", "wait_is_bound").with_columns(
        rank=rank[last],
        arrival_ns=start[last],
        wait_ns=wait_ns,
        off_ns=np.where(is_longest, off_ns, 0),
        alone_ns=np.where(is_last_of_all, np.minimum(wait_ns, lead_ns), wait_ns),
        is_shared=pl.col("waited_for").is_not_null(),
    )
    charged_to_one = waits.filter(~pl.col("is_shared")).drop("waited_for")
    shared = waits.filter("is_shared").explode("waited_for")
    charged_rank = pl.col("waited_for").struct.field("rank")
    charged_ns = pl.col("waited_for").struct.field("wait_ns")
    is_last = charged_rank == pl.col("rank")
    shared = shared.with_columns(
        rank=charged_rank,
        off_ns=pl.col("off_ns") * charged_ns // pl.max_horizontal("wait_ns", 1),
        alone_ns=pl.when(is_last).then("alone_ns").otherwise(0),
        wait_ns=charged_ns,
    )
    # Each of them arrived at its own time.
    arrivals = members.select("match", "rank").with_columns(arrival_ns=start)
    shared = shared.drop("arrival_ns").join(
        arrivals, on=["match", "rank"], how="left", maintain_order="left"
    )
    return pl.concat([charged_to_one, shared.select(charged_to_one.columns)])


def _lead_of_last(match: Ints, start: Ints) -> Ints:
    """Return for each member how long after all others the last one of its match arrived.

    >>> _lead_of_last(np.array([0, 0, 0, 1, 1]), np.array([0, 50, 40, 7, 7])).tolist()
    [10, 10, 10, 0, 0]
    """
    matches = SortedGroups.of(match)
    # Members match by match, each in order of arrival: those of a match keep its rows, so that its
    # last row in this order is its last arrival, and the row before that the second last.
    by_arrival = np.lexsort((start, match))
    second_last_row = np.maximum(matches.last - 1, matches.first)  # a match of one: itself
    last_ns = start[by_arrival[matches.last]]
    second_last_ns = start[by_arrival[second_last_row]]
    return matches.spread(last_ns - second_last_ns)


def _late_with(in_match: pl.DataFrame, by_rank: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs (rank, label, candidate) of ranks that are late together in more than half of the waiting.

    A rank by which alone half of it would end is late by itself.
    """
    shared = in_match.filter("is_shared")
    others = shared.select("match", "label", candidate="rank")
    together = shared.join(others, on=["match", "label"]).filter(
        pl.col("rank") != pl.col("candidate")
    )
    key = ["rank", "label"]
    return (
        together.group_by(*key, "candidate")
        .agg(together_ns=pl.col("wait_ns").sum())
        .join(by_rank, on=key)
        .filter(2 * pl.col("together_ns") > pl.col("caused_ns"))
        .filter(2 * pl.col("alone_ns").fill_null(0) < pl.col("caused_ns"))
        .select(*key, "candidate")
    )
