"""Roles of matrix products by layout, order and use."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from tracekit._util.categories import CategoryColumn
from tracekit.classify import matmul
from tracekit.classify.matmul import deferred_weight_gradients


@pytest.mark.parametrize(
    ("roles", "deferred"),
    [
        ("www", [0, 1, 2]),
        ("wwd", [0, 1]),
        ("wwdd", []),  # half of them
        ("wdd", []),  # an optimizer that multiplies has that layout in every third product
        ("wfdd", [0]),  # a forward product ends a row
    ],
)
def test_products_in_a_row_are_deferred_if_most_have_the_layout(roles, deferred):
    codes = np.array(["wdf".index(role) for role in roles])
    layout = CategoryColumn(("wgrad", "dgrad", "forward"), codes)
    mask = deferred_weight_gradients(np.arange(len(roles)), np.ones(len(roles), np.bool_), layout)
    assert np.flatnonzero(mask).tolist() == deferred


def column(*values):
    return CategoryColumn.from_series(pl.Series(values, dtype=pl.String))


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


def test_products_inside_of_up_to_four_others_belong_to_the_outermost():
    """Six products, each called by the one before it."""
    ranges = SimpleNamespace(
        op_of=np.array([-1, 0, 1, 2, 3, 4]), name_matches=lambda rows, pattern: rows >= 0
    )
    outer = matmul.outermost_product_ops(ranges, np.arange(6))
    assert outer.tolist() == [0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize(("products", "is_layer"), [(1, False), (2, True), (4, True), (5, False)])
def test_a_node_of_two_to_four_products_is_a_layer(products, is_layer):
    """The result of the last one is added in place."""
    rows = np.arange(products)
    ranges = SimpleNamespace(
        next_op=np.array([-1] * (products - 1) + [0]),
        previous_op=np.full(products, -1),
        name_matches=lambda rows, pattern: (rows >= 0) & ("add_" in str(pattern)),
    )
    by_use, _ = matmul.roles_by_use(
        ranges, rows, np.zeros(products, np.int64), np.full(products, products)
    )
    expected = ["dgrad"] * (products - 1) + ["wgrad"] if is_layer else [None] * products
    assert by_use.strings() == expected
