"""Chunks of layers by the kernels of their operators."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.analysis.measure.by import layers


@pytest.mark.parametrize(("kernels", "tokens"), [(4, 1), (5, 5)])
def test_kernels_of_an_operator_that_launches_up_to_four_are_one_kind(kernels, tokens):
    rows = pl.DataFrame(
        {
            "name": [f"k{i}" for i in range(kernels)],
            "op": "aten::mm",
            "op_id": 1,
            "host_ns": range(kernels),
        }
    ).with_columns(part=pl.lit("F"), label=pl.lit("forward"), number=1, chunk=0, turn=0)
    (chunk,) = layers.split_chunks(rows, "F")
    assert chunk["token"].n_unique() == tokens
