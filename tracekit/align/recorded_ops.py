"""Operations of recorders matched across ranks and recorders: one row per operation and member.

Within a recorder, members of an operation share its sequence number in their group. The profiler
numbers operations only sometimes: without a number they are counted within their step. Across
recorders nothing is shared but the operation, its size and the moment at which the host called it,
which all recorders of a process take from one clock.
"""

from __future__ import annotations

import polars as pl

from tracekit.schema import COLLECTIVES, RECORDERS, conform

MAX_ENQUEUE_DIFFERENCE_NS = 10_000_000
"""Longest time (10 ms) between two recorders' moments of one call. Seen: below 0.1 ms; a busy host
takes longer."""
MAX_QUEUED_NS = 10_000_000_000
"""Longest time (10 s) from a call to the start of the operation on the GPU."""
MIN_AGREEING_SHARE = 0.5
"""Share of an operation's members that must agree which operation of another recorder it is."""
MIN_MERGED_SHARE = 0.5
"""Share of a recorder's operations, within the time of the other, that must be found in the other
to merge the two."""

RECORDED_MEMBERS = pl.Schema(
    {
        "op_id": pl.Int64(),  # operation; numbers follow the order of time
        **{name: dtype for name, dtype in COLLECTIVES.items() if name not in ("id", "source")},
        "order_ns": pl.Int64(),  # time by which a rank's operations are ordered
        "sources": pl.UInt8(),  # recorders that have it, one bit each in the order of RECORDERS
    }
)
"""Collectives of a run, one row per operation and member, sorted by op_id and rank."""


def match_operations(collectives: pl.DataFrame) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return the collectives of all ranks matched across ranks and recorders (``RECORDED_MEMBERS``).

    Messages are left out.

    Args:
        collectives: Operations of all ranks and recorders (``COLLECTIVES``).

    Returns:
        The members, and the recorders that were left out because their operations cannot be told
        from another's.

    """
    rows = _one_row_per_member(collectives.filter(~pl.col("is_message")))
    merged: pl.DataFrame | None = None
    left_out = []
    for recorder in RECORDERS:
        part = rows.filter(pl.col("source") == recorder)
        if part.is_empty():
            continue
        if merged is None:
            merged = part
            continue
        combined = _merge(merged, part)
        if combined is None:
            left_out.append(recorder)
        else:
            merged = combined
    if merged is None:
        return RECORDED_MEMBERS.to_frame(), ()
    return _combine_recorders(merged), tuple(left_out)


def _one_row_per_member(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row per operation and member with ``op_id``.

    A batch and its contents are one operation.
    """
    is_profiled = pl.col("source") == "profiler"
    is_inspected = pl.col("source") == "nccl_inspector"
    is_batch = pl.col("op") == "coalesced"
    # Profiled operations without a number are counted within their step: those alike in kind and
    # size, in order.
    position = pl.int_range(pl.len()).over("rank", "source", "group", "step", "op", "bytes")
    is_counted = is_profiled & pl.col("sequence").is_null()
    rows = rows.sort("rank", "source", "id").with_columns(
        counted=pl.when(is_counted).then(position),
        kind=pl.when(is_inspected | is_counted).then(pl.col("op").cast(pl.String)),
        size=pl.when(is_counted).then(pl.col("bytes")),
        counted_step=pl.when(is_counted).then(pl.col("step")),
    )
    rows = rows.filter(pl.col("sequence").is_not_null() | pl.col("counted").is_not_null())
    operation = ["source", "group", "sequence", "kind", "size", "counted_step", "counted"]
    repeated = rows.select(pl.struct("rank", *operation).is_duplicated()).to_series()
    if repeated.any():
        contents = ~is_batch
        batches = (
            rows.filter(repeated)
            .group_by("rank", *operation, maintain_order=True)
            .agg(
                pl.col("id").first(),
                pl.coalesce(pl.col("op").filter(contents).first(), pl.col("op").first()),
                pl.col("is_message").first(),
                pl.col("peer").first(),
                pl.col("bytes").filter(contents).sum(),
                pl.col("dtype").drop_nulls().first(),
                pl.col("enqueued_ns").min(),
                pl.col("started_ns").min(),
                pl.col("completed_ns").max(),
                pl.col("completed_by_ns").max(),
                pl.col("duration_ns").max(),
                pl.col("state").last(),
                pl.col("step").first(),
            )
        )
        rows = pl.concat([rows.filter(~repeated), batches.select(rows.columns)])
    numbered = rows.with_columns(op_id=pl.struct(operation).rank("dense").cast(pl.Int64))
    end = pl.coalesce("completed_ns", "completed_by_ns")
    order = pl.coalesce("enqueued_ns", "started_ns", end - pl.col("duration_ns").fill_null(0))
    return numbered.with_columns(order_ns=order).drop("counted", "kind", "size", "counted_step")


def _merge(base: pl.DataFrame, other: pl.DataFrame) -> pl.DataFrame | None:
    """Return the rows of both with shared numbers for operations that are in both.

    None if that cannot be told.
    """
    # Without a time in *base* both bounds are null, and no row lies between them.
    first_ns = base["order_ns"].min()
    last_ns = base["order_ns"].max()
    within = other.filter(pl.col("order_ns").is_between(first_ns, last_ns))
    offset = 1 + (base["op_id"].max() or 0)  # type: ignore[operator]
    separate = other.with_columns(op_id=pl.col("op_id") + offset)
    if within.is_empty():  # the two are of different times: each tells about its own
        return pl.concat([base, separate])
    pairs = _pairs_by_time(base, other)
    if pairs.is_empty():
        pairs = _pairs_by_number(base, other)
    same = _agreed(pairs, other)
    if same.height < MIN_MERGED_SHARE * within["op_id"].n_unique():
        return None
    renumbered = separate.join(
        same.with_columns(op_id=pl.col("op_id") + offset),
        on="op_id",
        how="left",
        maintain_order="left",
    ).with_columns(op_id=pl.coalesce("base_id", "op_id"))
    renamed = _rename_groups(renumbered, base)
    return pl.concat([base, renamed.select(base.columns)])


def _rename_groups(renumbered: pl.DataFrame, base: pl.DataFrame) -> pl.DataFrame:
    """Give groups the names they have in *base*, known from the operations that are in both."""
    names = base.select(base_id="op_id", base_group="group").unique("base_id")
    shared = renumbered.select("rank", "group", "base_id").join(names, on="base_id")
    renaming = shared.group_by("rank", "group").agg(pl.col("base_group").drop_nulls().mode().min())
    renamed = renumbered.join(renaming, on=["rank", "group"], how="left", maintain_order="left")
    return renamed.with_columns(group=pl.coalesce("base_group", "group"))


def _pairs_by_time(base: pl.DataFrame, other: pl.DataFrame) -> pl.DataFrame:
    """Return, for members of *other*, which call of the same operation and size on the same rank in *base* it is.

    It is the nearest call; of an operation whose call is not recorded, the last call before it
    started.
    """
    calls = (
        base.select("rank", "op", "bytes", time_ns="enqueued_ns", base_id="op_id")
        .drop_nulls()
        .sort("time_ns")
    )
    pairs = []
    strategies = (
        (pl.col("enqueued_ns").is_not_null(), "enqueued_ns", "nearest", MAX_ENQUEUE_DIFFERENCE_NS),
        (pl.col("enqueued_ns").is_null(), "started_ns", "backward", MAX_QUEUED_NS),
    )
    for is_meant, time, strategy, tolerance in strategies:
        rows = (
            other.filter(is_meant)
            .select("rank", "op", "bytes", "op_id", time_ns=time)
            .drop_nulls()
            .sort("time_ns")
        )
        if rows.is_empty() or calls.is_empty():
            continue
        joined = rows.join_asof(
            calls,
            on="time_ns",
            by=["rank", "op", "bytes"],
            strategy=strategy,  # type: ignore[arg-type]
            tolerance=tolerance,
            check_sortedness=False,
        )
        pairs.append(joined.select("op_id", "base_id").drop_nulls())
    if not pairs:
        return _no_pairs(other)
    return pl.concat(pairs)


def _no_pairs(other: pl.DataFrame) -> pl.DataFrame:
    """Return a table of pairs without rows."""
    return other.clear().select("op_id", base_id=pl.col("op_id"))


def _pairs_by_number(base: pl.DataFrame, other: pl.DataFrame) -> pl.DataFrame:
    """Return pairs of operations where *other* numbers each kind of operation from 0, and *base* lost none.

    A log without times can only be compared so, and only where each kind of operation ran in one
    group per rank.
    """
    first = base.group_by("rank", "group").agg(pl.col("sequence").min())
    is_whole = bool((first["sequence"] <= 1).all())
    groups = base.group_by("rank", "op").agg(pl.col("group").n_unique())
    groups_of_other = other.group_by("rank", "op").agg(pl.col("group").n_unique())
    is_single = bool((groups["group"] == 1).all() and (groups_of_other["group"] == 1).all())
    if not (is_whole and is_single):
        return _no_pairs(other)
    numbered = base.sort("rank", "sequence").select(
        "rank",
        "op",
        "bytes",
        base_id="op_id",
        sequence=pl.int_range(pl.len()).over("rank", "op").cast(pl.Int64),
    )
    joined = other.join(numbered, on=["rank", "op", "sequence", "bytes"], how="inner")
    return joined.select("op_id", "base_id")


def _agreed(pairs: pl.DataFrame, other: pl.DataFrame) -> pl.DataFrame:
    """Return the operation of the other recorder that most members agree on; each is used once."""
    sizes = other.group_by("op_id").agg(members=pl.len())
    votes = pairs.group_by("op_id", "base_id").agg(votes=pl.len()).join(sizes, on="op_id")
    best = votes.filter(pl.col("votes") >= MIN_AGREEING_SHARE * pl.col("members"))
    best = best.sort("votes", "base_id", descending=[True, False]).unique(
        "op_id", keep="first", maintain_order=True
    )
    return best.unique("base_id", keep="first", maintain_order=True).select("op_id", "base_id")


def _combine_recorders(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row per operation and member, from all recorders that have it, numbered in the order of time."""
    bit = pl.col("source").to_physical().cast(pl.UInt8)
    rows = rows.with_columns(
        sources=pl.lit(1, pl.UInt8) * pl.lit(2, pl.UInt8).pow(bit).cast(pl.UInt8)
    )
    repeated = rows.select(pl.struct("op_id", "rank").is_duplicated()).to_series()
    if repeated.any():
        # Rows are in the order of RECORDERS: the first recorder that has a value decides, times of
        # the GPU excepted.
        columns = [name for name in rows.columns if name not in _KEYS_OF_MEMBER]
        several = (
            rows.filter(repeated)
            .group_by("op_id", "rank", maintain_order=True)
            .agg(pl.col(columns).drop_nulls().first(), pl.col("sources").sum().cast(pl.UInt8))
        )
        rows = pl.concat([rows.filter(~repeated), several.select(rows.columns)])
    time_of_op = pl.col("order_ns").median().over("op_id")
    rows = rows.with_columns(op_id=pl.struct(time_of_op, "op_id").rank("dense").cast(pl.Int64) - 1)
    return conform(rows.sort("op_id", "rank"), RECORDED_MEMBERS)


_KEYS_OF_MEMBER = ("op_id", "rank", "sources")
