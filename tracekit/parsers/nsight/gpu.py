"""What ran on the GPUs: kernels, copies, memsets, and CUDA graphs recorded whole."""

from __future__ import annotations

import polars as pl

from tracekit.parsers.nsight.names import KERNEL, NO_STREAM, Strings, copy_names, process, set_names
from tracekit.parsers.nsight.tables import Export, read_events
from tracekit.schema import EVENTS

_BASE = ["start", "end", "deviceId", "streamId", "correlationId", "globalPid"]
_KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
_MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
_MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
_GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"


def gpu_events(export: Export, strings: Strings, base_ns: int) -> list[pl.DataFrame]:
    """One frame a kind, with only the columns that kind has, and ``process``."""
    return [
        frame
        for frame in (
            _kernels(export, strings, base_ns),
            _copies(export, base_ns),
            _memsets(export, base_ns),
            _graphs(export, base_ns),
        )
        if frame.height
    ]


def _kernels(export: Export, strings: Strings, base_ns: int) -> pl.DataFrame:
    there = export.columns(_KERNEL) if _KERNEL in export.tables else frozenset()
    name = next((c for c in ("demangledName", "shortName", "mangledName") if c in there), "demangledName")
    # The node of a graph stands last in a wide row, and reaching for it costs a fifth of the time to read all else.
    graphs = "CUDA_GRAPH_NODE_EVENTS" in export.tables or strings.any_contains("GraphLaunch")
    frame = read_events(export, _KERNEL, [*_BASE, name, *(["graphNodeId"] if graphs else [])])
    names = strings.names(frame[name], unknown="[unknown kernel]", rewrite=KERNEL)
    node = [pl.col("graphNodeId").alias("graph")] if graphs else []
    return _common(frame, "kernel", names, base_ns, *node)


def _copies(export: Export, base_ns: int) -> pl.DataFrame:
    frame = read_events(export, _MEMCPY, [*_BASE, "bytes", "copyKind", "srcKind", "dstKind", "graphNodeId"])
    extra = (pl.col("bytes"), pl.col("graphNodeId").alias("graph"))
    return _common(frame, "memcpy", copy_names(frame), base_ns, *extra)


def _memsets(export: Export, base_ns: int) -> pl.DataFrame:
    frame = read_events(export, _MEMSET, [*_BASE, "bytes", "memKind", "graphNodeId"])
    extra = (pl.col("bytes"), pl.col("graphNodeId").alias("graph"))
    return _common(frame, "memset", set_names(frame), base_ns, *extra)


def _graphs(export: Export, base_ns: int) -> pl.DataFrame:
    frame = read_events(export, _GRAPH, [*_BASE, "graphId"])
    names = frame.select(pl.format("CUDA graph {}", pl.col("graphId").fill_null(0))).to_series()
    return _common(frame, "graph", names.cast(pl.Categorical), base_ns, pl.col("graphId").alias("graph"))


def _common(frame: pl.DataFrame, kind: str, names: pl.Series, base_ns: int, *extra: pl.Expr) -> pl.DataFrame:
    return frame.select(
        pl.lit(kind, dtype=EVENTS["kind"]).alias("kind"),
        names.alias("name"),
        (pl.col("start") + base_ns).alias("start_ns"),
        (pl.max_horizontal("end", "start") + base_ns).alias("end_ns"),
        pl.col("deviceId").cast(pl.Int32, strict=False).alias("device"),
        pl.when(pl.col("streamId") != NO_STREAM).then("streamId").alias("stream"),
        pl.col("correlationId").alias("correlation"),
        process("globalPid").alias("process"),
        *extra,
    )
