"""Events decided by a kernel's name, by its neighbours or by the parameter it works on."""

from __future__ import annotations

from tests.classify.conftest import ENGINE
from tests.classify.examples.writing import DEEPEP, example, named

named("name-input-grad", "sm80_xmma_dgrad_implicit_gemm_indexed_bf16")


@example("name-wgrad")
def _(p):
    return p.trained().kernel("fused_wgrad", 1)


@example("name-attention-dgrad")
def _(p):
    return p.trained().kernel(
        "cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnBwdSm90<x>>>", 1
    )


@example("name-norm-dgrad")
def _(p):
    return p.trained().kernel("_rms_norm_backward_kernel", 1)


@example("name-dgrad")
def _(p):
    return p.deferred().kernel("swiglu_backward", 1)


@example("name-backward")
def _(p):
    return p.trained().kernel("swiglu_backward", 1)


@example("name-forward")
def _(p):
    return p.trained().kernel("swiglu_forward", 1)


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


@example("inference")
def _(p):
    p.op("aten::add", 0, 2)
    return p.kernel("anything", 1)
