"""Parts of the model that events belong to: hand-written layers, with one kind of evidence at a time."""

from __future__ import annotations

import polars as pl
import pytest

from tests.classify.conftest import event_row
from tracekit.classify import Rule, RuleBook, classify
from tracekit.classify.modules import Stretch, usual_projections

HIDDEN, WIDE = 8, 20
SQUARE, UP, DOWN = (HIDDEN, HIDDEN), (HIDDEN, WIDE), (WIDE, HIDDEN)
HEAD = (HIDDEN, 50)


def stretch(*widths, after=True, before=True, activation=False):
    return Stretch(tuple(widths), after, before, activation)


GATED = stretch(SQUARE, UP, UP, DOWN, SQUARE, SQUARE, SQUARE)
"""Output projection, gate, up, down; then query, key and value of the next layer."""


def test_a_gated_mlp_between_two_attentions():
    projections = usual_projections([GATED])
    assert projections == (SQUARE,) * 3
    assert GATED.modules(projections) == ["attention", "mlp", "mlp", "mlp", *["attention"] * 3]


def test_the_head_follows_the_last_layer():
    last = stretch(SQUARE, UP, UP, DOWN, HEAD, before=False)
    assert last.modules((SQUARE,) * 3) == ["attention", "mlp", "mlp", "mlp", "head"]
    # The next pass begins right behind it, on the same thread.
    both = stretch(SQUARE, UP, UP, DOWN, HEAD, SQUARE, SQUARE, SQUARE)
    assert both.modules((SQUARE,) * 3) == [
        "attention",
        "mlp",
        "mlp",
        "mlp",
        "head",
        *["attention"] * 3,
    ]


def test_what_is_not_proven_has_no_module():
    # No width to return from: two attentions follow each other.
    crossing = stretch(SQUARE, SQUARE, SQUARE)
    assert crossing.modules(()) == ["attention", None, "attention"]
    low_rank = (HIDDEN, 2), (2, HIDDEN)  # an adapter: narrow, and no activation
    assert stretch(SQUARE, *low_rank, SQUARE).modules(()) == ["attention", None, None, "attention"]
    assert stretch(SQUARE, *low_rank, SQUARE, activation=True).modules(())[1:3] == ["mlp", "mlp"]
    unknown = (0, 0)
    assert stretch(unknown, unknown, unknown, unknown).modules(()) == [
        "attention",
        None,
        None,
        "attention",
    ]


def write_layer(program, start):
    """Launch a layer as operators without names: attention, projection, up, activation, down.

    Return the ids.
    """
    names = (
        ("aten::mm", "gemm", [[4, 8], [8, 24]]),
        ("aten::_flash_attention_forward", "flash_fwd_kernel", [[1, 4, 1, 8]] * 3),
        ("aten::mm", "gemm", [[4, 8], [8, 8]]),
        ("aten::mm", "gemm", [[4, 8], [8, 20]]),
        ("aten::gelu", "gelu", [[4, 20]]),
        ("aten::mm", "gemm", [[4, 20], [20, 8]]),
    )
    ids = []
    for i, (op, kernel, shapes) in enumerate(names):
        program.op(op, start + i, start + i + 0.9, shapes=str(shapes))
        ids.append(program.kernel(kernel, start + i + 0.1))
    return ids


@pytest.fixture
def layers(program):
    return [write_layer(program, 10 * layer) for layer in range(3)]


def modules_of(table, ids):
    return [event_row(table, i)["module"] for i in ids]


def test_shapes_tell_where_nothing_names_products(program, layers):
    table = classify(program.events())
    for ids in layers:
        assert modules_of(table, ids) == [
            "attention",
            "attention",
            "attention",
            "mlp",
            "mlp",
            "mlp",
        ]
    assert event_row(table, layers[1][2])["module_from"] == "shapes"


def test_calls_of_modules_come_first(program, layers):
    """Classes are asked from the innermost outwards; a model's own name says nothing."""
    program.add("python", "nn.Module: MyMoeForCausalLM_0", -1, 40, tid=1)
    for layer in range(3):
        program.add(
            "python",
            f"nn.Module: MyMoeDecoderLayer_{layer}",
            10 * layer - 0.5,
            10 * layer + 8,
            tid=1,
        )
        program.add(
            "python", f"nn.Module: Router_{layer}", 10 * layer + 2.95, 10 * layer + 3.95, tid=1
        )
    table = classify(program.events())
    row = event_row(table, layers[2][3])
    assert (row["module"], row["module_from"], row["layer"]) == ("router", "module stack", 2)
    assert row["modules"] == "MyMoeForCausalLM_0 > MyMoeDecoderLayer_2 > Router_2"
    assert event_row(table, layers[2][0])["module"] == "attention"


def test_a_product_in_front_of_a_router_is_its_own_and_the_one_behind_is_not(program):
    names = (
        ("aten::mm", "gemm", [[4, 8], [8, 16]]),
        ("aten::topk", "gatherTopK", [[4, 16]]),
        ("aten::mm", "gemm", [[4, 8], [8, 12]]),
    )
    ids = []
    for i, (op, kernel, shapes) in enumerate(names):
        program.op(op, i, i + 0.9, shapes=str(shapes))
        ids.append(program.kernel(kernel, i + 0.1))
    assert modules_of(classify(program.events()), ids) == ["router", "router", None]


def test_rules_of_the_user_come_before_calls(program, layers):
    program.add("python", "nn.Module: Mlp_0", -1, 40, tid=1)
    book = RuleBook((Rule("mine", label="forward", when={"name": "gelu"}, module="vision"),))
    table = classify(program.events(), rules=book)
    assert event_row(table, layers[0][4])["module"] == "vision"
    assert event_row(table, layers[0][5])["module"] == "mlp"


def test_fused_operators_tell_if_they_agree(program):
    fused = {
        "triton_poi_fused__unsafe_view_mul_silu_2": "mlp",
        "triton_red_fused_native_layer_norm_3": "norm",
        "triton_red_fused_native_layer_norm_silu_4": None,
    }
    ids = [program.kernel(name, 10 + i) for i, name in enumerate(fused)]
    assert modules_of(classify(program.events()), ids) == list(fused.values())


@pytest.mark.parametrize(
    ("kernel", "op", "module"),
    [
        (
            "void vllm::reshape_and_cache_flash_kernel<short>(short)",
            "_C_cache_ops::copy",
            "attention",
        ),
        ("store_kvcache<2048>", "sgl_kernel::store", "attention"),
        ("copy", "sglang_profiler::memory_pool_set_kv_buffer", "attention"),
        ("void flashinfer::sampling::TopKTopPSamplingFromProbKernel", "custom::sample", "sampling"),
        ("reduce_kernel<512, 1, ArgMaxOps<float>>", "aten::argmax", "sampling"),
        ("void act_and_mul_kernel<bf16, silu>", "sgl_kernel::activate", "mlp"),
        # Experts, whose sorting is the router's and whose sum is theirs.
        (
            "_ZN5aiter50fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_ps_32x256E",
            "aiter::fused_moe_",
            "mlp",
        ),
        ("cutlass::device_kernel<GemmUniversal>", "trtllm::fused_moe", "mlp"),
        ("finalizeMoeRoutingKernel<__nv_bfloat16>", "trtllm::fused_moe", "mlp"),
        ("customMoeRoutingKernel<float>", "trtllm::renorm_moe_routing_op", "router"),
        ("void vllm::moe::moe_sum_kernel<c10::BFloat16, 8>", "_moe_C::moe_sum", "mlp"),
        ("void ck_tile::kentry<1, ck_tile::MoeSortingKernel>", "aiter::moe_sorting_fwd", "router"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1", "vllm::moe_forward", "mlp"),
        ("_ZN5aiter28pa_bf16_noquant_gqa8_1tg_4wE", "aiter::pa_fwd_asm", "attention"),
        ("kernel_mha", "trtllm::attn_custom_op_inplace", "attention"),
        ("paged_attention_ll4mi_reduce_kernel<bf16>", "_rocm_C::paged_attention", "attention"),
    ],
)
@pytest.mark.parametrize("mark", ["step[DECODE bs=4]", "execute_context_0(0)_generation_4(4)"])
def test_the_cache_and_sampling_of_a_server_have_modules(program, mark, kernel, op, module):
    program.note(mark, 0, 100)
    program.op(op, 1, 9)
    target = program.kernel(kernel, 2)
    assert modules_of(classify(program.events()), [target]) == [module]


def test_choosing_the_largest_in_training_is_no_sampling(program):
    program.trained()
    program.op("aten::argmax", 1, 9)
    target = program.kernel("reduce_kernel<512, 1, ArgMaxOps<float>>", 2)
    assert modules_of(classify(program.events()), [target]) == [None]


@pytest.mark.parametrize("kernel", ["fused_bwd_kernel", "multi_tensor_apply_kernel<Adam>"])
def test_everything_in_a_step_of_a_server_runs_forward(program, kernel):
    program.note("step[EXTEND bs=2 toks=600]", 0, 100)
    program.op("aten::mm", 1, 9, shapes="[[600, 8], [8, 8]]")
    program.kernel("gemm", 2)
    program.op("custom::op", 20, 29)
    program.kernel(kernel, 21)
    labelled = classify(program.events()).filter(pl.col("label").is_not_null())
    assert labelled["label"].unique().to_list() == ["forward"]
    assert labelled["pass"].unique().to_list() == ["forward"]


def test_what_scales_masks_or_copies_the_scores_of_attention_belongs_to_it(program):
    """Scores of 2 × 4 heads and 64 tokens; a mask of 64 × 64 alone, and what is as wide as tokens, are others."""
    scores, heads = "[2, 4, 64, 64]", "[2, 4, 64, 16]"
    names = (
        ("aten::bmm", "gemm", "[[8, 64, 16], [8, 16, 64]]", "attention"),
        ("aten::div", "elementwise", f"[{scores}, []]", "attention"),
        ("aten::masked_fill", "elementwise", f"[{scores}, [64, 64], []]", "attention"),
        ("aten::_softmax", "softmax", f"[{scores}, [], []]", "attention"),
        ("aten::bmm", "gemm", "[[8, 64, 64], [8, 64, 16]]", "attention"),
        ("aten::triu", "elementwise", "[[64, 64]]", None),
        ("aten::mul", "elementwise", f"[{heads}, {heads}]", None),
        ("aten::add", "elementwise", "[[2, 64, 64], [2, 64, 64]]", None),
    )
    ids = []
    for i, (op, kernel, shapes, _) in enumerate(names):
        program.op(op, i, i + 0.9, shapes=shapes)
        ids.append(program.kernel(kernel, i + 0.1))
    assert modules_of(classify(program.events()), ids) == [module for *_, module in names]


@pytest.mark.parametrize("op", ["aten::silu", "aten::gelu"])
def test_an_activation_is_a_feed_forwards_only_between_its_products(program, op):
    """In the second stretch it activates what a norm gives a convolution, as in a diffusion model."""
    names = (
        ("aten::mm", "gemm", "[[4, 8], [8, 32]]", None),
        (op, "elementwise", "[[4, 32]]", "mlp"),
        ("aten::mul", "elementwise", "[[4, 32], [4, 32]]", None),
        ("aten::mm", "gemm", "[[4, 32], [32, 8]]", None),
        ("aten::native_group_norm", "norm", "[[4, 8, 16, 16]]", "norm"),
        (op, "elementwise", "[[4, 8, 16, 16]]", None),
        ("aten::cudnn_convolution", "conv", "[[4, 8, 16, 16], [8, 8, 3, 3]]", "convolution"),
    )
    ids = []
    for i, (operator, kernel, shapes, _) in enumerate(names):
        program.op(operator, i, i + 0.9, shapes=shapes)
        ids.append(program.kernel(kernel, i + 0.1))
    modules = modules_of(classify(program.events()), ids)
    assert (modules[1], modules[5]) == ("mlp", None)


@pytest.mark.parametrize(
    ("widths", "options", "end"),
    [
        # Projection, up, down: 8 → 32 → 8.
        ([(8, 8), (8, 32), (32, 8)], {}, 3),
        ([(8, 8), (8, 64), (32, 8)], {}, 3),  # gated: up and gate in one product
        ([(8, 8), (8, 32), (32, 8), (8, 24)], {}, 3),
        ([(8, 8), (8, 32), (32, 9)], {}, 0),
        ([(8, 8), (8, 33), (32, 8)], {}, 0),  # nothing leads there
        ([(8, 8), (8, 8)], {}, 0),
        ([(8, 8), (8, 4), (4, 8)], {}, 0),  # an adapter of low rank
        ([(8, 8), (8, 4), (4, 8)], {"has_activation": True}, 3),
        ([(8, 8), (8, 32), (32, 8)], {"after_attention": False}, 0),
        ([], {}, 0),
        ([(8, 32), (32, 8)], {}, 0),  # the first is the attention's own
    ],
)
def test_the_feed_forward_part_ends_where_its_width_comes_back(widths, options, end):
    usual = {"after_attention": True, "before_attention": True, "has_activation": False}
    assert Stretch(tuple(widths), **{**usual, **options}).feed_forward_end == end
