"""Communication kernels that were launched and are not in the recording.

The host's calls remain: which collective or message was issued, by which thread, and the launch of
its kernel. For each such launch without a GPU event a kernel of no duration takes part in the
classification, so that the messages that it carried are not taken for those of the next kernel, and
it is known which operation the recording lacks. Where the launch is missing as well, the messages
are followed by the launch of other work.
"""

import polars as pl

from tracekit.classify.names import HOST_CALLS
from tracekit.schema import EVENTS, GPU_KINDS, conform

MESSAGE_PATTERN = r"^i?(send|recv)$"
MESSAGE_KERNEL_PATTERN = r"(?i)sendrecv|nccl.*generic"
MAX_UNLAUNCHED_SHARE = 0.05
"""Share of the batches of messages that may lack their launch, and one more. If more seem to,
kernels are launched by another thread, or other work is launched between the calls and the
kernel."""
_LAUNCH_COLUMNS = ("rank", "pid", "tid", "start_ns", "correlation", "step")
"""Columns that a kernel takes from the call that launched it."""
CALL_COLUMNS = (
    "collective",
    "group",
    "group_desc",
    "group_ranks",
    "peer",
    "bytes",
    "received",
    "collective_seq",
)
"""Columns that a kernel takes from the call that contains its launch."""


def find_lost_kernels(events: pl.DataFrame) -> pl.DataFrame:
    """Return a kernel (``EVENTS``) for each launch of communication that has no GPU event.

    Its id is negative.

    The launch lies inside a call that communicates and that launched nothing else, or it is the
    first launch after a batch of sends and receives.

    >>> rows = [{"id": 0, "kind": "cpu_op", "name": "record_param_comms", "tid": 1, "start_ns": 1, "end_ns": 9,
    ...     "collective": "send", "peer": 2}, {"id": 1, "kind": "runtime", "name": "cudaLaunchKernel", "tid": 1,
    ...     "start_ns": 5, "end_ns": 6, "correlation": 7}]
    >>> find_lost_kernels(conform(pl.DataFrame(rows), EVENTS)).select("id", "name", "start_ns", "correlation").rows()
    [(-1, 'ncclDevKernel_SendRecv', 5, 7)]
    """
    is_host_range = pl.col("kind").is_in(["cpu_op", "annotation"])
    calls = events.filter(pl.col("collective").is_not_null() & is_host_range)
    if calls.is_empty():
        return EVENTS.to_frame()
    host_calls = events.select("kind", "name", *_LAUNCH_COLUMNS)
    host_calls = host_calls.filter(pl.col("kind").is_in(["runtime", "driver"]))
    on_gpu = events.select("kind", "name", "correlation", "device", "stream")
    on_gpu = on_gpu.filter(pl.col("kind").is_in(GPU_KINDS))
    is_lost = ~pl.col("correlation").is_in(on_gpu["correlation"].drop_nulls().implode())
    is_launch = (
        _has_name(host_calls, HOST_CALLS["launch_kernel"]) & pl.col("correlation").is_not_null()
    )
    launches = (
        host_calls.filter(is_launch)
        .select(*_LAUNCH_COLUMNS, lost=is_lost)
        .unique("correlation", keep="first")
        .sort("start_ns")
    )
    without_launch = _messages_without_launch(calls, launches, on_gpu, _find_group_ends(events))
    # GPU events without a launch may be theirs.
    if launches["lost"].sum() <= on_gpu["correlation"].null_count():
        return without_launch
    lost = _kernels_of_lost_launches(launches, calls, host_calls).with_columns(
        device=pl.lit(on_gpu["device"].first(), pl.Int32),
        stream=pl.lit(on_gpu["stream"].first(), pl.Int64),
    )
    without_launch = without_launch.with_columns(id=pl.col("id") - len(lost))
    return pl.concat([conform(lost, EVENTS), without_launch])


def _kernels_of_lost_launches(
    launches: pl.DataFrame, calls: pl.DataFrame, host_calls: pl.DataFrame
) -> pl.DataFrame:
    """Return a kernel for each lost launch that communicates; launches into a graph run nothing.

    Args:
        launches: Launches by time, with ``lost``.
        calls: Host ranges that communicate.
        host_calls: Calls of the CUDA API, among which are those that begin and end a capture.
    """
    captures = (
        host_calls.filter(_has_name(host_calls, HOST_CALLS["capture"]))
        .select("tid", "start_ns", capturing=pl.col("name").cast(pl.String).str.contains("Begin"))
        .sort("start_ns")
    )
    calls = calls.select("tid", *CALL_COLUMNS, call_start_ns="start_ns", call_end_ns="end_ns")
    calls = calls.sort("call_start_ns")
    launch_ns = pl.col("start_ns")
    candidates = (
        launches.with_columns(
            previous_ns=launch_ns.shift(1).over("tid"), next_ns=launch_ns.shift(-1).over("tid")
        )
        .filter("lost")
        .join_asof(
            calls, left_on="start_ns", right_on="call_start_ns", by="tid", check_sortedness=False
        )
        .join_asof(captures, on="start_ns", by="tid", check_sortedness=False)
        .filter(~pl.col("capturing").fill_null(False))
    )
    collective = pl.col("collective").cast(pl.String)
    is_message = collective.str.contains(MESSAGE_PATTERN)
    is_in_call = launch_ns < pl.col("call_end_ns")
    is_first = (pl.col("previous_ns") < pl.col("call_start_ns")).fill_null(True)
    is_last = (pl.col("next_ns") >= pl.col("call_end_ns")).fill_null(True)
    is_only_launch_of_call = is_first & is_in_call & is_last
    is_first_after_messages = is_first & ~is_in_call & is_message
    kernel = pl.when(is_message).then(pl.lit("SendRecv")).otherwise(collective)
    return candidates.filter(is_only_launch_of_call | is_first_after_messages).select(
        *_LAUNCH_COLUMNS,
        *(pl.when(is_in_call).then(name).alias(name) for name in CALL_COLUMNS),
        id=-1 - pl.int_range(pl.len(), dtype=pl.Int64),
        kind=pl.lit("kernel"),
        name=pl.format("ncclDevKernel_{}", kernel),
        end_ns="start_ns",
    )


def _has_name(events: pl.DataFrame, pattern: str) -> pl.Expr:
    """Return the condition that the pattern is found in an event's name.

    It is looked for in each name once.
    """
    names = events["name"].unique().cast(pl.String)
    return pl.col("name").is_in(names.filter(names.str.contains(pattern)).implode())


def _find_group_ends(events: pl.DataFrame) -> pl.DataFrame:
    """Return when NCCL's outermost groups began and ended on each thread, where that was recorded."""
    edges = events.select("tid", "name", "start_ns", "end_ns").filter(
        pl.col("name").is_in(["ncclGroupStart", "ncclGroupEnd"])
    )
    opens = pl.col("name").cast(pl.String) == "ncclGroupStart"
    depth = pl.when(opens).then(1).otherwise(-1).cum_sum().over("tid")
    edges = edges.sort("start_ns").with_columns(opens=opens, depth=depth)
    outermost = edges.filter(pl.col("depth") == pl.col("opens").cast(pl.Int32))
    outermost = outermost.with_columns(group_end_ns=pl.col("end_ns").shift(-1).over("tid"))
    return outermost.filter("opens").select("tid", "start_ns", "group_end_ns")


def _messages_without_launch(
    calls: pl.DataFrame, launches: pl.DataFrame, on_gpu: pl.DataFrame, groups: pl.DataFrame
) -> pl.DataFrame:
    """Return a kernel and a launch for each batch of messages that lacks them (``EVENTS``).

    The launch of other work follows on the same thread, or no launch at all before the end of
    NCCL's group.
    """
    is_message = (pl.col("kind") == "cpu_op") & pl.col("collective").cast(pl.String).str.contains(
        MESSAGE_PATTERN
    )
    messages = calls.filter(is_message).sort("start_ns")
    if messages.is_empty():
        return EVENTS.to_frame()
    following = launches.select("tid", "start_ns", next_launch="correlation", launch_ns="start_ns")
    messages = messages.join_asof(
        following, on="start_ns", by="tid", strategy="forward", check_sortedness=False
    )
    # Only these few launches are looked up among the kernels.
    is_next = pl.col("correlation").is_in(messages["next_launch"].drop_nulls().implode())
    kernels = on_gpu.select("correlation", for_messages=_has_name(on_gpu, MESSAGE_KERNEL_PATTERN))
    launched = kernels.filter(is_next).drop_nulls().unique("correlation")
    messages = messages.join(
        launched, left_on="next_launch", right_on="correlation", how="left", maintain_order="left"
    )
    messages = messages.join_asof(groups, on="start_ns", by="tid", check_sortedness=False)
    in_group = pl.col("group_end_ns") > pl.col("start_ns")
    messages = messages.with_columns(pl.when(in_group).then("group_end_ns"))
    batch = ["tid", "next_launch", "group_end_ns"]
    batches = messages.drop_nulls("for_messages").n_unique(batch)
    is_later = (pl.col("launch_ns") > pl.col("group_end_ns")).fill_null(False)
    unlaunched = messages.filter(~pl.col("for_messages") | is_later)
    if (
        unlaunched.is_empty()
        or unlaunched.n_unique(batch) > 1 + MAX_UNLAUNCHED_SHARE * batches
        or batches < 3
    ):
        return EVENTS.to_frame()
    first_number = launches["correlation"].max() + 1  # type: ignore[operator]
    lost = (
        unlaunched.group_by(batch, maintain_order=True)
        .agg(pl.col("rank", "pid", "step").first(), start_ns=pl.col("end_ns").max())
        .with_columns(
            number=pl.int_range(pl.len(), dtype=pl.Int64),
            end_ns="start_ns",
            device=pl.lit(on_gpu["device"].first(), pl.Int32),
            stream=pl.lit(on_gpu["stream"].first(), pl.Int64),
        )
        .with_columns(correlation=first_number + pl.col("number"))
    )
    kinds = (("kernel", "ncclDevKernel_SendRecv", 1), ("runtime", "cudaLaunchKernel", 2))
    tables = []
    for kind, name, offset in kinds:
        number = -2 * pl.col("number") - offset
        events = lost.with_columns(kind=pl.lit(kind), name=pl.lit(name), id=number)
        tables.append(conform(events, EVENTS))
    return pl.concat(tables)
