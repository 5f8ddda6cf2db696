"""Every built-in rule decides at least one event: in a capture, or in the small trace written here for it."""

from __future__ import annotations

import polars as pl
import pytest

from tests.classify.conftest import ENGINE, NODE, Program, undescribed
from tracekit.classify import builtin_rules, classify

DEEPEP = "void deep_ep::intranode::dispatch<8>(int4*)"
COMBINE = "void deep_ep::intranode::combine<8>(int4*)"
EXPERT = "EXPERT_MODEL_PARALLEL_GROUP"
D2H, H2D = "DtoH (Device -> Pinned)", "HtoD (Pinned -> Device)"
LARGE = 1 << 20
EXAMPLES = {}


def example(rule):
    """Mark a function that writes a trace and returns the id of the event that *rule* decides."""

    def mark(write):
        EXAMPLES[rule] = write
        return write

    return mark


def noted(rule, annotation, kernel="k", **more):
    """One kernel inside one annotation."""

    def write(p):
        p.note(annotation, 0, 10)
        return p.kernel(kernel, 1, **more)

    EXAMPLES[rule] = write


def called(rule, collective, *, note=None, op=None, node=None, trained=True, **more):
    """One collective, perhaps inside an annotation, an op or a node."""

    def write(p):
        if trained:
            p.trained()
        if note:
            p.note(note, 0, 10)
        if op:
            p.op(op, 0, 10)
        if node:
            p.node(node, 0, 10, 5)
        return p.nccl(collective, 1, tid=ENGINE if node else 1, **more)

    EXAMPLES[rule] = write


def inside(rule, node, kernel="k", op=None, deferred=False, **more):
    """One kernel inside one autograd node."""

    def write(p):
        if deferred:
            p.deferred()
        p.node(node, 0, 10, 5)
        if op:
            p.op(op, 0.5, 9, tid=ENGINE)
        return p.kernel(kernel, 1, tid=ENGINE, **more)

    EXAMPLES[rule] = write


noted("deepseek-dispatch-forward", "dispatch(F)", DEEPEP)
noted("deepseek-dispatch-backward", "dispatch(B)", COMBINE)
noted("deepseek-combine-forward", "combine(F)", COMBINE)
noted("deepseek-combine-backward", "combine(B)", DEEPEP)
noted("deepseek-forward", "attn(F)")
noted("deepseek-wgrad", "mlp(W)")
noted("torch-pipelining-dgrad", "PP:1I0")
noted("torch-pipelining-wgrad", "PP:1W0", "gemm")
noted("torch-pipelining-weights", "PP:1W0", "add")
noted("torch-pipelining-reduce", "PP:1REDUCE_GRAD")
noted("megatron-wgrad", "mlp wgrad")
noted("megatron-forward", "attn forward")
noted("te-wgrad", "transformer_engine._Linear.backward.wgrad_gemm")
noted("te-dgrad", "transformer_engine._Linear.backward.dgrad_gemm")
noted("te-forward", "transformer_engine._LayerNormLinear.forward.gemm")
noted("deepspeed-step", "DeepSpeedEngine.step")
noted("deepspeed-forward", "DeepSpeedEngine.forward")
noted("deepspeed-backward", "DeepSpeedEngine.backward")
noted("fsdp-copy-range", "FSDP::all_gather_copy_out (layers.0)")
noted("forward-annotation", "## forward ##")
noted("backward-annotation", "## backward ##")
noted("offload-annotation", "activation offloading attn", f"Memcpy {D2H}", kind="memcpy")
noted("onload-annotation", "activation reloading attn", f"Memcpy {H2D}", kind="memcpy")
for part in ("dispatch", "combine"):
    for way in ("forward", "backward"):
        called(f"megatron-{part}-{way}", "all_to_all", note=f"moe_{part} {way}")
called("torch-pipelining-message-forward", "send", note="PP:1SEND_F0")
called("torch-pipelining-message-backward", "recv", note="PP:1RECV_B0")
called("torch-pipelining-shards", "all_gather", note="PP:1UNSHARD")
called("deepspeed-zero", "reduce_scatter", note="ZeRO partition_grads")
called("group-expert-gather-dispatch", "all_gather", group_desc=EXPERT)
called("group-expert-gather-combine", "all_gather", group_desc=EXPERT, node="GatherBackward")
called("group-expert-scatter-combine", "reduce_scatter", group_desc=EXPERT)
called("group-expert-scatter-dispatch", "reduce_scatter", group_desc=EXPERT, node="ScatterBackward")
called("group-expert-counts", "all_gather", group_desc=EXPERT, bytes=64)
called("group-tensor", "all_reduce", group_desc="TENSOR_MODEL_PARALLEL_GROUP")
called("group-data", "all_reduce", group_desc="DATA_PARALLEL_GROUP_WITH_CP")
called("group-several", "all_reduce", group_desc="MODEL_PARALLEL_GROUP")
called("group-context", "send", group_desc="CONTEXT_PARALLEL_GROUP")
called("ring-attention", "all_gather", op="AttnFuncWithCPAndKVAllGather")
called("attention-point-to-point", "send", op="MyAttention")
called("megatron-tensor-region", "all_reduce", op="_ReduceFromModelParallelRegion")
called("fsdp", "all_gather", note="FSDP::all_gather (layers.0)")
called("fsdp-op", "all_gather", op="fsdp::all_gather")
called("ddp", "broadcast", note="DistributedDataParallel.forward")
called("ddp-hook", "allreduce", node="torch::autograd::AccumulateGrad")
called("sync-batch-norm", "all_gather", op="SyncBatchNorm")
called("optimizer-communication", "all_gather", note="Optimizer.step#Adam.step")
called("torchrec-exchange", "all_to_all", note="## alltoall_fwd_single ##")
called("broadcast", "broadcast", trained=False)
called("inference-tensor", "all_reduce", trained=False, op="c10d::allreduce_")
inside("torch-batch-norm-backward", "CudnnBatchNormBackward0", op="aten::cudnn_batch_norm_backward")
inside("torch-embedding-backward", "EmbeddingBackward0")
inside("torch-convolution-wgrad", "ConvolutionBackward0", "xmma_wgrad", op="aten::convolution_backward")
inside("torch-convolution-dgrad", "ConvolutionBackward0", "xmma_dgrad", op="aten::convolution_backward")
inside("torch-convolution-backward", "ConvolutionBackward0", "implicit_kernel", op="aten::convolution_backward")
inside("torch-bias-grad", "AddmmBackward0", op="aten::sum")
inside("onload-backward", "MyFnBackward", f"Memcpy {H2D}", kind="memcpy", bytes=LARGE)
inside("custom-wgrad-name", "MyFnBackward", "fused_wgrad")
inside("custom-norm-dgrad", "_LayerNormLinearBackward", "normalization::rmsnorm_bwd_general_kernel")
inside("custom-attention-dgrad", "MyFnBackward", "void flash::flash_bwd_dot_do_o_kernel<x>(y)")
inside("custom-input-grad", "MyFnBackward", "fused_dgrad")
inside("custom-dgrad-deferred", "MyFnBackward", deferred=True)
inside("custom-backward", "MyFnBackward")
inside("torch-attention-operator", "CompiledFunctionBackward", op="aten::_cudnn_attention_backward")


def _launched_alone(p):
    """A forward, and a backward on a thread of its own whose product is summed, without any operator."""
    names = ["void softmax_forward", "nvjet_h_TNN", "void softmax_backward", "nvjet_h_NNN", "nvjet_h_NTN", "sum<Add>"]
    return [p.kernel(name, 10 * k, tid=ENGINE if k > 1 else 1) for k, name in enumerate(names)]


@example("thread-weight-grad")
def _(p):
    return _launched_alone(p)[4]


@example("thread-input-grad")
def _(p):
    return _launched_alone(p)[3]


@example("deepseek-dgrad")
def _(p):
    p.note("mlp(W)", 0, 10)
    p.note("mlp(B)", 20, 30)
    return p.kernel("k", 21)


@example("megatron-dgrad")
def _(p):
    p.note("mlp wgrad", 0, 10)
    p.note("mlp backward", 20, 30)
    return p.kernel("k", 21)


@example("torch-operator-dgrad")
def _(p):
    p.op("aten::relu", 0, 1, sequence=5)
    p.node("ReluBackward", 10, 20, 5)
    return p.kernel("k", 11, tid=ENGINE)


@example("torch-optimizer")
def _(p):
    p.trained().op("aten::_foreach_add_", 0, 10)
    return p.kernel("multi_tensor_apply_kernel", 1)


@example("fsdp-copy")
def _(p):
    p.op("fsdp::chunk_cat", 0, 10)
    return p.kernel("cat", 1)


@example("deepep-dispatch-function")
def _(p):
    p.op("FusedDispatch", 0, 10)
    return p.kernel(DEEPEP, 1)


@example("deepep-combine-function")
def _(p):
    p.op("FusedCombine", 0, 10)
    return p.kernel(COMBINE, 1)


@example("ddp-compiled")
def _(p):
    p.node("CompiledFunctionBackward", 0, 10, 5)
    p.op("c10d::allreduce_", 1, 9, tid=ENGINE)
    return p.nccl("allreduce", 2, tid=ENGINE)


@example("torch-seed")
def _(p):
    p.op("aten::ones_like", 0, 5)
    p.op("aten::fill_", 1, 4)
    seed = p.kernel("fill", 2)
    p.node("MeanBackward0", 10, 20, 5)
    p.kernel("k", 11, tid=ENGINE)
    return seed


def twice(p):
    """A product's node that runs for the input, then again for the weight; a norm's node likewise."""
    p.op("aten::layer_norm", 0, 4, sequence=5)
    p.op("aten::mm", 5, 9, sequence=7)
    p.op("aten::relu", 10, 12, sequence=8)
    for start in (20, 60):
        p.node("MmBackward0", start, start + 10, 7)
        p.op("aten::mm", start + 1, start + 9, tid=ENGINE)
        p.kernel("gemm_kernel", start + 2, tid=ENGINE)
        if start == 60:
            p.node("TBackward0", start + 11, start + 12, 6)
        p.node("NativeLayerNormBackward0", start + 13, start + 20, 5)
        yield p.kernel("norm", start + 14, tid=ENGINE)


@example("torch-second-visit")
def _(p):
    return list(twice(p))[1]


@example("torch-second-visit-sum")
def _(p):
    list(twice(p))
    p.op("aten::add_", 90, 95)
    return p.kernel("add", 91)


@example("torch-second-visit-scale")
def _(p):
    list(twice(p))
    p.op("aten::div_", 90, 95)
    return p.kernel("div", 91)


def grouped(rule, place, count=4):
    """Two experts' products in one layer; the backward's product at *place* is decided by *rule*."""

    def write(p):
        p.op("_GroupedLinear", 0, 10, sequence=5)
        for k in range(2):
            p.kernel("fp8_gemm", 1 + k)
        p.op("aten::sum", 11, 12, sequence=6)
        p.node("_GroupedLinearBackward", 20, 30, 5)
        return [p.kernel("fp8_gemm", 21 + k, tid=ENGINE) for k in range(count)][place]

    EXAMPLES[rule] = write


grouped("te-node-first-half", 1)
grouped("te-node-second-half", 2)
grouped("te-node-once", 1, count=2)


@example("te-node-dgrad")
def _(p):
    p.node("_LinearBackward", 0, 10, 5)
    first = p.kernel("fp8_gemm", 1, tid=ENGINE)
    p.kernel("fp8_gemm", 3, tid=ENGINE)
    return first


@example("te-node-wgrad")
def _(p):
    p.node("_LinearBackward", 0, 10, 5)
    p.kernel("fp8_gemm", 1, tid=ENGINE)
    return p.kernel("fp8_gemm", 3, tid=ENGINE)


@example("te-node-delayed")
def _(p):
    p.node("_LayerNormMLPBackward", 0, 10, 5)
    p.kernel("fp8_gemm", 1, tid=ENGINE)
    second = p.kernel("fp8_gemm", 3, tid=ENGINE)
    p.note("_LayerNormMLP_wgrad", 20, 30)
    p.kernel("fp8_gemm", 21)
    return second


def named(rule, kernel):
    """One kernel of this name, in a trace that holds training elsewhere."""
    EXAMPLES[rule] = lambda p: p.trained().kernel(kernel, 1)


named("copy-kernel", "__amd_rocclr_copyBuffer")
named("te-userbuffers", "kuserbuffers_pushsend(int*)")
named("deepep-bucket", "void deep_ep::bucket::hybrid_all_gather<2, 8>(ncclDevComm)")
named("name-input-grad", "sm80_xmma_dgrad_implicit_gemm_indexed_bf16")


@example("name-wgrad")
def _(p):
    return p.trained().kernel("fused_wgrad", 1)


@example("name-attention-dgrad")
def _(p):
    return p.trained().kernel("cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnBwdSm90<x>>>", 1)


@example("name-norm-dgrad")
def _(p):
    return p.trained().kernel("_rms_norm_backward_kernel", 1)


@example("fsdp-gradients")
def _(p):
    p.note("FSDP::post_backward_reduce (layers.0)", 0, 10, tid=ENGINE)
    p.node("RegisterPostBackwardFunctionBackward", 0.5, 9, 5)
    p.op("aten::div_", 1, 8, tid=ENGINE)
    return p.kernel("div", 2, tid=ENGINE)


@example("name-dgrad")
def _(p):
    return p.deferred().kernel("swiglu_backward", 1)


@example("name-backward")
def _(p):
    return p.trained().kernel("swiglu_backward", 1)


@example("name-forward")
def _(p):
    return p.trained().kernel("swiglu_forward", 1)


@example("exchange-dispatch")
def _(p):
    return p.kernel(DEEPEP, 1)


@example("exchange-combine")
def _(p):
    p.kernel(DEEPEP, 1)
    return p.kernel(COMBINE, 3)


@example("neighbour-stream-forward")
def _(p):
    p.kernel("k", 100, lasts=50)  # the compute stream
    cast = p.kernel("cast_to_fp8", 1, stream=27)
    p.kernel("void deep_ep::layout::get_dispatch_layout<8>(int*)", 2, stream=27)
    p.kernel(DEEPEP, 3, stream=27, lasts=50)
    return cast


@example("neighbour-stream-dgrad")
def _(p):
    p.trained()
    p.kernel("k", 100, lasts=50)
    cast = p.kernel("cast_to_fp8", 1, stream=27)
    p.kernel("void deep_ep::intranode::cached_notify_dispatch<8>(int*)", 2, stream=27)
    p.kernel(DEEPEP, 3, stream=27, lasts=50)
    return cast


def between(p, node):
    """A kernel the engine launches outside any node, between two nodes."""
    for start in (0, 40):
        p.node(node, start, start + 10, 5)
        if node == "CheckpointFunctionBackward":
            p.op("aten::gelu", start + 1, start + 9, tid=ENGINE, sequence=70)
        p.kernel("k", start + 2, tid=ENGINE)
    p.op("aten::add", 20, 30, tid=ENGINE)
    return p.kernel("add", 21, tid=ENGINE)


@example("torch-hook-zero")
def _(p):
    p.op(NODE + "AddBackward0", 0, 10, tid=ENGINE, sequence=5)
    p.op("aten::_foreach_zero_", 1, 9, tid=ENGINE)
    return p.kernel("multi_tensor_apply", 2, tid=ENGINE)


@example("neighbour-backward")
def _(p):
    return between(p, "ReluBackward0")


@example("neighbour-forward")
def _(p):
    p.trained()
    for start in (0, 40):
        p.op("aten::relu", start, start + 10, sequence=start + 5)
        p.op("aten::relu", start + 11, start + 12, sequence=start + 6)
        p.node("ReluBackward0", start + 1000, start + 1010, start + 5)
        p.kernel("k", start + 1)
    p.op("aten::fill_", 20, 30)
    return p.kernel("fill", 21)


@example("neighbour-recompute")
def _(p):
    between(p, "CheckpointFunctionBackward")
    return p.kernel("k", 90, launched=False)


@example("expert-counts")
def _(p):
    p.trained()
    counts = p.nccl("_allgather_base", 1, group="4", group_ranks="[0, 1]", bytes=64)
    for k, exchange in enumerate(("all_to_allv",) * 2):
        p.nccl(exchange, 3 + 2 * k, group="5", group_ranks="[0, 1]", bytes=LARGE)
    return counts


@example("foreach-copy")
def _(p):
    p.op("aten::_foreach_copy_", 1, 9)
    return p.kernel("multi_tensor_apply", 2)


@example("parameter-sum")
def _(p):
    p.node("torch::autograd::AccumulateGrad", 0, 10)
    p.rows[-1]["shapes"] = "[[4,8]]"
    p.kernel("k", 1, tid=ENGINE)
    p.op("aten::add_", 20, 30, shapes="[[32],[32],[]]")
    return p.kernel("add", 21)


@example("parameter-copy")
def _(p):
    p.node("torch::autograd::AccumulateGrad", 0, 10)
    p.rows[-1]["shapes"] = "[[4,8]]"
    p.note("Optimizer.step#Adam.step", 20, 30)
    p.kernel("adam", 21)
    p.op("aten::copy_", 40, 50, shapes="[[4,8],[4,8],[]]")
    return p.kernel("copy", 41)


def batched(p, *, weight):
    """The backward of a batched product that is followed by a parameter's gradient, or not."""
    p.op("aten::bmm", 0, 10, sequence=5, shapes="[[4,16,8],[4,8,2]]")
    p.node("BmmBackward0", 20, 30, 5)
    p.op("aten::bmm", 21, 24, tid=ENGINE, shapes="[[4,8,16],[4,16,2]]")
    product = p.kernel("gemm", 22, tid=ENGINE)
    p.op("aten::bmm", 25, 29, tid=ENGINE, shapes="[[4,16,2],[4,2,8]]")
    p.kernel("gemm", 26, tid=ENGINE)
    if weight:
        p.node("torch::autograd::AccumulateGrad", 31, 35)
        p.rows[-1]["shapes"] = "[[4,8,2]]"
    return product


def fed(node):
    def write(p):
        p.node(node, 20, 30, 5)
        handed_on = p.kernel("k", 22, tid=ENGINE)
        p.node("torch::autograd::AccumulateGrad", 31, 35)
        return handed_on

    return write


EXAMPLES["torch-weight-cast"], EXAMPLES["torch-rows-backward"] = fed("ToCopyBackward0"), fed("IndexSelectBackward0")


@example("matmul-wgrad-operands")
def _(p):
    return batched(p, weight=True)


@example("matmul-dgrad-operands")
def _(p):
    return batched(p, weight=False)


@example("pipeline-scalar")
def _(p):
    p.trained().nccl("send", 1, peer=1, group="0", group_ranks="[0, 1]")
    return p.nccl("allreduce", 3, group="2", group_ranks="[0, 1]", bytes=4)


def same_ranks(description):
    """An all-reduce on a group of several kinds that has the ranks of a described one."""

    def write(p):
        p.trained().nccl("broadcast", 1, group="1", group_desc=description, group_ranks="[0, 1]")
        return p.nccl("allreduce", 3, group="2", group_desc="MODEL_PARALLEL_GROUP", group_ranks="[0, 1]", bytes=LARGE)

    return write


for kind, group in (("pipeline", "PIPELINE_MODEL"), ("tensor", "TENSOR_MODEL"), ("data", "DATA")):
    EXAMPLES[f"several-{kind}"] = same_ranks(f"{group}_PARALLEL_GROUP")


@example("gradient-reduction")
def _(p):
    p.node("ReluBackward0", 0, 10, 5)
    p.kernel("k", 1, tid=ENGINE)
    return p.nccl("allreduce", 20)


@example("forward-tensor")
def _(p):
    p.trained().op("aten::mm", 0, 10, sequence=5)
    p.op("aten::relu", 11, 12, sequence=6)
    p.kernel("k", 1)
    p.nccl("barrier", 2, group_ranks="[0, 1, 2, 3]")
    return p.nccl("allreduce", 20, group_ranks="[0, 1]")


@example("forward-all-reduce")
def _(p):
    p.trained().op("aten::mm", 0, 10, sequence=5)
    p.op("aten::relu", 11, 12, sequence=6)
    p.kernel("k", 1)
    return p.nccl("allreduce", 20, bytes=LARGE)


@example("matmul-forward")
def _(p):
    p.trained().op("aten::mm", 0, 10, sequence=5)  # its backward lies outside the window
    p.op("aten::relu", 11, 12, sequence=6)
    return p.kernel("nvjet_TNN", 1)


@example("inference")
def _(p):
    p.op("aten::add", 0, 2)
    return p.kernel("anything", 1)


@example("communication")
def _(p):
    return p.trained().nccl("barrier", 1)


@example("inference-custom")
def _(p):
    return p.kernel("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", 1)


@example("group-use-data")
def _(p):
    p.node("torch::autograd::AccumulateGrad", 100, 110)
    p.nccl("_reduce_scatter_base", 101, tid=ENGINE, group="3")
    return p.nccl("_allgather_base", 1, group="3")


def lost(rule, description):
    """A kernel whose launch is lost, on the stream of a described group."""

    def write(p):
        p.trained().nccl("allreduce", 10, group="3", group_desc=description)
        return p.kernel("ncclDevKernel_Generic(x)", 1, stream=20, launched=False)

    EXAMPLES[rule] = write


lost("group-use-pipeline", "mesh_pp")
lost("group-use-tensor", "mesh_tp")
lost("group-use-context", "mesh_cp")


@example("host-read")
def _(p):
    return p.copy(D2H, 1, bytes=4)


@example("host-write")
def _(p):
    return p.copy(H2D, 1, bytes=64)


@example("offload-optimizer")
def _(p):
    p.note("Optimizer.step#Adam.step", 0, 10)
    return p.copy(D2H, 1, bytes=LARGE)


@example("offload-stream")
def _(p):
    return p.copy(D2H, 1, bytes=LARGE, stream=30)


@example("input-copy")
def _(p):
    return p.trained().copy("HtoD (Pageable -> Device)", 1, bytes=LARGE)


@example("result-copy")
def _(p):
    return p.copy("DtoH (Device -> Pageable)", 1, bytes=LARGE)


@example("peer-copy")
def _(p):
    return p.copy("PtoP (Device -> Device)", 1, bytes=LARGE)


@pytest.mark.parametrize("rule", EXAMPLES)
def test_the_example_is_decided_by_its_rule(rule):
    program = Program()
    target = EXAMPLES[rule](program)
    row = classify(program.events()).filter(pl.col("id") == target)
    assert row["rule"].to_list() == [rule]
    wanted = next(r for r in builtin_rules().rules if r.name == rule)
    assert row["label"].to_list() == [wanted.label]


IN_CAPTURES = (
    "group-expert-combine",
    "group-expert-dispatch",
    "group-reload",
    "matmul-dgrad-use",
    "memset",
    "neighbour-optimizer",
    "offload-returns",
    "onload-returns",
    "optimizer-annotation",
    "torch-accumulate-grad",
    "torch-attention-backward",
    "torch-compiled-backward",
    "torch-custom-grad-add",
    "torch-custom-grad-zero",
    "torch-forward",
    "torch-forward-window",
    "torch-grad-buffer-add",
    "torch-node-dgrad",
    "torch-norm-weight-grad",
    "torch-pipelining-forward",
)
"""Rules that captures alone exercise: none of them may go unnoticed."""


def test_every_rule_is_exercised(samples, load):
    captures = ["1f1b/rank1", "dualpipe/rank0", "interleaved/rank1", "overlapped/rank0", "reload/rank0"]
    captures += ["compile/rank0", "recompute/rank0", "vpp-overlap/rank6"]
    seen = set(EXAMPLES)
    for name in captures:
        events = load(samples / f"{name}.pt.trace.json.gz")
        for table in (events, events.with_columns(shapes=None), undescribed(events)):
            seen |= set(classify(table)["rule"].cast(pl.String))
    assert sorted({rule.name for rule in builtin_rules().rules} - seen) == []
    assert sorted(set(IN_CAPTURES) - seen) == []


def test_names_are_unique():
    names = [rule.name for rule in builtin_rules().rules]
    assert len(names) == len(set(names))
