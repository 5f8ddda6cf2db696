"""NVTX ranges and instants.

Push/pop ranges nest on their thread. Start/end ranges can cross threads and need not nest, so they
carry no thread: no launch is taken to be inside one.
"""

import polars as pl

from tracekit.parsers.nsight.names import Strings, process_id, thread_id
from tracekit.parsers.nsight.tables import NsightExport, read_cpu_events

# Values of eventType, each as recorded live and as imported from text.
_MARK = (34, 65)
_PUSH_POP = (59, 70)
_START_END = (60, 71)
_DOMAIN = 75
_THREAD_NAME_EVENT = 39
_NVTX_COLUMNS = (
    *("start", "end", "eventType", "text", "textId", "globalTid", "domainId"),
    *("jsonText", "jsonTextId", "binaryData"),
)


def nvtx_events(
    export: NsightExport, strings: Strings, base_ns: int, end_ns: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Read ranges and instants.

    Args:
        export: File to read.
        strings: Its string table.
        base_ns: Wall clock at time 0 of the file, in ns since the epoch.
        end_ns: End of the session, from time 0 of the file. Ranges that were never closed end
            there.

    Returns:
        Ranges and instants with ``process``, ``text``, ``domain``, ``domain_id`` and their payload,
        and the names that programs gave their threads (``process``, ``name``).
    """
    frame = read_cpu_events(export, "NVTX_EVENTS", _NVTX_COLUMNS, noun="NVTX ranges")
    frame = frame.with_columns(
        text=_resolve(frame, "text", "textId", strings),
        jsonText=_resolve(frame, "jsonText", "jsonTextId", strings),
        process=process_id("globalTid"),
    )
    threads = frame.filter(pl.col("eventType") == _THREAD_NAME_EVENT).select("process", name="text")
    domains = _domain_names(frame)
    frame = frame.filter(pl.col("eventType").is_in([*_MARK, *_PUSH_POP, *_START_END]))
    is_instant = pl.col("eventType").is_in(_MARK)
    last_time = (
        frame.select(pl.max_horizontal(pl.col("end").max(), pl.col("start").max())).item() or 0
    )
    end = (
        pl.when(is_instant).then("start").otherwise(pl.col("end").fill_null(max(end_ns, last_time)))
    )
    events = (
        frame.join(domains, on=["process", "domainId"], how="left", maintain_order="left")
        .select(
            pl.when(is_instant).then(pl.lit("mark")).otherwise(pl.lit("annotation")).alias("kind"),
            pl.col("text").fill_null(""),
            (pl.col("start") + base_ns).alias("start_ns"),
            (pl.max_horizontal(end, "start") + base_ns).alias("end_ns"),
            pl.when(~pl.col("eventType").is_in(_START_END))
            .then(thread_id("globalTid"))
            .alias("tid"),
            "process",
            "domain",
            pl.col("domainId").fill_null(0).alias("domain_id"),
            "jsonText",
            "binaryData",
        )
        .sort("process", "tid", "start_ns", "end_ns", descending=[False, False, False, True])
    )
    return events, threads


def _resolve(frame: pl.DataFrame, text: str, string_id: str, strings: Strings) -> pl.Series:
    """Return the text in the row itself, or the string that its id refers to."""
    own_text = frame.select(pl.when(pl.col(text) != "").then(text).alias(text)).to_series()
    if frame[string_id].null_count() == frame.height:
        return own_text
    string = strings.texts(frame[string_id], noun="NVTX ranges")
    return pl.select(pl.coalesce(own_text, string.alias(text))).to_series()


def _domain_names(frame: pl.DataFrame) -> pl.DataFrame:
    """Name each (process, domain).

    Where a windowed file lacks the row with the name, guess it from the ranges.
    """
    keys = ["process", "domainId"]
    recorded = frame.filter(pl.col("eventType") == _DOMAIN).select(
        *keys, pl.col("text").alias("domain")
    )
    ranges = frame.filter(pl.col("domainId").fill_null(0) != 0, pl.col("eventType") != _DOMAIN)
    has_nccl = pl.col("text").str.contains("^nccl[A-Z]").any()
    has_mpi = pl.col("text").str.contains("^MPI_").any()
    library = pl.when(has_nccl).then(pl.lit("NCCL")).when(has_mpi).then(pl.lit("MPI"))
    domain = library.otherwise(pl.format("domain {}", pl.col("domainId").first()))
    guessed = ranges.group_by(keys).agg(domain=domain)
    return pl.concat([recorded, guessed]).unique(keys, keep="first", maintain_order=True)
