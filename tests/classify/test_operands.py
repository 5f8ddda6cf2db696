"""Products whose operands tell what they are: batched ones, and those a compiled backward computes again."""

from __future__ import annotations

import numpy as np
import pytest

from tests.classify.conftest import ENGINE
from tracekit.classify import classify
from tracekit.classify.recomputed_forward import recomputed_products


def labels(program, ids):
    rows = dict(classify(program.events()).select("id", "label").rows())
    return [rows[i] for i in ids]


def product(program, start, shapes):
    program.op("aten::bmm", start, start + 3, tid=ENGINE, shapes=shapes)
    return program.kernel("gemm_kernel", start + 1, tid=ENGINE)


def backward(program, *, weight, shapes=True):
    """The backward of [4,16,8] × [4,8,2]: the second operand's gradient first, as the formula runs them."""
    program.op("aten::bmm", 0, 10, sequence=5, shapes="[[4,16,8],[4,8,2]]" if shapes else None)
    program.node("BmmBackward0", 20, 30, 5)
    products = [
        product(program, 21, "[[4,8,16],[4,16,2]]" if shapes else None),
        product(program, 25, "[[4,16,2],[4,2,8]]" if shapes else None),
    ]
    if weight:
        program.node("TransposeBackward0", 31, 33, 4)
        program.node("torch::autograd::AccumulateGrad", 34, 38)
        program.rows[-1]["shapes"] = "[[4,2,8]]" if shapes else None
    else:
        program.node("SoftmaxBackward0", 31, 33, 4)
    return products


@pytest.mark.parametrize("shapes", [True, False])
def test_two_activations_have_two_input_gradients(program, shapes):
    assert labels(program, backward(program, weight=False, shapes=shapes)) == ["dgrad", "dgrad"]


@pytest.mark.parametrize("shapes", [True, False])
def test_experts_that_multiply_with_a_weight_have_its_gradient(program, shapes):
    assert labels(program, backward(program, weight=True, shapes=shapes)) == ["wgrad", "dgrad"]


def again(forward, backward):
    return [products.tolist() for products in recomputed_products(tuple(forward), tuple(backward))]


# Rows × inner × columns; each is the shape of the other's input gradient.
UP, DOWN = (
    (8, 2, 6),
    (8, 6, 2),
)
WUP, WDOWN = (2, 8, 6), (6, 8, 2)


def test_nothing_is_computed_again_where_each_product_has_its_two_gradients():
    assert again([UP, DOWN], [UP, DOWN, WUP, WDOWN]) == [[False] * 4, [False] * 4]


def test_what_is_there_beyond_the_gradients_is_computed_again():
    assert again([UP, DOWN], [UP, UP, DOWN, WDOWN, WUP])[0] == [True, False, False, False, False]
    assert again([(8, 2, 2)], [(8, 2, 2), (8, 2, 2), (2, 8, 2)])[0] == [True, False, False]


def test_a_graph_of_several_blocks_is_left_in_doubt():
    """Block 2 is computed again, differentiated, then block 1: shapes do not tell which of the products are which."""
    products, doubtful = again([UP, DOWN] * 2, [UP, UP, DOWN, UP, UP, DOWN, WUP, WDOWN, WUP, WDOWN])
    assert not any(products)
    assert doubtful[:6] == [True, True, False, True, True, False]


def test_products_do_not_have_to_be_known():
    assert [mask.tolist() for mask in recomputed_products((), ((8, 2, 2),))] == [[False], [False]]
    assert np.array(again([UP], []), bool).size == 0


@pytest.mark.parametrize(
    ("forward", "later", "is_optimizer"),
    [
        ("[[16,8],[8,4]]", "[[4,8],[8,4]]", True),  # a weight's gradient times itself
        ("[[16,8],[8,4]]", "[[4,4],[4,8]]", True),
        # Contracts the tokens: the gradient itself, computed later.
        (
            "[[16,8],[8,4]]",
            "[[8,16],[16,4]]",
            False,
        ),
        ("[[16,8],[8,4]]", "[[2,8],[8,4]]", False),  # a forward of 2 other tokens
        ("[[8,8],[8,4]]", "[[4,8],[8,4]]", False),  # 8 may be the tokens
    ],
)
def test_products_of_weights_alone_outside_the_engine_are_the_optimizers(
    program, forward, later, is_optimizer
):
    program.op("aten::mm", 0, 10, sequence=5, shapes=forward)
    program.kernel("gemm_kernel", 1)
    program.node("MmBackward0", 20, 30, 5)
    program.op("aten::mm", 40, 50, shapes=later)
    [label] = labels(program, [program.kernel("gemm_kernel", 41)])
    assert (label == "optimizer") == is_optimizer
