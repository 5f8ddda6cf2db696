"""Purpose of process groups: as their creator describes them, or as they are used."""

from __future__ import annotations

import polars as pl
import pytest

from tests.classify.conftest import ENGINE, Program
from tracekit.classify import classify

DESCRIBED = [
    # Megatron-LM
    ("TENSOR_MODEL_PARALLEL_GROUP", "tp_comm"),
    ("PIPELINE_MODEL_PARALLEL_GROUP", "pp_comm"),
    ("EMBEDDING_GROUP", "pp_comm"),
    ("DATA_PARALLEL_GROUP", "dp_comm"),
    ("DATA_PARALLEL_GROUP_WITH_CP", "dp_comm"),
    ("DATA_PARALLEL_GROUP_WITH_CP_AG", "dp_comm"),
    ("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", "dp_comm"),
    ("CONTEXT_PARALLEL_GROUP", "cp_comm"),
    ("EXPERT_DATA_PARALLEL_GROUP", "dp_comm"),
    ("EXPERT_TENSOR_PARALLEL_GROUP", "tp_comm"),
    ("EXPERT_MODEL_PARALLEL_GROUP", "ep_dispatch"),
    ("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "ep_dispatch"),
    ("MODEL_PARALLEL_GROUP", "comm"),
    ("TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", "comm"),
    ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", "comm"),
    ("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", "comm"),
    ("dp-cp", "dp_comm"),
    ("tp-ep", "ep_dispatch"),
    ("tp-pp", "comm"),
    # torchtitan
    ("mesh_tp", "tp_comm"),
    ("mesh_pp", "pp_comm"),
    ("mesh_cp", "cp_comm"),
    ("mesh_ep", "ep_dispatch"),
    ("mesh_etp", "tp_comm"),
    ("mesh_dp_shard_cp", "dp_comm"),
    ("mesh_dp_replicate", "dp_comm"),
    ("mesh_dp_shard_mod_ep", "dp_comm"),
    ("mesh_fsdp", "dp_comm"),
    ("mesh_efsdp", "dp_comm"),
    ("mesh_loss", "dp_comm"),
    # nobody's
    ("default_pg", "comm"),
    ("undefined", "comm"),
]


def labels(program, ids):
    rows = {row["id"]: row["label"] for row in classify(program.events()).iter_rows(named=True)}
    return [rows[i] for i in ids]


def test_as_described():
    program = Program().trained()
    kernels = [
        program.nccl("_allgather_base", 20 * k, group=str(k), group_desc=desc)
        for k, (desc, _) in enumerate(DESCRIBED)
    ]
    actual = labels(program, kernels)
    assert list(zip([d for d, _ in DESCRIBED], actual, strict=True)) == DESCRIBED


def test_the_embedding_that_two_stages_hold_is_summed_as_replicas_are():
    """Megatron-LM sums its gradients over the first and the last stage, which is no message of the pipeline."""
    program = Program().trained()
    summed = program.nccl("allreduce", 20, group="1", group_desc="EMBEDDING_GROUP", bytes=1 << 25)
    sent = program.nccl("send", 40, group="2", group_desc="PIPELINE_MODEL_PARALLEL_GROUP", peer=1)
    assert labels(program, [summed, sent]) == ["dp_comm", "pp_comm"]


@pytest.fixture
def summed():
    """Gradients summed on group 3 by the hook of a parameter."""
    program = Program()
    program.node("torch::autograd::AccumulateGrad", 1000, 1010)
    program.nccl("_reduce_scatter_base", 1001, tid=ENGINE, group="3", stream=20)
    return program


def test_where_gradients_are_summed_weights_are_gathered(summed):
    own_kernel = summed.nccl("_allgather_base", 1, group="3", group_ranks="[0, 1]")
    other = summed.nccl("_allgather_base", 30, group="4")
    exchange = summed.nccl("all_to_all", 60, group="3")
    assert labels(summed, [own_kernel, other, exchange]) == ["dp_comm", "comm", "comm"]


def test_a_gather_between_forward_work_is_of_weights_or_of_activations_as_its_group_reduces(summed):
    """Weights are gathered on group 3, which sums gradients.

    Group 5 reduces activations in the forward as well.
    """
    summed.op("aten::mm", 1, 10, sequence=5)
    summed.kernel("gemm_kernel", 2)
    ranks = {"group_ranks": "[0, 1]", "bytes": 1 << 22}
    weights = summed.nccl("_allgather_base", 12, group="3", **ranks)
    activations = summed.nccl("_allgather_base", 13, group="5", stream=21, **ranks)
    reduction = summed.nccl("_reduce_scatter_base", 14, group="5", stream=21, **ranks)
    unknown = summed.nccl("_allgather_base", 15, group="6", stream=22, **ranks)
    for start, group in (
        (16, "3"),
        (17, "5"),
        (18, "5"),
        (19, "6"),
        (1020, "3"),
    ):  # a wait for every call
        summed.op("record_param_comms", start, start + 1, collective="wait", group=group)
    summed.op("aten::mm", 20, 29, sequence=6)
    summed.kernel("gemm_kernel", 21)
    # The run has four ranks.
    summed.nccl("barrier", 40, group="0", stream=23, group_ranks="[0, 1, 2, 3]")
    summed.node("MmBackward0", 500, 510, 6)
    summed.node("MmBackward0", 520, 530, 5)
    assert labels(summed, [weights, activations, reduction, unknown]) == [
        "dp_comm",
        "tp_comm",
        "tp_comm",
        "comm",
    ]


def test_a_kernel_without_a_launch_belongs_to_the_group_of_its_stream(summed):
    own_kernel = summed.kernel("ncclDevKernel_Generic(x)", 1, stream=20, launched=False)
    other = summed.kernel("ncclDevKernel_Generic(x)", 1, stream=21, launched=False)
    # Or an all-to-all.
    messages = summed.kernel("ncclDevKernel_SendRecv(x)", 3, stream=20, launched=False)
    assert labels(summed, [own_kernel, other, messages]) == ["dp_comm", "comm", "comm"]


def test_in_a_file_without_groups_a_stream_of_communication_stands_for_one():
    """The hook of a parameter sums on stream 20, so that weights are gathered and broadcast there, too."""
    program = Program()
    program.node("torch::autograd::AccumulateGrad", 1000, 1010)
    program.nccl("allreduce", 1001, tid=ENGINE, stream=20, bytes=1 << 22)
    own = [
        program.nccl(call, start, stream=20, bytes=1 << 22)
        for start, call in ((1, "_allgather_base"), (9, "broadcast"))
    ]
    other = program.nccl("_allgather_base", 30, stream=21, bytes=1 << 22)
    program.kernel("gemm_kernel", 40, stream=22)  # a stream that computes, too, may serve any group
    mixed = program.nccl("_allgather_base", 50, stream=22, bytes=1 << 22)
    assert labels(program, [*own, other, mixed]) == ["dp_comm", "dp_comm", "comm", "comm"]


def test_a_stream_of_two_groups_says_nothing(summed):
    summed.nccl("_allgather_base", 30, group="4", stream=20)
    lost = summed.kernel("ncclDevKernel_Generic(x)", 1, stream=20, launched=False)
    assert labels(summed, [lost]) == ["comm"]


def test_a_stream_that_computes_is_no_groups_own(summed):
    """One stream for everything: messages of another group may run on it, too."""
    summed.kernel("gemm_kernel", 2, stream=20)
    lost = summed.kernel("ncclDevKernel_SendRecv(x)", 1, stream=20, launched=False)
    assert labels(summed, [lost]) == ["comm"]


def test_the_description_of_a_streams_group_serves_its_lost_kernels():
    program = Program().trained()
    wanted = {
        "PIPELINE_MODEL_PARALLEL_GROUP": "pp_comm",
        "mesh_tp": "tp_comm",
        "mesh_cp": "cp_comm",
    }
    lost = []
    for stream, desc in enumerate(wanted, 30):
        program.nccl("allreduce", 10 * stream, group=str(stream), group_desc=desc, stream=stream)
        lost.append(program.kernel("ncclDevKernel_Generic(x)", 1, stream=stream, launched=False))
    assert labels(program, lost) == list(wanted.values())


@pytest.mark.parametrize(
    "around", ["FullyShardedDataParallel.forward", "DistributedDataParallel.forward"]
)
def test_a_wrapper_around_the_whole_forward_says_nothing_of_the_models_own_calls(around):
    """Tensor-parallel reductions run inside the wrapper's range too."""
    program = Program().trained()
    program.note(around, 0, 100)
    program.op("aten::mm", 1, 10, sequence=5)
    program.op("aten::relu", 11, 12, sequence=6)
    program.kernel("k", 2)
    reduction = program.nccl("allreduce", 20, group="5", group_ranks="[0, 1]", bytes=1 << 22)
    program.nccl("barrier", 40, group="0", group_ranks="[0, 1, 2, 3]")
    program.note("FullyShardedDataParallel._pre_forward", 50, 60)
    gather = program.nccl("_allgather_base", 51, group="6")
    assert labels(program, [reduction, gather]) == ["tp_comm", "dp_comm"]


def test_an_exchange_kernel_does_not_answer_another_librarys_call():
    """A call that its own kernel answered says nothing of what another library launches next on that thread."""
    program = Program().trained()
    program.op(
        "record_param_comms",
        0,
        10,
        collective="allreduce",
        group="3",
        group_desc="DATA_PARALLEL_GROUP",
    )
    program.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", 1, stream=20)
    exchange = program.kernel("void deep_ep::intranode::dispatch<8>(int4*)", 20, stream=27)
    row = classify(program.events()).filter(pl.col("id") == exchange)
    assert row.select(pl.col("label", "group_desc").cast(pl.String)).rows() == [
        ("ep_dispatch", None)
    ]


def test_copies_between_devices_that_a_collective_asked_for():
    """Copy engines move a collective's data without a kernel; copies the model makes are none."""
    program = Program().trained()
    program.op(
        "record_param_comms",
        0,
        10,
        collective="_allgather_base",
        group="3",
        group_desc="DATA_PARALLEL_GROUP",
    )
    peer_copy = program.copy("PtoP (Device -> Device)", 1, bytes=1 << 20)
    program.op("aten::copy_", 20, 30)
    plain = program.copy("PtoP (Device -> Device)", 21, bytes=1 << 20)
    assert labels(program, [peer_copy, plain]) == ["dp_comm", "comm"]
    rows = {row["id"]: row["rule"] for row in classify(program.events()).iter_rows(named=True)}
    assert (rows[peer_copy], rows[plain]) == ("group-data", "peer-copy")


def test_a_broadcast_updates_weights_if_the_program_does_not_train_or_copied_them_to_the_device():
    """A trainer that broadcasts what its optimizer updated copies only the next batch, after that."""
    large = {"bytes": 1 << 22}
    served, trained, updated = Program(), Program().trained(), Program().trained()
    own = served.nccl("broadcast", 1, **large)
    trained.kernel("gemm_kernel", 1)
    optimizer = trained.nccl("broadcast", 5, **large)
    trained.copy("HtoD (Pinned -> Device)", 9, **large)
    updated.kernel("gemm_kernel", 1)
    updated.copy("HtoD (Pinned -> Device)", 3, **large)
    uploaded = updated.nccl("broadcast", 5, **large)
    assert [labels(served, [own]), labels(trained, [optimizer]), labels(updated, [uploaded])] == [
        ["broadcast"], ["comm"], ["broadcast"],
    ]  # fmt: skip


def test_what_a_differentiable_operator_gathers_is_no_weight(summed):
    """On the group that sums gradients: an operator with a backward gathers activations, a hook gathers weights."""
    weights = summed.nccl("_allgather_base", 1, group="3", bytes=1 << 22)
    summed.op("GatherSequence", 10, 20, sequence=5)
    activations = summed.nccl("_allgather_base", 11, group="3", bytes=1 << 22)
    summed.node("GatherSequenceBackward", 500, 510, 5)
    scattered = summed.nccl("_reduce_scatter_base", 501, tid=ENGINE, group="3", bytes=1 << 22)
    summed.op("HookedLayer", 30, 31, sequence=6)
    summed.node("HookedLayerBackward", 600, 610, 6)
    hooked = summed.nccl("_reduce_scatter_base", 601, tid=ENGINE, group="3", bytes=1 << 22)
    assert labels(summed, [weights, activations, scattered, hooked]) == [
        "dp_comm",
        "tp_comm",
        "tp_comm",
        "dp_comm",
    ]


def test_keys_and_values_gathered_right_before_attention_are_context_parallel(program):
    program.op("GatherKeys", 10, 20, sequence=5)
    program.kernel("gemm", 1)
    keys = program.nccl("_allgather_base", 11, group="3", bytes=1 << 22)
    program.kernel("flash_fwd", 30)
    program.node("GatherKeysBackward", 500, 510, 5)
    program.kernel("flash_bwd", 490, tid=ENGINE)
    scattered = program.nccl("_reduce_scatter_base", 501, tid=ENGINE, group="3", bytes=1 << 22)
    program.kernel("gemm", 520, tid=ENGINE)
    assert labels(program, [keys, scattered]) == ["cp_comm", "cp_comm"]
