"""Which operations of different ranks are the same one: collectives by group and order, messages by pair and order.

The result is ``MEMBERS``, a row for each part that a rank took in an operation: a collective's kernel is a member of
one match; a kernel that carries several point-to-point messages is a member of one match per message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import to_int64
from tracekit.errors import Notice

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
        "transfer_ns": pl.Int64(),  # shortest duration among the members: nobody waits in that one
        "wait_ns": pl.Int64(),  # own duration − transfer_ns
    }
)
"""The matched operations, one row for each rank's part in each, sorted by match and rank.

An operation that only one rank recorded has no row. ``transfer_ns`` and ``wait_ns`` are differences on one clock, so
they do not depend on how clocks are aligned; when an operation began on all ranks does.
"""

_CHANNEL = ["what", "group", "group_ranks"]
_AGREE_NS = 100_000  # ends of operations with no group named must agree this well (or within a quarter of their time)

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Matching:
    """``members`` has the columns of ``MEMBERS``."""

    members: pl.DataFrame
    notices: tuple[Notice, ...] = ()


def match(operations: pl.DataFrame, *, by_step: bool = True) -> Matching:
    """Return which operations of several ranks are one (*operations*: ``OPERATIONS`` of all ranks below each other).

    Operations of different steps are different ones, unless *by_step* is false: ranks may count steps differently.

    >>> from tracekit.metrics.operations import OPERATIONS
    >>> from tracekit.schema import conform
    >>> ops = conform(pl.DataFrame({"rank": [0, 1], "what": "p2p", "p2p": ["send:1", "recv:0"], "step": 2,
    ...     "order_ns": [0, 3], "start_ns": [1, 4], "end_ns": [9, 9], "label": "pp_comm"}), OPERATIONS)
    >>> match(ops).members.select("match", "rank", "sends", "peer", "transfer_ns", "wait_ns").rows()
    [(0, 0, True, 1, 5, 3), (0, 1, False, 0, 5, 0)]
    """
    channel, channels = _channels(operations)
    sides = _Sides.of(operations, channel, by_step=by_step)
    nth, uneven = _nth(sides)
    kept, doubtful = _verify(sides, nth, channel, channels)
    key = sides.key * (int(nth.max(initial=0)) + 1) + nth
    at = kept[sides.sorted_by(key[kept], sides.rank[kept])]
    first = np.flatnonzero(np.diff(key[at], prepend=-1))
    size = np.diff(first, append=len(at))
    several = sides.rank[at[first]] != sides.rank[at[first + size - 1]]
    at, size = at[np.repeat(several, size)], size[several]
    match = np.repeat(np.arange(len(size)), size)
    return Matching(_described(sides, at, match, operations, (channel, channels)), (*uneven, *doubtful))


def last_of_match(match: Ints, at: Ints) -> npt.NDArray[np.int32]:
    """Return for each member the one of its match with the highest time *at*; of several, the one of the highest rank.

    >>> last_of_match(np.array([0, 0, 1, 1]), np.array([5, 3, 2, 2])).tolist()
    [0, 0, 3, 3]
    """
    first = np.flatnonzero(np.diff(match, prepend=-1))
    of_match = np.repeat(np.arange(len(first), dtype=np.int32), np.diff(first, append=len(match)))
    latest = np.flatnonzero(at == np.maximum.reduceat(at, first)[of_match]) if len(first) else first
    last = np.empty(len(first), np.int32)
    last[of_match[latest]] = latest  # they ascend: the last one stays
    return last[of_match]


def _codes(column: pl.Series) -> Ints:
    """Return a number for each value, in their order; 0 for null."""
    numbers = to_int64(column, np.iinfo(np.int64).min)
    distinct = np.unique(numbers)
    return np.searchsorted(distinct, numbers) + (0 if column.null_count() else 1)


def _channels(operations: pl.DataFrame) -> tuple[Ints, pl.DataFrame]:
    """Return a number for what each operation is and on which group, and what the numbers stand for, in order.

    A run has few of them, and numbers are compared faster than text. The two sides of a message may name its group
    differently, or not at all; the pair itself is enough.
    """
    what, *named = (CategoryColumn.from_series(operations[name]) for name in _CHANNEL)
    grouped = ~what.map(lambda text: text == "p2p")
    code = what.codes + np.int64(1)
    for text in named:
        code = code * (len(text.values) + 1) + np.where(grouped, text.codes + 1, 0)
    distinct, first = np.unique(code, return_index=True)
    texts = operations.select(_CHANNEL)[first].cast(pl.String)
    texts = texts.with_columns(pl.when(pl.Series(grouped[first])).then(pl.col("group", "group_ranks")))
    order = texts.select(pl.struct(_CHANNEL).rank("dense").cast(pl.Int64) - 1).to_series().to_numpy()
    return order[np.searchsorted(distinct, code)], texts[np.argsort(order)]


class _Sides(msgspec.Struct, frozen=True, eq=False):
    """What is to be matched: a row for each collective of a rank, and for each side of each message."""

    row: npt.NDArray[np.int32]
    rank: npt.NDArray[np.int32]
    key: Ints
    """Numbers the channel, the step, and of a message both ranks: what can be the same operation, in this order."""
    sends: npt.NDArray[np.int8]
    """1 of a message that is sent, 0 of one that is received, -1 of a collective."""
    peer: npt.NDArray[np.int32]
    start: Ints
    """Of each operation, not of each side; as are the next two."""
    end: Ints
    order: Ints
    ordered: bool
    """Whether rows stand rank by rank, each in the order of its launches: most tables do."""

    @classmethod
    def of(cls, operations: pl.DataFrame, channel: Ints, *, by_step: bool) -> _Sides:
        what = CategoryColumn.from_series(operations["what"])
        p2p = what.map(lambda text: text == "p2p")
        of_message, sends, peer = _messages(operations["p2p"], p2p)
        collective = np.flatnonzero(~p2p & what.present)
        row = np.concatenate([collective, of_message]).astype(np.int32)
        sends = np.concatenate([np.full(len(collective), -1, np.int8), sends])
        peer = np.concatenate([np.full(len(collective), -1, np.int32), peer])
        turn = np.argsort(row, kind="stable")
        row, sends, peer = row[turn], sends[turn], peer[turn]
        ranks, start, end, order = (operations[c].to_numpy() for c in ("rank", "start_ns", "end_ns", "order_ns"))
        rank = ranks[row]
        most = int(max(ranks.max(initial=0), peer.max(initial=0))) + 2
        step = _codes(operations["step"]) if by_step else np.zeros(len(ranks), np.int64)
        place = _dense(channel * (int(step.max(initial=0)) + 1) + step)[row]
        own, other = rank.astype(np.int64) + 1, peer.astype(np.int64) + 1
        pair = np.where(sends > 0, own * most + other, other * most + own)  # who sends, then who receives
        key = _dense(place * most * most + np.where(sends < 0, 0, pair))
        ordered = bool(((np.diff(ranks) > 0) | ((np.diff(ranks) == 0) & (np.diff(order) >= 0))).all())
        return cls(row, rank, key, sends, peer, start, end, order, ordered)

    def sorted_by(self, key: Ints, *then: npt.NDArray[Any]) -> Ints:
        """Return the order of *key*, and of equal ones by *then*: ordered rows are in that order already."""
        return np.argsort(key, kind="stable") if self.ordered else np.lexsort((*reversed(then), key))


def _dense(values: Ints) -> Ints:
    """Return the place of each value among the distinct ones."""
    return np.searchsorted(np.unique(values), values)


def _messages(texts: pl.Series, p2p: npt.NDArray[np.bool_]) -> tuple[Ints, npt.NDArray[np.int8], npt.NDArray[np.int32]]:
    """Return row, whether it sends and the peer of each message whose other side the file names, row by row."""
    text = CategoryColumn.from_series(texts).where(p2p)
    parts = pl.col("message").str.split_exact(":", 1).struct
    each = (
        pl.DataFrame({"message": pl.Series(text.values, dtype=pl.String)})
        .select(code=pl.int_range(pl.len()), message=pl.col("message").str.split(","))
        .explode("message", empty_as_null=True, keep_nulls=True)
        .select(
            "code", sends=parts.field("field_0") == "send", peer=parts.field("field_1").cast(pl.Int32, strict=False)
        )
        .filter(pl.col("peer").is_not_null())
    )
    first = np.searchsorted(each["code"].to_numpy(), np.arange(len(text.values) + 1))
    rows = np.flatnonzero(text.present)
    carried = np.diff(first)[text.codes[rows]]
    at = np.repeat(first[text.codes[rows]] - np.cumsum(carried) + carried, carried) + np.arange(carried.sum())
    return np.repeat(rows, carried), each["sends"].to_numpy().astype(np.int8)[at], each["peer"].to_numpy()[at]


def _nth(sides: _Sides) -> tuple[Ints, list[Notice]]:
    """Return which of its kind each is on its rank.

    Where ranks recorded different numbers, they are counted from whichever end makes their ends agree.
    """
    group = (sides.key * (int(sides.rank.max(initial=0)) + 1) + sides.rank) * 3 + sides.sends + 1
    order = sides.sorted_by(group, sides.order[sides.row])
    first = np.flatnonzero(np.diff(group[order], prepend=-1))
    size = np.diff(first, append=len(order))
    nth = np.empty(len(order), np.int64)
    nth[order] = np.arange(len(order)) - np.repeat(first, size)
    key, rank = sides.key[order[first]], sides.rank[order[first]]
    of_key = np.flatnonzero(np.diff(key, prepend=-1))
    most = np.maximum.reduceat(size, of_key) if len(of_key) else size
    groups = np.diff(of_key, append=len(key))
    present = np.repeat(rank[of_key] != rank[of_key + groups - 1], groups)
    missing = np.repeat(most, groups) - size
    uneven = np.flatnonzero((missing > 0) & present)
    if not len(uneven):
        return nth, []
    where = np.repeat(of_key, groups)
    for at in uneven.tolist():
        full = where[at] + int(size[where[at] : where[at] + groups[np.searchsorted(of_key, where[at])]].argmax())
        own = order[first[at] : first[at] + size[at]]
        ends, other = (sides.end[sides.row[some]] for some in (own, order[first[full] : first[full] + size[full]]))
        front, back = (_spread(other[skip : skip + len(own)] - ends) for skip in (0, int(missing[at])))
        nth[own] += missing[at] if back < front else 0
    ranks = ", ".join(map(str, np.unique(rank[uneven]).tolist()[:8]))
    text = f"rank {ranks} recorded fewer of some operations than its peers: matched by how well their ends agree"
    return nth, [Notice("uneven-operations", text)]


def _verify(sides: _Sides, nth: Ints, channel: Ints, channels: pl.DataFrame) -> tuple[Ints, list[Notice]]:
    """Return the sides without collectives of unnamed groups whose ends do not agree: these are not one operation."""
    everything = np.arange(len(nth))
    nameless = (channels["group"].is_null() & channels["group_ranks"].is_null()).to_numpy()
    loose = np.flatnonzero(nameless[channel[sides.row]] & (sides.sends < 0))
    if not len(loose) or len(np.unique(sides.rank[loose])) < 2:
        return everything, []
    row = sides.row[loose]
    columns = {"key": sides.key[loose], "n": nth[loose], "rank": sides.rank[loose], "row": row}
    first = pl.col("end_ns").sort_by("rank").first().over("key", "n")
    apart = pl.DataFrame({**columns, "end_ns": sides.end[row], "ns": sides.end[row] - sides.start[row]}).with_columns(
        apart=pl.col("end_ns") - first
    )
    judged = apart.group_by("key", "rank").agg(
        pl.col("row").first(),
        off=(pl.col("apart") - pl.col("apart").median()).abs().median(),
        usual=pl.col("ns").median(),
    )
    bad = judged.filter(pl.col("off") > pl.max_horizontal(pl.lit(_AGREE_NS), pl.col("usual") / 4))
    if bad.is_empty():
        return everything, []
    what = ", ".join(sorted(set(channels["what"].gather(channel[bad["row"].to_numpy()]).to_list()))[:4])
    text = f"{what}: the trace names no group and the ranks' ends do not agree, so waiting inside them is not known"
    kept = everything[~np.isin(sides.key, bad["key"].to_numpy())]
    return kept, [Notice("unmatched-operations", text)]


def _described(
    sides: _Sides, at: Ints, match: Ints, operations: pl.DataFrame, about: tuple[Ints, pl.DataFrame]
) -> pl.DataFrame:
    """Return MEMBERS: what each member is, and how its time divides into transfer and waiting."""
    channel, channels = about
    row, sends = sides.row[at], sides.sends[at]
    start, end = sides.start[row], sides.end[row]
    first = np.flatnonzero(np.diff(match, prepend=-1))
    transfer = np.minimum.reduceat(end - start, first)[match] if len(first) else end - start
    texts = CategoryColumn.from_series(operations["p2p"]).where((channels["what"] == "p2p").to_numpy()[channel])
    carried = texts.look_up(np.array([*(text.count(",") + 1 for text in texts.values), 0]))[row]
    own = pl.col("messages").is_null() | (pl.col("messages") == 1)
    kinds = pl.Schema({name: operations.schema[name] for name in _CHANNEL})
    return (
        operations.select("rank", "id", "step", "label", "bytes")[row]
        .with_columns(
            *channels.cast(kinds)[channel[row]].get_columns(),
            match=match,
            row=pl.Series(row).cast(pl.Int64),
            sends=pl.when(pl.Series(sends >= 0)).then(pl.Series(sends > 0)),
            peer=pl.when(pl.Series(sends >= 0)).then(pl.Series(sides.peer[at])),
            messages=pl.when(pl.Series(carried > 0)).then(pl.Series(carried)),
            start_ns=start,
            end_ns=end,
            transfer_ns=transfer,
            wait_ns=end - start - transfer,
        )
        .with_columns(bytes=pl.when(own).then("bytes"))
        .select(MEMBERS.names())
    )


def _spread(apart: npt.NDArray[np.int64]) -> tuple[float, float]:
    """Return how well ends agree: scatter first (clocks may differ), then distance."""
    middle = float(np.median(apart))
    return float(np.mean(np.abs(apart - middle))), abs(middle)
