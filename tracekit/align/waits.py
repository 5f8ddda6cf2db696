"""Waiting inside matched operations: how long each member waited for the last one, and who that was.

A member waits from its own start to the start of the last member, on aligned clocks and at most for its own duration.
That is used where clocks are aligned to better than the waits: where most of a label's waiting lies in operations whose
wait exceeds the uncertainty of the clocks, and clocks that had to be set to each other may change little of it.
Elsewhere a member waited at most for its own duration minus the shortest duration among the members, and this bound is
used.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints
from tracekit.align.clock_bounds import NO_BOUND_NS
from tracekit.align.clocks import Clocks
from tracekit.align.matching import last_of_match
from tracekit.schema import conform

MIN_CERTAIN_SHARE = 0.5
"""Share of a label's waiting in operations that waited longer than clocks may be off, for arrival times to be used."""
MAX_ERROR_SHARE = 0.05
"""Share of a label's waiting that clocks which were set by matched operations may be off by, to use arrival times."""

STRAGGLERS = pl.Schema(
    {
        "rank": pl.Int32(),
        "label": pl.String(),
        "caused_ns": pl.Int64(),  # waiting of all other ranks in operations at which this rank arrived last
        "operations": pl.Int64(),
        "uncertain": pl.Boolean(),  # another rank may have been last
        "candidates": pl.List(pl.Int32()),  # ranks that may have been last in more than half of that waiting
    }
)


def with_waits(members: pl.DataFrame, clocks: Clocks) -> pl.DataFrame:
    """Return the members of matched operations with their waits on aligned clocks.

    Adds ``last`` (row of the member that arrived last), ``late_ns`` (time after the arrival of the first member) and
    ``uncertainty_ns`` (how far the clocks of this rank and the last one may be off; null: nothing bounds it).

    >>> from tracekit.align.matching import MEMBERS
    >>> from tracekit.schema import conform
    >>> members = conform(pl.DataFrame({"match": [0, 0, 1, 1], "rank": [0, 1, 0, 1], "label": "dp_comm",
    ...     "start_ns": [0, 70, 200, 150], "end_ns": [100, 110, 230, 230], "transfer_ns": [40, 40, 30, 30]}), MEMBERS)
    >>> clocks = Clocks.recorded([0, 1])
    >>> with_waits(members, clocks).select("last", "wait_ns", "wait_is_bound").rows()
    [(1, 70, False), (1, 0, False), (2, 0, False), (2, 50, False)]
    """
    if members.is_empty():
        integers = dict.fromkeys(("last", "late_ns", "uncertainty_ns"), pl.lit(None, pl.Int64))
        return members.with_columns(**integers)
    match, rank = members["match"].to_numpy(), members["rank"].to_numpy()
    duration = members["end_ns"].to_numpy() - members["start_ns"].to_numpy()
    start = clocks.to_common_each(rank, members["start_ns"].to_numpy())
    last, first = last_of_match(match, start), last_of_match(match, -start)
    uncertainty = clocks.uncertainty_between(rank, rank[last])
    by_arrival = np.minimum(start[last] - start, duration)
    # Clocks that were set differently by what was found leave as much of each wait open as they may be off.
    offset = clocks.to_common_each(rank, np.zeros(len(rank), np.int64))
    error = np.where(offset == offset[last], 0, np.minimum(uncertainty, duration))
    is_bound = _is_bound(members["label"], by_arrival, uncertainty, error)
    return members.with_columns(
        last=pl.Series(last.astype(np.int64)),
        late_ns=pl.Series(start - start[first]),
        wait_ns=pl.Series(np.where(is_bound, duration - members["transfer_ns"].to_numpy(), by_arrival)),
        wait_is_bound=pl.Series(is_bound),
        uncertainty_ns=pl.when(pl.Series(uncertainty < NO_BOUND_NS)).then(pl.Series(uncertainty)),
    )


def _is_bound(label: pl.Series, by_arrival: Ints, uncertainty: Ints, error: Ints) -> Bools:
    """Return the members whose wait by arrival times is not certain enough."""
    unbounded = uncertainty >= NO_BOUND_NS
    waits = pl.DataFrame(
        {
            "label": label,
            "wait": np.where(unbounded, 0, by_arrival),
            "certain": np.where(by_arrival > uncertainty, by_arrival, 0),
            "error": np.where(unbounded, 0, error),
        }
    )
    certain, wait, error_sum = (pl.col(name).sum() for name in ("certain", "wait", "error"))
    is_certain = waits.select(
        ((certain >= MIN_CERTAIN_SHARE * wait) & (error_sum <= MAX_ERROR_SHARE * wait)).over("label")
    ).to_series()
    is_bound: Bools = ~is_certain.to_numpy() | unbounded
    return is_bound


def find_stragglers(members: pl.DataFrame, clocks: Clocks) -> pl.DataFrame:
    """Return ``STRAGGLERS``: by rank and label, the waiting in operations at which the rank arrived last.

    Another rank is a candidate if it may have been last instead in more than half of that waiting: it arrived before
    the last one by less than the clocks of the two may be off. For the first rank of each label those are candidates,
    too, that may have caused as much, if all waits are off by what the clocks may be.

    Args:
        members: Matched operations with their waits (``with_waits``).
        clocks: Clocks of the ranks.

    """
    if members.is_empty():
        return STRAGGLERS.to_frame()
    rank, last = members["rank"].to_numpy(), members["last"].to_numpy()
    start = clocks.to_common_each(rank, members["start_ns"].to_numpy())
    uncertainty = clocks.uncertainty_between(rank, rank[last])
    wait = np.where(rank == rank[last], 0, members["wait_ns"].to_numpy())
    table = pl.DataFrame(
        {
            "match": members["match"],
            "label": members["label"].cast(pl.String),
            "rank": rank[last],
            "candidate": rank,
            "may_be_last": start[last] - start <= uncertainty,
            "wait_ns": wait,
            "off_ns": np.minimum(uncertainty, members["end_ns"].to_numpy() - members["start_ns"].to_numpy()),
        }
    )
    # Waiting in each operation, repeated on its members.
    table = table.with_columns(in_match_ns=pl.col("wait_ns").sum().over("match")).filter(pl.col("in_match_ns") > 0)
    key = ["rank", "label"]
    by_rank = table.group_by(key).agg(
        pl.col("off_ns").sum(), caused_ns=pl.col("wait_ns").sum(), operations=pl.col("match").n_unique().cast(pl.Int64)
    )
    by_rank = by_rank.sort("caused_ns", *key, descending=[True, False, False])
    instead = (
        table.filter("may_be_last")
        .group_by(*key, "candidate")
        .agg(possible_ns=pl.col("in_match_ns").sum())
        .join(by_rank, on=key)
        .filter((pl.col("candidate") == pl.col("rank")) | (2 * pl.col("possible_ns") > pl.col("caused_ns")))
    )
    first = by_rank.unique("label", keep="first", maintain_order=True)
    as_much = first.join(by_rank, on="label", suffix="_other").filter(
        pl.col("caused_ns_other") + pl.col("off_ns_other") >= pl.col("caused_ns") - pl.col("off_ns")
    )
    candidates = pl.concat([instead.select(*key, "candidate"), as_much.select(*key, candidate="rank_other")])
    candidates = candidates.group_by(key).agg(candidates=pl.col("candidate").unique().sort())
    joined = by_rank.join(candidates, on=key, how="left", maintain_order="left")
    return conform(joined.with_columns(uncertain=pl.col("candidates").list.len() > 1), STRAGGLERS)
