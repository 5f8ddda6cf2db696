"""Communication kernels that were launched and are not in the recording.

The host's calls remain: which collective or message was issued, by which thread, and the launch of its kernel. For each
such launch without a GPU event a kernel of no duration takes part in the classification, so that the messages that it
carried are not taken for those of the next kernel, and it is known which operation the recording lacks.
"""

from __future__ import annotations

import polars as pl

from tracekit.schema import EVENTS, GPU_KINDS, conform

LAUNCH_PATTERN = r"Launch(Cooperative)?Kernel"
CAPTURE_PATTERN = r"Stream(Begin|End)Capture"
CALL_COLUMNS = ("collective", "group", "group_desc", "group_ranks", "peer", "bytes", "received", "collective_seq")
"""Columns that a kernel takes from the call that contains its launch."""


def find_lost_kernels(events: pl.DataFrame) -> pl.DataFrame:
    """Return a kernel (``EVENTS``) for each launch of communication that has no GPU event; its id is negative.

    The launch lies inside a call that communicates and that launched nothing else, or it is the first launch after a
    batch of sends and receives.

    >>> rows = [{"id": 0, "kind": "cpu_op", "name": "record_param_comms", "tid": 1, "start_ns": 1, "end_ns": 9,
    ...     "collective": "send", "peer": 2}, {"id": 1, "kind": "runtime", "name": "cudaLaunchKernel", "tid": 1,
    ...     "start_ns": 5, "end_ns": 6, "correlation": 7}]
    >>> find_lost_kernels(conform(pl.DataFrame(rows), EVENTS)).select("id", "name", "start_ns", "correlation").rows()
    [(-1, 'ncclDevKernel_SendRecv', 5, 7)]
    """
    columns = ("rank", "pid", "tid", "start_ns", "correlation", "step")
    text = pl.col("name").cast(pl.String)
    host_calls = events.select("kind", "name", *columns).filter(pl.col("kind").is_in(["runtime", "driver"]))
    names = host_calls["name"].unique().cast(pl.String)
    is_launch = pl.col("name").is_in(names.filter(names.str.contains(LAUNCH_PATTERN)).implode())
    on_gpu = events.select("kind", "correlation", "device", "stream").filter(pl.col("kind").is_in(GPU_KINDS))
    is_lost = ~pl.col("correlation").is_in(on_gpu["correlation"].drop_nulls().implode())
    launches = host_calls.filter(is_launch & pl.col("correlation").is_not_null()).select(*columns, lost=is_lost)
    launches = launches.unique("correlation", keep="first").sort("start_ns")
    if launches["lost"].sum() <= on_gpu["correlation"].null_count():  # GPU events without a launch may be theirs
        return EVENTS.to_frame()
    calls = events.filter(pl.col("collective").is_not_null() & pl.col("kind").is_in(["cpu_op", "annotation"]))
    calls = calls.select("tid", *CALL_COLUMNS, call_start_ns="start_ns", call_end_ns="end_ns")
    is_capture = pl.col("name").is_in(names.filter(names.str.contains(CAPTURE_PATTERN)).implode())
    captures = (
        host_calls.filter(is_capture).select("tid", "start_ns", capturing=text.str.contains("Begin")).sort("start_ns")
    )
    launch_ns, in_call = pl.col("start_ns"), pl.col("start_ns") < pl.col("call_end_ns")
    candidates = (
        launches.with_columns(
            previous_ns=launch_ns.shift(1).over("tid"),
            next_ns=launch_ns.shift(-1).over("tid"),
        )
        .filter("lost")
        .join_asof(
            calls.sort("call_start_ns"),
            left_on="start_ns",
            right_on="call_start_ns",
            by="tid",
            check_sortedness=False,
        )
        .join_asof(captures, on="start_ns", by="tid", check_sortedness=False)
        .filter(~pl.col("capturing").fill_null(False))
    )
    is_first = (pl.col("previous_ns") < pl.col("call_start_ns")).fill_null(True)
    is_last = (pl.col("next_ns") >= pl.col("call_end_ns")).fill_null(True)
    is_message = pl.col("collective").cast(pl.String).str.contains("^i?(send|recv)$")
    kernel = pl.when(is_message).then(pl.lit("SendRecv")).otherwise(pl.col("collective").cast(pl.String))
    lost = candidates.filter(is_first & ((in_call & is_last) | (~in_call & is_message))).select(
        *columns,
        *(pl.when(in_call).then(name).alias(name) for name in CALL_COLUMNS),
        id=-1 - pl.int_range(pl.len(), dtype=pl.Int64),
        kind=pl.lit("kernel"),
        name=pl.format("ncclDevKernel_{}", kernel),
        end_ns="start_ns",
        device=pl.lit(on_gpu["device"].first(), pl.Int32),
        stream=pl.lit(on_gpu["stream"].first(), pl.Int64),
    )
    return conform(lost, EVENTS)
