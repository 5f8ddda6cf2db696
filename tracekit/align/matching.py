"""Which operations of different ranks are the same one: collectives by group and order, messages by pair and order.

The result is ``MEMBERS``, a row for each part that a rank took in an operation: a collective's kernel is a member of
one match; a kernel that carries several point-to-point messages is a member of one match per message.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.records import dataclass
from tracekit.errors import Notice
from tracekit.schema import conform

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

_KEY = ["channel", "step", "source", "target"]
_CHANNEL = ["what", "group", "group_ranks"]
_AGREE_NS = 100_000  # ends of operations with no group named must agree this well (or within a quarter of their time)


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
    code, channels = _channels(operations)
    numbered = operations.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64), channel=code)
    keyed = numbered if by_step else numbered.with_columns(step=pl.lit(None, pl.Int64))
    collectives = keyed.filter(pl.col("what") != "p2p").select(
        "row",
        "rank",
        "channel",
        "step",
        "order_ns",
        "start_ns",
        "end_ns",
        source=pl.lit(None, pl.Int32),
        target=pl.lit(None, pl.Int32),
        sends=pl.lit(None, pl.Boolean),
    )
    members = pl.concat([collectives, _messages(keyed).select(collectives.columns)])
    members = members.sort("order_ns", "row", maintain_order=True).with_columns(
        n=pl.int_range(pl.len()).over([*_KEY, "rank", "sends"]).cast(pl.Int64)
    )
    members, uneven = _even_out(members)
    members, doubtful = _verify(members, channels)
    key = pl.struct([*_KEY, "n"]).rank("dense").cast(pl.Int64) - 1
    members = members.with_columns(match=key)
    several = pl.col("rank").n_unique().over("match") > 1
    members = members.filter(several).with_columns(match=pl.col("match").rank("dense").cast(pl.Int64) - 1)
    return Matching(_described(members.sort("match", "rank", "row"), operations, channels), (*uneven, *doubtful))


def _channels(operations: pl.DataFrame) -> tuple[pl.Series, pl.DataFrame]:
    """Return a number for what each operation is and on which group, and what the numbers stand for, in order.

    A run has few of them, and numbers are compared faster than text. The two sides of a message may name its group
    differently, or not at all; the pair itself is enough.
    """
    named = pl.when(pl.col("what") != "p2p").then(pl.col("group", "group_ranks"))
    text = operations.select("what", named).cast(pl.Categorical)
    codes = text.with_columns(pl.all().to_physical())
    first = codes.with_row_index("row").unique(_CHANNEL, keep="first", maintain_order=True)
    distinct = text[first["row"]].cast(pl.String)
    place = distinct.select(pl.struct(_CHANNEL).rank("dense").cast(pl.Int32) - 1).to_series()
    known = first.select(_CHANNEL).with_columns(channel=place)
    code = codes.join(known, on=_CHANNEL, how="left", nulls_equal=True, maintain_order="left")["channel"]
    return code, distinct[place.arg_sort()]


def _described(members: pl.DataFrame, operations: pl.DataFrame, channels: pl.DataFrame) -> pl.DataFrame:
    """Return MEMBERS: what each member is, and how its time divides into transfer and waiting."""
    own_ns = pl.col("end_ns") - pl.col("start_ns")
    shortest_ns = own_ns.min().over("match")
    carried = pl.when(pl.col("what") == "p2p").then(pl.col("p2p").str.count_matches(",") + 1)
    about = operations.select("id", "step", "label", "bytes", messages=carried)
    described = (
        members.drop("step", "order_ns", "n")
        .with_columns(*about[members["row"]].get_columns(), *channels[members["channel"]].get_columns())
        .with_columns(
            peer=pl.when("sends").then("target").otherwise("source"),
            bytes=pl.when(pl.col("messages").fill_null(1) == 1).then("bytes"),
            transfer_ns=shortest_ns,
            wait_ns=own_ns - shortest_ns,
        )
    )
    return conform(described, MEMBERS)


def _messages(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each point-to-point message whose other side the file names."""
    names = ("row", "rank", "channel", "step", "order_ns", "start_ns", "end_ns", "p2p")
    single = rows.filter((pl.col("what") == "p2p") & pl.col("p2p").is_not_null()).select(names)
    parts = pl.col("message").str.split_exact(":", 1).struct
    return (
        single.with_columns(message=pl.col("p2p").cast(pl.String).str.split(","))
        .explode("message", empty_as_null=True, keep_nulls=True)
        .with_columns(sends=parts.field("field_0") == "send", peer=parts.field("field_1").cast(pl.Int32, strict=False))
        .filter(pl.col("peer").is_not_null())
        .with_columns(
            source=pl.when("sends").then("rank").otherwise("peer").cast(pl.Int32),
            target=pl.when("sends").then("peer").otherwise("rank").cast(pl.Int32),
        )
    )


def _even_out(members: pl.DataFrame) -> tuple[pl.DataFrame, list[Notice]]:
    """Return operations counted from whichever end makes their ends agree, where ranks recorded different numbers."""
    counts = members.group_by([*_KEY, "rank", "sends"]).agg(count=pl.len())
    most = pl.col("count").max().over(_KEY)
    present = pl.col("rank").n_unique().over(_KEY) > 1
    short = counts.with_columns(missing=most.cast(pl.Int64) - pl.col("count"), full=most == pl.col("count")).filter(
        present
    )
    uneven = short.filter(pl.col("missing") > 0)
    if uneven.is_empty():
        return members, []
    shifts = []
    for row in uneven.iter_rows(named=True):
        same = [pl.col(k).eq_missing(pl.lit(row[k])) for k in _KEY]
        here = members.filter(*same)
        own = here.filter(pl.col("rank") == row["rank"], pl.col("sends").eq_missing(pl.lit(row["sends"])))
        full = short.filter(*same, pl.col("full")).row(0, named=True)
        other = here.filter(pl.col("rank") == full["rank"], pl.col("sends").eq_missing(pl.lit(full["sends"])))
        front, back = (
            _spread(other["end_ns"].to_numpy()[at : at + len(own)] - own["end_ns"].to_numpy())
            for at in (0, row["missing"])
        )
        shifts.append({**{k: row[k] for k in (*_KEY, "rank", "sends")}, "shift": row["missing"] if back < front else 0})
    table = pl.DataFrame(shifts, schema={**{k: members.schema[k] for k in (*_KEY, "rank", "sends")}, "shift": pl.Int64})
    moved = members.join(table, on=[*_KEY, "rank", "sends"], how="left", nulls_equal=True, maintain_order="left")
    ranks = ", ".join(map(str, uneven["rank"].unique().sort().to_list()[:8]))
    notice = Notice(
        "uneven-operations",
        f"rank {ranks} recorded fewer of some operations than its peers: matched by how well their ends agree",
    )
    return moved.with_columns(n=pl.col("n") + pl.col("shift").fill_null(0)).drop("shift"), [notice]


def _verify(members: pl.DataFrame, channels: pl.DataFrame) -> tuple[pl.DataFrame, list[Notice]]:
    """Return the matches without collectives of unnamed groups whose ends do not agree: these are not one operation."""
    nameless = channels["group"].is_null() & channels["group_ranks"].is_null()
    loose = members.filter(nameless[members["channel"]] & members["source"].is_null())
    if loose.is_empty() or loose["rank"].n_unique() < 2:
        return members, []
    first = pl.col("end_ns").sort_by("rank").first().over([*_KEY, "n"])
    apart = loose.with_columns(apart=pl.col("end_ns") - first, ns=pl.col("end_ns") - pl.col("start_ns"))
    judged = apart.group_by(*_KEY, "rank").agg(
        off=(pl.col("apart") - pl.col("apart").median()).abs().median(), usual=pl.col("ns").median()
    )
    bad = judged.filter(pl.col("off") > pl.max_horizontal(pl.lit(_AGREE_NS), pl.col("usual") / 4))
    if bad.is_empty():
        return members, []
    kept = members.join(bad.select(_KEY).unique(), on=_KEY, how="anti", nulls_equal=True, maintain_order="left")
    what = ", ".join(sorted(set(channels["what"][bad["channel"]].to_list()))[:4])
    notice = Notice(
        "unmatched-operations",
        f"{what}: the trace names no group and the ranks' ends do not agree, so waiting inside them is not known",
    )
    return kept, [notice]


def _spread(apart: npt.NDArray[np.int64]) -> tuple[float, float]:
    """Return how well ends agree: scatter first (clocks may differ), then distance."""
    middle = float(np.median(apart))
    return float(np.mean(np.abs(apart - middle))), abs(middle)
