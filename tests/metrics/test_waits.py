"""Waiting inside matched operations, and for whom."""

from __future__ import annotations

from tests.operations import collective, message, table
from tracekit.align.clocks import align
from tracekit.align.matching import match
from tracekit.metrics.lanes import Lanes
from tracekit.metrics.operations import operations
from tracekit.metrics.waits import stragglers, waits


def waited(*rows):
    ops = table(*rows)
    found = match(ops)
    return waits(ops, found.members, align(found.members, ops["rank"].unique().to_list())), found


def test_collectives_match_by_group_and_order():
    found, _ = waited(
        collective(0, 0, 100), collective(0, 200, 230), collective(1, 70, 100), collective(1, 150, 230)
    )  # fmt: skip
    assert found["match"].to_list() == [0, 1, 0, 1]
    assert found["wait_ns"].to_list() == [70, 0, 0, 50]
    assert found["transfer_ns"].to_list() == [30, 30, 30, 30]
    assert found["last_rank"].to_list() == [1, 0, 1, 0]


def test_wait_and_transfer_sum_to_the_kernels_time():
    found, _ = waited(collective(0, 0, 100), collective(1, 70, 100))
    duration = found["end_ns"] - found["start_ns"]
    assert (found["wait_ns"] + found["transfer_ns"] == duration).all()


def test_groups_are_kept_apart():
    found, _ = waited(
        collective(0, 0, 100), collective(1, 50, 100),
        collective(0, 0, 80, group="2", group_ranks="[0,2]"), collective(2, 60, 80, group="2", group_ranks="[0,2]"),
    )  # fmt: skip
    assert found["wait_ns"].to_list() == [50, 0, 60, 0]


def test_messages_match_by_pair_direction_and_order():
    found, _ = waited(
        message(0, "send:1", 0, 10), message(0, "send:1", 20, 30), message(0, "recv:1", 40, 90),
        message(1, "recv:0", 5, 12), message(1, "recv:0", 22, 31), message(1, "send:0", 80, 90),
    )  # fmt: skip
    assert found["match"].null_count() == 0
    assert found["wait_ns"].to_list() == [3, 1, 40, 0, 0, 0]


def test_a_batched_kernel_matches_each_of_its_messages():
    """Rank 1 exchanges with 0 and 2 in one kernel; the shortest of those it talks to is its transfer."""
    found, matching = waited(
        message(0, "send:1,recv:1", 0, 100),
        message(1, "recv:0,send:0,send:2,recv:2", 40, 100),
        message(2, "recv:1,send:1", 90, 100),
    )
    assert matching.members["match"].n_unique() == 4
    assert found["wait_ns"].to_list() == [40, 50, 0]


def test_without_the_peers_trace_wait_is_null():
    found, _ = waited(message(0, "send:1", 0, 10), message(0, "send:7", 20, 30), message(1, "recv:0", 0, 10))
    assert found["wait_ns"].to_list() == [0, None, 0]


def test_a_message_whose_peer_is_unknown_stays_unmatched():
    found, _ = waited(message(0, "send:?", 0, 10), message(1, "recv:?", 0, 10), message(1, None, 0, 10))
    assert found["wait_ns"].to_list() == [None, None, None]


def test_the_straggler_is_named_on_aligned_clocks():
    """Rank 1's clock runs 10 ms ahead: raw starts would blame it, its aligned ones do not."""
    rows = []
    for n in range(10):
        at = 1_000_000_000 + 50_000_000 * n
        rows.append(collective(0, at + 4_000_000, at + 5_000_000))
        rows.append(collective(1, at + 10_000_000, at + 15_000_000))
    found, _ = waited(*rows)
    assert stragglers(found).rows() == [(0, "dp_comm", 40_000_000, 10)]


def test_operations_of_a_labelled_table(labelled):
    events = labelled(
        {"label": "forward", "start_ns": 0, "end_ns": 10},
        {"label": "ep_dispatch", "start_ns": 5, "end_ns": 25, "collective": "all_to_allv", "group": "3"},
        {"label": "pp_comm", "start_ns": 30, "end_ns": 40, "collective": "send", "peer": 1},
        {"label": "pp_comm", "start_ns": 50, "end_ns": 60, "name": "ncclDevKernel_SendRecv"},
        {"label": "dp_comm", "start_ns": 70, "end_ns": 80, "name": "ncclKernel_AllReduce_RING_LL"},
        {"label": "pp_comm", "start_ns": 90, "end_ns": 95, "collective": "coalesced", "peer": 2},
    )
    found = operations(events, Lanes.of(events))
    assert found["what"].to_list() == ["all_to_allv", "p2p", "p2p", "allreduce", "p2p"]
    assert found["p2p"].to_list() == [None, "send:1", None, None, "send:2,recv:2"]
    assert found["hidden_ns"].to_list() == [5, 0, 0, 0, 0]
