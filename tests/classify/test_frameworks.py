"""Structures of frameworks as their traces show them, written small: Megatron-LM, TransformerEngine, FSDP, graphs."""

from __future__ import annotations

import polars as pl
import pytest

from tests.classify.conftest import ENGINE
from tracekit.classify import classify

pytestmark = pytest.mark.slow

LETTERS = ("nvjet_h_TNN", "nvjet_h_NNN", "nvjet_h_NTN")
MUTE = ("gemm_kernel",) * 3


def check(program, expected):
    """Every event of *expected* (id → label, or label and pass) is labelled so."""
    rows = {row["id"]: row for row in classify(program.events()).iter_rows(named=True)}
    actual = {
        i: (rows[i]["label"], rows[i]["pass"]) if isinstance(w, tuple) else rows[i]["label"]
        for i, w in expected
    }
    assert actual == dict(expected)


@pytest.mark.parametrize("names", [LETTERS, MUTE])
def test_megatron_multiplies_and_adds_in_one_call_without_an_operator(program, names):
    forward, dgrad, wgrad = names
    expected = []
    function = "LinearWithGradAccumulationAndAsyncCommunication"
    for k in range(3):
        start = 20 * k
        program.op(function, start, start + 10, sequence=100 + k)
        program.op("aten::mm", start + 2, start + 8)
        expected.append((program.kernel(forward, start + 3), "forward"))
    program.op("aten::sum", 80, 81, sequence=103)
    for k in (2, 1, 0):
        start = 200 - 20 * k
        program.node(f"{function}Backward", start, start + 15, 100 + k)
        program.op("aten::mm", start + 2, start + 5, tid=ENGINE)
        expected.append((program.kernel(dgrad, start + 3, tid=ENGINE), "dgrad"))
        expected.append((program.kernel(wgrad, start + 8, tid=ENGINE), "wgrad"))
    # Nothing is owed: a product of an evaluation that follows is no weight gradient.
    program.op("aten::mm", 300, 310)
    probe = program.kernel("gemm_kernel", 301)
    check(program, expected)
    assert classify(program.events()).filter(pl.col("id") == probe)["label"].to_list() != ["wgrad"]


@pytest.mark.parametrize("names", [LETTERS, MUTE])
def test_transformer_engine_with_delayed_weight_gradients(program, names):
    forward, dgrad, wgrad = names
    expected = []
    for k in range(2):
        program.op("_LayerNormMLP", 20 * k, 20 * k + 10, sequence=100 + k)
        expected += [(program.kernel(forward, 20 * k + offset), "forward") for offset in (3, 5)]
    program.op("aten::sum", 80, 81, sequence=102)
    for k in (1, 0):
        start = 200 - 20 * k
        program.node("_LayerNormMLPBackward", start, start + 15, 100 + k)
        expected += [
            (program.kernel(dgrad, start + offset, tid=ENGINE), "dgrad") for offset in (3, 6)
        ]
        bwd = "void transformer_engine::normalization::rmsnorm_bwd_{}kernel<x>"
        expected.append((program.kernel(bwd.format("general_"), start + 8, tid=ENGINE), "dgrad"))
        expected.append(
            (program.kernel(bwd.format("finalize_general_"), start + 10, tid=ENGINE), "wgrad")
        )
    for start in (300, 320):
        program.note("_LayerNormMLP_wgrad", start, start + 10)
        expected += [(program.kernel(wgrad, start + offset), "wgrad") for offset in (1, 4)]
    check(program, expected)


def test_fully_sharded_layers(program):
    expected = []
    for k in range(2):
        start = 20 * k
        program.note(f"FSDP::all_gather (layers.{k})", start, start + 5)
        program.op("fsdp::all_gather_copy_in", start, start + 2)
        expected.append((program.kernel("copy_in", start + 1), "memory"))
        expected.append((program.nccl("_allgather_base", start + 3, group="3"), "dp_comm"))
        program.note(f"FSDP::all_gather_copy_out (layers.{k})", start + 6, start + 9)
        program.op("fsdp::split_with_sizes_copy", start + 6, start + 9)
        expected.append((program.kernel("copy_out", start + 7), "memory"))
        program.op("aten::mm", start + 10, start + 18, sequence=100 + k)
        expected.append((program.kernel("gemm_kernel", start + 11), "forward"))
    program.op("aten::sum", 50, 51, sequence=102)
    for k in (1, 0):
        start = 200 - 40 * k
        program.node("MmBackward0", start, start + 10, 100 + k)
        for offset, label in ((1, "wgrad"), (5, "dgrad")):
            program.op("aten::mm", start + offset, start + offset + 3, tid=ENGINE)
            expected.append((program.kernel("gemm_kernel", start + offset + 1, tid=ENGINE), label))
        program.node("RegisterPostBackwardFunctionBackward", start + 12, start + 30, 50 + k)
        program.note("FSDP::post_backward_reduce (layers)", start + 13, start + 29, tid=ENGINE)
        program.op("fsdp::chunk_cat", start + 14, start + 16, tid=ENGINE)
        expected.append((program.kernel("chunk_cat", start + 15, tid=ENGINE), "memory"))
        expected.append(
            (program.nccl("_reduce_scatter_base", start + 18, tid=ENGINE, group="3"), "dp_comm")
        )
        program.op("aten::add_", start + 20, start + 22, tid=ENGINE)
        expected.append((program.kernel("add", start + 21, tid=ENGINE), "wgrad"))
    check(program, expected)


STEP = [
    ("nvjet_h_TNN", "forward"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_f16", "forward"),
    ("nvjet_h_TNN", "forward"),
    ("nvjet_h_NTN", "wgrad"),
    ("nvjet_h_NNN", "dgrad"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_f16", "dgrad"),
    ("nvjet_h_NTN", "wgrad"),
    ("nvjet_h_NNN", "dgrad"),
    ("void at::native::layer_norm_grad_input_kernel_vectorized<x>", "dgrad"),
    ("void at::native::GammaBetaBackwardCUDAKernelTemplate<x>", "wgrad"),
    ("void at::native::multi_tensor_apply_kernel<x>", "optimizer"),
]


def test_a_step_replayed_from_a_graph(program):
    """No operator and no node: the products' layouts and the other kernels' names tell."""
    expected, clock = [], 10
    program.add("runtime", "cudaGraphLaunch", 0, 5, tid=1, correlation=77)
    for name, label in STEP * 2:
        graph_launch = {"device": 0, "stream": 7, "correlation": 77, "graph": 3}
        expected.append((program.add("kernel", name, clock, clock + 2, **graph_launch), label))
        clock += 3
    check(program, expected)


def replay(program, start, names, *, correlation):
    """Return the kernels that one launch of a graph replays, from *start* on."""
    program.add("runtime", "cudaGraphLaunch", start, start + 1, tid=1, correlation=correlation)
    ids = []
    for i, name in enumerate(names):
        begin = start + 2 + 3 * i
        ids.append(
            program.add(
                "kernel", name, begin, begin + 2, device=0, stream=7, correlation=correlation
            )
        )
    return ids


@pytest.mark.parametrize(("tables", "label"), [(1, "forward"), (2, "forward"), (3, "dgrad")])
def test_a_graph_that_begins_with_products_for_tables_begins_with_a_forward(program, tables, label):
    """Rotary embeddings multiply in the layout of an input's gradient.

    A backward has gradients of weights, too.

    The replay before ended with a backward: what begins the next replay does not continue it.
    """
    head = ["embedding", *["sgemm_nn"] * tables, "cos"]
    step = [*head, *(name for name, _ in STEP[:-1] * 2)]
    program.op("aten::relu", -9, -8)
    program.kernel("relu", -8.5)
    first = replay(program, 0, step, correlation=77)
    second = replay(program, 100, step, correlation=78)
    expected = [(ids[1], label) for ids in (first, second)]
    if label == "forward":
        expected += [(ids[i], "forward") for ids in (first, second) for i in range(len(head))]
    check(program, expected)


@pytest.mark.parametrize(("launched", "label"), [(8, "forward"), (7, "other")])
def test_a_call_that_launches_eight_kernels_replays_a_graph(program, launched, label):
    """Work between a backward and a forward is neither, unless a replay of its own begins with it."""
    program.op("aten::relu", -9, -8)
    program.kernel("relu", -8.5)
    backward = ["void at::native::layer_norm_grad_input_kernel_vectorized<x>"] * 3
    replay(program, 0, backward, correlation=77)
    forward = ["cudnn_generated_fort_native_sdpa_sm90_flash_fprop_f16"] * 7
    ids = replay(program, 100, ["embedding", *forward][:launched], correlation=78)
    check(program, [(ids[0], label)])


@pytest.mark.parametrize(
    ("others", "label"), [(0, "wgrad"), (2, "wgrad"), (3, "other"), (6, "other")]
)
def test_products_outside_the_engine_are_deferred_gradients_if_most_have_their_layout(
    program, others, label
):
    """Three products in the layout of weight gradients, and others between them, as an optimizer multiplies."""
    program.op("aten::mm", 0, 3, sequence=5)
    program.kernel("nvjet_h_TNN", 1)
    program.node("MmBackward0", 10, 20, 5)
    program.op("aten::mm", 11, 13, tid=ENGINE)
    program.kernel("nvjet_h_NNN", 12, tid=ENGINE)
    expected = []
    names = ["nvjet_h_NTN"] * 3 + ["nvjet_h_NNN"] * others
    for i, name in enumerate(names):
        start = 30 + 5 * i
        program.op("aten::mm", start, start + 3)
        product = program.kernel(name, start + 1)
        if name == "nvjet_h_NTN":
            expected.append((product, label))
    program.op("aten::mm", 90, 93, sequence=6)
    program.kernel("nvjet_h_TNN", 91)
    check(program, expected)


def test_stages_wrapped_in_fsdp_pack_gradients_and_scale_them(program):
    """Under a stage's own range FSDP's copies are copies, as without a pipeline.

    Scaling belongs to the gradients.
    """
    program.note("PP:1F0", 0, 20)
    program.note("FSDP::all_gather_copy_out (layers.0)", 1, 9)
    program.op("fsdp::split_with_sizes_copy", 2, 8)
    sizes = program.copy("HtoD (Pinned -> Device)", 3, bytes=3904)
    unpack = program.kernel("split_with_sizes_copy_out_contiguous_no_cast_kernel", 5)
    program.note("PP:1REDUCE_GRAD", 30, 60)
    program.op("aten::div_", 31, 33)
    scale = program.kernel("div", 32)
    program.note("FSDP::post_backward_reduce (layers.0)", 40, 59)
    program.op("fsdp::chunk_cat", 41, 50)
    addresses = program.copy("HtoD (Pinned -> Device)", 42, bytes=426464)
    pack = program.kernel("chunk_cat_cuda_kernel", 44)
    program.trained()
    check(
        program, [(row, "memory") for row in (sizes, unpack, addresses, pack)] + [(scale, "wgrad")]
    )


def test_sizes_that_fsdp_writes_while_it_prefetches_weights_are_no_onload(program):
    """The range is named for a prefetch: what a copy serves is told by the operator around it."""
    program.trained()
    program.note("FSDP::backward_prefetch for layers.3", 0, 20)
    program.op("fsdp::split_with_sizes_copy", 2, 8)
    check(program, [(program.copy("HtoD (Pinned -> Device)", 3, bytes=426464), "memory")])


def test_layouts_of_a_replayed_forward_say_nothing_of_gradients(program):
    """Inference mixes layouts too, but unevenly."""
    program.op("aten::embedding", 0, 1)
    program.kernel("embedding", 0.1)
    program.add("runtime", "cudaGraphLaunch", 2, 5, tid=1, correlation=77)
    names = ["nvjet_h_TNN"] * 6 + ["nvjet_h_NNN"]
    graph_launch = {"device": 0, "stream": 7, "correlation": 77, "graph": 3}
    expected = [
        (program.add("kernel", n, 10 + 3 * i, 12 + 3 * i, **graph_launch), "forward")
        for i, n in enumerate(names)
    ]
    check(program, expected)


@pytest.mark.parametrize(
    ("dispatch", "combine"),
    [
        (
            "void deep_ep::intranode::dispatch<8, 768, 8192, false>(int4*)",
            "void deep_ep::intranode::combine<bf16, 8>(x)",
        ),
        (
            "void deep_ep::internode_ll::dispatch<true, 7168>(void*)",
            "void deep_ep::internode_ll::combine<7168>(void*)",
        ),
        ("_ZN7deep_ep9intranode8dispatchILi8EEEvPi", "_ZN7deep_ep9intranode7combineILi8EEEvPi"),
        ("void hybrid_ep::dispatch_kernel<16>(x)", "void hybrid_ep::combine_kernel<16>(x)"),
        ("void pplx::a2a_dispatch_send_kernel<x>(y)", "void pplx::a2a_combine_send_kernel<x>(y)"),
        (
            "mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>",
            "mori::moe::EpCombineIntraNodeKernel<hip_bfloat16>",
        ),
    ],
)
def test_exchange_kernels_by_many_names(program, dispatch, combine):
    expected = []
    program.op("Dispatch", 0, 10, sequence=5)
    expected.append((program.kernel(dispatch, 1, stream=27), ("ep_dispatch", "forward")))
    program.op("Combine", 20, 30, sequence=6)
    expected.append((program.kernel(combine, 21, stream=27), ("ep_combine", "forward")))
    program.op("aten::sum", 40, 41, sequence=7)
    program.node("CombineBackward", 50, 60, 6)
    expected.append(
        (program.kernel(dispatch, 51, stream=27, tid=ENGINE), ("ep_combine", "backward"))
    )
    program.node("DispatchBackward", 70, 80, 5)
    expected.append(
        (program.kernel(combine, 71, stream=27, tid=ENGINE), ("ep_dispatch", "backward"))
    )
    check(program, expected)


@pytest.mark.parametrize(
    "name",
    [
        "rcclGenericKernel<2, false>(x)",
        "mscclKernel_Sum_half_Simple(x)",
        "ncclDevKernel_Generic_1(x)",
    ],
)
def test_communication_of_other_vendors(program, name):
    program.trained()
    check(program, [(program.kernel(name, 1, stream=27), "comm")])


def test_a_fused_kernel_that_names_a_product_is_none(program):
    """Compilers list what a kernel takes part in; only their templates multiply."""
    program.node("CompiledFunctionBackward", 0, 50, 5)
    fused = program.kernel("triton_poi_fused_gelu_backward_mm_3", 1, tid=ENGINE)
    rows = classify(program.events()).filter(pl.col("id") == fused)
    assert rows["rule"].to_list() == ["torch-compiled-backward"]


@pytest.mark.parametrize(
    ("kernel", "label"),
    [
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<x>(y)", "dgrad"),
        ("fmha_cutlassB_bf16_aligned_64x64_k64_sm80(x)", "dgrad"),
        ("void cudnn::fusion::convert_dq_to_16bits<true>(x)", "dgrad"),
        ("bwd_kernel_fuse.kd", "dgrad"),
        ("triton_tem_fused_flex_attention_backward_4", "dgrad"),
        ("triton_poi_fused__scaled_dot_product_flash_attention_backward_add_7", "backward"),
    ],
)
def test_attention_in_a_graph_of_a_compiled_backward_is_the_gradient_of_activations(
    program, kernel, label
):
    """Kernels of a replay stand under the node alone; what a compiler fused may serve weights as well."""
    program.node("CompiledFunctionBackward", 0, 50, 5)
    replayed = program.kernel(kernel, 1, tid=ENGINE)
    rows = classify(program.events()).filter(pl.col("id") == replayed)
    assert rows["label"].to_list() == [label]


def test_attention_in_an_annotated_backward_without_operators_is_the_gradient_of_activations(
    program,
):
    program.trained()
    program.note("backward", 100, 120)
    attention = program.kernel("void pytorch_flash::flash_bwd_dot_do_o_kernel<x>(y)", 101)
    other = program.kernel("swiglu_backward", 110)
    check(program, [(attention, "dgrad"), (other, "backward")])
