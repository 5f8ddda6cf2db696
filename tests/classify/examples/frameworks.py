"""Events decided by the rules for frameworks: DeepSeek, torch's pipelining, Megatron, Transformer Engine and others."""

from __future__ import annotations

from tests.classify.conftest import ENGINE
from tests.classify.examples.writing import (
    COMBINE,
    DEEPEP,
    EXAMPLES,
    LARGE,
    called,
    example,
    named,
    noted,
)

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
noted("server-step", "step[DECODE bs=4]", "mha_bwd_dq")
noted("forward-annotation", "## forward ##")
noted("backward-annotation", "## backward ##")
for part in ("dispatch", "combine"):
    for way in ("forward", "backward"):
        called(f"megatron-{part}-{way}", "all_to_all", note=f"moe_{part} {way}")
called("torch-pipelining-message-forward", "send", note="PP:1SEND_F0")
called("torch-pipelining-message-backward", "recv", note="PP:1RECV_B0")
called("torch-pipelining-shards", "all_gather", note="PP:1UNSHARD")
called("deepspeed-zero", "reduce_scatter", note="ZeRO partition_grads")
called("megatron-tensor-region", "all_reduce", op="_ReduceFromModelParallelRegion")
called("megatron-region-counts", "all_gather", op="_GatherFromSequenceParallelRegion", bytes=64)


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


@example("fsdp-copy")
def _(p):
    p.op("fsdp::all_gather_copy_in", 0, 10)
    return p.kernel("cat", 1)


@example("fsdp-pack-gradients")
def _(p):
    p.op("fsdp::chunk_cat", 0, 10)
    return p.kernel("cat", 1)


@example("buffer-metadata")
def _(p):
    p.op("fsdp::chunk_cat", 0, 10)
    return p.copy("HtoD (Pinned -> Device)", 1, bytes=426464)


@example("pack-kernel")
def _(p):
    return p.kernel(
        "void at::native::detail::chunk_cat_cuda_kernel<float, c10::BFloat16>(c10::BFloat16**)", 1
    )


@example("unpack-kernel")
def _(p):
    return p.kernel(
        "at::native::detail::split_with_sizes_copy_out_contiguous_no_cast_kernel(char**)", 1
    )


def grouped(rule, position, count=4):
    """Two experts' products in one layer.

    The backward's product at *place* is decided by *rule*.
    """

    def write(p):
        p.op("_GroupedLinear", 0, 10, sequence=5)
        for k in range(2):
            p.kernel("fp8_gemm", 1 + k)
        p.op("aten::sum", 11, 12, sequence=6)
        p.node("_GroupedLinearBackward", 20, 30, 5)
        return [p.kernel("fp8_gemm", 21 + k, tid=ENGINE) for k in range(count)][position]

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


named("te-userbuffers", "kuserbuffers_pushsend(int*)")


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
