"""The operators a compiled kernel was fused from."""

from __future__ import annotations

import pytest

from tracekit.classify.explain import explain
from tracekit.classify.modules import fused_operators
from tracekit.run.load import load


@pytest.mark.parametrize(
    ("kernel", "operators"),
    [
        ("triton_poi_fused_add_mul_0", ("add", "mul")),
        ("triton_poi_fused__to_copy_add_0", ("_to_copy", "add")),
        (
            "triton_red_fused__softmax_backward_data_native_dropout_12",
            ("_softmax_backward_data", "native_dropout"),
        ),
        (
            "triton_poi_fused__unsafe_view_gelu_gelu_backward_view_2",
            ("_unsafe_view", "gelu", "gelu_backward", "view"),
        ),
        ("triton_poi_fused_0", ("0",)),
        ("triton_per_fused_frobnicate_twice_sum", ("frobnicate_twice", "sum")),
    ],
)
def test_names_are_taken_apart_where_operators_end(kernel, operators):
    assert fused_operators(kernel)[1] == operators


def test_the_traces_own_operators_count():
    assert fused_operators("triton_poi_fused_add_my_op_mul_0", ["my_op_mul"])[1] == (
        "add",
        "my_op_mul",
    )


@pytest.mark.parametrize(
    "kernel", ["", "triton_", "nvjet", "triton_mm", "my_triton_poi_fused_add_0"]
)
def test_other_kernels_have_none(kernel):
    assert fused_operators(kernel) is None


def test_explain_says_so(samples):
    shown = explain(
        load(samples / "compile").rank(0).events, "triton_poi_fused__unsafe_view_gelu_2"
    ).render()
    assert "fused_from" in shown
    assert "_unsafe_view, gelu" in shown
