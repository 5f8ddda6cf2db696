"""What the CPU asked of the GPU: runtime and driver calls, synchronisation, and the profiler's own overhead."""

from __future__ import annotations

import polars as pl

from tracekit.parsers.nsight.names import CALL, Strings, process, tid
from tracekit.parsers.nsight.tables import Export
from tracekit.parsers.nsight.timed import read_events
from tracekit.schema import EVENTS

_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_SYNC = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"


def api_events(export: Export, strings: Strings, base_ns: int) -> list[pl.DataFrame]:
    """One frame each of calls (always, the first), synchronisation and overhead, with ``process``."""
    calls = _calls(export, strings, base_ns)
    others = (_syncs(export, calls, base_ns), _overhead(export, strings, base_ns))
    return [calls, *(frame for frame in others if frame.height)]


def _calls(export: Export, strings: Strings, base_ns: int) -> pl.DataFrame:
    columns = ["start", "end", "eventClass", "globalTid", "correlationId", "nameId"]
    frame = read_events(export, _RUNTIME, columns, what="CUDA calls")
    names = strings.names(frame["nameId"], unknown="[unknown call]", rewrite=CALL, what="CUDA calls")
    driver = pl.col("eventClass") == 1
    if frame["eventClass"].null_count():
        driver = driver.fill_null(names.cast(pl.String).str.contains("^cu[A-Z]"))
    return frame.select(
        pl.when(driver).then(_kind("driver")).otherwise(_kind("runtime")).alias("kind"),
        names.alias("name"),
        *_times(base_ns),
        tid("globalTid").alias("tid"),
        pl.col("correlationId").alias("correlation"),
        process("globalTid").alias("process"),
    )


def _syncs(export: Export, calls: pl.DataFrame, base_ns: int) -> pl.DataFrame:
    """Name each synchronisation after the call that asked for it: the recorded type can be wrong."""
    frame = read_events(export, _SYNC, ["start", "end", "correlationId", "globalPid"]).select(
        _kind("sync").alias("kind"),
        *_times(base_ns),
        pl.col("correlationId").alias("correlation"),
        process("globalPid").alias("process"),
    )
    keys = ["process", "correlation"]
    asked = calls.select(*keys, "name").join(frame, on=keys, how="semi") if frame.height else calls.clear()
    names = asked.select(*keys, "name").unique(keys, keep="first", maintain_order=True)
    return frame.join(names, on=keys, how="left", maintain_order="left").with_columns(
        pl.col("name").fill_null("synchronization")
    )


def _overhead(export: Export, strings: Strings, base_ns: int) -> pl.DataFrame:
    frame = read_events(export, "PROFILER_OVERHEAD", ["start", "end", "globalTid", "nameId"])
    return frame.select(
        _kind("overhead").alias("kind"),
        strings.names(frame["nameId"], unknown="profiler overhead").alias("name"),
        *_times(base_ns),
        tid("globalTid").alias("tid"),
        process("globalTid").alias("process"),
    )


def _kind(name: str) -> pl.Expr:
    return pl.lit(name, dtype=EVENTS["kind"])


def _times(base_ns: int) -> tuple[pl.Expr, pl.Expr]:
    start = (pl.col("start") + base_ns).alias("start_ns")
    return start, (pl.max_horizontal("end", "start") + base_ns).alias("end_ns")
