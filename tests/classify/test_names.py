"""Names of real kernels, alone and with the launch that tells more."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.classify.conftest import ENGINE, Program
from tracekit.classify import classify
from tracekit.classify.evidence import gather_evidence
from tracekit.schema import COMMUNICATION_LABELS

LINES = (Path(__file__).parent / "kernel_names.txt").read_text(encoding="utf-8").splitlines()
NAMES = [tuple(line.split(maxsplit=1)) for line in LINES if line and not line.startswith("#")]
MOVES = [name for label, name in NAMES if label == "ep" or label in COMMUNICATION_LABELS]
COMPUTES = [name for label, name in NAMES if name not in MOVES and label != "memory"]
GRADIENTS = {"dgrad", "wgrad", "backward"}


def rows(program):
    return {row["id"]: row for row in classify(program.events()).iter_rows(named=True)}


@pytest.mark.parametrize("label", sorted({label for label, _ in NAMES}))
def test_by_the_name_alone(label):
    """Names of one label stand in one trace, where neighbours could help out: no rule about neighbours may decide."""
    program = Program().trained()
    kernels = {
        program.kernel(name, 20 * k): name
        for k, (_, name) in enumerate(n for n in NAMES if n[0] == label)
    }
    actual = rows(program)
    allowed = {"ep_dispatch", "ep_combine", "comm"} if label == "ep" else {label}
    assert {
        n: actual[k]["label"] for k, n in kernels.items() if actual[k]["label"] not in allowed
    } == {}
    assert {
        n: actual[k]["rule"]
        for k, n in kernels.items()
        if actual[k]["rule"].startswith("neighbour")
    } == {}
    assert max(actual[k]["confidence"] for k in kernels) <= 0.95
    passes = {actual[k]["pass"] for k in kernels if actual[k]["label"].startswith("ep_")}
    assert passes <= {"forward"}


def test_products_in_a_trace_of_nothing_else():
    program = Program()
    products = "nvjet", "xmma", "gemm", "Cijk", "splitK"
    for k, name in enumerate(
        name for label, name in NAMES if label == "other" and any(p in name for p in products)
    ):
        program.kernel(name.replace("deep_gemm", "my_gemm"), 20 * k)
    actual = rows(program)
    assert len(actual) >= 8
    assert {row["label"] for row in actual.values()} == {"other"}


def laid_out(names, write):
    """One program with every name in a place of its own, and the ids of its kernels."""
    program = Program().trained()
    kernels = {write(program, 20 * k, name): name for k, name in enumerate(names)}
    actual = rows(program)
    return {name: actual[kernel] for kernel, name in kernels.items()}


def forward(program, start, name):
    program.op("MyFunction", start, start + 10, sequence=1000 + start)
    kernel = program.kernel(name, start + 1)
    program.node("MyFunctionBackward", 20_000 - start, 20_010 - start, 1000 + start)
    return kernel


def backward(program, start, name):
    program.node("MyFunctionBackward", start, start + 10, 1000 + start)
    return program.kernel(name, start + 1, tid=ENGINE)


def again(program, start, name):
    program.node("CheckpointFunctionBackward", start, start + 10, 1000 + start)
    program.op("MyFunction", start + 1, start + 9, tid=ENGINE, sequence=50_000 + start)
    return program.kernel(name, start + 2, tid=ENGINE)


def stepping(program, start, name):
    program.note("Optimizer.step#AdamW.step", start, start + 10)
    return program.kernel(name, start + 1)


@pytest.mark.parametrize(
    ("write", "allowed"),
    [
        (forward, {"forward"}),
        (backward, GRADIENTS),
        (again, {"recompute"}),
        (stepping, {"optimizer"}),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_the_launch_outweighs_the_name(write, allowed):
    actual = laid_out(COMPUTES, write)
    assert {name: row["label"] for name, row in actual.items() if row["label"] not in allowed} == {}


@pytest.mark.parametrize("write", [forward, backward, again, stepping])
def test_what_moves_between_ranks_is_never_compute(write):
    actual = laid_out(MOVES, write)
    assert {
        name: row["label"]
        for name, row in actual.items()
        if row["label"] not in COMMUNICATION_LABELS
    } == {}


def test_the_group_names_what_a_kernel_is_for():
    kinds = {
        "PIPELINE_MODEL_PARALLEL_GROUP": "pp_comm",
        "mesh_tp": "tp_comm",
        "mesh_dp_shard": "dp_comm",
    }
    names = [name for name in MOVES if "nccl" in name]
    for desc, label in kinds.items():
        program = Program().trained()
        kernels = {
            program.kernel(name, 20 * k, group="7", group_desc=desc): name
            for k, name in enumerate(names)
        }
        actual = rows(program)
        wrong = {
            n: actual[i]["label"]
            for i, n in kernels.items()
            if actual[i]["label"] != label and "_ep::" not in n
        }
        assert wrong == {}


def test_attention_splits_are_no_exchanges():
    """Attention over split keys ends in a kernel called combine."""
    program = Program()
    program.op("aten::embedding", 0, 1)
    program.kernel("embedding", 0.1)
    kernel = program.kernel(
        "void flash::flash_fwd_splitkv_combine_kernel<x>(flash::Flash_fwd_params)", 5
    )
    assert rows(program)[kernel]["label"] == "forward"


def test_epilogues_serve_the_exchange_before_them():
    program = Program().trained()
    names = ["dispatch_impl<true, 3, false, false, 24>", "dispatch_copy_epilogue_impl<true, false>"]
    names += ["combine_impl<true, false, true>", "combine_reduce_epilogue_impl<true, true>"]
    kernels = [
        program.kernel(f"void deep_ep::elastic::{n}(void*)", 10 * k) for k, n in enumerate(names)
    ]
    labels = classify(program.events()).filter(pl.col("id").is_in(kernels))["label"].cast(pl.String)
    assert labels.to_list() == ["ep_dispatch", "ep_dispatch", "ep_combine", "ep_combine"]


@pytest.mark.parametrize(
    "dispatch", ["dispatch_impl<true, 3, false, {}, 24>", "hybrid_dispatch_impl<false, {}, 24, 4>"]
)
def test_a_dispatch_that_re_uses_its_layout_is_the_backward_of_combine(dispatch):
    program = Program().trained()
    kernels = []
    for k, reuses in enumerate(("false", "true")):
        for j, name in enumerate((dispatch.format(reuses), "combine_impl<true, false, true>")):
            kernels.append(program.kernel(f"void deep_ep::elastic::{name}(void*)", 40 * k + 20 * j))
    actual = rows(program)
    assert [(actual[k]["label"], actual[k]["pass"]) for k in kernels] == [
        ("ep_dispatch", "forward"),
        ("ep_combine", "forward"),
        ("ep_combine", "backward"),
        ("ep_dispatch", "backward"),
    ]


def test_the_forward_run_again_keeps_its_exchanges_roles():
    program = Program().trained()
    program.node("CheckpointFunctionBackward", 0, 50, 5)
    kernels = []
    for start, name in ((1, "dispatch"), (20, "combine")):
        program.op("MyExchange", start, start + 10, tid=ENGINE, sequence=600 + start)
        kernels.append(
            program.kernel(f"void deep_ep::intranode::{name}<8>(int4*)", start + 1, tid=ENGINE)
        )
    actual = rows(program)
    assert [(actual[k]["label"], actual[k]["pass"]) for k in kernels] == [
        ("ep_dispatch", "backward"),
        ("ep_combine", "backward"),
    ]


def test_a_librarys_name_is_no_part_of_the_model():
    """FlashInfer also holds norms and products; only its attention is attention."""
    wanted = {
        "kernel_cutlass_kernel_flashinfernormkernelsrmsnormRMSNormKernel_object_at__tensorptrbf16": (
            "norm",
            False,
        ),
        "void flashinfer::gemm::fp8_gemm_kernel<128, 128>(float*)": (None, True),
        "void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<x>>(y)": (
            "attention",
            False,
        ),
        "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>(flash::Flash_fwd_params)": (
            "attention",
            False,
        ),
    }
    for name, (module, product) in wanted.items():
        program = Program()
        program.op("aten::embedding", 0, 1)
        kernel = program.kernel(name, 5)
        assert rows(program)[kernel]["module"] == module
        assert gather_evidence(program.events()).columns["gemm"].tolist() == [product]
