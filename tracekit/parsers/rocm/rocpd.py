"""Databases of rocprofv3 (``--output-format rocpd``): a set of tables for each process, whose names end with its id.

Dispatches, copies and regions of the host refer to an event, whose ``stack_id`` is the same for a call and for what it
launched. The text of a roctx range is the event's message.
"""

import re
from collections.abc import Sequence

import polars as pl

from tracekit.parsers.rocm.recording import (
    ROCM_CALLS,
    ROCM_GPU_WORK,
    ROCM_RANGES,
    RocmRecording,
    copy_name,
)
from tracekit.parsers.sqlite_tables import SqliteTables

_STORED_TABLE = re.compile(r"(rocpd_[a-z_]+?)(_[0-9a-f]{8}_?[0-9a-f_]{20,40})")
_TABLES_OF_A_PROCESS = (
    *("rocpd_string", "rocpd_kernel_dispatch", "rocpd_memory_copy", "rocpd_region", "rocpd_event"),
    *("rocpd_info_process", "rocpd_info_thread", "rocpd_info_agent", "rocpd_info_kernel_symbol"),
)
TEXTS = frozenset({"string", "type", "name", "product_name", "display_name", "extdata"})


def is_stored_table(name: str) -> bool:
    """Return whether a table is one of a process that is read.

    >>> is_stored_table("rocpd_string_0199c0de_1f2e_7a5b_8c3d_0123456789ab"), is_stored_table("rocpd_string")
    (True, False)
    """
    match = _STORED_TABLE.fullmatch(name)
    return match is not None and match[1] in _TABLES_OF_A_PROCESS


def read_rocpd(tables: SqliteTables) -> RocmRecording:
    """Return what a database of rocprofv3 holds."""
    suffixes = sorted(
        {match[2] for name in tables.tables if (match := _STORED_TABLE.fullmatch(name))}
    )
    parts = [_ProcessTables(tables, suffix).read() for suffix in suffixes]
    gpus: dict[int, str] = {}
    for part in parts:
        gpus |= part.gpus
    return RocmRecording(
        gpu=pl.concat([part.gpu for part in parts]),
        calls=pl.concat([part.calls for part in parts]),
        ranges=pl.concat([part.ranges for part in parts]),
        gpus=gpus,
        tool="rocprofv3",
    )


class _ProcessTables:
    """The tables of one process."""

    def __init__(self, tables: SqliteTables, suffix: str) -> None:
        self._tables = tables
        self._suffix = suffix

    def read(self) -> RocmRecording:
        strings = self._fetch("rocpd_string", ["id", "string"])
        names = strings.rename({"id": "name_id", "string": "name"})
        events = self._fetch("rocpd_event", ["id", "category_id", "stack_id", "extdata"]).join(
            strings.rename({"id": "category_id", "string": "category"}),
            on="category_id",
            how="left",
        )
        events = events.select("category", "extdata", event_id="id", correlation="stack_id")
        processes = self._fetch("rocpd_info_process", ["id", "pid"]).rename(
            {"id": "pid", "pid": "process"}
        )
        threads = self._fetch("rocpd_info_thread", ["id", "tid"]).rename(
            {"id": "tid", "tid": "thread"}
        )
        agents = self._fetch(
            "rocpd_info_agent",
            ["id", "type", "type_index", "logical_index", "name", "product_name"],
        )
        gpus = agents.filter(pl.col("type") == "GPU").with_columns(
            device=pl.coalesce("type_index", "logical_index")
        )
        regions = self._fetch("rocpd_region", ["pid", "tid", "start", "end", "name_id", "event_id"])
        host = (
            regions.join(names, on="name_id", how="left")
            .join(events, on="event_id", how="left")
            .join(processes, on="pid", how="left")
            .join(threads, on="tid", how="left")
            .with_columns(start_ns="start", end_ns="end", tid=pl.coalesce("thread", "tid"))
        )
        category = pl.col("category").fill_null("")
        is_range = category.str.contains("MARKER")
        is_library = category.str.contains("^(?:HIP|HSA)")
        message = pl.col("extdata").str.json_path_match("$.message")
        ranges = host.filter(is_range).with_columns(
            kind=pl.when(pl.col("start_ns") == pl.col("end_ns"))
            .then(pl.lit("mark"))
            .otherwise(pl.lit("annotation")),
            text=pl.coalesce(message, "name"),
        )
        calls = host.filter(~is_range).with_columns(
            kind=pl.when(is_library).then(pl.lit("runtime")).otherwise(pl.lit("other"))
        )
        gpu = pl.concat([self._dispatches(), self._copies(names)])
        work = (
            gpu.join(events, on="event_id", how="left")
            .join(processes, on="pid", how="left")
            .join(gpus.select("device", agent_id="id"), on="agent_id", how="left")
        )
        return RocmRecording(
            gpu=work.select(_columns(ROCM_GPU_WORK)),
            calls=calls.select(_columns(ROCM_CALLS)),
            ranges=ranges.select(_columns(ROCM_RANGES)),
            gpus=_names_of_gpus(gpus),
            tool="rocprofv3",
        )

    def _dispatches(self) -> pl.DataFrame:
        """Return the kernels, with their agent and event."""
        columns = [
            "pid",
            "agent_id",
            "kernel_id",
            "queue_id",
            "stream_id",
            "start",
            "end",
            "event_id",
        ]
        kernels = self._fetch("rocpd_kernel_dispatch", columns)
        symbols = self._fetch("rocpd_info_kernel_symbol", ["id", "display_name"])
        return kernels.join(
            symbols.rename({"id": "kernel_id", "display_name": "name"}), on="kernel_id", how="left"
        ).select(
            *("pid", "agent_id", "event_id", "name"),
            kind=pl.lit("kernel"),
            start_ns="start",
            end_ns="end",
            stream=pl.coalesce("stream_id", "queue_id"),
            bytes=pl.lit(None, pl.Int64),
        )

    def _copies(self, names: pl.DataFrame) -> pl.DataFrame:
        """Return the copies; one belongs to the GPU that it writes, or else to that which it reads."""
        columns = [
            "pid",
            "start",
            "end",
            "name_id",
            "dst_agent_id",
            "src_agent_id",
            "size",
            "stream_id",
        ]
        copies = self._fetch("rocpd_memory_copy", [*columns, "event_id"])
        direction = pl.col("name").fill_null("")
        reads_gpu = direction.str.contains("DEVICE_TO_HOST")
        return copies.join(names, on="name_id", how="left").select(
            "pid",
            pl.when(reads_gpu).then("src_agent_id").otherwise("dst_agent_id").alias("agent_id"),
            "event_id",
            copy_name(direction).alias("name"),
            kind=pl.lit("memcpy"),
            start_ns="start",
            end_ns="end",
            stream="stream_id",
            bytes="size",
        )

    def _fetch(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Return columns of a table of this process."""
        rows = self._tables.read(f"{table}{self._suffix}", columns)
        # Numbers that others refer to are of one row each, also in a damaged file.
        return rows.unique("id", keep="first", maintain_order=True) if "id" in columns else rows


def _names_of_gpus(gpus: pl.DataFrame) -> dict[int, str]:
    named = gpus.with_columns(shown=pl.coalesce(pl.col("product_name").replace("", None), "name"))
    return dict(named.select("device", "shown").drop_nulls().rows())


def _columns(schema: pl.Schema) -> list[pl.Expr]:
    return [pl.col(name).cast(dtype, strict=False) for name, dtype in schema.items()]
