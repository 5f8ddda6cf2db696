"""Checks of dumps and logs against each other: entries twice, copies of a file, operations whose members disagree.

What contradicts is left out, with a notice: lateness and sizes computed from it would be wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from tracekit._util.notices import of_ranks
from tracekit._util.text import counted, joined
from tracekit.errors import InputError, Notice, NoticeValues
from tracekit.parsers.source_refs import file_listing
from tracekit.schema import RankCollectives

SIZES_MAY_DIFFER = ("all_to_all", "gather", "scatter", "coalesced")
"""Operations whose members may have different sizes."""
MIN_TIMES_OF_A_COPY = 4
"""Entries with a time from which two equal series of times are one file, copied."""

_OPERATION_IDENTITY = ("group", "sequence", "op", "is_message", "peer", "bytes", "enqueued_ns")
"""What no two operations of a rank have in common: the host calls one after the other."""


def without_contradictions(
    parts: Sequence[RankCollectives],
) -> tuple[list[RankCollectives], list[Notice]]:
    """Return the dumps or logs of one recorder without what contradicts, and notices about it."""
    unique_parts, repeated = _without_repetitions(parts)
    originals, copied = without_copies(unique_parts)
    agreeing, disagreeing = _without_disagreements(originals)
    return agreeing, [*repeated, *copied, *disagreeing]


def _without_repetitions(
    parts: Sequence[RankCollectives],
) -> tuple[list[RankCollectives], list[Notice]]:
    """Count each entry of a rank once."""
    unique_parts = []
    notices = []
    for part in parts:
        table = part.collectives
        is_first = (
            pl.struct(_OPERATION_IDENTITY).is_first_distinct() | pl.col("enqueued_ns").is_null()
        )
        unique_table = table.filter(is_first)
        repeated = len(table) - len(unique_table)
        if repeated:
            values: NoticeValues = {
                "case": "entries",
                "file": part.source.path,
                "entries": repeated,
            }
            notices.append(
                Notice(
                    "repeated-events",
                    (
                        f"{of_ranks(_ranks_of([part]))}{part.source.path}: {counted(repeated, 'entry')} stood "
                        "there twice and count once"
                    ),
                    ranks=_ranks_of([part]),
                    values=values,
                )
            )
        unique_parts.append(replace(part, collectives=unique_table))
    return unique_parts, notices


def without_copies(parts: Sequence[RankCollectives]) -> tuple[list[RankCollectives], list[Notice]]:
    """Leave out dumps and traces of ranks that called everything in the same nanoseconds.

    Which of the files is the true one is unknown.

    Logs name their process in every line, so that a copy is found by it.
    """
    by_times: dict[tuple[int, ...], list[RankCollectives]] = defaultdict(list)
    for part in parts:
        times = part.collectives["enqueued_ns"].drop_nulls()
        may_be_copy = part.source.recorder != "nccl_inspector" and len(times) >= MIN_TIMES_OF_A_COPY
        key = tuple(times.to_list()) if may_be_copy else (id(part),)
        by_times[key].append(part)
    notices = []
    originals = []
    for alike in by_times.values():
        if len(alike) == 1:
            originals += alike
            continue
        files = tuple(part.source.path for part in alike)
        notices.append(
            Notice(
                "copied-ranks",
                (
                    f"{of_ranks(_ranks_of(alike))}{joined(files)} have the same times to the nanosecond: they "
                    "are copies of one rank's file, and all are left out"
                ),
                ranks=_ranks_of(alike),
                values={"files": files},
            )
        )
    if parts and not originals:
        problem = f"these recordings are copies of each other{file_listing([part.source.path for part in parts])}"
        raise InputError(problem, hint="name the files of all ranks of one run")
    originals.sort(key=lambda part: part.source.rank or 0)
    return originals, notices


def _without_disagreements(
    parts: Sequence[RankCollectives],
) -> tuple[list[RankCollectives], list[Notice]]:
    """Leave out operations that completed although their members called different things: their numbers are wrong."""
    if len(parts) < 2:
        return list(parts), []
    table = pl.concat([part.collectives for part in parts])
    is_of_log = pl.col("source").cast(pl.String) == "nccl_inspector"
    op = pl.col("op").cast(pl.String)
    # Logs number the operations of each kind on their own.
    kind = pl.when(is_of_log).then(op).otherwise(pl.lit(""))
    size = pl.when(~op.is_in(SIZES_MAY_DIFFER)).then(pl.col("bytes"))
    is_completed = (pl.col("state").cast(pl.String) == "completed").fill_null(is_of_log)
    key = ("group", "sequence", "kind")
    of_rank = (
        table.filter(~pl.col("is_message") & (op != "coalesced") & is_completed)
        .with_columns(kind=kind, size=size)
        .group_by(*key, "rank")
        .agg(op=op.first(), size=pl.col("size").sum())
    )
    disagreeing = (
        of_rank.group_by(key)
        .agg(pl.col("op", "size").n_unique())
        .filter(pl.max_horizontal("op", "size") > 1)
        .select(key)
    )
    if disagreeing.is_empty():
        return list(parts), []
    values: NoticeValues = {"operations": len(disagreeing), "of": of_rank.select(key).n_unique()}
    ranks = of_rank.join(disagreeing, on=key, how="semi")["rank"].unique().sort().to_list()
    agreeing = []
    for part in parts:
        collectives = part.collectives.with_columns(kind=kind)
        is_bad = collectives.filter(~pl.col("is_message")).join(disagreeing, on=key, how="semi")[
            "id"
        ]
        kept = collectives.filter(pl.col("is_message") | ~pl.col("id").is_in(is_bad.implode()))
        agreeing.append(replace(part, collectives=kept.drop("kind")))
    return agreeing, [
        Notice(
            "recorder-disagrees",
            (
                f"{of_ranks(tuple(ranks))}{len(disagreeing):,} of {of_rank.select(key).n_unique():,} "
                "collectives completed although their members called different "
                "operations or sizes: their numbers are off, or the files are "
                "of different runs. They are left out"
            ),
            ranks=tuple(ranks),
            values=values,
        )
    ]


def _ranks_of(parts: Sequence[RankCollectives]) -> tuple[int, ...]:
    return tuple(part.source.rank for part in parts if part.source.rank is not None)
