"""Chunks of a pipeline at the limits of what makes one."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tracekit.pipeline.reconstruct import chunk_table
from tracekit.pipeline.reconstruct import chunk_table as beside


@pytest.mark.parametrize(("shared_ns", "is_block"), [(34, True), (33, False)])
def test_halves_of_a_block_share_more_than_a_third_of_the_shorter_one(shared_ns, is_block):
    rows = [
        {"op": "F", "pair": 9, "launch_ns": 0, "last_ns": 1, "start_ns": 0, "end_ns": 100},
        {"op": "B", "pair": 8, "launch_ns": 50, "last_ns": 60, "start_ns": 100, "end_ns": 200},
    ]
    chunks = pl.DataFrame(rows).with_columns(block=pl.lit(None, pl.String))
    is_backward = pl.col("op") == "B"
    times = pl.col("start_ns", "end_ns")
    moved = chunks.with_columns(pl.when(is_backward).then(times - shared_ns).otherwise(times))
    partner = chunk_table.find_partners(moved, from_ranges=False)
    assert partner.to_list() == ([1, 0] if is_block else [-1, -1])


@pytest.mark.parametrize(("once_ns", "layers"), [(4, 3), (6, 1)])
def test_kernels_of_layers_take_95_percent_of_a_chunk(once_ns, layers):
    """Three kernels of one name take the rest of 100 ns; one of another name occurs once."""
    each_ns = (100 - once_ns) // 3
    duration_ns = np.array([each_ns, each_ns, 100 - once_ns - 2 * each_ns, once_ns])
    chunk = np.zeros(4, np.int64)
    name = np.array([7, 7, 7, 8])
    assert chunk_table.count_layers(chunk, name, duration_ns).tolist() == [layers]


def chunks(gap, *, block=None, between=0):
    """A forward and, after some chunks of neither kind, a backward whose GPU time overlaps the forward's by -gap."""
    filler = [
        {"op": "W", "pair": -1, "launch_ns": 900, "last_ns": 901, "start_ns": 900, "end_ns": 901}
    ] * between
    rows = [
        {"op": "F", "pair": 9, "launch_ns": 0, "last_ns": 1, "start_ns": 0, "end_ns": 100},
        *filler,
        {
            "op": "B",
            "pair": 8,
            "launch_ns": 50,
            "last_ns": 60,
            "start_ns": 100 + gap,
            "end_ns": 200 + gap,
        },
    ]
    return pl.DataFrame(
        [{"block": block, **row} for row in rows], schema_overrides={"block": pl.String}
    )


@pytest.mark.parametrize(
    ("between", "is_tied"),
    [(2, True), (3, False)],
)
def test_the_other_half_is_looked_for_among_the_nearest_chunks(between, is_tied):
    partner = beside.find_partners(chunks(-50, between=between), from_ranges=False)[0]
    assert (partner >= 0) is is_tied


@pytest.mark.parametrize(("overlap", "met"), [(5, False), (6, True)])
def test_halves_of_a_named_block_have_met_above_a_twentieth(overlap, met):
    """TOUCH: 5 % of the shorter half; the two were launched apart."""
    assert (beside.find_partners(chunks(-overlap, block="x"), from_ranges=True)[0] >= 0) is met


@pytest.mark.parametrize(("blocks", "believed"), [(9, True), (10, False)])
def test_names_are_believed_where_more_than_a_tenth_met(blocks, believed):
    """SOME: one block of *blocks* met; with ten of them that is a tenth, and not more."""
    rows = []
    for n in range(blocks):
        start = n * 1_000
        rows += [
            {"block": str(n), "op": "F", "pair": 100 + n, "launch_ns": start, "last_ns": start + 1,
             "start_ns": start, "end_ns": start + 100},
            {"block": str(n), "op": "B", "pair": n, "launch_ns": start + 300, "last_ns": start + 310,
             "start_ns": start + 400 if n else start + 50, "end_ns": start + 500 if n else start + 150},
        ]  # fmt: skip
    partners = beside.find_partners(pl.DataFrame(rows), from_ranges=True).to_list()
    assert (partners[-2] >= 0) is believed
