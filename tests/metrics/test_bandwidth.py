"""Bandwidth of communication against measured times."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.metrics.bandwidth import ACROSS_NODES, IN_NODE, add_measured_times
from tracekit.metrics.measured_collectives import RankGpu, read_measured_times


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
