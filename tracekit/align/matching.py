"""Matching of operations across ranks: which operations of different ranks are one and the same.

Collectives are matched by process group, point-to-point messages by pair of ranks and direction. Within these the
recorded sequence number of the collective decides; where there is none, the order of issue. An operation that was
launched and whose kernel was not recorded counts in that order. Where ranks still have different numbers of operations,
the shorter sequence is aligned with the longest ones by sizes and end times, so that a missing operation leaves a hole
where it is missing and all others keep their partners. Where sizes and times leave open which of several operations is
missing, those that may have another partner stay unmatched.

The result is ``MEMBERS``, a row for each part that a rank took in an operation: a collective's kernel is a member of
one match; a kernel that carries several point-to-point messages is a member of one match per message.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.arrays import Bools, Ints, group_rows
from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import present, to_int64
from tracekit.align.clock_bounds import MAX_ACKNOWLEDGE_NS, MEETS, NO_BOUND_NS
from tracekit.align.clocks import Clocks, align
from tracekit.align.pairing import NO_END_NS, OperationSequence, pair_with_references
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

An operation that only one rank recorded has no row. ``transfer_ns`` and the bound of the wait are differences on one
clock; ``align.waits`` replaces the bound by the wait on aligned clocks.
"""

MAX_END_SCATTER_NS = 100_000
"""Scatter of ends up to which operations of unnamed groups are one; a quarter of their own time is allowed as well."""
MAX_REFERENCES = 8
"""Ranks that a rank's operations are compared with to see which are missing."""
MIN_FIT_RATIO = 3.0
"""How many times better an end must agree with another operation's than with its counterpart's to look for holes."""
_CHANNEL = ["what", "group", "group_ranks"]


@dataclass(frozen=True, slots=True)
class Matching:
    """Matched operations of several ranks."""

    members: pl.DataFrame
    """``MEMBERS``: sides that were recorded, of operations of which at least two ranks recorded theirs."""
    notices: tuple[Notice, ...] = ()
    with_lost: pl.DataFrame | None = None
    """The same and sides that were launched and not recorded, at the time of their launch, with a column ``recorded``.

    Operations of which only one rank recorded its side are here, too, numbered after the others. None if no side was
    lost.
    """


def match(operations: pl.DataFrame, *, by_step: bool = True) -> Matching:
    """Match the operations of several ranks (*operations*: ``OPERATIONS`` of all ranks below each other).

    Operations that were launched and not recorded (their id is negative) count in the order of the others, and are in
    no match. Operations of different steps are different ones, unless *by_step* is false: ranks may count steps
    differently.

    >>> from tracekit.metrics.operations import OPERATIONS
    >>> from tracekit.schema import conform
    >>> messages = [[{"send": True, "peer": 1}], [{"send": False, "peer": 0}]]
    >>> ops = conform(pl.DataFrame({"rank": [0, 1], "what": "p2p", "messages": messages, "step": 2,
    ...     "order_ns": [0, 3], "start_ns": [1, 4], "end_ns": [9, 9], "label": "pp_comm"}), OPERATIONS)
    >>> match(ops).members.select("match", "rank", "sends", "peer", "transfer_ns").rows()
    [(0, 0, True, 1, 5), (0, 1, False, 0, 5)]
    """
    sides = _Sides.of(operations, by_step=by_step)
    sequences = _Sequences.of(sides)
    position, uneven = sequences.positions(), sequences.uneven(sides)
    notices: list[Notice] = []
    if len(uneven):
        # Keys in which all ranks recorded the same sequence say how the clocks stand; then the others are aligned.
        in_uneven_key = np.isin(sides.key, sides.key[sequences.order[sequences.first[uneven]]])
        certain = _members(operations, sides, position, np.flatnonzero(~in_uneven_key & sides.recorded))
        clocks = align(certain.select(MEMBERS.names()), np.unique(sides.rank).tolist())
        position = _align_uneven(sides, sequences, uneven, position, clocks)
        notices += _uneven_notices(sides, sequences, uneven, position)
    placed = np.flatnonzero((position >= 0) & sides.recorded)
    kept, disagreeing = _drop_disagreeing(sides, position, placed, operations["what"])
    lost = np.flatnonzero((position >= 0) & ~sides.recorded & ~sides.nameless)
    everything = _members(operations, sides, position, np.concatenate([kept, lost]))
    notices += disagreeing
    if not len(lost):
        return Matching(everything.select(MEMBERS.names()), tuple(notices))
    is_full = pl.col("recorded").sum().over("match") > 1
    members = everything.filter(pl.col("recorded") & is_full).select(MEMBERS.names())
    return Matching(members, tuple(notices), with_lost=everything)


def pair_messages(messages: pl.DataFrame) -> pl.DataFrame:
    """Return the sends of several ranks beside their receives: ``MEMBERS`` of both, these with suffix ``_received``.

    Args:
        messages: Messages in the order of issue, with rank, step, kernel (negative if it was not recorded), send, peer,
            launch_ns, start_ns and end_ns; those of one kernel share its number.

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
    """Return for each member the one of its match with the highest time; of several, the one of the highest rank.

    >>> last_of_match(np.array([0, 0, 1, 1]), np.array([5, 3, 2, 2])).tolist()
    [0, 0, 3, 3]
    """
    first = np.flatnonzero(np.diff(match, prepend=-1))
    of_match = np.repeat(np.arange(len(first), dtype=np.int32), np.diff(first, append=len(match)))
    latest = np.flatnonzero(time_ns == np.maximum.reduceat(time_ns, first)[of_match]) if len(first) else first
    last = np.empty(len(first), np.int32)
    last[of_match[latest]] = latest  # they ascend: the last one stays
    return last[of_match]


def _channels(operations: pl.DataFrame, p2p: Bools) -> Ints:
    """Return the number of each operation's channel, which is its kind and group, in the order of their names.

    A run has few of them, and numbers are compared faster than text. The kind is the collective in one spelling:
    kernels of one collective may be recorded as ``all_to_all`` and ``all_to_allv``. The two sides of a message may name
    its group differently, or not at all; the pair itself is enough.
    """
    kind = pl.coalesce(pl.col("call", "what").cast(pl.String)) if "call" in operations.columns else pl.col("what")
    channels = operations.select(kind, pl.when(pl.Series(~p2p)).then(pl.col("group", "group_ranks")))
    code, first = group_rows(*(CategoryColumn.from_series(column).codes for column in channels))
    number = channels[first].cast(pl.String).select(pl.struct(pl.all()).rank("dense").cast(pl.Int64))
    return number.to_series().to_numpy()[code]


class _Sides(msgspec.Struct, frozen=True, eq=False):
    """The sides to be matched: a row for each collective of a rank, and for each side of each message."""

    row: npt.NDArray[np.int32]
    rank: npt.NDArray[np.int32]
    key: Ints
    """Numbers the channel, the step (or recorded sequence number), and of a message both ranks: sides of different keys
    are different operations."""
    sends: npt.NDArray[np.int8]
    """1 of a message that is sent, 0 of one that is received, -1 of a collective."""
    peer: npt.NDArray[np.int32]
    """Other rank of a message; -1 of a collective."""
    recorded: Bools
    """Whether the kernel was recorded, and not only launched."""
    nameless: Bools
    """Collectives of groups without a name."""
    start: Ints
    end: Ints
    order: Ints
    step: Ints
    bytes: Ints
    """-1 if unknown."""
    messages: Ints
    """Messages in the kernel; 1 of a collective."""
    meets: Bools
    """Whether the operation ends nowhere before all have begun."""

    @classmethod
    def of(cls, operations: pl.DataFrame, *, by_step: bool) -> _Sides:
        what = CategoryColumn.from_series(operations["what"])
        is_message = what.any_of("p2p")
        channel = _channels(operations, is_message)
        step = to_int64(operations["step"].rank("dense"), 0) if by_step else np.zeros(len(operations), np.int64)
        bucket = _dense(channel * (int(step.max(initial=0)) + 1) + step)
        has_no_group = pl.col("group").is_null() & pl.col("group_ranks").is_null()
        frame = operations.select(
            pl.int_range(pl.len(), dtype=pl.Int32).alias("row"),
            "rank",
            "messages",
            is_message=pl.Series(is_message),
            has_kind=pl.Series(what.present),
            bucket=pl.Series(_split_by_sequence(bucket, channel, operations, is_message)),
            recorded=(pl.col("id") >= 0).fill_null(True),
            has_no_group=has_no_group,
            start="start_ns",
            end="end_ns",
            order="order_ns",
            step=pl.Series(step),
            bytes=pl.col("bytes").fill_null(-1),
            meets=pl.Series(what.matches(MEETS)),
        )
        sides = _split_messages(frame).with_columns(nameless=pl.col("has_no_group") & (pl.col("sends") < 0))
        sides = sides.with_columns(key=pl.Series(_side_keys(sides)))
        return cls(**{name: sides[name].to_numpy() for name in cls.__struct_fields__})


def _split_messages(operations: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each collective and for each message whose peer is known, in the order of operations.

    Adds ``sends`` and ``peer`` (see ``_Sides``); ``messages`` becomes the number of messages in the kernel.
    """
    collectives = operations.filter(~pl.col("is_message") & pl.col("has_kind")).with_columns(
        sends=pl.lit(-1, pl.Int8), peer=pl.lit(-1, pl.Int32), messages=pl.lit(1, pl.Int64)
    )
    messages = (
        operations.filter(pl.col("is_message") & pl.col("messages").is_not_null())
        .with_columns(message="messages", messages=pl.col("messages").list.len().cast(pl.Int64))
        .explode("message")
        .with_columns(
            sends=pl.col("message").struct.field("send").cast(pl.Int8), peer=pl.col("message").struct.field("peer")
        )
        .filter(pl.col("peer").is_not_null())
        .select(collectives.columns)
    )
    return pl.concat([collectives, messages]).sort("row", maintain_order=True)


def _side_keys(sides: pl.DataFrame) -> Ints:
    """Return the key of each side: its bucket, and of a message who sends and who receives."""
    bucket = sides["bucket"].to_numpy()
    own = sides["rank"].to_numpy().astype(np.int64) + 1
    other = sides["peer"].to_numpy().astype(np.int64) + 1
    sends = sides["sends"].to_numpy()
    rank_count = int(max(own.max(initial=0), other.max(initial=0))) + 1
    pair = np.where(sends > 0, own * rank_count + other, other * rank_count + own)
    return _dense(bucket * rank_count * rank_count + np.where(sends < 0, 0, pair))


def _dense(values: Ints) -> Ints:
    """Return the index of each value among the distinct ones."""
    return np.searchsorted(np.unique(values), values)


def _split_by_sequence(bucket: Ints, channel: Ints, operations: pl.DataFrame, p2p: Bools) -> Ints:
    """Return the buckets with collectives told apart by recorded sequence number, where all of a channel have one.

    The number counts a group's collectives from its creation on, alike on all ranks, so that it replaces the step.
    Messages are counted by each side on its own and are left alone.
    """
    number = operations["collective_seq"]
    if number.null_count() == len(number):
        return bucket
    has_number = present(number)
    unnumbered = np.unique(channel[~has_number])
    usable = has_number & ~p2p & ~np.isin(channel, unnumbered)
    sequence = to_int64(number.rank("dense"), 0)
    by_number = int(bucket.max(initial=0)) + 1 + channel * (int(sequence.max(initial=0)) + 1) + sequence
    return _dense(np.where(usable, by_number, bucket))


class _Sequences(msgspec.Struct, frozen=True, eq=False):
    """The sequences of all keys and ranks, key by key: the sides of one key on one rank, in the order of issue."""

    order: Ints
    """Sides, sequence by sequence."""
    first: Ints
    """Index in ``order`` of the first side of each sequence."""
    length: Ints
    reference: Ints
    """Longest sequence of the same key; of several the first."""
    size: Ints
    """Bytes of each side, in the order of ``order``; -1 if unknown."""

    @classmethod
    def of(cls, sides: _Sides) -> _Sequences:
        group = (sides.key * (int(sides.rank.max(initial=0)) + 1) + sides.rank) * 3 + sides.sends + 1
        order = np.lexsort((sides.order, group))
        first = np.flatnonzero(np.diff(group[order], prepend=-1))
        length = np.diff(first, append=len(order))
        key = sides.key[order[first]]
        first_of_key = np.flatnonzero(np.diff(key, prepend=-1))
        longest_first = np.lexsort((np.arange(len(key)), -length, key))  # of each key the longest comes first
        reference = np.repeat(longest_first[first_of_key], np.diff(first_of_key, append=len(key)))
        return cls(order, first, length, reference, sides.bytes[order])

    def positions(self) -> Ints:
        """Return the position of each side in its sequence."""
        position = np.empty(len(self.order), np.int64)
        position[self.order] = np.arange(len(self.order)) - np.repeat(self.first, self.length)
        return position

    def rows(self, sequence: int) -> Ints:
        """Return the sides of one sequence."""
        return self.order[self.first[sequence] : self.first[sequence] + self.length[sequence]]

    def references(self, sequence: int, with_holes: list[int]) -> list[int]:
        """Return other sequences of the same key that are as long as the longest, at most ``MAX_REFERENCES``."""
        is_longest = (self.reference == self.reference[sequence]) & (self.length == self.length[self.reference])
        is_longest[[sequence, *with_holes]] = False
        references: list[int] = np.flatnonzero(is_longest)[:MAX_REFERENCES].tolist()
        return references

    def uneven(self, sides: _Sides) -> Ints:
        """Return the sequences that have fewer sides than their reference, some of other sizes, or some out of place.

        Sides are out of place only where their ends are known and their groups named.
        """
        shorter = self.length < self.length[self.reference]
        # Counterpart of each side if both sequences are complete; a side of a shorter sequence is its own.
        sequence = np.repeat(np.arange(len(self.first)), self.length)
        everything = np.arange(len(self.order))
        counterpart = everything - self.first[sequence] + self.first[self.reference[sequence]]
        counterpart = np.where(shorter[sequence], everything, counterpart)
        other_size = (self.size != self.size[counterpart]) & (self.size >= 0) & (self.size[counterpart] >= 0)
        differs = np.bincount(sequence, weights=other_size, minlength=len(self.first))
        # Sizes of an exchange may differ everywhere (every rank sends another amount): that says nothing about order.
        has_other_sizes = (differs > 0) & (differs * 2 < self.length)
        duration = np.where(sides.meets, sides.end - sides.start, NO_BOUND_NS)[self.order]
        is_comparable = (sides.recorded & ~sides.nameless)[self.order]
        displaced = self._displaced(sides.end[self.order], duration, is_comparable, sequence, counterpart)
        return np.flatnonzero(shorter | has_other_sizes | displaced)

    def _displaced(self, ends: Ints, duration: Ints, is_comparable: Bools, sequence: Ints, counterpart: Ints) -> Bools:
        """Return the sequences some of whose ends agree with those before or after their counterparts, or with none.

        Where two ranks lack different operations, those between are each other's neighbours by their order. The
        ends of an operation with a *duration* lie no further apart than that. A neighbour of another size is no partner
        of an operation whose counterpart has its size.
        """
        sized_alike = self.size == self.size[counterpart]
        apart, usable = [], []
        for step in (0, -1, 1):
            neighbour = np.clip(counterpart + step, 0, len(ends) - 1)
            apart.append(ends - ends[neighbour])
            is_inside = sequence[neighbour] == sequence[counterpart]
            may_be_partner = ~sized_alike | (self.size == self.size[neighbour])
            usable.append(is_inside & may_be_partner & is_comparable & is_comparable[neighbour])
        # The clocks differ by 0 or by one of the medians: as recorded, unless another fits clearly better. Each is
        # judged by how well the ends agree with their counterparts or the neighbours of these.
        candidates = [np.zeros(len(self.first), np.int64), *(self._median(of, sequence) for of in apart)]
        misfit = [
            [np.where(use, np.abs(of - clock[sequence]), NO_BOUND_NS) for of, use in zip(apart, usable, strict=True)]
            for clock in candidates
        ]
        typical = np.array([self._median(np.min(of_clock, axis=0), sequence) for of_clock in misfit])
        weight = MIN_FIT_RATIO ** np.array([-1, 0, 1, 1])[:, None]
        best = np.argmin(weight * np.maximum(typical, 1), axis=0)[sequence]
        own, before, after = (np.choose(best, [of_clock[k] for of_clock in misfit]) for k in range(3))
        is_misfit = np.minimum(before, after) * MIN_FIT_RATIO < own
        is_misfit |= own > np.maximum(duration, duration[counterpart]) + MAX_ACKNOWLEDGE_NS
        is_misfit &= usable[0] & (own > MAX_ACKNOWLEDGE_NS)
        displaced: Bools = np.bincount(sequence, weights=is_misfit, minlength=len(self.first)) > 0
        return displaced

    def _median(self, values: Ints, sequence: Ints) -> Ints:
        """Return the median of each sequence; of two middle values the higher one."""
        median: Ints = values[np.lexsort((values, sequence))][self.first + self.length // 2]
        return median


def _align_uneven(sides: _Sides, sequences: _Sequences, uneven: Ints, position: Ints, clocks: Clocks) -> Ints:
    """Return the positions with those of *uneven* sequences aligned to their reference; -1 for a side without partner.

    Args:
        sides: All sides.
        sequences: Their sequences.
        uneven: Sequences to align.
        position: Position of each side in its own sequence.
        clocks: Clocks of the ranks, as far as the other sequences tell them.

    """
    position, others = position.copy(), _count_others(sides, sequences, uneven)
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
            own = msgspec.structs.replace(own, size=np.full(len(own), -1))  # an exchange of uneven amounts
        partners = pair_with_references(own, references)
        if not np.array_equal(partners, position[own_sides]):
            with_holes.append(sequence)
        position[own_sides] = partners
    return position


def _operation_sequence(sides: _Sides, rows: Ints, others: Ints, clocks: Clocks, *, against: int) -> OperationSequence:
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


def _count_others(sides: _Sides, sequences: _Sequences, uneven: Ints) -> Ints:
    """Return how many operations of even keys, matched for certain, each side's rank issued before it in the step."""
    ranks_of_key = np.bincount(sides.key[sequences.order[sequences.first]])
    in_even_key = ~np.isin(sides.key, sides.key[sequences.order[sequences.first[uneven]]])
    counts = in_even_key & (ranks_of_key[sides.key] > 1)
    scope = sides.rank.astype(np.int64) * (int(sides.step.max(initial=0)) + 1) + sides.step
    order = np.lexsort((sides.order, scope))
    before: Ints = np.cumsum(counts[order]) - counts[order]
    begin = np.flatnonzero(np.diff(scope[order], prepend=-1))
    others = np.empty(len(order), np.int64)
    others[order] = before - np.repeat(before[begin], np.diff(begin, append=len(order)))
    return others


def _uneven_notices(sides: _Sides, sequences: _Sequences, uneven: Ints, position: Ints) -> list[Notice]:
    missing = sequences.length[sequences.reference[uneven]] - sequences.length[uneven]
    unmatched = [int((position[sequences.rows(sequence)] < 0).sum()) for sequence in uneven.tolist()]
    lacking = (missing > 0) | (np.array(unmatched) > 0)
    if not lacking.any():
        return []
    ranks = np.unique(sides.rank[sequences.order[sequences.first[uneven[lacking]]]]).tolist()
    case = "fewer" if missing.any() else "other"
    values: NoticeValues = {"case": case, "missing": int(missing.sum())}
    return [Notice("uneven-operations", ranks=tuple(ranks), values=values)]


def _drop_disagreeing(sides: _Sides, position: Ints, placed: Ints, what: pl.Series) -> tuple[Ints, list[Notice]]:
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
    bad = scatter.filter(pl.col("scatter") > pl.max_horizontal(pl.lit(MAX_END_SCATTER_NS), pl.col("usual") / 4))
    if bad.is_empty():
        return placed, []
    kinds = tuple(sorted(set(what.gather(bad["row"]))))
    kept = placed[~np.isin(sides.key[placed], bad["key"].to_numpy())]
    return kept, [Notice("unmatched-operations", values={"operations": kinds})]


def _members(operations: pl.DataFrame, sides: _Sides, position: Ints, kept: Ints) -> pl.DataFrame:
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
    row, is_message = sides.row[ordered], pl.Series(sides.sends[ordered] >= 0)
    duration = sides.end[ordered] - sides.start[ordered]
    first = np.flatnonzero(np.diff(match, prepend=-1))
    recorded_duration = np.where(recorded, duration, NO_BOUND_NS)  # of a side that was not recorded nothing is known
    transfer = np.minimum.reduceat(recorded_duration, first)[match] if len(first) else duration
    transfer = np.minimum(transfer, duration)
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
    first = np.flatnonzero(np.diff(key, prepend=-1))
    if not len(first):
        return np.zeros(0, np.int64)
    size = np.diff(first, append=len(key))
    last = first + size - 1
    lowest_recorded = np.minimum.reduceat(np.where(recorded, rank, np.iinfo(np.int32).max), first)
    highest_recorded = np.maximum.reduceat(np.where(recorded, rank, -1), first)
    is_full = highest_recorded > lowest_recorded
    is_partial = ~is_full & (highest_recorded >= 0) & (rank[first] != rank[last])
    number = np.full(len(first), -1, np.int64)
    number[is_full] = np.arange(is_full.sum())
    number[is_partial] = is_full.sum() + np.arange(is_partial.sum())
    return np.repeat(number, size)
