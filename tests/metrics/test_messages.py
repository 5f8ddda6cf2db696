"""Sends and receives of every kind: any whose wait is unknown leaves the bubble open."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.metrics.messages import may_be_message, unknown_waits, unseen_messages


def operation(label, what, *, wait=None, open_=False):
    return pl.DataFrame(
        [{"label": label, "what": what, "wait_ns": wait, "open": open_}], schema_overrides={"wait_ns": pl.Int64}
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
    assert not unknown_waits(operation("pp_comm", "p2p", wait=3)).sum()
    assert unknown_waits(operation("pp_comm", "p2p")).sum()
    assert unknown_waits(operation("pp_comm", "p2p", wait=3, open_=True)).sum()
    assert unknown_waits(operation("comm", "p2p", wait=3)).sum()


def test_sends_of_the_host_without_a_kernel_are_unseen():
    nothing = may_be_message(operation("dp_comm", "allreduce", wait=0)).sum()
    assert unseen_messages(4, nothing)
    assert not unseen_messages(0, nothing)
    assert not unseen_messages(4, may_be_message(operation("pp_comm", "p2p")).sum())
