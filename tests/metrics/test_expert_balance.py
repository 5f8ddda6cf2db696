"""What uneven experts cost, on exchanges that can be counted on fingers.

The recorded router is among the samples.
"""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.align.matching import match
from tracekit.metrics.bandwidth import copies
from tracekit.metrics.expert_balance import (
    EXPERT_WORK,
    ExpertCost,
    expert_cost,
    measure_expert_balance,
    measure_expert_work,
)
from tracekit.metrics.label_intervals import Lanes
from tracekit.metrics.operations import OPERATIONS
from tracekit.metrics.overlap import label_times
from tracekit.metrics.peaks import host_link_gb_s
from tracekit.schema import conform


def exchange(
    rank, work, *, received, hidden=0, first_order=0, first_id=0, split=False, combine=True
):
    """One exchange on one rank: a dispatch of 100 ns, its experts' *work*, and a combine that ends with the others'."""
    common = {
        "rank": rank,
        "step": 0,
        "pass": "forward",
        "group": "ep",
        "group_ranks": "[0,1]",
        "hidden_ns": 0,
    }
    rows = [
        {
            "label": "ep_dispatch",
            "start_ns": 0,
            "end_ns": 100,
            "received": received,
            "id": 0,
            "what": "a2a",
        }
    ]
    if split:
        rows.append(
            {
                "label": "ep_dispatch",
                "start_ns": 100,
                "end_ns": 110,
                "received": 4,
                "id": 5,
                "what": "a2a",
            }
        )
    if combine:
        rows.append({"label": "ep_combine", "start_ns": 110 + work, "end_ns": 500, "hidden_ns": hidden, "id": 1,
                     "what": "a2a"})  # fmt: skip
    operations_of_rank = [
        {**common, **row, "order_ns": first_order + n, "id": first_id + row["id"]}
        for n, row in enumerate(rows)
    ]
    first = {"rank": rank, "id": first_id + (5 if split else 0), "expert_ns": work}
    return operations_of_rank, first


def cost(*ranks):
    operations = conform(
        pl.DataFrame([row for rows, _ in ranks for row in rows], infer_schema_length=None),
        OPERATIONS,
    )
    work = conform(pl.DataFrame([row for _, row in ranks]), EXPERT_WORK)
    return expert_cost(work, operations, match(operations).members)


def test_others_wait_for_the_longer_work():
    """Rank 0 is sent three times as much and computes 300 ns, rank 1 100 ns: it waits 200 ns in the combine."""
    layers, result = cost(exchange(0, 300, received=3000), exchange(1, 100, received=1000))
    assert result == ExpertCost(exchanges=1, transfer_ns=33, wait_ns=200, step_ns=200)
    assert layers.select(
        "rank", "received_over_mean", "expert_over_mean", "wait_ns", "exposed_ns"
    ).rows() == [
        (0, 1.5, 1.5, 0, 0),
        (1, 0.5, 0.5, 200, 200),
    ]


def test_what_compute_hides_the_step_does_not_feel():
    _, result = cost(exchange(0, 300, received=3000), exchange(1, 100, received=1000, hidden=250))
    # Of 290 ns in the combine, 250 ran beside compute.
    assert (result.wait_ns, result.step_ns) == (
        200,
        40,
    )


def test_even_tokens_explain_no_waiting():
    """The same waiting, but both were sent as much: it is variation, not imbalance."""
    _, result = cost(exchange(0, 300, received=2000), exchange(1, 100, received=2000))
    assert result == ExpertCost(exchanges=1, transfer_ns=0, wait_ns=0, step_ns=0)


def test_without_bytes_the_work_tells():
    layers, result = cost(exchange(0, 300, received=None), exchange(1, 100, received=None))
    assert result == ExpertCost(exchanges=1, transfer_ns=None, wait_ns=200, step_ns=200)
    assert layers["received"].to_list() == [None, None]


def test_where_nothing_is_received_or_computed_there_is_no_ratio_to_a_mean():
    """The second exchange carries no bytes and its experts take no time: it is listed last, not as most uneven."""
    layers, result = cost(
        exchange(0, 300, received=3000),
        exchange(1, 100, received=1000),
        exchange(0, 0, received=0, first_order=10, first_id=10),
        exchange(1, 0, received=0, first_order=10, first_id=10),
    )
    assert result == ExpertCost(exchanges=2, transfer_ns=33, wait_ns=200, step_ns=200)
    assert layers.select("exchange", "rank", "received_over_mean", "expert_over_mean").rows() == [
        (0, 0, 1.5, 1.5),
        (0, 1, 0.5, 0.5),
        (1, 0, None, None),
        (1, 1, None, None),
    ]
    operations = conform(
        pl.DataFrame(exchange(0, 1, received=0)[0] + exchange(1, 1, received=0)[0]), OPERATIONS
    )
    balance = measure_expert_balance(operations, match(operations).members)
    assert balance.select("rank", "received", "over_mean").rows() == [(0, 0, None), (1, 0, None)]


def test_several_dispatches_before_a_combine_are_one_exchange():
    layers, result = cost(
        exchange(0, 300, received=2996, split=True), exchange(1, 100, received=996, split=True)
    )
    assert result.exchanges == 1
    assert layers["received"].to_list() == [3000, 1000]


def test_nothing_without_combines_or_experts():
    layers, result = cost(
        exchange(0, 3, received=1, combine=False), exchange(1, 1, received=1, combine=False)
    )
    assert (layers.is_empty(), result) == (True, None)
    assert (
        expert_cost(
            EXPERT_WORK.to_frame(), OPERATIONS.to_frame(), match(OPERATIONS.to_frame()).members
        )[1]
        is None
    )


def test_work_is_what_was_launched_between(labelled):
    rows = [
        {
            "label": "ep_dispatch",
            "pass": "forward",
            "id": 7,
            "start_ns": 0,
            "end_ns": 10,
            "launch_ns": 1,
        },
        {"label": "forward", "id": 8, "start_ns": 20, "end_ns": 30, "launch_ns": 2},
        {"label": "forward", "id": 9, "start_ns": 25, "end_ns": 40, "launch_ns": 3},
        {"label": "wgrad", "id": 10, "start_ns": 40, "end_ns": 90, "launch_ns": 4},
        {
            "label": "ep_combine",
            "pass": "forward",
            "id": 11,
            "start_ns": 50,
            "end_ns": 60,
            "launch_ns": 5,
        },
        {"label": "forward", "id": 12, "start_ns": 60, "end_ns": 70, "launch_ns": 6},
    ]
    assert measure_expert_work(labelled(*rows)).rows() == [(0, 7, 20)]
    assert measure_expert_work(labelled(*rows[1:4])).is_empty()


@pytest.mark.parametrize(("link", "share"), [(50.0, 1.0), (49.0, None), (None, None)])
def test_a_copy_faster_than_its_link_has_no_share_of_it(labelled, link, share):
    events = labelled({"label": "offload", "start_ns": 0, "end_ns": 100, "bytes": 5000})
    table = copies(label_times(events, Lanes.of(events)), {}, link_gb_s=link)
    assert table.select("bandwidth_gb_s", "of_link").row(0) == (50.0, share)


def test_a_kernel_that_copies_leaves_the_bytes_and_the_bandwidth_unknown(labelled):
    copy = {"label": "memory", "start_ns": 0, "end_ns": 100, "bytes": 5000}
    # FSDP's split into parameters: no size recorded.
    kernel = {
        "label": "memory",
        "start_ns": 100,
        "end_ns": 10_000,
    }
    events = labelled(copy, kernel)
    table = copies(label_times(events, Lanes.of(events)), {})
    assert table.select("count", "bytes", "bandwidth_gb_s", "ns").row(0) == (2, None, None, 10_000)


def test_only_copies_over_the_link_are_held_against_it(labelled):
    events = labelled({"label": "memory", "start_ns": 0, "end_ns": 100, "bytes": 5000})
    assert copies(label_times(events, Lanes.of(events)), {}, link_gb_s=63)[
        "link_gb_s"
    ].to_list() == [None]


def test_links_by_gpu():
    named = {
        "NVIDIA A100-SXM4-80GB": 31.5,
        "Tesla V100-SXM2-32GB": 15.75,
        "NVIDIA B200": 63,
        "NVIDIA GB300": None,
        "X": None,
    }
    assert {name: host_link_gb_s(name) for name in named} == named
