"""Events decided by the rules of communication: groups, DeepEP's kernels, data parallelism."""

from __future__ import annotations

from tests.classify.conftest import ENGINE
from tests.classify.examples.writing import (
    COMBINE,
    DEEPEP,
    EXAMPLES,
    H2D,
    LARGE,
    called,
    example,
    named,
)

EXPERT = "EXPERT_MODEL_PARALLEL_GROUP"

called("group-expert-gather-dispatch", "all_gather", group_desc=EXPERT)
called("group-expert-gather-combine", "all_gather", group_desc=EXPERT, node="GatherBackward")
called("group-expert-scatter-combine", "reduce_scatter", group_desc=EXPERT)
called("group-expert-scatter-dispatch", "reduce_scatter", group_desc=EXPERT, node="ScatterBackward")
called("group-expert-counts", "all_gather", group_desc=EXPERT, bytes=64)
called("group-tensor", "all_reduce", group_desc="TENSOR_MODEL_PARALLEL_GROUP")
called("group-embedding", "all_reduce", group_desc="EMBEDDING_GROUP")
called("group-data", "all_reduce", group_desc="DATA_PARALLEL_GROUP_WITH_CP")
called("group-several", "all_reduce", group_desc="MODEL_PARALLEL_GROUP")
called("group-context", "send", group_desc="CONTEXT_PARALLEL_GROUP")
called("ring-attention", "all_gather", op="AttnFuncWithCPAndKVAllGather")
called("attention-point-to-point", "send", op="MyAttention")
called("fsdp", "all_gather", note="FSDP::all_gather (layers.0)")
called("fsdp-op", "all_gather", op="fsdp::all_gather")
called("ddp", "broadcast", note="DistributedDataParallel.forward")
called("ddp-hook", "allreduce", node="torch::autograd::AccumulateGrad")
called("sync-batch-norm", "all_gather", op="SyncBatchNorm")
called("optimizer-communication", "all_gather", note="Optimizer.step#Adam.step")
called("torchrec-exchange", "all_to_all", note="## alltoall_fwd_single ##")
called("broadcast", "broadcast", trained=False)
called("inference-tensor", "all_reduce", trained=False, op="c10d::allreduce_")


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


named("deepep-bucket", "void deep_ep::bucket::hybrid_all_gather<2, 8>(ncclDevComm)")


@example("fsdp-gradients")
def _(p):
    p.note("FSDP::post_backward_reduce (layers.0)", 0, 10, tid=ENGINE)
    p.node("RegisterPostBackwardFunctionBackward", 0.5, 9, 5)
    p.op("aten::div_", 1, 8, tid=ENGINE)
    return p.kernel("div", 2, tid=ENGINE)


@example("exchange-dispatch")
def _(p):
    return p.kernel(DEEPEP, 1)


@example("exchange-combine")
def _(p):
    p.kernel(DEEPEP, 1)
    return p.kernel(COMBINE, 3)


@example("pipeline-scalar")
def _(p):
    p.trained().nccl("send", 1, peer=1, group="0", group_ranks="[0, 1]")
    return p.nccl("allreduce", 3, group="2", group_ranks="[0, 1]", bytes=1_024)


@example("scalar")
def _(p):
    return p.trained().nccl(
        "allreduce", 3, group="2", group_desc="DATA_PARALLEL_GROUP", group_ranks="[0, 1]", bytes=4
    )


def same_ranks(description):
    """An all-reduce on a group of several kinds that has the ranks of a described one."""

    def write(p):
        p.trained().nccl("broadcast", 1, group="1", group_desc=description, group_ranks="[0, 1]")
        return p.nccl(
            "allreduce",
            3,
            group="2",
            group_desc="MODEL_PARALLEL_GROUP",
            group_ranks="[0, 1]",
            bytes=LARGE,
        )

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


@example("forward-reduction")
def _(p):
    p.trained().op("aten::mm", 0, 10, sequence=5)
    p.op("aten::relu", 11, 12, sequence=6)
    p.kernel("k", 1)
    return p.nccl("allreduce", 20, bytes=LARGE)


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


@example("attention-exchange")
def _(p):
    p.trained()
    p.kernel("flash_fwd_kernel", 1)
    target = p.nccl("all_to_all", 3, group="0")
    p.kernel("flash_fwd_kernel", 5)
    return target


def like(rule, description, collective, **more):
    """A kernel whose launch is lost; another of its name on its stream has a group that tells."""

    def write(p):
        p.trained()
        p.nccl(collective, 1, group="1", group_desc=description, bytes=LARGE)
        return p.kernel("ncclDevKernel_Generic(args)", 3, stream=20, launched=False, **more)

    EXAMPLES[rule] = write


like("shared-data", "DATA_PARALLEL_GROUP", "all_reduce")
like("shared-tensor", "TENSOR_MODEL_PARALLEL_GROUP", "all_reduce")
like("shared-context", "CONTEXT_PARALLEL_GROUP", "all_to_all")
like("shared-pipeline", "PIPELINE_MODEL_PARALLEL_GROUP", "send")


@example("gathered-activations")
def _(p):
    p.op("GatherSequence", 0, 10, sequence=5)
    gather = p.nccl("_allgather_base", 1, bytes=LARGE)
    p.node("GatherSequenceBackward", 20, 30, 5)
    p.nccl("_reduce_scatter_base", 21, tid=ENGINE, bytes=LARGE)
    return gather


@example("uploaded-broadcast")
def _(p):
    p.trained().copy(H2D, 1, bytes=LARGE)
    return p.nccl("broadcast", 5, bytes=LARGE)
