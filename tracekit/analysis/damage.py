"""What a damaged recording still answers: all of it, all but idle time and the bubble, or nothing.

Kernels without a name may compute or communicate, and kernels without times ran at any moment: above a small share of
either no figure of the rank can be stood by, and its file is refused.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.errors import InputError, Notice
from tracekit.schema import DAMAGED, GPU_KINDS, NAMELESS, UNTIMED, RankEvents, Source

MOST_UNKNOWN = 0.01
"""Share of a rank's GPU events without times, or of its kernels' time without a name, above which it is refused."""
_AGAIN = {
    "nsight": "export the report again: nsys export --type=sqlite --force-overwrite=true REPORT.nsys-rep",
    "kineto": "record this rank again",
}

_SAME = ("device", "stream", "start_ns", "end_ns", "name", "correlation")


def refuse_damaged(rank: RankEvents) -> list[Notice]:
    """Return notices about a rank whose GPU events were not all readable; refuse one that lost too many.

    >>> from tracekit.schema import EVENTS
    >>> lost = Source("rank0.sqlite", "nsight", 0, "name", skipped={UNTIMED: 3})
    >>> refuse_damaged(RankEvents(EVENTS.to_frame(), lost))
    Traceback (most recent call last):
    tracekit.errors.InputError: rank0.sqlite: 3 of 3 GPU events have no usable start or end (export the report again: \
nsys export --type=sqlite --force-overwrite=true REPORT.nsys-rep)
    """
    if rank.source.reader == "nsight":  # its files have names in a table of their own
        _refuse_nameless(rank)
    again = _AGAIN.get(rank.source.reader, _AGAIN["kineto"])
    untimed = rank.source.skipped.get(UNTIMED, 0)
    if not untimed:
        return _unreadable(rank, again)
    every = untimed + int(rank.events["kind"].is_in(GPU_KINDS).sum())
    text = f"{untimed:,} of {every:,} GPU events have no usable start or end"
    if untimed > MOST_UNKNOWN * every:
        message = next((note.message for note in rank.source.notices if note.code == "damaged-rows"), "")
        raise InputError(f"{rank.source.path}: {message.partition(': ')[2] or text}", hint=again)
    return [Notice("gpu-events-lost", f"{text}: idle time and the bubble are null; {again}")]


def repeated(labelled: pl.DataFrame, source: Source) -> list[Notice]:
    """Return what to say of GPU events that stand in the file twice: no stream runs two at the same time.

    A few may be short ones whose times were rounded; more than that is a file whose rows were written twice.

    >>> from tracekit.schema import EVENTS, conform
    >>> row = {"kind": "kernel", "name": "k", "start_ns": 0, "end_ns": 5}
    >>> twice = conform(pl.DataFrame([{"id": 0, **row}, {"id": 1, **row}]), EVENTS)
    >>> [notice.code for notice in repeated(twice, Source("rank0.sqlite", "nsight", 0, "name"))]
    ['repeated-events']
    """
    start, end = labelled["start_ns"].to_numpy(), labelled["end_ns"].to_numpy()
    order = np.argsort(start, kind="stable")
    order = order[(end > start)[order]]
    met = np.flatnonzero(np.diff(start[order]) == 0)
    together = labelled.select(_SAME)[np.unique(order[np.concatenate([met, met + 1])])]
    more = len(together) - together.n_unique() if len(met) else 0
    if more <= MOST_UNKNOWN * len(labelled):
        return []
    again = _AGAIN.get(source.reader, _AGAIN["kineto"])
    text = f"{more:,} of {len(labelled):,} GPU events stand in the file more than once: counts and sums of kernels"
    return [Notice("repeated-events", f"{text} are too large, and so is what rests on them; {again}")]


def _unreadable(rank: RankEvents, again: str) -> list[Notice]:
    """Return notices about unreadable events: any of them may have run on the GPU."""
    lost = rank.source.skipped.get(DAMAGED, 0)
    if not lost:
        return []
    text = f"{lost:,} of {lost + rank.events.height:,} events are damaged and may have run on the GPU"
    if lost > MOST_UNKNOWN * (lost + rank.events.height):
        raise InputError(f"{rank.source.path}: {text}", hint=again)
    return [Notice("gpu-events-lost", f"{text}: idle time and the bubble are null; {again}")]


def _refuse_nameless(rank: RankEvents) -> None:
    kernels = rank.events.select("kind", "name", "start_ns", "end_ns").filter(pl.col("kind") == "kernel")
    if kernels["name"].dtype != pl.Categorical or NAMELESS not in kernels["name"].unique().to_list():
        return
    kernels = kernels.with_columns(
        nameless=pl.col("name").cast(pl.String) == NAMELESS, ns=pl.col("end_ns") - pl.col("start_ns")
    )
    count, unknown, whole = kernels.select(
        pl.col("nameless").sum(), pl.col("ns").filter("nameless").sum(), total=pl.col("ns").sum()
    ).row(0)
    if unknown > MOST_UNKNOWN * whole:
        text = (
            f"{rank.source.path}: {count:,} of {len(kernels):,} kernels have no name (the table StringIds is missing "
            "or incomplete): compute cannot be told from communication"
        )
        raise InputError(text, hint=_AGAIN["nsight"])
