"""Collectives of a profiler's trace, as the table that recorders have."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracekit.parsers.collective_names import group_identity, operation_name, parse_ranks
from tracekit.schema import (
    COLLECTIVES,
    ProcessGroup,
    RankCollectives,
    RankEvents,
    Recording,
    Source,
    conform,
)

_MESSAGE_OPS = ("send", "recv", "coalesced")


def collectives_of_events(part: RankEvents) -> RankCollectives:
    """Return the communication kernels of one rank as collectives.

    Those whose operation is not recorded are left out.

    The moment of the call is that of the kernel's launch.
    """
    kernels = _kernels_with_calls(part.events)
    names, groups = _identify_groups(kernels, part.source.groups)
    ops = {text: operation_name(text) for text in kernels["collective"].unique().to_list()}
    op = pl.lit(None, pl.String)
    if ops:
        op = pl.col("collective").replace_strict(ops, return_dtype=pl.String)
    frame = kernels.select(
        "rank",
        "id",
        "peer",
        "step",
        "enqueued_ns",
        source=pl.lit("profiler"),
        sequence="collective_seq",
        started_ns="start_ns",
        completed_ns="end_ns",
        completed_by_ns="end_ns",
        duration_ns=pl.col("end_ns") - pl.col("start_ns"),
        state=pl.lit("completed"),
        bytes=pl.min_horizontal("bytes", "received"),
        dtype=pl.lit(None, pl.String),
        group=names,
        op=op,
    )
    frame = frame.with_columns(is_message=pl.col("op").is_in(_MESSAGE_OPS))
    last_ns: int | None = frame["completed_ns"].max()  # type: ignore[assignment]
    source = Recording(
        part.source.path,
        "profiler",
        rank=part.source.rank,
        rank_from=part.source.rank_from,
        groups=groups,
        last_ns=last_ns,
        pid=part.source.pid,
        notices=part.source.notices,
    )
    return RankCollectives(conform(frame, COLLECTIVES), source)


def _kernels_with_calls(events: pl.DataFrame) -> pl.DataFrame:
    """Return the communication kernels by start, with the time of their launch (``enqueued_ns``)."""
    is_kernel = pl.col("kind") == "kernel"
    kernels = events.filter(is_kernel & pl.col("collective").is_not_null())
    is_call = pl.col("kind").is_in(["runtime", "driver"])
    calls = events.filter(is_call & pl.col("correlation").is_not_null())
    calls = calls.select("correlation", enqueued_ns="start_ns").unique("correlation", keep="first")
    return (
        kernels.join(calls, on="correlation", how="left", maintain_order="left")
        .sort("start_ns", "id")
        .with_columns(pl.col("group", "group_ranks", "collective").cast(pl.String))
    )


def _identify_groups(
    kernels: pl.DataFrame, recorded_groups: Sequence[ProcessGroup]
) -> tuple[pl.Series, tuple[ProcessGroup, ...]]:
    """Return the name that identifies each kernel's group, and the groups by that name."""
    recorded = {group.name: group for group in recorded_groups}
    identity_of_pair: dict[tuple[str | None, str | None], str] = {}
    groups: dict[str, ProcessGroup] = {}
    pairs = kernels.select("group", "group_ranks")
    for name, ranks_text in pairs.unique().rows():
        group = recorded.get(name)
        ranks = parse_ranks(ranks_text) or (group.ranks if group is not None else ())
        identity = group_identity(name or "", ranks)
        identity_of_pair[name, ranks_text] = identity
        groups[identity] = ProcessGroup(
            identity, group.description if group is not None else None, ranks
        )
    identities = [identity_of_pair[pair] for pair in pairs.iter_rows()]
    return pl.Series(identities, dtype=pl.String), tuple(groups.values())


def collectives_of_operations(
    operations: pl.DataFrame, sources: Sequence[Source]
) -> list[RankCollectives]:
    """Return the operations of an analysis (``metrics.operations.OPERATIONS``) as the table that recorders have."""
    needed = operations.filter(pl.col("group").is_not_null() & (pl.col("id") >= 0))
    groups = (
        needed.select(pl.col("group").cast(pl.String), pl.col("group_ranks").cast(pl.String))
        .unique()
        .rows()
    )
    identities = [
        (group, ranks, group_identity(group or "", parse_ranks(ranks))) for group, ranks in groups
    ]
    names = pl.DataFrame(
        identities,
        schema={"group": pl.String, "group_ranks": pl.String, "identity": pl.String},
        orient="row",
    )
    ops = {
        text: operation_name(text) for text in needed["what"].unique().to_list() if text is not None
    }
    table = needed.with_columns(pl.col("group", "group_ranks").cast(pl.String)).join(
        names, on=["group", "group_ranks"], how="left", nulls_equal=True, maintain_order="left"
    )
    frame = table.select(
        "rank",
        "id",
        "step",
        group="identity",
        source=pl.lit("profiler"),
        sequence="collective_seq",
        op=pl.col("what").cast(pl.String).replace_strict(ops, default=None, return_dtype=pl.String),
        is_message=pl.col("what") == "p2p",
        bytes=pl.min_horizontal("bytes", "received"),
        started_ns="start_ns",
        completed_ns="end_ns",
        completed_by_ns="end_ns",
        duration_ns=pl.col("end_ns") - pl.col("start_ns"),
        state=pl.lit("completed"),
    ).drop_nulls("op")
    parts = []
    for source in sources:
        rows = frame.filter(pl.col("rank") == source.rank)
        recording = Recording(
            source.path, "profiler", rank=source.rank, rank_from=source.rank_from, pid=source.pid
        )
        parts.append(RankCollectives(conform(rows, COLLECTIVES), recording))
    return parts
