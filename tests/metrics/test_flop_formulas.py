"""Operations of one call, counted by hand from the sizes of its inputs."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.metrics.flop import (
    attention_flop,
    convolution_backward_flop,
    flop,
    fused_experts,
    grouped_product_flop,
    most_convolution_output,
    product_flop,
)
from tracekit.metrics.rates import products
from tracekit.schema import LABELLED, conform


@pytest.mark.parametrize(
    ("dims", "flop"),
    [
        ([[2, 3], [3, 5]], 60),
        ([[7, 2, 3], [7, 3, 5]], 420),
        ([[2, 3], [3]], 12),  # a vector
        ([[2, 3], [4]], None),
        ([[2, 3], [4, 5]], None),
        ([[2, 3]], None),
        ([[], [3, 5]], None),
        ([[2, 3], []], None),
    ],
)
def test_a_product_multiplies_and_adds_for_each_row_inner_value_and_column(dims, flop):
    assert product_flop(0, 1)(dims) == flop


def test_other_inputs_and_a_matrix_that_lies_on_its_side():
    assert product_flop(1, 2)([[5], [2, 3], [3, 5]]) == 60
    assert product_flop(0, 1, transposed=True)([[2, 3], [5, 3]]) == 60
    assert product_flop(0, 1, transposed=True)([[2, 3], [3, 5]]) is None


@pytest.mark.parametrize(
    ("dims", "flop"),
    [
        ([[4, 3], [2, 3, 5]], 120),  # four tokens, each by the matrix of one of two experts
        ([[2, 4, 3], [2, 3, 5]], 240),
        ([[2, 4, 3], [3, 5]], 120),  # experts cut the columns
        ([[4, 3], [2, 4, 5]], None),
        ([[4, 3]], None),
        ([[4, 3], []], None),
        ([[], [2, 3, 5]], None),
    ],
)
def test_each_token_is_multiplied_by_one_experts_matrix(dims, flop):
    assert grouped_product_flop(dims) == flop


QUERY, KEY, VALUE = [2, 3, 5, 7], [2, 3, 11, 7], [2, 3, 11, 13]
PAIRS = 2 * 3 * 5 * 11


@pytest.mark.parametrize(
    ("options", "dims", "flop"),
    [
        ({"heads": 1}, [QUERY, KEY, VALUE], 2 * PAIRS * (7 + 13)),
        ({"heads": 1, "backward": True}, [QUERY, KEY, VALUE], 2 * PAIRS * (3 * 7 + 2 * 13)),
        ({"heads": 2}, [[2, 5, 3, 7], [2, 11, 3, 7], [2, 11, 3, 13]], 2 * PAIRS * (7 + 13)),
        ({"heads": 1}, [QUERY, KEY], None),
        ({"heads": 1}, [QUERY, KEY, VALUE[1:]], None),  # packed sequences
    ],
)
def test_attention_multiplies_each_query_with_each_key_and_its_weights_with_the_values(
    options, dims, flop
):
    assert attention_flop(0, **options)(dims) == flop
    assert attention_flop(1, **options)([[9], *dims]) == flop
    assert attention_flop(0, **options)([*dims, [], []]) == flop  # no mask, no dropout
    assert attention_flop(1, **options)(dims) is None


def test_each_gradient_of_a_convolution_costs_as_much_as_its_forward():
    """Two images of 5 channels and 4 × 4 come of 3 channels by kernels of 3 × 3."""
    assert convolution_backward_flop([[2, 5, 4, 4], [2, 3, 6, 6], [5, 3, 3, 3]]) == 2 * 160 * 27
    # Of a sequence: 2 × 5 × 4 results of 3 channels × 3 places each.
    assert convolution_backward_flop([[2, 5, 4], [2, 3, 6], [5, 3, 3]]) == 2 * 40 * 9
    assert convolution_backward_flop([[2, 5, 4, 4], [2, 3, 6, 6]]) is None
    assert convolution_backward_flop([[], [2, 3, 6, 6], [5, 3, 3, 3]]) is None
    assert convolution_backward_flop([[2, 5, 4, 4], [2, 3, 6, 6], [5, 3]]) is None


@pytest.mark.parametrize(
    ("shapes", "elements"),
    [
        ("[[8,3,5],[64,3,2]]", 8 * 64 * 6),
        ("[[8,3],[64,3]]", None),
        ("[[8,3,5],[64,3,2,2]]", None),
        ("[[8,3,5]]", None),
        ("[]", None),
    ],
)
def test_a_convolution_gives_at_most_what_full_padding_gives(shapes, elements):
    assert most_convolution_output(shapes) == elements


@pytest.mark.parametrize(
    ("shapes", "per_expert"),
    [
        ("[[4,8],[16,12,8],[16,8,6],[4,2]]", 12 * 8 + 8 * 6),  # gated: two matrices in one
        ("[[4,8],[16,6,8],[16,8,6],[4,2]]", 6 * 8 + 8 * 6),
        ("[[4,8],[16,7,8],[16,8,6],[4,2]]", None),
        ("[[4,8],[15,12,8],[16,8,6],[4,2]]", None),
        ("[[4,8],[16,12,9],[16,8,6],[4,2]]", None),
        ("[[4,8],[16,12,8],[16,9,6],[4,2]]", None),
        ("[[4,8],[16,12,8],[16,8,6],[5,2]]", None),  # no row of each token
        ("[[4,8],[16,12,8],[16,8,6],[4,0]]", None),
        ("[[4,8],[16,12,8],[16,8,6],[4,16]]", 144),
        ("[[4,8],[16,12,8],[16,8,6],[4,17]]", None),  # more experts of a token than there are
        ("[[4,8],[16,12,8]]", None),
        ("[[4,8],[12,8],[16,8,6],[4,2]]", None),
    ],
)
def test_experts_are_known_by_sizes_that_fit_each_other(shapes, per_expert):
    experts = fused_experts(shapes)
    assert (experts and experts.weights_per_expert) == per_expert


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        ("_C::cutlass_scaled_mm", "[[2,5],[2,3],[3,5],[2,1],[1,5]]"),  # the output comes first
        ("_C::cutlass_scaled_mm_azp", "[[2,5],[2,3],[3,5],[2,1],[1,5],[5]]"),
        ("sgl_kernel::fp8_scaled_mm", "[[2,3],[3,5],[2,1],[1,5]]"),
        (
            "aiter::gemm_a8w8_blockscale",
            "[[2,3],[5,3],[2,1],[1,1]]",
        ),  # the weights lie on their side
        ("trtllm::fp8_block_scaling_gemm", "[[2,3],[5,3],[1,2],[1,1]]"),
    ],
)
def test_quantised_products_of_servers_multiply_and_add_as_others(op, shapes):
    assert flop(op, shapes) == 60


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        # Eight weights of 4 bits in a number: sixteen rows in one, a row for eight, a column for eight.
        ("_C::gptq_marlin_gemm", "[[16,512],[],[32,2048],[4,1024],[],[],[]]"),
        ("_C::gptq_gemm", "[[16,512],[64,1024],[4,128],[4,1024],[512]]"),
        ("_C::awq_gemm", "[[16,512],[512,128],[4,1024],[4,128],[]]"),
        (
            "_C::gptq_marlin_gemm",
            "[[16,512],[],[32,4096],[4,1024],[],[],[]]",
        ),  # 8 bits: four in one
    ],
)
def test_packed_weights_hold_as_many_numbers_as_the_matrix_has(op, shapes):
    assert flop(op, shapes) == 2 * 16 * 512 * 1024


def test_packed_weights_that_fit_no_matrix_make_no_claim():
    assert flop("_C::gptq_marlin_gemm", "[[16,512],[],[32,2000],[4,1024],[],[],[]]") is None


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        ("aiter::fused_moe_", "[[4,8],[16,12,8],[16,8,6],[4,2],[4,2]]"),
        # Tokens, the experts of each and their weights, then both matrices with their biases.
        ("trtllm::fused_moe", "[[4,8],[4,2],[4,2],[16,12,8],[16,12],[16,8,6],[16,8]]"),
    ],
)
def test_experts_of_servers_are_known_by_their_sizes(op, shapes):
    assert flop(op, shapes) == 2304


def test_experts_that_other_ranks_hold_leave_the_work_open():
    # A map from all 64 experts to the 16 that are here: how many tokens come is not in the shapes.
    shapes = "[[4,8],[16,12,8],[16,8,6],[4,2],[4,2],[64]]"
    assert flop("vllm::fused_experts", shapes) is None


@pytest.mark.parametrize(("expert_ranks", "counted"), [(1, True), (8, False)])
def test_experts_of_tensorrt_llm_on_several_ranks_are_not_counted(expert_ranks, counted):
    event = {
        "id": 0,
        "kind": "kernel",
        "name": "cutlass::device_kernel<GemmUniversal>",
        "op": "trtllm::fused_moe",
        "op_id": 1,
        "label": "forward",
        "shapes": "[[4,8],[4,2],[4,2],[16,12,8],[],[16,8,6],[]]",
        "concrete": f"[null,null,null,null,null,null,null,15,null,null,true,1,0,{expert_ranks},0,1,0]",
        "start_ns": 0,
        "end_ns": 10_000,
    }
    _, rates = products(conform(pl.DataFrame([event]), LABELLED), device="NVIDIA H200")
    assert (rates.flop, rates.uncounted_ns) == ((2304, 0) if counted else (0, 10_000))


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        ("trtllm::nvfp4_gemm", "[[2,3],[5,3],[1],[1]]"),
        ("_C::cutlass_scaled_fp4_mm", "[[2,5],[2,3],[5,3],[1],[1]]"),
    ],
)
def test_matrices_with_two_numbers_in_a_byte_cost_twice_their_bytes(op, shapes):
    assert flop(op, shapes) == 2 * 60
