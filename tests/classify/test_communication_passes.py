"""Passes of communication by peers and by the host's waits."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from tracekit._util.categories import CategoryColumn
from tracekit.classify import communication_passes


def column(*values):
    return CategoryColumn.from_series(pl.Series(values, dtype=pl.String))


@pytest.mark.parametrize(("messages", "passes"), [(4, (0, 1)), (3, (-1, -1))])
def test_one_message_in_five_may_go_the_other_way(messages, passes):
    """Rank 0 is sent activations and one gradient, rank 1 gradients alone."""
    peer = np.array([0] * messages + [0] + [1] * messages)
    code = np.array([0] * messages + [1] + [1] * messages)
    by_peer = communication_passes.passes_by_peer(peer, code)
    assert (by_peer[0], by_peer[-1]) == passes


@pytest.mark.parametrize(("calls", "is_known"), [(9, True), (10, False)])
def test_waits_follow_the_order_of_calls_with_up_to_eight_others_open(calls, is_known):
    """All calls come before the first wait, at which all but its own are open."""
    rows = np.arange(calls)
    group = column(*["0"] * calls)
    ranges = SimpleNamespace(
        collective_rows=lambda name: rows,
        start=lambda waits: 100 + waits,
        text=lambda name, waits: group,
    )
    launches = SimpleNamespace(start_ns=rows, ordered=lambda mask: rows)
    comm = SimpleNamespace(library=group, group=group)
    waits = communication_passes.host_wait_times(ranges, launches, comm)
    assert waits.tolist() == ((100 + rows).tolist() if is_known else [-1] * calls)
