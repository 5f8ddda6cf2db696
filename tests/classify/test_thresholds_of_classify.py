"""Thresholds of the classifier's evidence, each on both sides."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from tracekit._util.categories import CategoryColumn
from tracekit.classify import collectives, communication_passes, copies, host_ranges, matmul

MIB = 1 << 20


def column(*values):
    return CategoryColumn.from_series(pl.Series(values, dtype=pl.String))


def kind_by_sums(forward_bytes, others=0):
    """The kind of a group with sums of these sizes in the forward, and *others* after the backward."""
    count = len(forward_bytes) + others
    comm = SimpleNamespace(call=column(*["all_reduce"] * count), group=column(*["0"] * count))
    passes = column(*["forward"] * len(forward_bytes), *["optimizer"] * others)
    size = np.array([*forward_bytes, *[MIB] * others])
    no_site = column(*[None] * count)
    (kind,) = collectives.kinds_by_sums(comm, passes, no_site, size).tolist()
    return None if kind < 0 else collectives.KINDS_OF_GROUPS[kind]


@pytest.mark.parametrize(("sums", "kind"), [(2, "tp"), (1, None)])
def test_two_sums_in_the_forward_are_of_activations(sums, kind):
    assert kind_by_sums([MIB] * sums) == kind


@pytest.mark.parametrize(("size", "kind"), [(MIB, "tp"), (MIB - 1, None)])
def test_sums_of_activations_have_a_mebibyte(size, kind):
    assert kind_by_sums([size] * 2) == kind


@pytest.mark.parametrize(("others", "kind"), [(6, "tp"), (7, None)])
def test_one_sum_in_four_is_of_activations_in_the_forward(others, kind):
    """Two of eight, and two of nine."""
    assert kind_by_sums([MIB] * 2, others) == kind


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


@pytest.mark.parametrize(("compute_ns", "use"), [(51, "compute"), (50, "communication")])
def test_the_stream_with_more_than_half_of_the_compute_is_for_compute(compute_ns, use):
    """Communication fills the first stream; the rest of 100 ns of compute is on the second."""
    end_ns = np.array([compute_ns, 1_000, 100 - compute_ns])
    times = {"start_ns": np.zeros(3, np.int64), "end_ns": end_ns}
    gpu = SimpleNamespace(stream_number=np.array([0, 0, 1]), int64=times.__getitem__)
    communicates = np.array([False, True, False])
    uses = copies.stream_uses(gpu, np.zeros(3, np.bool_), communicates)
    assert uses.strings()[0] == use


class GpuEvents:
    """Ten GPU events, some of whose external ids are their correlations."""

    def __init__(self, equal_ids):
        correlation = range(100, 110)
        external_id = [*correlation[:equal_ids], *range(equal_ids, 10)]
        self.frame = pl.DataFrame({"correlation": correlation, "external_id": external_id})

    def __len__(self):
        return len(self.frame)

    def is_all_null(self, name):
        return bool(self.frame[name].is_null().all())


class Operators:
    """Two operators: one has the external id of the last event, the other that event's correlation."""

    is_op = np.ones(2, np.bool_)

    def __len__(self):
        return 2

    def column(self, name, rows):
        return np.array([9, 109])


@pytest.mark.parametrize(("equal_ids", "last_op"), [(9, 0), (10, -1)])
def test_external_ids_name_operators_unless_nine_in_ten_are_correlations(equal_ids, last_op):
    lost = np.ones(10, np.bool_)
    ops = host_ranges.ops_by_external_id(GpuEvents(equal_ids), Operators(), lost)
    assert ops[-1] == last_op


@pytest.mark.parametrize(("gradients", "are_forward"), [(1, True), (2, True), (3, False)])
def test_two_products_laid_out_as_gradients_before_a_forward_product_are_forward(
    gradients, are_forward
):
    layout = column(*["dgrad"] * gradients, "forward")
    rows = np.arange(gradients + 1)
    marked = matmul.lone_input_gradients(rows, layout, np.zeros(gradients + 1, np.int64))
    assert marked.tolist() == [are_forward] * gradients + [False]


def test_products_outside_nodes_have_no_turn():
    node = np.array([-1, 0, -1, 0])
    turns, halves = matmul.turns_and_halves(np.ones(4, np.bool_), node, np.arange(4))
    assert turns.strings() == [None, "first", None, "second"]
    assert halves.strings() == [None, "first", None, "second"]
