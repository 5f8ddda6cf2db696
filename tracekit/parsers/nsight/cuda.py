"""CUDA activity: kernels, copies, memsets and graphs on the GPUs, and the calls and synchronisations on the CPU."""

import polars as pl

from tracekit.parsers.nsight.names import (
    CALL_REWRITE,
    KERNEL_REWRITE,
    NO_STREAM,
    Strings,
    copy_names,
    memset_names,
    process_id,
    thread_id,
)
from tracekit.parsers.nsight.tables import NsightExport, read_cpu_events, read_gpu_events
from tracekit.schema import EVENTS, NAMELESS

_ACTIVITY_COLUMNS = ["start", "end", "deviceId", "streamId", "correlationId", "globalPid"]
_OTHER_KERNEL_NAMES = ("shortName", "mangledName")
"""Names for kernels whose demangled name is not in the string table."""
_KERNEL_TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
_MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
_MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
_GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_SYNC_TABLE = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"


def gpu_events(export: NsightExport, strings: Strings, base_ns: int) -> tuple[pl.DataFrame, int]:
    """Read GPU events.

    Args:
        export: File to read.
        strings: Its string table.
        base_ns: Wall clock at time 0 of the file, in ns since the epoch.

    Returns:
        The events, with ``process``, and the number of events without usable times.
    """
    tables = [
        _kernels(export, strings, base_ns),
        _copies(export, base_ns),
        _memsets(export, base_ns),
        _graphs(export, base_ns),
    ]
    return pl.concat([frame for frame, _ in tables], how="diagonal"), sum(
        dropped for _, dropped in tables
    )


def _kernels(export: NsightExport, strings: Strings, base_ns: int) -> tuple[pl.DataFrame, int]:
    columns = [*_ACTIVITY_COLUMNS, "graphNodeId", "demangledName"]
    frame, dropped = read_gpu_events(export, _KERNEL_TABLE, columns, noun="kernels")
    name_ids = frame["demangledName"]
    if not strings.contain(name_ids):  # rarely: two more columns would take a fifth more time
        frame, dropped = read_gpu_events(
            export, _KERNEL_TABLE, [*columns, *_OTHER_KERNEL_NAMES], noun="kernels"
        )
        name_ids = strings.first_named(
            [frame[name] for name in ("demangledName", *_OTHER_KERNEL_NAMES)]
        )
    kernel_names = strings.names(name_ids, unknown=NAMELESS, rewrite=KERNEL_REWRITE, noun="kernels")
    return _gpu_frame(
        frame, "kernel", kernel_names, base_ns, pl.col("graphNodeId").alias("graph")
    ), dropped


def _copies(export: NsightExport, base_ns: int) -> tuple[pl.DataFrame, int]:
    columns = [*_ACTIVITY_COLUMNS, "bytes", "copyKind", "srcKind", "dstKind", "graphNodeId"]
    frame, dropped = read_gpu_events(export, _MEMCPY, columns, noun="copies")
    graph = pl.col("graphNodeId").alias("graph")
    return _gpu_frame(frame, "memcpy", copy_names(frame), base_ns, pl.col("bytes"), graph), dropped


def _memsets(export: NsightExport, base_ns: int) -> tuple[pl.DataFrame, int]:
    columns = [*_ACTIVITY_COLUMNS, "bytes", "memKind", "graphNodeId"]
    frame, dropped = read_gpu_events(export, _MEMSET, columns, noun="memsets")
    graph = pl.col("graphNodeId").alias("graph")
    return _gpu_frame(
        frame, "memset", memset_names(frame["memKind"]), base_ns, pl.col("bytes"), graph
    ), dropped


def _graphs(export: NsightExport, base_ns: int) -> tuple[pl.DataFrame, int]:
    """Read CUDA graph launches that were recorded whole, without their kernels."""
    frame, dropped = read_gpu_events(
        export, _GRAPH, [*_ACTIVITY_COLUMNS, "graphId"], noun="CUDA graphs"
    )
    names = (
        frame.select(pl.format("CUDA graph {}", pl.col("graphId").fill_null(0)))
        .to_series()
        .cast(pl.Categorical)
    )
    return _gpu_frame(frame, "graph", names, base_ns, pl.col("graphId").alias("graph")), dropped


def _gpu_frame(
    frame: pl.DataFrame, kind: str, names: pl.Series, base_ns: int, *extra: pl.Expr
) -> pl.DataFrame:
    return frame.select(
        _kind(kind).alias("kind"),
        names.alias("name"),
        (pl.col("start") + base_ns).alias("start_ns"),
        (pl.col("end") + base_ns).alias("end_ns"),
        pl.col("deviceId").cast(pl.Int32, strict=False).alias("device"),
        pl.when(pl.col("streamId") != NO_STREAM).then("streamId").alias("stream"),
        pl.col("correlationId").alias("correlation"),
        process_id("globalPid").alias("process"),
        *extra,
    )


def api_events(export: NsightExport, strings: Strings, base_ns: int) -> pl.DataFrame:
    """Read CUDA calls, synchronisations and profiler overhead, with ``process``."""
    calls = _calls(export, strings, base_ns)
    return pl.concat(
        [calls, _syncs(export, calls, base_ns), _overhead(export, strings, base_ns)], how="diagonal"
    )


def _calls(export: NsightExport, strings: Strings, base_ns: int) -> pl.DataFrame:
    columns = ["start", "end", "eventClass", "globalTid", "correlationId", "nameId"]
    frame = read_cpu_events(export, _RUNTIME, columns, noun="CUDA calls")
    names = strings.names(
        frame["nameId"], unknown="[unknown call]", rewrite=CALL_REWRITE, noun="CUDA calls"
    )
    is_driver = pl.col("eventClass") == 1
    if frame["eventClass"].null_count():
        is_driver = is_driver.fill_null(names.cast(pl.String).str.contains("^cu[A-Z]"))
    return frame.select(
        pl.when(is_driver).then(_kind("driver")).otherwise(_kind("runtime")).alias("kind"),
        names.alias("name"),
        *_cpu_times(base_ns),
        thread_id("globalTid").alias("tid"),
        pl.col("correlationId").alias("correlation"),
        process_id("globalTid").alias("process"),
    )


def _syncs(export: NsightExport, calls: pl.DataFrame, base_ns: int) -> pl.DataFrame:
    """Read synchronisations, named after the call that caused them: the recorded type can be wrong."""
    frame = read_cpu_events(
        export, _SYNC_TABLE, ["start", "end", "correlationId", "globalPid"]
    ).select(
        _kind("sync").alias("kind"),
        *_cpu_times(base_ns),
        pl.col("correlationId").alias("correlation"),
        process_id("globalPid").alias("process"),
    )
    keys = ["process", "correlation"]
    callers = (
        calls.select(*keys, "name").join(frame, on=keys, how="semi")
        if frame.height
        else calls.clear()
    )
    names = callers.select(*keys, "name").unique(keys, keep="first", maintain_order=True)
    return frame.join(names, on=keys, how="left", maintain_order="left").with_columns(
        pl.col("name").fill_null("synchronization")
    )


def _overhead(export: NsightExport, strings: Strings, base_ns: int) -> pl.DataFrame:
    frame = read_cpu_events(export, "PROFILER_OVERHEAD", ["start", "end", "globalTid", "nameId"])
    return frame.select(
        _kind("overhead").alias("kind"),
        strings.names(frame["nameId"], unknown="profiler overhead").alias("name"),
        *_cpu_times(base_ns),
        thread_id("globalTid").alias("tid"),
        process_id("globalTid").alias("process"),
    )


def _kind(name: str) -> pl.Expr:
    return pl.lit(name, dtype=EVENTS["kind"])


def _cpu_times(base_ns: int) -> tuple[pl.Expr, pl.Expr]:
    start = (pl.col("start") + base_ns).alias("start_ns")
    return start, (pl.max_horizontal("end", "start") + base_ns).alias("end_ns")
