"""A step of each framework in miniature, laid out as its traces are: who launches what, where, in which order.

PyTorch's profiler records operators, autograd nodes and ``record_function`` ranges. It does not
record NVTX ranges, so nothing here is annotated that only Nsight would see.
"""

from __future__ import annotations

import polars as pl
import pytest

from tests.classify.conftest import ENGINE, MAIN, Program
from tracekit.classify import classify


class Step(Program):
    """A program whose clock moves on by itself.

    What each kernel must be labelled is written beside it.
    """

    def __init__(self):
        super().__init__()
        self.clock, self.wanted = 0, {}

    def run(self, kernel, label, *, tid=MAIN, **more):
        self.clock += 2
        write = self.nccl if kernel in CALLS else self.kernel
        self.wanted[write(kernel, self.clock, tid=tid, **more)] = label
        self.clock += 2

    def within(self, write, name, *kernels, tid=MAIN, **more):
        """Kernels inside one op, node or range: (name, label) or (name, label, columns)."""
        start = self.clock
        self.clock += 1
        for kernel, label, *columns in kernels:
            self.run(kernel, label, tid=tid, **(columns[0] if columns else {}))
        self.clock += 1
        if write == self.node:
            self.node(name, start, self.clock, **more)
        else:
            write(name, start, self.clock, tid=tid, **more)
        self.clock += 1

    def ahead(self, name, sequence, *kernels):
        self.within(self.op, name, *kernels, sequence=sequence)

    def back(self, name, sequence, *kernels):
        self.within(self.node, name, *kernels, tid=ENGINE, sequence=sequence)

    def hook(self, *kernels):
        """Run the hook of a parameter."""
        self.back("torch::autograd::AccumulateGrad", None, *kernels)

    def check(self):
        rows = {row["id"]: row for row in classify(self.events()).iter_rows(named=True)}
        actual = {
            i: (rows[i]["label"], rows[i]["pass"]) if isinstance(w, tuple) else rows[i]["label"]
            for i, w in self.wanted.items()
        }
        assert actual == self.wanted
        return rows


CALLS = (
    "all_to_all",
    "_allgather_base",
    "_reduce_scatter_base",
    "allreduce",
    "broadcast",
    "send",
    "recv",
)
MUTE = "gemm_kernel"
EP = {"group": "7", "group_desc": "EXPERT_MODEL_PARALLEL_GROUP"}
DP = {"group": "3", "group_desc": "DATA_PARALLEL_GROUP_WITH_CP"}
FP8 = "nvjet_qqtst_128x128_128x6_2x1_v_bz_TNT"


ATTENTION = ((FP8, "forward"), ("flash_fwd_kernel", "forward"), (FP8, "forward"))
"""Attention between its projections."""
ATTENTION_BACKWARD = ((FP8, "dgrad"), ("flash_bwd_dq_dk_dv_kernel", "dgrad"), (FP8, "dgrad"))


def moe_forward(step, first, *, group=EP):
    """Attention, dispatch, experts, combine, numbered from *first*."""
    step.ahead("SelfAttention", first, *ATTENTION)
    step.ahead("_AllToAll", first + 1, ("all_to_all", ("ep_dispatch", "forward"), group))
    step.ahead("_GroupedLinear", first + 2, *[(FP8, "forward")] * 2)
    step.ahead("_AllToAll", first + 3, ("all_to_all", ("ep_combine", "forward"), group))


def moe_backward(step, first, *, group=EP, delayed=True):
    step.back("_AllToAllBackward", first + 3, ("all_to_all", ("ep_combine", "backward"), group))
    products = [(FP8, "dgrad")] * 2 + ([] if delayed else [(FP8, "wgrad")] * 2)
    step.back("_GroupedLinearBackward", first + 2, *products)
    step.back("_AllToAllBackward", first + 1, ("all_to_all", ("ep_dispatch", "backward"), group))
    step.back("SelfAttentionBackward", first, *ATTENTION_BACKWARD)


@pytest.mark.parametrize("group", [EP, {"group": "7"}], ids=["described", "undescribed"])
def test_megatron_overlaps_experts_of_two_micro_batches(group):
    """Combined 1F1B: a layer's forward beside another micro-batch's backward.

    Weight gradients run after, unnamed.
    """
    step = Step()
    for first in (100, 200):
        moe_forward(step, first, group=group)
        step.ahead("aten::sum", first + 9)
    for there, here in ((300, 200), (400, 100)):
        # The forward of one interleaves with the backward of another, part by part.
        step.back("_AllToAllBackward", here + 3, ("all_to_all", ("ep_combine", "backward"), group))
        step.ahead("SelfAttention", there, *ATTENTION)
        step.ahead("_AllToAll", there + 1, ("all_to_all", ("ep_dispatch", "forward"), group))
        step.back("_GroupedLinearBackward", here + 2, *[(FP8, "dgrad")] * 2)
        step.ahead("_GroupedLinear", there + 2, *[(FP8, "forward")] * 2)
        step.back("_AllToAllBackward", here + 1, ("all_to_all", ("ep_dispatch", "backward"), group))
        step.run(FP8, "wgrad")
        step.run(FP8, "wgrad")
        step.ahead("_AllToAll", there + 3, ("all_to_all", ("ep_combine", "forward"), group))
        step.back("SelfAttentionBackward", here, *ATTENTION_BACKWARD)
        step.ahead("aten::sum", there + 9)
    for here in (300, 400):
        moe_backward(step, here, group=group)
        step.run(FP8, "wgrad")
        step.run(FP8, "wgrad")
    step.hook(("_reduce_scatter_base", "dp_comm", DP))
    step.within(
        step.note,
        "Optimizer.step#FusedAdam.step",
        ("multi_tensor_apply_kernel<AdamFunctor>", "optimizer"),
    )
    step.run("_allgather_base", "dp_comm", **DP)
    step.check()


def test_experts_run_again_for_their_gradients_dispatch_before_they_combine():
    """Activation checkpointing around a layer of experts: the forward's order, then the backward's."""
    step = Step()
    for first in (100, 200):
        moe_forward(step, first)
        step.ahead("aten::sum", first + 9)
    for first in (200, 100):
        start = step.clock
        step.clock += 1
        for number, (name, kernel, label, more) in enumerate(
            [
                ("FlashAttnFunc", "flash_fwd_kernel", "recompute", {}),
                ("_AllToAll", "all_to_all", ("ep_dispatch", "backward"), EP),
                ("_GroupedLinear", FP8, "recompute", {}),
                ("_AllToAll", "all_to_all", ("ep_combine", "backward"), EP),
            ],
            1000 + first,
        ):
            step.within(step.op, name, (kernel, label, more), tid=ENGINE, sequence=number)
        step.node("CheckpointFunctionBackward", start, step.clock, first + 4)
        step.clock += 1
        moe_backward(step, first, delayed=False)
    step.check()


LAYERS = ["_Linear", "_LayerNormLinear", "_LayerNormMLP", "_GroupedLinear"]
PRODUCTS = {"_Linear": 1, "_LayerNormLinear": 1, "_LayerNormMLP": 2, "_GroupedLinear": 3}


@pytest.mark.parametrize("name", [FP8, MUTE])
def test_transformer_engine_leaves_weight_gradients_for_later(name):
    """Products of a library of its own: no operator, and in eight bits every product has the same layout."""
    step = Step()
    for k, layer in enumerate(LAYERS):
        step.ahead(layer, 100 + k, *[(name, "forward")] * PRODUCTS[layer])
    step.ahead("aten::sum", 110)
    for k, layer in reversed(list(enumerate(LAYERS))):
        step.back(f"{layer}Backward", 100 + k, *[(name, "dgrad")] * PRODUCTS[layer])
    for _ in range(sum(PRODUCTS.values())):
        step.run(name, "wgrad")
    step.ahead("aten::sum", 111)
    # Everything owed is paid: this is somebody else's.
    evaluated = step.kernel(name, step.clock + 10)
    rows = step.check()
    assert rows[evaluated]["label"] != "wgrad"


@pytest.mark.parametrize("name", [FP8, MUTE])
def test_transformer_engine_multiplies_for_both_gradients_at_once(name):
    step = Step()
    for k, layer in enumerate(LAYERS):
        step.ahead(layer, 100 + k, *[(name, "forward")] * PRODUCTS[layer])
    step.ahead("aten::sum", 110)
    order = {layer: ["dgrad"] * n + ["wgrad"] * n for layer, n in PRODUCTS.items()}
    order["_LayerNormMLP"] = ["dgrad", "wgrad"] * 2  # the second layer's pair, then the first's
    for k, layer in reversed(list(enumerate(LAYERS))):
        step.back(f"{layer}Backward", 100 + k, *[(name, label) for label in order[layer]])
    step.check()


def test_products_cut_to_overlap_with_communication_are_not_told_apart():
    """Userbuffers cut one product into chunks.

    Four chunks and one whole product say nothing of which is which.
    """
    step = Step()
    step.ahead("_Linear", 100, *[(FP8, "forward"), ("kuserbuffers_pushsend", "tp_comm")] * 4)
    step.ahead("aten::sum", 110)
    step.back("_LinearBackward", 100, *[(FP8, "backward")] * 5)
    step.check()


UNDESCRIBED = {"group": "0", "group_desc": "undefined"}


def test_deepspeed_gathers_weights_in_both_passes():
    """ZeRO-3: gathered before each module runs, scattered by hooks; nobody describes the group."""
    step = Step()
    for k in range(2):
        step.run("_allgather_base", "dp_comm", **UNDESCRIBED)
        step.ahead("aten::mm", 100 + k, (MUTE, "forward"))
    step.ahead("aten::sum", 110)
    for k in (1, 0):
        step.back(
            "PreBackwardFunctionForModuleBackward",
            None,
            ("_allgather_base", "dp_comm", UNDESCRIBED),
        )
        start = step.clock
        for label in ("wgrad", "dgrad"):
            step.within(step.op, "aten::mm", (MUTE, label), tid=ENGINE)
        step.node("MmBackward0", start - 0.5, step.clock, 100 + k)
        step.clock += 1
        step.hook(("_reduce_scatter_base", "dp_comm", UNDESCRIBED))
    step.within(
        step.note,
        "Optimizer.step#FusedAdam.step",
        ("multi_tensor_apply_kernel<AdamFunctor>", "optimizer"),
    )
    step.check()


@pytest.mark.parametrize("ops", [True, False], ids=["own ops", "older"])
def test_fsdp_copies_in_and_out_of_its_buffers(ops):
    """Older versions copied with plain operators, inside ranges of the same names."""
    step = Step()
    for k in range(2):
        start = step.clock
        step.within(
            step.op,
            "fsdp::all_gather_copy_in" if ops else "aten::_foreach_copy_",
            ("copy_in", "memory"),
        )
        step.note(f"FSDP::all_gather_copy_in (layers.{k})", start - 0.5, step.clock)
        step.within(
            step.note,
            f"FSDP::all_gather (layers.{k})",
            ("_allgather_base", "dp_comm", {"group": "3"}),
        )
        start = step.clock
        step.within(
            step.op,
            "fsdp::split_with_sizes_copy" if ops else "aten::split_with_sizes_copy",
            ("cut", "memory"),
        )
        step.note(f"FSDP::all_gather_copy_out (layers.{k})", start - 0.5, step.clock)
        step.ahead("aten::mm", 100 + k, (MUTE, "forward"))
    step.ahead("aten::sum", 110)
    step.back("MmBackward0", 101)
    step.back("MmBackward0", 100)
    step.check()


def test_rocm_names_and_copies():
    step = Step()
    step.run("__amd_rocclr_copyBuffer", "memory")
    step.ahead("aten::mm", 100, ("Cijk_Alik_Bljk_BBS_BH_MT256x256x64_MI16x16x1", "forward"))
    step.ahead("aten::relu", 101, ("void at::native::vectorized_elementwise_kernel<4>", "forward"))
    step.ahead("aten::sum", 102)
    step.back("ReluBackward0", 101, ("void at::native::vectorized_elementwise_kernel<4>", "dgrad"))
    start = step.clock
    products = (
        ("Cijk_Ailk_Bjlk_BBS_BH_MT128x128x64", "wgrad"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x64", "dgrad"),
    )
    for name, label in products:
        step.within(step.op, "aten::mm", (name, label), tid=ENGINE)
    step.node("MmBackward0", start - 0.5, step.clock, 100)
    step.clock += 1
    step.hook(("allreduce", "dp_comm"), ("__amd_rocclr_fillBufferAligned", "memory"))
    step.check()


def test_serving_a_model():
    """No gradients anywhere: whatever runs is forward, and ranks that reduce share tensors."""
    step = Step()
    for _ in range(2):
        step.within(step.op, "aten::linear", ("nvjet_hsh_64x32_64x16_4x1_v_bz_NTN", "forward"))
        step.run("void vllm::rms_norm_kernel<__nv_bfloat16>", "forward")
        step.run("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>", "tp_comm", stream=7)
        step.within(step.op, "aten::_foreach_mul_", ("multi_tensor_apply_kernel", "forward"))
    rows = step.check()
    assert {rows[i]["pass"] for i, label in step.wanted.items() if label == "forward"} == {
        "forward"
    }


def test_confidence_falls_with_the_evidence():
    """The same product: with its shapes, by its node's order, by the letters of its name."""
    actual = []
    for shapes, name in (("[[8,16],[16,64]]", MUTE), (None, MUTE)):
        step = Step()
        step.ahead("aten::mm", 100, (MUTE, "forward"))
        step.rows[-1]["shapes"] = shapes and "[[16,8],[8,64]]"
        step.ahead("aten::sum", 101)
        start = step.clock
        step.within(step.op, "aten::mm", (name, "wgrad"), tid=ENGINE)
        step.rows[-1]["shapes"] = shapes and "[[8,16],[16,64]]"
        step.within(step.op, "aten::mm", (name, "dgrad"), tid=ENGINE)
        step.rows[-1]["shapes"] = shapes and "[[16,64],[64,8]]"
        step.node("MmBackward0", start - 0.5, step.clock, 100)
        rows = step.check()
        actual.append(next(r["confidence"] for r in rows.values() if r["label"] == "wgrad"))
    letters = Step()
    letters.back(
        "MyFunctionBackward", 5, ("nvjet_h_128x64_NTN", "wgrad"), ("nvjet_h_128x64_NNN", "dgrad")
    )
    actual.append(next(r["confidence"] for r in letters.check().values() if r["label"] == "wgrad"))
    assert actual == sorted(actual, reverse=True)
    assert len(set(actual)) == 3


def test_a_part_that_nobody_knows_is_other():
    program = Program().trained()
    program.kernel("mystery", 1)
    assert classify(program.events()).select(
        pl.col("label").cast(pl.String)
    ).to_series().to_list() == ["other"]
