"""Chains of events, sizes of messages and modules to recompute, counted by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from tracekit.memory.measures.out_of_memory import find_recomputable
from tracekit.metrics.alternatives.fusion import number_chains
from tracekit.metrics.alternatives.messages import bytes_per_ns
from tracekit.metrics.bandwidth import ACROSS_NODES, IN_NODE, add_measured_times
from tracekit.metrics.measured_collectives import RankGpu, read_measured_times


@pytest.mark.parametrize(
    ("elements", "chains"),
    [
        ([4, 8], [1, 1]),
        ([8, 4], [1, 1]),
        ([8, 5], [1, 2]),  # no multiple
        ([0, 8], [1, 2]),  # what has no elements is no neighbour
        ([8, 0], [1, 2]),
    ],
)
def test_neighbours_of_a_multiple_of_the_elements_are_a_chain(elements, chains):
    links = np.array([True, True])
    numbered = number_chains(links, np.array(elements), np.array([False, True]))
    assert numbered.tolist() == chains


def test_a_change_of_stream_part_or_pass_ends_a_chain():
    links = np.array([True, True, True])
    numbered = number_chains(links, np.array([8, 8, 8]), np.array([False, True, False]))
    assert numbered.tolist() == [1, 1, 2]


@pytest.mark.parametrize(("count", "bandwidth"), [(4, 20.0), (3, 4_000 / 300)])
def test_four_messages_of_a_size_tell_the_time_of_the_bytes_between_two(count, bandwidth):
    """From 1,000 bytes in 150 ns to 4,000 in 300: 3,000 more in 150 ns, without the latency of both."""
    sizes = np.array([1_000.0, 4_000.0])
    shortest_ns = np.array([150.0, 300.0])
    assert bytes_per_ns(sizes, shortest_ns, np.array([count, 4])) == bandwidth


def test_the_two_modules_with_most_activations_are_to_be_recomputed():
    rows = {"category": "activations", "module": ["a", "b", "c", None], "bytes": [1, 3, 2, 9]}
    assert find_recomputable(SimpleNamespace(repeated=()), pl.DataFrame(rows)) == [
        ("b", 3),
        ("c", 2),
    ]


def test_of_functions_that_are_repeated_the_first_two_are_to_be_recomputed():
    """Four calls of 100 bytes each: one of them is needed at a time."""
    repeated = [SimpleNamespace(function=name, bytes=400, calls=4) for name in "abc"]
    assert find_recomputable(SimpleNamespace(repeated=repeated), pl.DataFrame()) == [
        ("a", 300),
        ("b", 300),
    ]


@pytest.mark.parametrize(
    ("where", "is_known"), [(IN_NODE, True), (ACROSS_NODES, False), (None, False)]
)
def test_two_ranks_share_a_link_if_the_layout_puts_them_on_one_machine(where, is_known):
    """Their GPUs are numbered against the order of the ranks, so that they may be on two machines as well."""
    (h100,) = [gpu for gpu in read_measured_times().gpu if gpu.name == "H100 SXM"]
    row = {
        "what": "all_reduce",
        "dtype": "bf16",
        "ranks": 2,
        "recorded_ranks": [0, 1],
        "where": where,
        "bytes": 1 << 20,
    }
    table = pl.DataFrame([row], schema_overrides={"where": pl.String})
    rated = add_measured_times(table, {0: RankGpu(h100, 1), 1: RankGpu(h100, 0)})
    assert rated["gpu_link_gb_s"].is_not_null().to_list() == [is_known]
