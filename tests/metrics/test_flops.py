"""FLOP of an operator call, counted by hand."""

from __future__ import annotations

import pytest

from tracekit.metrics.flop import convolution_outputs, flop

CASES = {
    "mm": ("aten::mm", "[[2,3],[3,5]]", 2 * 2 * 3 * 5),
    "addmm: the bias is no operand": ("aten::addmm", "[[5],[2,3],[3,5],[],[]]", 2 * 2 * 3 * 5),
    "bmm": ("aten::bmm", "[[7,2,3],[7,3,5]]", 7 * 2 * 2 * 3 * 5),
    "baddbmm": ("aten::baddbmm", "[[7,2,5],[7,2,3],[7,3,5],[],[]]", 7 * 2 * 2 * 3 * 5),
    "linear stores its weight transposed": ("aten::linear", "[[4,2,3],[5,3],[5]]", 4 * 2 * 2 * 3 * 5),
    "matrix times vector": ("aten::mv", "[[2,3],[3]]", 2 * 2 * 3),
    "experts, tokens by expert": ("aten::_grouped_mm", "[[10,3],[4,3,5],[4]]", 2 * 10 * 3 * 5),
    "experts' weight gradient": ("aten::_grouped_mm", "[[3,10],[10,5],[4]]", 2 * 3 * 10 * 5),
    "experts, columns by expert": ("aten::_grouped_mm", "[[4,2,3],[3,12],[4]]", 2 * 2 * 3 * 12),
    "flash attention, heads third": ("aten::_flash_attention_forward", "[[2,6,4,8],[2,7,4,8],[2,7,4,8]]",
                                     2 * (2 * 4 * 6 * 7) * (8 + 8)),
    "attention, heads second": ("aten::_scaled_dot_product_flash_attention", "[[2,4,6,8],[2,4,7,8],[2,4,7,8]]",
                                2 * (2 * 4 * 6 * 7) * (8 + 8)),
    "attention whose keys share heads": ("aten::_cudnn_attention_forward", "[[2,4,6,8],[2,1,7,8],[2,1,7,8]]",
                                         2 * (2 * 4 * 6 * 7) * (8 + 8)),
    "attention backward, five products": ("aten::_flash_attention_backward",
                                          "[[2,6,4,8],[2,6,4,8],[2,7,4,8],[2,7,4,8]]",
                                          5 * 2 * (2 * 4 * 6 * 7) * 8),
    "a convolution's gradient": ("aten::convolution_backward", "[[8,64,28,28],[8,32,28,28],[64,32,3,3],[]]",
                                 2 * (8 * 64 * 28 * 28) * (32 * 3 * 3)),
}  # fmt: skip


@pytest.mark.parametrize(("op", "shapes", "count"), CASES.values(), ids=CASES)
def test_counted_by_hand(op, shapes, count):
    assert flop(op, shapes) == count


UNKNOWN = {
    "not an operator we count": ("aten::relu", "[[2,3]]"),
    "operands that do not fit": ("aten::mm", "[[2,3],[4,5]]"),
    "an operand without sizes": ("aten::mm", "[[2,3],[]]"),
    "one operand": ("aten::bmm", "[[7,2,3]]"),
    "sequences packed into one tensor": (
        "aten::_flash_attention_forward",
        "[[100,4,8],[100,4,8],[100,4,8]]",
    ),
    "not JSON": ("aten::mm", "[[2,3],"),
    "not a list": ("aten::mm", "7"),
    "a forward convolution whose output nothing tells": (
        "aten::convolution",
        "[[8,3,9,9],[4,3,3,3],[],[]]",
    ),
}


@pytest.mark.parametrize(("op", "shapes"), UNKNOWN.values(), ids=UNKNOWN)
def test_not_known_is_none(op, shapes):
    assert flop(op, shapes) is None


def test_a_convolutions_output_is_taken_from_its_backward():
    backward = "[[8,64,28,28],[8,32,56,56],[64,32,3,3],[]]"
    outputs = convolution_outputs([backward])
    forward = flop("aten::convolution", "[[8,32,56,56],[64,32,3,3],[],[]]", outputs=outputs)
    assert forward == 2 * (8 * 64 * 28 * 28) * (32 * 3 * 3)


def test_one_shape_with_two_strides_is_ambiguous():
    both = ["[[8,64,28,28],[8,32,56,56],[64,32,3,3]]", "[[8,64,56,56],[8,32,56,56],[64,32,3,3]]"]
    assert convolution_outputs(both) == {}
