"""The table of operator sites, from labelled events of a few lines."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.metrics import sites as sites_module
from tracekit.metrics.kernel_limits import find_memory_bound
from tracekit.metrics.sites import find_sites
from tracekit.schema import LABELLED, conform

MM = {
    "kind": "kernel", "name": "gemm_bf16", "label": "forward", "module": "mlp", "op": "aten::mm", "op_id": 1,
    "shapes": "[[2,4],[4,8]]", "start_ns": 0, "end_ns": 90,
}  # fmt: skip


def labelled(*events):
    return conform(pl.DataFrame(list(events), infer_schema_length=None), LABELLED)


def test_helpers_of_a_product_are_of_its_site_and_its_call_counts_once():
    memset = {
        **MM,
        "kind": "memset",
        "name": "Memset",
        "label": "memory",
        "start_ns": 90,
        "end_ns": 92,
    }
    found = find_sites(labelled(MM, memset, {**MM, "op_id": 2}))
    (site,) = found.sites.iter_rows(named=True)
    assert (site["label"], site["module"], site["dtype"]) == ("forward", "mlp", "bf16")
    assert (site["calls"], site["launches"], site["ns"], site["flop"]) == (2, 3, 182, 128)
    assert found.of_event.to_list() == [0, 0, 0]
    assert found.main_rows.tolist() == [0, 0, 2]


def test_what_was_not_recorded_is_unknown():
    (site,) = find_sites(labelled({**MM, "shapes": None})).sites.iter_rows(named=True)
    assert (site["shapes"], site["flop"], site["is_product"]) == (None, None, True)


@pytest.mark.parametrize(
    ("most", "shapes"), [(3, {"[[1]]", "[[2]]", "[[3]]"}), (2, {"[[2]]", "[[3]]", None})]
)
def test_of_an_operator_the_longest_sites_are_told_apart(monkeypatch, most, shapes):
    monkeypatch.setattr(sites_module, "MAX_SITES_PER_OPERATOR", most)
    add = {**MM, "name": "k", "op": "aten::add"}
    events = [
        {**add, "op_id": size, "shapes": f"[[{size}]]", "end_ns": 100 * size} for size in (1, 2, 3)
    ]
    found = find_sites(labelled(*events, MM)).sites
    assert set(found.filter(pl.col("op") == "aten::add")["shapes"].to_list()) == shapes
    assert found.filter(pl.col("op") == "aten::mm")["shapes"].to_list() == [MM["shapes"]]


def test_a_call_whose_kernels_have_several_labels_moves_its_bytes_once():
    norm = {
        **MM, "name": "k", "op": "aten::add", "shapes": "[[1024],[1024]]",
        "dtypes": '["float","float"]', "label": "dgrad",
    }  # fmt: skip
    table = find_memory_bound(labelled(norm, {**norm, "label": "wgrad"}), device="NVIDIA H200")
    assert table.select("calls", "bytes", "ns").rows() == [(1, 3 * 4096, 180)]
