"""Waiting inside matched operations, for whom, and messages whose wait is unknown."""

from __future__ import annotations

import polars as pl
import pytest

from tests.classify.conftest import Program
from tests.operations import collective, message, table
from tracekit.align.clocks import Clocks, align
from tracekit.align.matching import match
from tracekit.align.waits import find_stragglers, with_waits
from tracekit.classify import classify
from tracekit.classify.messages import format_messages
from tracekit.metrics.label_intervals import Lanes
from tracekit.metrics.operations import (
    add_waits,
    has_unknown_wait,
    has_unseen_messages,
    may_be_message,
    may_be_of_pipeline,
    operations,
)

MS = 1_000_000


def waited(*rows):
    ops = table(*rows)
    result = match(ops)
    clocks = align(result.members, ops["rank"].unique().to_list())
    members = with_waits(result.members, clocks)
    return add_waits(ops, members), members, clocks


def test_collectives_match_by_group_and_order():
    result, *_ = waited(
        collective(0, 0, 100), collective(0, 200, 230), collective(1, 70, 100), collective(1, 150, 230)
    )  # fmt: skip
    assert result["match"].to_list() == [0, 1, 0, 1]
    assert result["wait_ns"].to_list() == [70, 0, 0, 50]
    assert result["transfer_ns"].to_list() == [30, 30, 30, 30]
    assert result["last_rank"].to_list() == [1, 0, 1, 0]


def test_uneven_ends_are_no_waiting():
    """Rank 1 arrives last, at 70 ms, and ends 30 ms after rank 0: that is transfer.

    Nine others tie the clocks.
    """
    rows = [collective(rank, (200 + n) * MS, (201 + n) * MS) for n in range(9) for rank in (0, 1)]
    result, *_ = waited(collective(0, 0, 100 * MS), collective(1, 70 * MS, 130 * MS), *rows)
    assert result["wait_ns"].to_list() == [70 * MS, *[0] * 19]
    assert result["transfer_ns"].to_list() == [30 * MS, 60 * MS, *[MS] * 18]
    assert not result["wait_is_bound"].any()


def waited_with_lost(*rows):
    """Operations with their waits on exact clocks, and stragglers.

    Rows of negative id were launched, not recorded.
    """
    recorded = table(*(row for row in rows if row["id"] >= 0))
    lost = table(*(row for row in rows if row["id"] < 0))
    clocks = Clocks.recorded({row["rank"] for row in rows})
    members = with_waits(match(pl.concat([recorded, lost])).with_lost, clocks)
    ranks = {row["rank"] for row in rows}
    return add_waits(recorded, members, ranks=ranks), find_stragglers(members, clocks)


def test_a_kernel_that_was_lost_is_waited_for_until_its_launch_at_least():
    result, stragglers = waited_with_lost(
        collective(0, 0, 100, id=1), collective(1, 60, 60, id=-1), collective(0, 200, 300, id=2),
        collective(1, 250, 300, id=3),
    )  # fmt: skip
    assert result.select("id", "wait_ns", "last_rank", "match", "open", "hole").rows() == [
        (1, 60, 1, None, True, True),
        (2, 50, 1, 0, False, False),
        (3, 0, 1, 0, False, False),
    ]
    assert stragglers.select("rank", "caused_ns").rows() == [(1, 110)]


def test_a_message_whose_other_side_was_lost_is_open():
    result, _ = waited_with_lost(
        message(0, "send:1", 0, 100, id=1), message(1, "recv:0", 30, 30, id=-1)
    )
    assert result.select("wait_ns", "open", "hole").row(0) == (30, True, True)


def test_what_needs_a_trace_that_is_not_there_is_no_hole():
    """Rank 2 has no trace.

    Rank 1 has one and lacks the last collective, and nothing tells that it took part in it.
    """
    three = {"group": "2", "group_ranks": "[0,1,2]"}
    rows = [collective(rank, 0, 50, id=rank, **three) for rank in (0, 1)]
    rows += [
        message(0, "send:2", 60, 70, id=5),
        message(0, "send:?", 80, 90, id=6),
        collective(0, 100, 150, id=7),
    ]
    result, *_ = waited(*rows)
    assert result.select("id", "open", "hole").sort("id").rows() == [
        (0, True, False),
        (1, True, False),
        (5, True, False),
        (6, True, False),
        (7, True, True),
    ]


def test_a_kernel_with_two_messages_waits_once():
    """Rank 0 sends to rank 1 and receives from it in one kernel, 60 ms before rank 1 launches both as two kernels."""
    result, members, clocks = waited(
        message(0, "send:1,recv:1", 0, 100 * MS),
        message(1, "recv:0", 60 * MS, 100 * MS),
        message(1, "send:0", 60 * MS + 1, 100 * MS),
    )
    stragglers = find_stragglers(members, clocks)
    assert result["wait_ns"].to_list() == [60 * MS + 1, 0, 0]
    assert stragglers.select("rank", "caused_ns", "operations").rows() == [(1, 60 * MS + 1, 1)]


def test_who_is_waited_for_longest_does_not_depend_on_how_messages_are_packed():
    """Rank 1 is late by 60 ms for one kernel of three messages, rank 2 by 100 ms for a kernel of one."""
    _, members, clocks = waited(
        message(0, "send:1,recv:1,send:1", 0, 100 * MS),
        *(message(1, p2p, 60 * MS, 100 * MS) for p2p in ("recv:0", "send:0", "recv:0")),
        message(0, "send:2", 200 * MS, 320 * MS),
        message(2, "recv:0", 300 * MS, 320 * MS),
    )
    stragglers = find_stragglers(members, clocks)
    assert stragglers.select("rank", "caused_ns").rows() == [(2, 100 * MS), (1, 60 * MS)]


def broadcasts(*times):
    """Broadcasts in a row among three ranks: of each the start and end on every rank, in ms."""
    return [
        collective(rank, start * MS, end * MS, what="broadcast", group_ranks="[0,1,2]")
        for operation in times
        for rank, (start, end) in enumerate(operation)
    ]


def waited_for(*rows):
    """Waits in ms and the rank waited for, on clocks that are exact."""
    members = match(table(*rows)).members
    result = add_waits(table(*rows), with_waits(members, Clocks.recorded(range(3))))
    return [(row["wait_ns"] // MS, row["last_rank"]) for row in result.iter_rows(named=True)]


def test_a_member_of_a_broadcast_waits_for_no_one_who_begins_after_its_own_end():
    """Rank 0 leaves at 5 ms, rank 1 at 30 ms, and rank 2 begins at 40 ms.

    Rank 1 waited for rank 0 from 0 to 3 ms.
    """
    assert waited_for(*broadcasts([(3, 5), (0, 30), (40, 41)])) == [(0, 0), (3, 0), (0, 2)]


def test_a_broadcast_of_which_everyone_waits_for_the_root():
    assert waited_for(*broadcasts([(20, 25), (0, 26), (10, 27)])) == [(0, 0), (20, 0), (10, 0)]


def test_a_rank_that_still_receives_the_broadcast_before_is_not_late():
    """Rank 0 sends the first until 5 ms and is at the second from then on, where rank 2 arrives at 20 and at 26 ms.

    It receives the first until 20 ms. What it then does until 26 ms, the others wait for.
    """
    first = [(0, 5), (0, 15), (0, 20)]
    assert waited_for(*broadcasts(first, [(5, 30), (15, 30), (20, 30)]))[3:] == [
        (0, 2),
        (0, 2),
        (0, 2),
    ]
    late = broadcasts(first, [(5, 30), (15, 30), (26, 30)])
    unlisted = [row | {"group_ranks": None} for row in late]
    assert waited_for(*late)[3:] == waited_for(*unlisted)[3:] == [(6, 2), (6, 2), (0, 2)]


def test_a_send_waits_for_its_receiver_at_most_as_long_as_it_runs():
    rows = [message(0, "send:1", 0, 10 * MS), message(1, "recv:0", 6 * MS, 12 * MS)]
    rows += [message(0, "send:1", 20 * MS, 25 * MS), message(1, "recv:0", 40 * MS, 41 * MS)]
    assert waited_for(*rows) == [(6, 1), (0, 1), (5, 1), (0, 1)]


def test_waits_below_the_uncertainty_of_clocks_are_bounds():
    """Ends of ten operations lie within 2 ms of each other: whether rank 1 came 0.1 ms late cannot be told."""
    rows = []
    for n in range(10):
        begin, end = 100 * MS * n, 100 * MS * n + 10 * MS
        rows += [
            collective(0, begin, end + (n % 5) * MS // 2),
            collective(1, begin + MS // 10, end),
        ]
    result, members, clocks = waited(*rows)
    assert clocks.table["uncertainty_ns"][1] > MS
    assert result["wait_is_bound"].all()
    durations = (result["end_ns"] - result["start_ns"]).to_list()
    bounds = [
        own - min(pair)
        for pair in zip(durations[::2], durations[1::2], strict=True)
        for own in pair
    ]
    assert result["wait_ns"].to_list() == bounds
    straggler = find_stragglers(members, clocks).row(0, named=True)
    assert (straggler["uncertain"], straggler["candidates"]) == (True, [0, 1])


def test_a_member_that_was_not_recorded_leaves_the_wait_open():
    """Of four ranks two are recorded: they waited for each other at least so long, and maybe for the others."""
    four = {"group_ranks": "[0,1,2,3]"}
    result, *_ = waited(collective(0, 0, 100, **four), collective(1, 70, 100, **four))
    assert result["wait_ns"].to_list() == [70, 0]
    assert result["open"].to_list() == [True, True]
    alone, *_ = waited(collective(0, 0, 100, group_ranks="[0]"))
    assert alone.select("wait_ns", "open").row(0) == (0, False)


def test_an_operation_without_a_match_is_open_whatever_others_match():
    """Rank 0 alone recorded a collective of ranks 0 and 2.

    The last match is one of two ranks, all recorded.
    """
    result, *_ = waited(
        collective(0, 0, 80, group="2", group_ranks="[0,2]"), collective(0, 100, 200), collective(1, 150, 200)
    )  # fmt: skip
    assert result["wait_ns"].to_list() == [None, 50, 0]
    assert result["open"].to_list() == [True, False, False]


def test_wait_and_transfer_sum_to_the_kernels_time():
    result, *_ = waited(collective(0, 0, 100), collective(1, 70, 100))
    duration = result["end_ns"] - result["start_ns"]
    assert (result["wait_ns"] + result["transfer_ns"] == duration).all()


def test_groups_are_kept_apart():
    result, *_ = waited(
        collective(0, 0, 100), collective(1, 50, 100),
        collective(0, 0, 80, group="2", group_ranks="[0,2]"), collective(2, 60, 80, group="2", group_ranks="[0,2]"),
    )  # fmt: skip
    assert result["wait_ns"].to_list() == [50, 0, 60, 0]


def test_messages_match_by_pair_direction_and_order():
    result, *_ = waited(
        message(0, "send:1", 0, 10), message(0, "send:1", 20, 30), message(0, "recv:1", 40, 90),
        message(1, "recv:0", 5, 12), message(1, "recv:0", 22, 31), message(1, "send:0", 80, 90),
    )  # fmt: skip
    assert result["match"].null_count() == 0
    # A send waits for its receiver as well.
    assert result["wait_ns"].to_list() == [
        5,
        2,
        40,
        0,
        0,
        0,
    ]


def test_a_batched_kernel_matches_each_of_its_messages():
    """Rank 1 exchanges with 0 and 2 in one kernel.

    The shortest of those it talks to is its transfer.
    """
    result, members, _ = waited(
        message(0, "send:1,recv:1", 0, 100),
        message(1, "recv:0,send:0,send:2,recv:2", 40, 100),
        message(2, "recv:1,send:1", 90, 100),
    )
    assert members["match"].n_unique() == 4
    assert result["wait_ns"].to_list() == [40, 50, 0]


def test_without_the_peers_trace_wait_is_null():
    result, *_ = waited(
        message(0, "send:1", 0, 10), message(0, "send:7", 20, 30), message(1, "recv:0", 0, 10)
    )
    assert result["wait_ns"].to_list() == [0, None, 0]


def test_a_message_whose_peer_is_unknown_stays_unmatched():
    result, *_ = waited(
        message(0, "send:?", 0, 10), message(1, "recv:?", 0, 10), message(1, None, 0, 10)
    )
    assert result["wait_ns"].to_list() == [None, None, None]


def test_the_straggler_is_named_on_aligned_clocks():
    """Rank 1's clock runs 10 ms ahead: raw starts would blame it, its aligned ones do not."""
    rows = []
    for n in range(10):
        start_ns = 1_000_000_000 + 50_000_000 * n
        rows.append(collective(0, start_ns + 4_000_000, start_ns + 5_000_000))
        rows.append(collective(1, start_ns + 10_000_000, start_ns + 15_000_000))
    _, members, clocks = waited(*rows)
    assert find_stragglers(members, clocks).rows() == [
        (0, "dp_comm", 40_000_000, 10, False, [0], 40_000_000, [])
    ]


def test_operations_of_a_labelled_table(labelled):
    events = labelled(
        {"label": "forward", "start_ns": 0, "end_ns": 10},
        {
            "label": "ep_dispatch",
            "start_ns": 5,
            "end_ns": 25,
            "collective": "all_to_allv",
            "group": "3",
        },
        {"label": "pp_comm", "start_ns": 30, "end_ns": 40, "collective": "send", "peer": 1},
        {"label": "pp_comm", "start_ns": 50, "end_ns": 60, "name": "ncclDevKernel_SendRecv"},
        {"label": "dp_comm", "start_ns": 70, "end_ns": 80, "name": "ncclKernel_AllReduce_RING_LL"},
        {"label": "pp_comm", "start_ns": 90, "end_ns": 95, "collective": "coalesced", "peer": 2},
    )
    result = operations(events, Lanes.of(events))
    assert result["what"].to_list() == ["all_to_allv", "p2p", "p2p", "allreduce", "p2p"]
    assert format_messages(result["messages"]).to_list() == [
        None,
        "send:1",
        None,
        None,
        "send:2,recv:2",
    ]
    assert result["hidden_ns"].to_list() == [5, 0, 0, 0, 0]


def test_the_sum_of_an_embedding_that_two_stages_hold_is_no_message_of_the_pipeline():
    program = Program().trained()
    program.nccl("allreduce", 20, group="1", group_desc="EMBEDDING_GROUP", bytes=1 << 25)
    program.nccl("send", 40, group="2", group_desc="PIPELINE_MODEL_PARALLEL_GROUP", peer=1)
    events = classify(program.events())
    ops = operations(events, Lanes.of(events))
    assert ops.select("label", "what").rows() == [("dp_comm", "allreduce"), ("pp_comm", "p2p")]
    assert may_be_of_pipeline(ops).tolist() == [False, True]


def operation(label, what, *, wait=None, open_=False):
    return pl.DataFrame(
        [{"label": label, "what": what, "wait_ns": wait, "open": open_}],
        schema_overrides={"wait_ns": pl.Int64},
    )


@pytest.mark.parametrize(
    ("label", "what", "message"),
    [
        ("pp_comm", "p2p", True),
        ("cp_comm", "p2p", True),
        ("comm", "sendrecv", True),
        ("comm", "device_kernel_17", True),
        ("comm", "allreduce", False),
        ("comm", "_reduce_scatter_base", False),
        ("ep_dispatch", "all_to_allv", False),
        ("dp_comm", "device_kernel_17", False),
    ],
)
def test_what_may_be_a_message(label, what, message):
    assert may_be_message(operation(label, what)).sum() == message


def test_a_wait_is_open_where_it_is_unknown_partly_matched_or_of_no_known_role():
    assert not has_unknown_wait(operation("pp_comm", "p2p", wait=3)).sum()
    assert has_unknown_wait(operation("pp_comm", "p2p")).sum()
    assert has_unknown_wait(operation("pp_comm", "p2p", wait=3, open_=True)).sum()
    assert has_unknown_wait(operation("comm", "p2p", wait=3)).sum()
    assert not has_unknown_wait(operation("cp_comm", "p2p")).sum()


def test_sends_of_the_host_without_a_kernel_are_unseen():
    nothing = may_be_message(operation("dp_comm", "allreduce", wait=0)).sum()
    assert has_unseen_messages(4, nothing)
    assert not has_unseen_messages(0, nothing)
    assert not has_unseen_messages(4, may_be_message(operation("pp_comm", "p2p")).sum())
