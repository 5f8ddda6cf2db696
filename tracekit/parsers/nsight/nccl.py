"""What NCCL and torch.distributed said about each communication: collective, peer, size, communicator.

A PyTorch trace carries these on ``record_param_comms`` ops and on the kernels launched inside them. Here the ops
have only shapes, so the collective comes from the ``c10d::`` op around them, and peer, size and communicator from
the payload of the NCCL ranges inside them, where the export has payloads.
"""

from __future__ import annotations

import polars as pl

from tracekit._util.categories import CategoryColumn
from tracekit.parsers.nsight.exchanges import PART, join_exchanges
from tracekit.parsers.nsight.payload import Layout, decode

RECORD = "record_param_comms"
_BY_OP = {
    "send": "send",
    "recv": "recv",
    "recv_any_source": "recv",
    "allreduce": "allreduce",
    "all_reduce": "allreduce",
    "allreduce_coalesced": "allreduce_coalesced",
    "allgather": "all_gather",
    "_allgather_base": "_allgather_base",
    "all_gather_into_tensor": "_allgather_base",
    "allgather_into_tensor_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "_reduce_scatter_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_allv",
    "all_to_all_single": "all_to_allv",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
}
_BY_CALL = {
    "ncclSend": "send",
    "ncclRecv": "recv",
    "ncclAllReduce": "allreduce",
    "ncclAllGather": "_allgather_base",
    "ncclReduceScatter": "_reduce_scatter_base",
    "ncclBroadcast": "broadcast",
    "ncclBcast": "broadcast",
    "ncclReduce": "reduce",
    "ncclAlltoAll": "all_to_all",
    "ncclAllToAll": "all_to_all",
    "ncclGather": "gather",
    "ncclScatter": "scatter",
}
_THREAD = ["process", "tid"]


def add_communication(frame: pl.DataFrame, layout: Layout) -> pl.DataFrame:
    """Fill ``collective``, ``peer``, ``bytes`` and ``group`` of communication ops.

    An NCCL call outside any ``record_param_comms`` (a program without torch.distributed) becomes such an op itself.
    """
    frame = frame.with_row_index("_row")
    calls = _calls(frame, layout)
    records = frame.filter(pl.col("kind") == "cpu_op", pl.col("name") == RECORD).select(
        "_row", *_THREAD, "start_ns", "end_ns", "shapes"
    )
    calls = _inside(calls, records.select(*_THREAD, "start_ns", "end_ns", record="_row"), "record")
    facts = pl.concat([_record_facts(frame, records, calls), _own_facts(calls)])
    alone = calls.filter(pl.col("record").is_null() & (pl.col("collective") != PART))["_row"]
    becomes = pl.col("_row").is_in(alone.implode())
    return (
        frame.join(facts, on="_row", how="left", maintain_order="left")
        .with_columns(
            kind=pl.when(becomes).then(pl.lit("cpu_op")).otherwise("kind"),
            name=pl.when(becomes).then(pl.lit(RECORD)).otherwise("name"),
        )
        .drop("_row", "jsonText", "binaryData")
    )


def communicators(frame: pl.DataFrame, layout: Layout) -> pl.DataFrame:
    """Communicators whose creation was recorded: ``process``, ``communicator``, ``ranks``, ``own_rank``."""
    calls = frame.filter(pl.col("domain") == "NCCL")
    facts = decode(calls, layout).filter(pl.col("own_rank").is_not_null(), pl.col("ranks").is_not_null())
    owners = calls.with_row_index("_row").select("_row", "process")
    return facts.join(owners, on="_row").select("process", "communicator", "ranks", "own_rank")


def on_kernels(kernels: pl.DataFrame, launches: pl.DataFrame, records: pl.DataFrame) -> pl.DataFrame:
    """Give NCCL kernels launched inside a ``record_param_comms`` that op's collective, peer, size and group.

    Batched sends and receives are launched after their ops have ended and get nothing, as in a PyTorch trace.
    """
    facts = ["collective", "peer", "bytes", "group"]
    if not records.height:
        return kernels
    named = CategoryColumn.from_series(kernels["name"]).map(lambda name: name.startswith("nccl"))
    nccl = kernels.with_row_index("_row").filter(pl.Series(named, dtype=pl.Boolean))
    if not nccl.height:
        return kernels
    launch = launches.select("correlation", "tid", at="start_ns", process="process").unique("correlation")
    launched = nccl.select("_row", "process", "correlation").join(launch, on=["process", "correlation"])
    launched = _inside(
        launched.rename({"at": "start_ns"}), records.select(*_THREAD, "start_ns", "end_ns", *facts), *facts
    )
    return (
        kernels.with_row_index("_row")
        .join(launched.select("_row", *facts), on="_row", how="left", maintain_order="left")
        .drop("_row")
    )


def _calls(frame: pl.DataFrame, layout: Layout) -> pl.DataFrame:
    """NCCL's own ranges with what their payload says."""
    calls = frame.filter(pl.col("domain") == "NCCL", pl.col("kind") == "annotation", pl.col("tid").is_not_null())
    payloads = decode(calls.drop("_row"), layout)
    collective = pl.col("name").replace_strict(_BY_CALL, default=None, return_dtype=pl.String)
    kept = calls.select("_row", *_THREAD, "start_ns", "end_ns", "name", collective=collective)
    kept = kept.with_row_index("_call").join(payloads.rename({"_row": "_call"}), on="_call", how="left")
    joined = join_exchanges(kept)
    return joined.select("_row", *_THREAD, "start_ns", "end_ns", "collective", "communicator", "bytes", "peer")


def _inside(points: pl.DataFrame, ranges: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """For each point in time on a thread, *columns* of the latest range there that it falls in. Ranges do not nest."""
    nearest = points.sort("start_ns").join_asof(
        ranges.rename({"end_ns": "_end"}).with_columns(_begin="start_ns").sort("start_ns"),
        on="start_ns",
        by=_THREAD,
        check_sortedness=False,
    )
    covered = pl.col("start_ns") <= pl.col("_end")
    return nearest.with_columns(pl.when(covered).then(name).alias(name) for name in columns).drop("_end", "_begin")


def _record_facts(frame: pl.DataFrame, records: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """One row a ``record_param_comms``: the collective by the op around it, the rest by the calls inside it."""
    ops = frame.filter(pl.col("kind") == "cpu_op", pl.col("name").str.contains(r"^_?c10d\w*::"))
    short = pl.col("name").str.extract(r"::(\w+?)_?$").replace_strict(_BY_OP, default=None, return_dtype=pl.String)
    around = _inside(records, ops.select(*_THREAD, "start_ns", "end_ns", collective=short), "collective")
    inner = (
        calls.filter(pl.col("record").is_not_null(), pl.col("collective") != PART)
        .group_by(pl.col("record").alias("_row"))
        .agg(
            called=pl.col("collective").first(),
            peer=pl.when(pl.len() == 1).then(pl.col("peer").first()),
            bytes=pl.col("bytes").max(),
            group=pl.col("communicator").first(),
        )
    )
    empty = pl.col("shapes").str.contains(r"^\[(\[\],?)*\]$").fill_null(False)
    return around.join(inner, on="_row", how="left").select(
        "_row",
        # An op of no collective and no tensor waits for one that was started before.
        pl.coalesce("collective", "called", pl.when(empty).then(pl.lit("wait"))).alias("collective"),
        pl.col("peer").cast(pl.Int64),
        pl.col("bytes").cast(pl.Int64),
        pl.col("group").cast(pl.String),
    )


def _own_facts(calls: pl.DataFrame) -> pl.DataFrame:
    """Return what NCCL's own ranges say; the collective stands once, on the op around them where there is one."""
    alone = pl.when(pl.col("record").is_null() | (pl.col("collective") == PART)).then("collective").alias("collective")
    return calls.filter(pl.col("collective").is_not_null()).select(
        "_row", alone, "peer", "bytes", pl.col("communicator").alias("group")
    )
