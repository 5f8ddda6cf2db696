"""Sides of operations that are to be matched: a row for each collective of a rank, and for each side of each message.

Sides with different keys are different operations. Ranks that took part in one operation have the
same key and the same position among the sides of this key.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.arrays import Bools, Ints, group_rows
from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import present, to_int64
from tracekit.align.clock_bounds import MEETS


def _channels(operations: pl.DataFrame, p2p: Bools) -> Ints:
    """Return the number of each operation's channel, which is its kind and group, in the order of their names.

    A run has few of them, and numbers are compared faster than text. The kind is the collective in
    one spelling: kernels of one collective may be recorded as ``all_to_all`` and ``all_to_allv``.
    The two sides of a message may name its group differently, or not at all; the pair itself is
    enough.
    """
    kind = (
        pl.coalesce(pl.col("call", "what").cast(pl.String))
        if "call" in operations.columns
        else pl.col("what")
    )
    channels = operations.select(
        kind, pl.when(pl.Series(~p2p)).then(pl.col("group", "group_ranks"))
    )
    code, first = group_rows(*(CategoryColumn.from_series(column).codes for column in channels))
    number = (
        channels[first].cast(pl.String).select(pl.struct(pl.all()).rank("dense").cast(pl.Int64))
    )
    return number.to_series().to_numpy()[code]


class Sides(msgspec.Struct, frozen=True, eq=False):
    """The sides to be matched: a row for each collective of a rank, and for each side of each message."""

    row: npt.NDArray[np.int32]
    rank: npt.NDArray[np.int32]
    key: Ints
    """Numbers the channel, the step (or recorded sequence number), and of a message both ranks:
    sides of different keys are different operations."""
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
    def of(cls, operations: pl.DataFrame, *, by_step: bool) -> Sides:
        """Return the sides of *operations*; of different steps they are different, if *by_step*."""
        what = CategoryColumn.from_series(operations["what"])
        is_message = what.any_of("p2p")
        channel = _channels(operations, is_message)
        step = (
            to_int64(operations["step"].rank("dense"), 0)
            if by_step
            else np.zeros(len(operations), np.int64)
        )
        bucket = _dense(channel * (int(step.max(initial=0)) + 1) + step)
        has_no_group = pl.col("group").is_null() & pl.col("group_ranks").is_null()
        facts = operations.select(
            "rank",
            bucket=pl.Series(_split_by_sequence(bucket, channel, operations, is_message)),
            recorded=(pl.col("id") >= 0).fill_null(True),
            nameless=has_no_group & ~pl.Series(is_message),
            start="start_ns",
            end="end_ns",
            order="order_ns",
            step=pl.Series(step),
            bytes=pl.col("bytes").fill_null(-1),
            meets=pl.Series(what.matches(MEETS)),
        )
        split = _split_messages(operations["messages"], is_message, what.present)
        sides = split.hstack(facts[split["row"]])
        sides = sides.with_columns(key=pl.Series(side_keys(sides)))
        return cls(**{name: sides[name].to_numpy() for name in cls.__struct_fields__})


def _split_messages(messages: pl.Series, is_message: Bools, has_kind: Bools) -> pl.DataFrame:
    """Return a row for each collective and for each message whose peer is known, in the order of operations.

    Columns: ``row`` of the operation, ``sends``, ``peer`` and ``messages`` (see ``Sides``).

    Args:
        messages: The messages of every operation.
        is_message: The operations that carry messages.
        has_kind: The operations whose kind is known.

    """
    collectives = pl.DataFrame(
        {"row": np.flatnonzero(~is_message & has_kind)}, schema={"row": pl.Int32}
    ).with_columns(
        sends=pl.lit(-1, pl.Int8), peer=pl.lit(-1, pl.Int32), messages=pl.lit(1, pl.Int64)
    )
    carrying = np.flatnonzero(is_message & present(messages))
    lists = messages.rename("message").gather(carrying)
    sides_of_messages = (
        pl.DataFrame([pl.Series("row", carrying, pl.Int32), lists])
        .with_columns(messages=pl.col("message").list.len().cast(pl.Int64))
        .explode("message")
        .with_columns(
            sends=pl.col("message").struct.field("send").cast(pl.Int8),
            peer=pl.col("message").struct.field("peer"),
        )
        .filter(pl.col("peer").is_not_null())
        .select(collectives.columns)
    )
    return pl.concat([collectives, sides_of_messages]).sort("row", maintain_order=True)


def side_keys(sides: pl.DataFrame) -> Ints:
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

    The number counts a group's collectives from its creation on, alike on all ranks, so that it
    replaces the step. Messages are counted by each side on its own and are left alone.
    """
    number = operations["collective_seq"]
    if number.null_count() == len(number):
        return bucket
    has_number = present(number)
    unnumbered = np.unique(channel[~has_number])
    usable = has_number & ~p2p & ~np.isin(channel, unnumbered)
    sequence = to_int64(number.rank("dense"), 0)
    by_number = (
        int(bucket.max(initial=0)) + 1 + channel * (int(sequence.max(initial=0)) + 1) + sequence
    )
    return _dense(np.where(usable, by_number, bucket))
