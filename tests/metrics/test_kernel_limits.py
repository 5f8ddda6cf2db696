"""Bytes that operators move at least, counted by hand."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.metrics.kernel_limits import (
    MAX_ROWS_PER_RANK,
    find_memory_bound,
    moved_bytes,
    product_bytes,
)
from tracekit.schema import LABELLED, conform


@pytest.mark.parametrize(
    ("kind", "shapes", "dtypes", "expected"),
    [
        ("elementwise", "[[4,8],[4,8],[]]", '["float","float","Scalar"]', 3 * 32 * 4),
        ("elementwise", "[[4,8]]", '["c10::BFloat16"]', 2 * 32 * 2),
        (
            "normalization",
            "[[4,8],[],[8],[8],[]]",
            '["float","ScalarList","float","float","Scalar"]',
            2 * 128 + 2 * 32,
        ),
        ("softmax", "[[4,8],[],[]]", '["c10::Half","Scalar","Scalar"]', 2 * 32 * 2),
        ("reduction", "[[4,8],[]]", '["float","Scalar"]', 128),
        ("embedding", "[[1000,16],[4,8],[]]", '["float","long int","Scalar"]', 2 * 32 * 16 * 4),
        ("optimizer", "[[[10],[20]],[[10],[20]]]", '["TensorList","TensorList"]', 30 * 2 * 3),
        ("elementwise", "[[4,8]]", '["unheard"]', None),
        ("elementwise", "[[],[]]", '["Scalar","Scalar"]', None),
        ("elementwise", "[[4,8]]", "", None),
        ("elementwise", "[]", "[]", None),
        ("embedding", "[]", "[]", None),
    ],
)
def test_every_input_is_read_and_every_result_written_once(kind, shapes, dtypes, expected):
    assert moved_bytes(kind, shapes, dtypes) == expected


def test_a_product_reads_both_matrices_and_writes_one():
    assert (
        product_bytes("aten::mm", "[[10,20],[20,30]]", "bf16", 2 * 10 * 20 * 30, 1)
        == (200 + 600 + 300) * 2
    )
    assert (
        product_bytes("aten::mm", "[[10,20],[20,30]]", "bf16", 3 * 2 * 10 * 20 * 30, 3)
        == 3 * (200 + 600 + 300) * 2
    )
    assert product_bytes("aten::mm", "[[10,20],[20,30]]", None, 12_000, 1) is None


def test_a_product_that_is_given_its_output_does_not_read_it():
    shapes = "[[10,30],[10,20],[20,30]]"
    moved = product_bytes("_C::cutlass_scaled_mm", shapes, "fp8", 2 * 10 * 20 * 30, 1)
    assert moved == 200 + 600 + 300


def add(number, ns, size=1024):
    return {"id": number, "kind": "kernel", "name": "k", "label": "forward", "op": "aten::add", "op_id": number,
            "shapes": f"[[{size}],[{size}]]", "dtypes": '["float","float"]', "start_ns": 0, "end_ns": ns}  # fmt: skip


def table_of(*rows, device="NVIDIA H200"):
    return find_memory_bound(conform(pl.DataFrame(list(rows)), LABELLED), device=device)


def test_calls_with_equal_sizes_are_one_row():
    (row,) = table_of(add(1, 100), add(2, 300)).iter_rows(named=True)
    assert (row["kind"], row["calls"], row["ns"], row["bytes"]) == (
        "elementwise",
        2,
        400,
        2 * 3 * 4096,
    )
    assert row["limit_ns"] == pytest.approx(2 * 3 * 4096 / 4800)


def test_what_is_faster_than_the_memory_came_from_a_cache():
    assert table_of(add(1, 1))["limit_ns"].to_list() == [None]
    assert table_of(add(1, 100), device="Abacus")["limit_ns"].to_list() == [None]


def test_copies_on_the_device_read_and_write():
    copy = {
        "id": 1,
        "kind": "memcpy",
        "name": "Memcpy DtoD (Device -> Device)",
        "bytes": 4800,
        "end_ns": 10,
    }
    (row,) = table_of({**copy, "label": "memory", "start_ns": 0}).iter_rows(named=True)
    assert (row["kind"], row["bytes"], row["limit_ns"]) == ("copy", 9600, 2.0)


def test_the_longest_rows_are_kept():
    rows = [add(number, 1000 + number, size=1000 + number) for number in range(120)]
    table = table_of(*rows)
    assert (len(table), MAX_ROWS_PER_RANK, table["ns"].min()) == (100, 100, 1020)
