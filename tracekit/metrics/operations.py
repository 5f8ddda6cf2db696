"""Communication operations of one rank: kind, peers, times, and how much of each compute hides."""

from collections.abc import Iterable

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints
from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import present, with_nulls
from tracekit.align.waits import longest_waits
from tracekit.classify.collectives import normalize_call
from tracekit.classify.messages import P2P_CALLS, parse_group_ranks, parse_messages
from tracekit.metrics.label_intervals import Lanes, has_label
from tracekit.schema import COMMUNICATION_LABELS, MESSAGE_LIST, conform

OPERATIONS = pl.Schema(
    {
        "rank": pl.Int32(),
        "part": pl.Int64(),
        "step": pl.Int64(),
        "label": pl.String(),
        "pass": pl.String(),
        "what": pl.String(),  # the collective: "all_to_allv", "broadcast", … or "p2p"
        "group": pl.Categorical(),
        "group_ranks": pl.Categorical(),  # "[0,1,2,3]"; categorical, since the list is long and on every row
        "messages": MESSAGE_LIST,  # of a point-to-point operation, where known
        "order_ns": pl.Int64(),  # launch, or start where the launch is unknown
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "hidden_ns": pl.Int64(),  # time under compute
        "bytes": pl.Int64(),
        "id": pl.Int64(),  # event of the rank, as in EVENTS; negative: launched, but the kernel was not recorded
        "received": pl.Int64(),  # bytes received, where recorded
        "collective_seq": pl.Int64(),  # recorded number of the collective within its group
        "call": pl.Categorical(),  # what in one spelling: all_to_all of all_to_allv; null of a message
        "dtype": pl.Categorical(),  # type of the elements that a kernel is named to reduce
    }
)

_COLLECTIVE_IN_KERNEL_NAME = (
    r"(?i)(allreduce|allgather|reducescatter|broadcast|alltoall|sendrecv"
    r"|reduce|dispatch|combine|gather|scatter)"
)
_PLAIN_KERNEL_NAME = r"^([^(<]{1,80})"
_TYPE_IN_KERNEL_NAME = (
    r"(?i)nccl\w*reduce\w*_(?:sum|prod|min|max|minmax|premulsum|sumpostdiv)_(\w+?)"
    r"(?:_(?:ring|tree|nvls|collnet|pat)\w*)?(?:\W|$)"
)
"""Type in the name of a kernel that reduces: ``ncclDevKernel_AllReduce_Sum_f16_RING_LL`` today,
``ncclKernel_AllReduce_RING_LL_Sum_half`` before."""
_TYPES_IN_KERNEL_NAMES = {
    "f16": "fp16",
    "half": "fp16",
    "bf16": "bf16",
    "__nv_bfloat16": "bf16",
    "f32": "fp32",
    "float": "fp32",
    "f64": "fp64",
    "double": "fp64",
    "i8": "int8",
    "int8_t": "int8",
    "u8": "int8",
    "uint8_t": "int8",
}


def operations(labelled: pl.DataFrame, lanes: Lanes, *, part: str | None = None) -> pl.DataFrame:
    """Return the communication of one rank (``OPERATIONS``), in launch order.

    Args:
        labelled: GPU events of one rank.
        lanes: Interval sets of the same events.
        part: Column with each event's part; None if all events form one part.

    >>> from tracekit.schema import LABELLED
    >>> rows = [{"rank": 1, "label": "forward", "start_ns": 0, "end_ns": 6},
    ...         {"rank": 1, "label": "pp_comm", "name": "ncclDevKernel_SendRecv", "p2p": "send:2",
    ...          "start_ns": 4, "end_ns": 8}]
    >>> events = conform(pl.DataFrame(rows), LABELLED)
    >>> operations(events, Lanes.of(events)).select("what", "messages", "hidden_ns").rows()
    [('p2p', [{'send': True, 'peer': 2}], 2)]

    """
    rows = np.flatnonzero(has_label(lanes.code, COMMUNICATION_LABELS))
    if not len(rows):
        return OPERATIONS.to_frame()
    needed = (*OPERATIONS, "p2p", "collective", "name", "peer", "launch_ns")
    # Select rows first: casting text is slow, and communication is a small share of all events.
    comm = labelled.select(name for name in needed if name in labelled.columns)[rows]
    part_of_event = pl.lit(0, pl.Int64) if part is None else pl.col(part).cast(pl.Int64)
    comm = comm.with_columns(
        pl.col("collective", "name").cast(pl.String),
        parse_messages(comm["p2p"]),
        part=part_of_event,
    )
    collective = pl.col("collective")
    is_single = collective.is_in(P2P_CALLS)
    is_batch = collective == "coalesced"
    has_peer = pl.col("peer").is_not_null()
    sent = pl.struct(send=pl.lit(True), peer="peer")
    received = pl.struct(send=pl.lit(False), peer="peer")
    single = pl.when(collective.str.contains("send")).then(sent).otherwise(received)
    exchange = pl.concat_list(sent, received)  # a batch with one peer is an exchange
    is_message = is_single | is_batch | ((pl.col("label") == "pp_comm") & collective.is_null())
    what = pl.coalesce(
        "collective",
        pl.col("name").str.extract(_COLLECTIVE_IN_KERNEL_NAME).str.to_lowercase(),
        pl.col("name").str.extract(_PLAIN_KERNEL_NAME),
    )
    start = comm["start_ns"].to_numpy()
    end = comm["end_ns"].to_numpy()
    event_part = comm["part"].to_numpy()
    comm = comm.with_columns(
        messages=pl.when(pl.col("messages").is_not_null())
        .then("messages")
        .when(is_single & has_peer)
        .then(pl.concat_list(single))
        .when(is_batch & has_peer)
        .then(exchange),
        order_ns=pl.coalesce("launch_ns", "start_ns"),
        hidden_ns=pl.Series(lanes.compute.covered_ns(start, end, event_part)),
    ).with_columns(
        what=pl.when(pl.col("messages").is_not_null() | is_message)
        .then(pl.lit("p2p"))
        .otherwise(what)
    )
    dtype_in_name = pl.col("name").str.extract(_TYPE_IN_KERNEL_NAME).str.to_lowercase()
    comm = comm.with_columns(
        call=_normalize_calls(comm["what"]),
        dtype=dtype_in_name.replace_strict(
            _TYPES_IN_KERNEL_NAMES, default=None, return_dtype=pl.String
        ),
    )
    return conform(comm.sort("order_ns", "start_ns"), OPERATIONS)


def _normalize_calls(what: pl.Series) -> pl.Series:
    """Return the collectives in one spelling, null for messages."""
    names = CategoryColumn.from_series(what)
    spellings = [None if name == "p2p" else normalize_call(name) for name in names.values]
    return names.replace(spellings).series("call")


# ---- Waiting inside communication by operation, and operations whose wait is unknown.
#
# The waits of matched operations come from ``align.waits``. An operation of which not all members
# were recorded may have waited for one of the others: its wait is a lower bound, and the rest of
# its time is not known to be transfer.
#
# A bubble contains the exposed wait of pipeline messages. A message may appear in a trace as such,
# as a kernel that may be one (``SendRecv`` also carries all-to-alls), as communication of unknown
# kind, or only as a call of the host. All of these count as possible messages, so that a bubble is
# stated as exact only where no wait is unknown.


_COLLECTIVE = (
    r"(?i)all_?reduce|all_?gather|reduce_?scatter|broadcast|all_?to_?all|barrier"
    r"|gather|scatter|reduce|dispatch|combine"
)
_COPY_WITHIN_DEVICE = r"^Memcpy DtoD"
_MESSAGE_CALL = r"^(c10d::(i?send|i?recv)|nccl:(send|recv)|nccl(Send|Recv)\b)"
_MESSAGE_COLLECTIVE = r"^i?(send|recv)$"


def add_waits(
    operations: pl.DataFrame,
    members: pl.DataFrame,
    *,
    ranks: Iterable[int] | None = None,
    all_recorded: bool = True,
) -> pl.DataFrame:
    """Return the operations with what matching tells about each.

    Adds match, last_rank, late_ns, wait_ns, transfer_ns, wait_is_bound, open, hole and waited_for.
    ``last_rank`` arrived last; ``late_ns`` is how long after the first member this rank arrived, on
    aligned clocks; ``wait_is_bound``: the wait is an upper bound; all are null without a peer's
    trace. ``waited_for``: the ranks that it waited for where several are late together
    (``align.late_together.WAITED_FOR``); else null. ``open``: some message has no match, or some
    member of the group was not recorded, so that the operation may have waited longer. ``hole``: it
    is open or has no match although there are traces of all ranks that it needs: one of them lacks
    this operation.

    Args:
        operations: Operations of all ranks.
        members: Matched operations with their waits (``align.waits.with_waits``), whose ``row`` is
            a row of *operations*. Those that are not ``recorded``, if it has that column, count as
            missing.
        ranks: Ranks that have a trace; None for those of the operations.
        all_recorded: Whether all ranks of the run were recorded; decides where a group's members
            are not named.

    >>> from tracekit.align.clocks import align
    >>> from tracekit.align.matching import match
    >>> from tracekit.align.waits import with_waits
    >>> from tracekit.metrics.operations import OPERATIONS
    >>> from tracekit.schema import conform
    >>> messages = [[{"send": True, "peer": 1}], [{"send": False, "peer": 0}]]
    >>> ops = conform(pl.DataFrame({"rank": [0, 1], "what": "p2p", "messages": messages, "step": 2,
    ...     "order_ns": [0, 3], "start_ns": [6, 1], "end_ns": [9, 9], "label": "pp_comm"}), OPERATIONS)
    >>> members = match(ops).members
    >>> waited = add_waits(ops, with_waits(members, align(members, [0, 1])))
    >>> waited.select("rank", "wait_ns", "transfer_ns", "last_rank").rows()
    [(0, 0, 3, 0), (1, 5, 3, 0)]

    """
    if "recorded" in members.columns:
        members = members.filter("recorded")
    match = members["match"].to_numpy()
    row = members["row"].to_numpy()
    member = longest_waits(members, len(operations))
    figures = members.select(
        "match", "late_ns", "wait_ns", "wait_is_bound", "last_rank", "waited_for"
    )
    own = figures.select(pl.all().gather(with_nulls(member, member >= 0)))
    recorded_sides = np.bincount(match)
    group_size = _group_sizes(operations["group_ranks"])
    members_recorded = np.ones(len(operations), np.int64)  # of an operation without a match, itself
    members_recorded[member >= 0] = recorded_sides[match[member[member >= 0]]]
    is_collective = ~CategoryColumn.from_series(operations["what"]).any_of("p2p")
    lacks_member = np.where(group_size > 0, members_recorded < group_size, not all_recorded)
    message_count = operations["messages"].list.len().fill_null(0).to_numpy()
    has_other_side = recorded_sides[match] > 1
    lacks_message = message_count > np.bincount(row[has_other_side], minlength=len(operations))
    waits_for_nobody = pl.Series(is_collective & (group_size == 1))
    waited = operations.with_columns(
        *own, pl.Series("open", np.where(is_collective, lacks_member, lacks_message))
    )
    waited = waited.with_columns(
        match=pl.when(pl.Series(members_recorded > 1)).then("match"),
        wait_ns=pl.when(waits_for_nobody).then(pl.lit(0, pl.Int64)).otherwise("wait_ns"),
        open=pl.col("open") & ~waits_for_nobody,
    )
    with_trace = pl.Series(
        sorted(set(operations["rank"] if ranks is None else ranks)), dtype=pl.Int32
    )
    of_groups = _traces_of_groups(operations, with_trace)
    has_all_traces = pl.Series(
        np.where(is_collective, of_groups, _traces_of_peers(operations, with_trace))
    )
    transfer = pl.col("end_ns") - pl.col("start_ns") - pl.col("wait_ns")
    waited = waited.with_columns(
        transfer_ns=transfer, hole=has_all_traces & (pl.col("open") | pl.col("wait_ns").is_null())
    )
    figure_names = (
        "match",
        "last_rank",
        "late_ns",
        "wait_ns",
        "transfer_ns",
        "wait_is_bound",
        "open",
        "hole",
        "waited_for",
    )
    return waited.select(*operations.columns, *figure_names)


def divide_waits(operations: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each operation that waited and each rank it waited for.

    ``last_rank`` becomes the rank it waited for, ``wait_ns`` what is charged to that rank, and
    ``until_ns`` is the time until it arrived, null if the waiting rank is late together with it.
    """
    waits = operations.filter((pl.col("wait_ns") > 0) & (pl.col("last_rank") != pl.col("rank")))
    is_shared = pl.col("waited_for").is_not_null()
    for_one = waits.filter(~is_shared).with_columns(until_ns="wait_ns").drop("waited_for")
    shared = waits.filter(is_shared).explode("waited_for")
    charged = pl.col("waited_for").struct
    shared = shared.with_columns(
        last_rank=charged.field("rank"),
        wait_ns=charged.field("wait_ns"),
        until_ns=charged.field("late_ns"),
    )
    return pl.concat([for_one, shared.select(for_one.columns)])


def _traces_of_groups(operations: pl.DataFrame, ranks: pl.Series) -> Bools:
    """Return whether there are traces of all ranks of each operation's group.

    False where these are not listed.
    """
    groups = parse_group_ranks(operations["group_ranks"])
    in_traces = (
        pl.col("members").list.eval(pl.element().is_in(ranks.cast(pl.Int64).implode())).list.all()
    )
    listed = groups.select(pl.col("all_listed") & in_traces).to_series().to_numpy()
    table = np.append(listed.astype(np.bool_), False)
    has_traces: Bools = CategoryColumn.from_series(operations["group_ranks"]).look_up(table)
    return has_traces


def _traces_of_peers(operations: pl.DataFrame, ranks: pl.Series) -> Bools:
    """Return whether there are traces of all peers of each operation's messages.

    False where one is not named.
    """
    peer = pl.element().struct.field("peer")
    in_traces = (
        pl.col("messages").list.eval(peer.is_in(ranks.implode()).fill_null(False)).list.all()
    )
    return operations.select(in_traces.fill_null(False)).to_series().to_numpy()


def _group_sizes(group_ranks: pl.Series) -> Ints:
    """Return the number of ranks in each operation's group.

    0 if the file does not list them all.
    """
    groups = parse_group_ranks(group_ranks)
    size = pl.when("all_listed").then(pl.col("members").list.len()).otherwise(0)
    sizes = groups.select(size.cast(pl.Int64)).to_series().to_numpy()
    return CategoryColumn.from_series(group_ranks).look_up(np.append(sizes, 0))


def may_be_message(operations: pl.DataFrame) -> Bools:
    """Return which operations are, or may be, a send or a receive: by kind, by name, or because the kind is unknown.

    Copies within a device are communication only as parts of a collective over symmetric memory.

    >>> ops = pl.DataFrame({"label": ["pp_comm", "comm", "comm", "comm", "ep_dispatch", "comm"],
    ...                     "what": ["p2p", "sendrecv", "allreduce", "device_kernel", "all_to_allv", "Memcpy DtoD "]})
    >>> ops.filter(may_be_message(ops))["what"].to_list()
    ['p2p', 'sendrecv', 'device_kernel']
    """
    label = CategoryColumn.from_series(operations["label"])
    what = CategoryColumn.from_series(operations["what"])
    is_message = what.any_of("p2p", "sendrecv") | label.any_of("pp_comm")
    is_part_of_collective = what.matches(_COLLECTIVE) | what.matches(_COPY_WITHIN_DEVICE)
    is_unresolved = label.any_of("comm") & ~is_part_of_collective
    return is_message | is_unresolved


def has_unknown_wait(operations: pl.DataFrame) -> Bools:
    """Return which operations make the bubble a lower bound: a pipeline's messages whose wait or whose role is unknown.

    >>> ops = pl.DataFrame({"label": ["pp_comm", "pp_comm", "pp_comm", "comm", "cp_comm"], "what": ["p2p"] * 5,
    ...                     "wait_ns": [3, None, 3, 3, None], "open": [False, True, True, False, True]})
    >>> has_unknown_wait(ops).tolist()
    [False, True, True, True, False]
    """
    unknown = operations.select(
        pl.col("wait_ns").is_null() | pl.col("open") | (pl.col("label") == "comm")
    ).to_series()
    has_unknown: Bools = may_be_of_pipeline(operations) & unknown.fill_null(False).to_numpy()
    return has_unknown


def may_be_of_pipeline(operations: pl.DataFrame) -> Bools:
    """Return which operations may be messages of a pipeline.

    A ring of context parallelism has messages too.

    >>> ops = pl.DataFrame({"label": ["pp_comm", "comm", "cp_comm"], "what": ["p2p"] * 3})
    >>> may_be_of_pipeline(ops).tolist()
    [True, True, False]
    """
    return may_be_message(operations) & CategoryColumn.from_series(operations["label"]).any_of(
        "pp_comm", "comm"
    )


def count_issued_messages(events: pl.DataFrame) -> int:
    """Return the number of the host's calls that send or receive.

    >>> events = pl.DataFrame({"kind": ["cpu_op", "cpu_op", "kernel"], "name": ["c10d::send", "aten::mm", "k"],
    ...                        "collective": [None, None, "send"]})
    >>> count_issued_messages(events)
    1
    """
    by_name = np.flatnonzero(CategoryColumn.from_series(events["name"]).matches(_MESSAGE_CALL))
    collective = events["collective"]
    is_message = CategoryColumn.from_series(collective.drop_nulls()).matches(_MESSAGE_COLLECTIVE)
    by_collective = np.flatnonzero(present(collective))[is_message]
    return int(
        events["kind"][np.union1d(by_name, by_collective)].is_in(["cpu_op", "annotation"]).sum()
    )


def has_unseen_messages(issued: int, possible: int) -> bool:
    """Return whether the host issued messages but no operation on the GPU may be one.

    >>> has_unseen_messages(4, 0), has_unseen_messages(4, 1), has_unseen_messages(0, 0)
    (True, False, False)
    """
    return issued > 0 and not possible
