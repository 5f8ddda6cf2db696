"""Matching of operations across ranks: which operations of different ranks are one and the same.

Collectives are matched by process group, point-to-point messages by pair of ranks and direction.
Within these the recorded sequence number of the collective decides; where there is none, the order
of issue. An operation that was launched and whose kernel was not recorded counts in that order.
Where ranks still have different numbers of operations, the shorter sequence is aligned with the
longest ones by sizes and end times, so that a missing operation leaves a hole where it is missing
and all others keep their partners. Where sizes and times leave open which of several operations is
missing, those that may have another partner stay unmatched.

The result is ``MEMBERS``, a row for each part that a rank took in an operation: a collective's
kernel is a member of one match; a kernel that carries several point-to-point messages is a member
of one match per message.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.arrays import Bools, Ints, SortedGroups
from tracekit._util.text import counted, listed, ranks_named
from tracekit.align.clock_bounds import NO_BOUND_NS
from tracekit.align.clocks import Clocks, align
from tracekit.align.pairing import NO_END_NS, OperationSequence, pair_with_references
from tracekit.align.sequences import Sequences
from tracekit.align.sides import Sides
from tracekit.errors import Notice, NoticeValues

MEMBERS = pl.Schema(
    {
        "match": pl.Int64(),  # numbers the matched operations from 0: rows that share it are one operation
        "row": pl.Int64(),  # row of the operations table that was matched
        "rank": pl.Int32(),
        "id": pl.Int64(),  # event of that rank, as in EVENTS
        "step": pl.Int64(),
        "label": pl.String(),
        "what": pl.String(),  # the collective, or "p2p"
        "group": pl.String(),  # of a collective
        "group_ranks": pl.String(),
        "sends": pl.Boolean(),  # of a message: whether this rank sends it; null of a collective
        "peer": pl.Int32(),  # of a message: the other rank
        "messages": pl.Int64(),  # messages that this rank's kernel carries; null of a collective
        "bytes": pl.Int64(),  # what the kernel moves; null where it carries several messages
        "start_ns": pl.Int64(),  # on the rank's own clock, as recorded: Clocks.align moves them to the common one
        "end_ns": pl.Int64(),
        "transfer_ns": pl.Int64(),  # shortest duration among the members: that one waited least
        "wait_ns": pl.Int64(),  # waiting for the last member; from ``match``, own duration − transfer_ns
        "wait_is_bound": pl.Boolean(),  # the wait is an upper bound: clocks are not, or not well enough, aligned
    }
)
"""The matched operations, one row for each rank's part in each, sorted by match and rank.

An operation that only one rank recorded has no row. ``transfer_ns`` and the bound of the wait are
differences on one clock; ``align.waits`` replaces the bound by the wait on aligned clocks.
"""

MAX_END_SCATTER_NS = 100_000
"""Scatter of ends up to which operations of unnamed groups are one; a quarter of their own time is
allowed as well."""
_CHANNEL = ["what", "group", "group_ranks"]


@dataclass(frozen=True, slots=True)
class Matching:
    """Matched operations of several ranks."""

    members: pl.DataFrame
    """``MEMBERS``: sides that were recorded, of operations of which at least two ranks recorded
    theirs."""
    notices: tuple[Notice, ...] = ()
    with_lost: pl.DataFrame | None = None
    """The same and sides that were launched and not recorded, at the time of their launch, with a column ``recorded``.

    Operations of which only one rank recorded its side are here, too, numbered after the others.
    None if no side was lost.
    """


def match(operations: pl.DataFrame, *, by_step: bool = True) -> Matching:
    """Match the operations of several ranks (*operations*: ``OPERATIONS`` of all ranks below each other).

    Operations that were launched and not recorded (their id is negative) count in the order of the
    others, and are in no match. Operations of different steps are different ones, unless *by_step*
    is false: ranks may count steps differently.

    >>> from tracekit.metrics.operations import OPERATIONS
    >>> from tracekit.schema import conform
    >>> messages = [[{"send": True, "peer": 1}], [{"send": False, "peer": 0}]]
    >>> ops = conform(pl.DataFrame({"rank": [0, 1], "what": "p2p", "messages": messages, "step": 2,
    ...     "order_ns": [0, 3], "start_ns": [1, 4], "end_ns": [9, 9], "label": "pp_comm"}), OPERATIONS)
    >>> match(ops).members.select("match", "rank", "sends", "peer", "transfer_ns").rows()
    [(0, 0, True, 1, 5), (0, 1, False, 0, 5)]
    """
    sides = Sides.of(operations, by_step=by_step)
    sequences = Sequences.of(sides)
    position = sequences.positions()
    uneven = sequences.find_uneven(sides)
    notices: list[Notice] = []
    if len(uneven):
        # Keys in which all ranks recorded the same sequence say how the clocks stand; then the
        # others are aligned.
        in_uneven_key = np.isin(sides.key, sides.key[sequences.order[sequences.first[uneven]]])
        certain = _members(
            operations, sides, position, np.flatnonzero(~in_uneven_key & sides.recorded)
        )
        clocks = align(certain.select(MEMBERS.names()), np.unique(sides.rank).tolist())
        position = _align_uneven(sides, sequences, uneven, position, clocks)
        notices += _uneven_notices(sides, sequences, uneven, position)
    placed = np.flatnonzero((position >= 0) & sides.recorded)
    kept, disagreeing = _drop_disagreeing(sides, position, placed, operations["what"])
    lost = np.flatnonzero((position >= 0) & ~sides.recorded & ~sides.nameless)
    with_lost = _members(operations, sides, position, np.concatenate([kept, lost]))
    notices += disagreeing
    if not len(lost):
        return Matching(with_lost.select(MEMBERS.names()), tuple(notices))
    is_full = pl.col("recorded").sum().over("match") > 1
    members = with_lost.filter(pl.col("recorded") & is_full).select(MEMBERS.names())
    return Matching(members, tuple(notices), with_lost=with_lost)


def pair_messages(messages: pl.DataFrame) -> pl.DataFrame:
    """Return the sends of several ranks beside their receives: ``MEMBERS`` of both, these with suffix ``_received``.

    Args:
        messages: Messages in the order of issue, with rank, step, kernel (negative if it was not
            recorded), send, peer, launch_ns, start_ns and end_ns; those of one kernel share its
            number.

    >>> messages = pl.DataFrame({"rank": [0, 1], "step": 0, "kernel": 7, "send": [True, False], "peer": [1, 0],
    ...     "launch_ns": 0, "start_ns": [5, 2], "end_ns": [9, 9]})
    >>> pair_messages(messages).select("rank", "start_ns", "rank_received", "start_ns_received").rows()
    [(0, 5, 1, 2)]
    """
    no_text = pl.lit(None, pl.String)
    no_number = pl.lit(None, pl.Int64)
    operations = (
        messages.with_columns(pl.col("rank", "peer").cast(pl.Int32))
        .group_by("rank", "step", "kernel", maintain_order=True)
        .agg(pl.col("launch_ns", "start_ns", "end_ns").first(), messages=pl.struct("send", "peer"))
        .with_columns(
            *(no_text.alias(name) for name in ("label", "group", "group_ranks")),
            *(no_number.alias(name) for name in ("bytes", "collective_seq")),
            what=pl.lit("p2p"),
            id="kernel",
            order_ns="launch_ns",
        )
    )
    members = match(operations).members
    sends = members.filter("sends")
    receives = members.filter(~pl.col("sends"))
    return sends.join(receives, on="match", suffix="_received", maintain_order="left")


def last_of_match(match: Ints, time_ns: Ints) -> npt.NDArray[np.int32]:
    """Return for each member the one of its match with the highest time.

    Of several, the one of the highest rank.

    >>> last_of_match(np.array([0, 0, 1, 1]), np.array([5, 3, 2, 2])).tolist()
    [0, 0, 3, 3]
    """
    matches = SortedGroups.of(match)
    highest_ns = matches.highest(time_ns)
    has_highest = time_ns == matches.spread(highest_ns)
    rows = np.flatnonzero(has_highest)
    last = np.empty(len(matches), np.int32)
    # Rows ascend: of several assignments to one match the last one stays.
    last[matches.number_of_rows()[rows]] = rows
    return matches.spread(last)


def _align_uneven(
    sides: Sides, sequences: Sequences, uneven: Ints, position: Ints, clocks: Clocks
) -> Ints:
    """Return the positions with those of *uneven* sequences aligned to their reference.

    -1 for a side without partner.

    Args:
        sides: All sides.
        sequences: Their sequences.
        uneven: Sequences to align.
        position: Position of each side in its own sequence.
        clocks: Clocks of the ranks, as far as the other sequences tell them.

    """
    position = position.copy()
    others = _count_others(sides, sequences, uneven)
    with_holes: list[int] = []
    # The longest ones first: those that turn out to have holes are no references for the others.
    for sequence in uneven[np.argsort(-sequences.length[uneven], kind="stable")].tolist():
        own_sides = sequences.rows(sequence)
        rank = int(sides.rank[own_sides[0]])
        own = _operation_sequence(sides, own_sides, others, clocks, against=rank)
        references = [
            _operation_sequence(sides, sequences.rows(reference), others, clocks, against=rank)
            for reference in sequences.references(sequence, with_holes)
        ]
        has_same_length = len(own) == len(references[0])
        if has_same_length and 2 * np.count_nonzero(own.size != references[0].size) >= len(own):
            # An exchange of uneven amounts.
            own = msgspec.structs.replace(own, size=np.full(len(own), -1))
        partners = pair_with_references(own, references)
        if not np.array_equal(partners, position[own_sides]):
            with_holes.append(sequence)
        position[own_sides] = partners
    return position


def _operation_sequence(
    sides: Sides, rows: Ints, others: Ints, clocks: Clocks, *, against: int
) -> OperationSequence:
    """Return the sides *rows* of one rank as a sequence on the common clock, to be paired with one of *against*."""
    rank = sides.rank[rows[:1]]
    end = clocks.to_common(int(rank[0]), sides.end[rows])
    return OperationSequence(
        start=clocks.to_common(int(rank[0]), sides.start[rows]),
        end=end,
        latest_end=np.where(sides.recorded[rows], end, NO_END_NS),
        size=sides.bytes[rows],
        others=others[rows],
        has_own_kernel=sides.messages[rows] == 1,
        sends=int(sides.sends[rows[0]]),
        meets=bool(sides.meets[rows[0]]),
        uncertainty_ns=int(clocks.uncertainty_between(rank, np.array([against]))[0]),
    )


def _count_others(sides: Sides, sequences: Sequences, uneven: Ints) -> Ints:
    """Return how many operations of even keys, matched for certain, each side's rank issued before it in the step."""
    ranks_of_key = np.bincount(sides.key[sequences.order[sequences.first]])
    in_even_key = ~np.isin(sides.key, sides.key[sequences.order[sequences.first[uneven]]])
    counts = in_even_key & (ranks_of_key[sides.key] > 1)
    # One number per rank and step, then the sides of each in the order of issue.
    scope = sides.rank.astype(np.int64) * (int(sides.step.max(initial=0)) + 1) + sides.step
    order = np.lexsort((sides.order, scope))
    scopes = SortedGroups.of(scope[order])
    # A count over all scopes up to each side, minus what it was before the side's scope.
    before: Ints = np.cumsum(counts[order]) - counts[order]
    others = np.empty(len(order), np.int64)
    others[order] = before - scopes.spread(before[scopes.first])
    return others


def _uneven_notices(
    sides: Sides, sequences: Sequences, uneven: Ints, position: Ints
) -> list[Notice]:
    missing = sequences.length[sequences.reference[uneven]] - sequences.length[uneven]
    unmatched = [
        int((position[sequences.rows(sequence)] < 0).sum()) for sequence in uneven.tolist()
    ]
    lacking = (missing > 0) | (np.array(unmatched) > 0)
    if not lacking.any():
        return []
    ranks = np.unique(sides.rank[sequences.order[sequences.first[uneven[lacking]]]]).tolist()
    case = "fewer" if missing.any() else "other"
    recorded = "other operations than"
    if missing.any():
        recorded = f"{counted(int(missing.sum()), 'operation')} fewer than"
    message = (
        f"{ranks_named(ranks)} recorded {recorded} the peers: where they are missing was found by sizes and times, "
        "and operations whose partner is not certain stay unmatched"
    )
    values: NoticeValues = {"case": case, "missing": int(missing.sum())}
    return [Notice("uneven-operations", message, ranks=tuple(ranks), values=values)]


def _drop_disagreeing(
    sides: Sides, position: Ints, placed: Ints, what: pl.Series
) -> tuple[Ints, list[Notice]]:
    """Return the sides *placed* without collectives of unnamed groups whose ends do not agree."""
    loose = placed[sides.nameless[placed]]
    columns = {"key": sides.key, "n": position, "rank": sides.rank, "row": sides.row}
    times = {"end_ns": sides.end, "ns": sides.end - sides.start}
    first = pl.col("end_ns").sort_by("rank").first().over("key", "n")
    apart = pl.DataFrame(columns | times)[loose].with_columns(apart=pl.col("end_ns") - first)
    scatter = apart.group_by("key", "rank").agg(
        pl.col("row").first(),
        scatter=(pl.col("apart") - pl.col("apart").median()).abs().median(),
        usual=pl.col("ns").median(),
    )
    bad = scatter.filter(
        pl.col("scatter") > pl.max_horizontal(pl.lit(MAX_END_SCATTER_NS), pl.col("usual") / 4)
    )
    if bad.is_empty():
        return placed, []
    kinds = tuple(sorted(set(what.gather(bad["row"]))))
    kept = placed[~np.isin(sides.key[placed], bad["key"].to_numpy())]
    return kept, [
        Notice(
            "wait-unknown",
            (
                f"{listed(kinds)}: the trace names no group and the ranks' ends do "
                "not agree, so waiting inside them is not known"
            ),
            values={"case": "unmatched", "operations": kinds},
        )
    ]


def _members(operations: pl.DataFrame, sides: Sides, position: Ints, kept: Ints) -> pl.DataFrame:
    """Return ``MEMBERS`` and ``recorded`` of the sides *kept* that share key and position with one of another rank.

    Matches of which at least two ranks recorded their side come first; then those of which one did.
    """
    key = sides.key * (int(position.max(initial=0)) + 1) + position
    ordered = kept[np.lexsort((sides.rank[kept], key[kept]))]
    match = _number_matches(key[ordered], sides.rank[ordered], sides.recorded[ordered])
    in_match = np.flatnonzero(match >= 0)
    in_match = in_match[np.argsort(match[in_match], kind="stable")]
    ordered = ordered[in_match]
    match = match[in_match]
    recorded = sides.recorded[ordered]
    row = sides.row[ordered]
    is_message = pl.Series(sides.sends[ordered] >= 0)
    duration = sides.end[ordered] - sides.start[ordered]
    matches = SortedGroups.of(match)
    # Of a side that was not recorded nothing is known.
    recorded_duration = np.where(recorded, duration, NO_BOUND_NS)
    shortest_duration = matches.spread(matches.lowest(recorded_duration))
    transfer = np.minimum(shortest_duration, duration)
    has_own_bytes = pl.col("messages").is_null() | (pl.col("messages") == 1)
    members: pl.DataFrame = (
        operations.select("rank", "id", "step", "label", "bytes", *_CHANNEL)[row]
        .with_columns(
            pl.when(~is_message).then(pl.col("group", "group_ranks")),
            match=match,
            row=pl.Series(row).cast(pl.Int64),
            sends=pl.when(is_message).then(pl.Series(sides.sends[ordered] > 0)),
            peer=pl.when(is_message).then(pl.Series(sides.peer[ordered])),
            messages=pl.when(is_message).then(pl.Series(sides.messages[ordered])),
            start_ns=sides.start[ordered],
            end_ns=sides.end[ordered],
            transfer_ns=transfer,
            wait_ns=duration - transfer,
            wait_is_bound=pl.lit(True),
            recorded=pl.Series(recorded),
        )
        .with_columns(bytes=pl.when(has_own_bytes).then("bytes"))
        .select(*MEMBERS.names(), "recorded")
    )
    return members


def _number_matches(key: Ints, rank: npt.NDArray[np.int32], recorded: Bools) -> Ints:
    """Return the number of each side's match; -1 of a side without another rank's.

    Args:
        key: Sides that share it are one operation; ascending, and the ranks of each key ascending.
        rank: Rank of each side.
        recorded: Whether its kernel was recorded.

    """
    keys = SortedGroups.of(key)
    above_all_ranks = np.iinfo(np.int32).max
    lowest_recorded = keys.lowest(np.where(recorded, rank, above_all_ranks))
    highest_recorded = keys.highest(np.where(recorded, rank, -1))
    is_full = highest_recorded > lowest_recorded
    has_recorded = highest_recorded >= 0
    has_other_rank = rank[keys.first] != rank[keys.last]
    is_partial = ~is_full & has_recorded & has_other_rank
    # Full matches are numbered first, then the partial ones.
    number = np.full(len(keys), -1, np.int64)
    full_count = int(is_full.sum())
    number[is_full] = np.arange(full_count)
    number[is_partial] = full_count + np.arange(is_partial.sum())
    return keys.spread(number)
