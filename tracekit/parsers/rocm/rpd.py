"""Databases of rpd: operations of GPUs (``rocpd_op``) and calls of the host (``rocpd_api``).

Their texts stand in ``rocpd_string``. Ranges of roctx, and PyTorch's operators, are calls named ``UserMarker`` whose
argument is the text. A launch and what it launched are joined by ``rocpd_api_ops``; a graph's launch has many
operations.
"""

import polars as pl

from tracekit.parsers.rocm.recording import (
    ROCM_CALLS,
    ROCM_GPU_WORK,
    ROCM_RANGES,
    RocmRecording,
    copy_name,
)
from tracekit.parsers.sqlite_tables import SqliteTables

RPD_TABLES = frozenset({"rocpd_op", "rocpd_api"})
"""Tables that make a database one of rpd."""
TABLES_OF_RPD_READ = RPD_TABLES | {*("rocpd_string", "rocpd_api_ops", "rocpd_copyapi")}
MARKER = "UserMarker"
LIBRARY_CALLS = r"^(?:hip|hsa|cuda|cu[A-Z])"
OWN_CALLS = r"^rpd|Table::|callback"
"""Calls in which the profiler itself works."""


def read_rpd(tables: SqliteTables) -> RocmRecording:
    """Return what a database of rpd holds."""
    texts = tables.read("rocpd_string", ["id", "string"]).unique("id", keep="first")
    calls = _named(
        tables.read("rocpd_api", ["id", "pid", "tid", "start", "end", "apiName_id", "args_id"]),
        texts,
        name="apiName_id",
    )
    calls = calls.rename({"id": "correlation", "start": "start_ns", "end": "end_ns"})
    operations = _operations(tables, texts, calls)
    is_marker = pl.col("name") == MARKER
    markers = calls.filter(is_marker).join(
        texts.rename({"id": "args_id", "string": "text"}), on="args_id", how="left"
    )
    is_library = pl.col("name").str.contains(LIBRARY_CALLS)
    is_own = pl.col("name").str.contains(OWN_CALLS)
    kind = pl.when(is_library).then(pl.lit("runtime")).when(is_own).then(pl.lit("overhead"))
    library_calls = calls.filter(~is_marker).with_columns(
        kind=kind.otherwise(pl.lit("other")), process="pid"
    )
    ranges = markers.with_columns(
        kind=pl.when(pl.col("start_ns") == pl.col("end_ns"))
        .then(pl.lit("mark"))
        .otherwise(pl.lit("annotation")),
        process="pid",
    )
    is_work = pl.col("kind").is_not_null()
    return RocmRecording(
        gpu=operations.filter(is_work).select(_columns(ROCM_GPU_WORK)),
        calls=library_calls.select(_columns(ROCM_CALLS)),
        ranges=ranges.select(_columns(ROCM_RANGES)),
        gpus={},
        tool="rpd",
        other_operations=operations.filter(~is_work).height,
    )


def _operations(tables: SqliteTables, texts: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the operations of GPUs, with the call that launched each.

    The kind of barriers and markers is null: they are no work.
    """
    columns = ["id", "gpuId", "queueId", "start", "end", "description_id", "opType_id"]
    operations = _named(
        tables.read("rocpd_op", columns), texts, type="opType_id", text="description_id"
    )
    launches = tables.read("rocpd_api_ops", ["api_id", "op_id"]).unique("op_id", keep="first")
    sizes = tables.read("rocpd_copyapi", ["api_ptr_id", "size"]).unique("api_ptr_id", keep="first")
    of_call = (
        calls.select(api_id="correlation", process="pid")
        .unique("api_id", keep="first")
        .join(sizes.rename({"api_ptr_id": "api_id", "size": "bytes"}), on="api_id", how="left")
    )
    joined = operations.join(launches, left_on="id", right_on="op_id", how="left").join(
        of_call, on="api_id", how="left"
    )
    type_words = pl.col("type").fill_null("")
    is_copy = type_words.str.contains("(?i)copy|memcpy")
    is_fill = type_words.str.contains("(?i)fill|memset")
    is_other = type_words.str.contains("(?i)barrier|marker")
    kind = pl.when(is_copy).then(pl.lit("memcpy")).when(is_fill).then(pl.lit("memset"))
    name = pl.when(is_copy).then(copy_name(type_words)).when(is_fill)
    text = pl.when(pl.col("text") != "").then("text")
    return joined.with_columns(
        kind=kind.when(~is_other).then(pl.lit("kernel")),
        name=name.then(pl.lit("Memset (Device)")).otherwise(text),
        start_ns="start",
        end_ns="end",
        device="gpuId",
        stream="queueId",
        correlation="api_id",
        bytes=pl.when(is_copy).then("bytes"),
    )


def _named(rows: pl.DataFrame, texts: pl.DataFrame, **columns: str) -> pl.DataFrame:
    """Return the rows with texts instead of their numbers."""
    for name, number in columns.items():
        rows = rows.join(
            texts.rename({"id": number, "string": name}),
            on=number,
            how="left",
            maintain_order="left",
        )
    return rows


def _columns(schema: pl.Schema) -> list[pl.Expr]:
    return [pl.col(name).cast(dtype, strict=False) for name, dtype in schema.items()]
