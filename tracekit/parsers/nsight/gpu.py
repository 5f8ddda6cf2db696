"""What ran on the GPUs: kernels, copies, memsets, and CUDA graphs recorded whole."""

from __future__ import annotations

import polars as pl

from tracekit.parsers.nsight.names import KERNEL, NO_STREAM, Strings, copy_names, process, set_names
from tracekit.parsers.nsight.tables import Export
from tracekit.parsers.nsight.timed import read_gpu_events
from tracekit.schema import EVENTS, NAMELESS

_BASE = ["start", "end", "deviceId", "streamId", "correlationId", "globalPid"]
_NAMES = ("demangledName", "shortName", "mangledName")
_KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
_MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
_MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
_GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"


def gpu_events(export: Export, strings: Strings, base_ns: int) -> tuple[list[pl.DataFrame], int]:
    """Return one frame per kind, with its columns and ``process``, and how many events had no usable times."""
    read = [
        _kernels(export, strings, base_ns),
        _copies(export, base_ns),
        _memsets(export, base_ns),
        _graphs(export, base_ns),
    ]
    return [frame for frame, _ in read if frame.height], sum(lost for _, lost in read)


def _kernels(export: Export, strings: Strings, base_ns: int) -> tuple[pl.DataFrame, int]:
    there = export.columns(_KERNEL) if _KERNEL in export.tables else frozenset()
    names = [column for column in _NAMES if column in there] or ["demangledName"]
    # The node of a graph stands last in a wide row, and reaching for it costs a fifth of the time to read all else.
    graphs = "CUDA_GRAPH_NODE_EVENTS" in export.tables or strings.any_contains("GraphLaunch")
    wanted = [*_BASE, names[0], *(["graphNodeId"] if graphs else [])]
    frame, lost = read_gpu_events(export, _KERNEL, wanted, what="kernels")
    ids = frame[names[0]]
    if not strings.holds(ids):  # a file that lost one of a kernel's names may have kept another
        wanted += names[1:]
        frame = read_gpu_events(export, _KERNEL, wanted, what="kernels", say=False)[0]
        ids = strings.first_known([frame[name] for name in names])
    named = strings.names(ids, unknown=NAMELESS, rewrite=KERNEL, what="kernels")
    node = [pl.col("graphNodeId").alias("graph")] if graphs else []
    return _common(frame, "kernel", named, base_ns, *node), lost


def _copies(export: Export, base_ns: int) -> tuple[pl.DataFrame, int]:
    columns = [*_BASE, "bytes", "copyKind", "srcKind", "dstKind", "graphNodeId"]
    frame, lost = read_gpu_events(export, _MEMCPY, columns, what="copies")
    extra = (pl.col("bytes"), pl.col("graphNodeId").alias("graph"))
    return _common(frame, "memcpy", copy_names(frame), base_ns, *extra), lost


def _memsets(export: Export, base_ns: int) -> tuple[pl.DataFrame, int]:
    frame, lost = read_gpu_events(export, _MEMSET, [*_BASE, "bytes", "memKind", "graphNodeId"], what="memsets")
    extra = (pl.col("bytes"), pl.col("graphNodeId").alias("graph"))
    return _common(frame, "memset", set_names(frame), base_ns, *extra), lost


def _graphs(export: Export, base_ns: int) -> tuple[pl.DataFrame, int]:
    frame, lost = read_gpu_events(export, _GRAPH, [*_BASE, "graphId"], what="CUDA graphs")
    names = frame.select(pl.format("CUDA graph {}", pl.col("graphId").fill_null(0))).to_series()
    return _common(frame, "graph", names.cast(pl.Categorical), base_ns, pl.col("graphId").alias("graph")), lost


def _common(frame: pl.DataFrame, kind: str, names: pl.Series, base_ns: int, *extra: pl.Expr) -> pl.DataFrame:
    return frame.select(
        pl.lit(kind, dtype=EVENTS["kind"]).alias("kind"),
        names.alias("name"),
        (pl.col("start") + base_ns).alias("start_ns"),
        (pl.col("end") + base_ns).alias("end_ns"),
        pl.col("deviceId").cast(pl.Int32, strict=False).alias("device"),
        pl.when(pl.col("streamId") != NO_STREAM).then("streamId").alias("stream"),
        pl.col("correlationId").alias("correlation"),
        process("globalPid").alias("process"),
        *extra,
    )
