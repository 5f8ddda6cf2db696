"""NVTX: ranges and instants on CPU threads, with the names of their domains.

Push/pop ranges nest on their thread. Start/end ranges may cross threads and need not nest, so they carry no
thread: nothing is ever taken to run inside one because of where it was launched.
"""

from __future__ import annotations

import polars as pl

from tracekit.parsers.nsight.names import Strings, process, tid
from tracekit.parsers.nsight.tables import Export
from tracekit.parsers.nsight.timed import read_events

MARKS = (34, 65)  # recorded live, and imported from text
NESTED = (59, 70)
CROSSING = (60, 71)
DOMAIN = 75
THREAD_NAME = 39
_TABLE = "NVTX_EVENTS"
_COLUMNS = [
    "start",
    "end",
    "eventType",
    "text",
    "textId",
    "globalTid",
    "domainId",
    "jsonText",
    "jsonTextId",
    "binaryData",
]


def nvtx_events(export: Export, strings: Strings, base_ns: int, end_ns: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Read ranges and instants, and the names that programs gave their threads (``process``, ``name``).

    Ranges have ``process``, ``text``, ``domain``, ``domain_id`` and whatever payload was exported; one that was never
    closed ends at *end_ns*, when the session ended.
    """
    frame = read_events(export, _TABLE, _COLUMNS, what="NVTX ranges")
    frame = frame.with_columns(
        text=_resolved(frame, "text", "textId", strings),
        jsonText=_resolved(frame, "jsonText", "jsonTextId", strings),
        process=process("globalTid"),
    )
    threads = frame.filter(pl.col("eventType") == THREAD_NAME).select("process", name="text")
    domains = _domains(frame)
    kept = frame.filter(pl.col("eventType").is_in([*MARKS, *NESTED, *CROSSING]))
    instant = pl.col("eventType").is_in(MARKS)
    closed = pl.when(instant).then("start").otherwise(pl.col("end").fill_null(max(end_ns, _last(kept))))
    events = (
        kept.join(domains, on=["process", "domainId"], how="left", maintain_order="left")
        .select(
            pl.when(instant).then(pl.lit("mark")).otherwise(pl.lit("annotation")).alias("kind"),
            pl.col("text").fill_null(""),
            (pl.col("start") + base_ns).alias("start_ns"),
            (pl.max_horizontal(closed, "start") + base_ns).alias("end_ns"),
            pl.when(~pl.col("eventType").is_in(CROSSING)).then(tid("globalTid")).alias("tid"),
            "process",
            "domain",
            pl.col("domainId").fill_null(0).alias("domain_id"),
            "jsonText",
            "binaryData",
        )
        .sort("process", "tid", "start_ns", pl.col("end_ns"), descending=[False, False, False, True])
    )
    return events, threads


def _last(frame: pl.DataFrame) -> int:
    latest = frame.select(pl.max_horizontal(pl.col("end").max(), pl.col("start").max())).item()
    return int(latest) if latest is not None else 0


def _resolved(frame: pl.DataFrame, text: str, identifier: str, strings: Strings) -> pl.Series:
    """Return the text itself, or the string its id stands for."""
    own = frame.select(pl.when(pl.col(text) != "").then(text).alias(text)).to_series()
    if frame[identifier].null_count() == frame.height:
        return own
    looked_up = strings.texts(frame[identifier], what="NVTX ranges")
    return pl.select(pl.coalesce(own, looked_up.alias(text))).to_series()


def _domains(frame: pl.DataFrame) -> pl.DataFrame:
    """Name each (process, domain). A windowed file lacks the row that named it: go by what is in it."""
    keys = ["process", "domainId"]
    named = frame.filter(pl.col("eventType") == DOMAIN).select(*keys, pl.col("text").alias("domain"))
    used = frame.filter(pl.col("domainId").fill_null(0) != 0, pl.col("eventType") != DOMAIN)
    nccl = pl.col("text").str.contains("^nccl[A-Z]").any()
    mpi = pl.col("text").str.contains("^MPI_").any()
    guessed = used.group_by(keys).agg(
        pl.when(nccl)
        .then(pl.lit("NCCL"))
        .when(mpi)
        .then(pl.lit("MPI"))
        .otherwise(pl.format("domain {}", pl.col("domainId").first()))
        .alias("domain")
    )
    return pl.concat([named, guessed]).unique(keys, keep="first", maintain_order=True)
