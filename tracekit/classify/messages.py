"""Messages of point-to-point kernels and ranks of process groups, as lists.

Tables of events hold both as text (``send:2,recv:0`` and ``[0,1,2,3]``), so that every column can
be written to CSV. This module alone writes and reads that text. A run has few distinct texts, so
each is parsed once.
"""

import re

import numpy as np
import polars as pl

from tracekit._util.categories import CategoryColumn
from tracekit.classify.host_ranges import GpuEvents, Launches, Ranges
from tracekit.classify.names import KERNELS
from tracekit.schema import MESSAGE_LIST

P2P_CALLS = ("send", "recv", "isend", "irecv")
"""Calls of single messages."""

GROUP_MEMBERS = pl.Schema(
    {
        "group_ranks": pl.String(),  # as the file lists them
        "members": pl.List(pl.Int64()),  # the ranks that the text names
        "all_listed": pl.Boolean(),  # False: the file shortens or garbles the list
    }
)
"""Members of process groups, one row for each distinct text: a list on every event would need
gigabytes."""

_RANK_LIST = re.compile(r"\[\d+(,\d+)*\]")
_RANK = re.compile(r"\d{1,18}")


def parse_messages(p2p: pl.Series) -> pl.Series:
    """Return the messages (``MESSAGE_LIST``) of each kernel from their text.

    Null where there is none.

    >>> parse_messages(pl.Series(["send:2,recv:?", None])).to_list()
    [[{'send': True, 'peer': 2}, {'send': False, 'peer': None}], None]
    """
    text = CategoryColumn.from_series(p2p)
    part = pl.element().str.split_exact(":", 1).struct
    send = part.field("field_0") == "send"
    peer = part.field("field_1").cast(pl.Int32, strict=False)
    lists = pl.DataFrame({"text": [None, *text.values]}, schema={"text": pl.String}).select(
        pl.col("text").str.split(",").list.eval(pl.struct(send=send, peer=peer)).cast(MESSAGE_LIST)
    )
    return lists.to_series()[text.codes + 1].alias("messages")


def format_messages(messages: pl.Series) -> pl.Series:
    """Return the text of each kernel's messages (``MESSAGE_LIST``): ``send:2,recv:?``.

    >>> format_messages(parse_messages(pl.Series(["send:2,recv:?", None]))).to_list()
    ['send:2,recv:?', None]
    """
    message = pl.element().struct
    direction = pl.when(message.field("send")).then(pl.lit("send")).otherwise(pl.lit("recv"))
    peer = message.field("peer").cast(pl.String).fill_null("?")
    texts = (
        messages.rename("p2p")
        .to_frame()
        .select(pl.col("p2p").list.eval(pl.format("{}:{}", direction, peer)))
    )
    return texts.select(pl.col("p2p").list.join(",")).to_series()


def parse_group_ranks(group_ranks: pl.Series) -> pl.DataFrame:
    """Return the members of every group that a column names (``GROUP_MEMBERS``), in the order of first appearance.

    >>> parse_group_ranks(pl.Series(["[0,4]", None, "[0,1,...]", "[0,4]"])).rows()
    [('[0,4]', [0, 4], True), ('[0,1,...]', [0, 1], False)]
    """
    texts = CategoryColumn.from_series(group_ranks).values
    rows = []
    for text in texts:
        is_complete = _RANK_LIST.fullmatch(text.replace(" ", "")) is not None
        rows.append((text, list_ranks(text), is_complete))
    return pl.DataFrame(rows, schema=GROUP_MEMBERS, orient="row")


def list_ranks(group_ranks: str) -> list[int]:
    """Return the ranks that one text names.

    >>> list_ranks("[0, 4]")
    [0, 4]
    """
    return [int(rank) for rank in _RANK.findall(group_ranks)]


def point_to_point_messages(gpu: GpuEvents, ranges: Ranges, launches: Launches) -> CategoryColumn:
    """Return the messages of every point-to-point kernel in the order they were issued: ``send:2,recv:0``.

    A batch of messages runs as one ``SendRecv`` kernel without a peer of its own. The sends and
    receives that its thread recorded since its last such kernel (``record_param_comms`` in PyTorch
    traces, NCCL's ranges in Nsight's) tell the direction and the peer. A peer that the file does
    not name is ``?``.

    >>> from tracekit.classify.host_ranges import read_ranges
    >>> from tracekit.schema import EVENTS, conform
    >>> rows = [
    ...     {"id": 0, "kind": "cpu_op", "tid": 1, "start_ns": 1, "end_ns": 2, "collective": "send", "peer": 2},
    ...     {"id": 1, "kind": "cpu_op", "tid": 1, "start_ns": 3, "end_ns": 4, "collective": "recv", "peer": 0},
    ...     {"id": 2, "kind": "runtime", "name": "launch", "tid": 1, "start_ns": 5, "end_ns": 6, "correlation": 7},
    ...     {"id": 3, "kind": "kernel", "name": "ncclDevKernel_SendRecv", "start_ns": 8, "end_ns": 9, "correlation": 7},
    ... ]
    >>> point_to_point_messages(*read_ranges(conform(pl.DataFrame(rows), EVENTS))).strings()
    ['send:2,recv:0']
    """
    own_call = gpu.text("collective")
    may_be_p2p = ~own_call.present | own_call.any_of(*P2P_CALLS, "coalesced")
    is_p2p = gpu.is_kernel & may_be_p2p & gpu.names.matches(KERNELS["message"])
    calls = ranges.collective_rows(*P2P_CALLS)
    calls = calls[np.lexsort((ranges.rows[calls], ranges.start(calls)))]
    kernels = launches.ordered(is_p2p & launches.has_call & (launches.tid >= 0))
    # The first of the kernels that the thread of each message launched after the message was
    # issued.
    launched = pl.DataFrame(
        {"kernel": kernels, "tid": launches.tid[kernels], "launch_ns": launches.start_ns[kernels]}
    )
    issued = ranges.source.frame.select("collective", "peer", "tid", "start_ns")[ranges.rows[calls]]
    issued = issued.with_columns(pl.col("tid").cast(pl.Int64)).join_asof(
        launched,
        left_on="start_ns",
        right_on="launch_ns",
        by="tid",
        strategy="forward",
        check_sortedness=False,
    )
    sends = pl.col("collective").cast(pl.String).str.strip_prefix("i") == "send"
    by_kernel = (
        issued.drop_nulls("kernel")
        .group_by("kernel", maintain_order=True)
        .agg(messages=pl.struct(send=sends, peer=pl.col("peer")))
    )
    text = format_messages(by_kernel["messages"].cast(MESSAGE_LIST))
    return CategoryColumn.from_series(text).spread(by_kernel["kernel"].to_numpy(), len(gpu))
