"""Events decided by the rules of threads, operators, autograd's nodes and products."""

from __future__ import annotations

from tests.classify.conftest import ENGINE, NODE
from tests.classify.examples.writing import EXAMPLES, example, inside

inside("torch-batch-norm-backward", "CudnnBatchNormBackward0", op="aten::cudnn_batch_norm_backward")
inside("torch-embedding-backward", "EmbeddingBackward0")
inside(
    "torch-convolution-wgrad", "ConvolutionBackward0", "xmma_wgrad", op="aten::convolution_backward"
)
inside(
    "torch-convolution-dgrad", "ConvolutionBackward0", "xmma_dgrad", op="aten::convolution_backward"
)
inside(
    "torch-convolution-backward",
    "ConvolutionBackward0",
    "implicit_kernel",
    op="aten::convolution_backward",
)
inside("torch-bias-grad", "AddmmBackward0", op="aten::sum")
inside("custom-wgrad-name", "MyFnBackward", "fused_wgrad")
inside("custom-norm-dgrad", "_LayerNormLinearBackward", "normalization::rmsnorm_bwd_general_kernel")
inside("custom-attention-dgrad", "MyFnBackward", "void flash::flash_bwd_dot_do_o_kernel<x>(y)")
inside("custom-input-grad", "MyFnBackward", "fused_dgrad")
inside("custom-dgrad-deferred", "MyFnBackward", deferred=True)
inside("custom-backward", "MyFnBackward")
inside(
    "torch-compiled-attention",
    "CompiledFunctionBackward",
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x128x128",
)
inside("torch-attention-operator", "CompiledFunctionBackward", op="aten::_cudnn_attention_backward")


def _launched_alone(p):
    """A forward, and a backward on a thread of its own whose product is summed, without any operator."""
    names = [
        "void softmax_forward",
        "nvjet_h_TNN",
        "void softmax_backward",
        "nvjet_h_NNN",
        "nvjet_h_NTN",
        "sum<Add>",
    ]
    return [p.kernel(name, 10 * k, tid=ENGINE if k > 1 else 1) for k, name in enumerate(names)]


@example("thread-weight-grad")
def _(p):
    return _launched_alone(p)[4]


@example("thread-input-grad")
def _(p):
    return _launched_alone(p)[3]


@example("torch-operator-dgrad")
def _(p):
    p.op("aten::relu", 0, 1, sequence=5)
    p.node("ReluBackward", 10, 20, 5)
    return p.kernel("k", 11, tid=ENGINE)


@example("torch-optimizer")
def _(p):
    p.trained().op("aten::_foreach_add_", 0, 10)
    return p.kernel("multi_tensor_apply_kernel", 1)


@example("matmul-optimizer")
def _(p):
    """A gradient of a weight of 8 × 4 times itself, after a step on 16 tokens."""
    p.op("aten::mm", 0, 10, sequence=5, shapes="[[16,8],[8,4]]")
    p.kernel("gemm_kernel", 1)
    p.node("MmBackward0", 20, 30, 5)
    p.op("aten::mm", 40, 50, shapes="[[4,8],[8,4]]")
    return p.kernel("nvjet_h_NTN", 41)


@example("torch-seed")
def _(p):
    p.op("aten::ones_like", 0, 5)
    p.op("aten::fill_", 1, 4)
    seed = p.kernel("fill", 2)
    p.node("MeanBackward0", 10, 20, 5)
    p.kernel("k", 11, tid=ENGINE)
    return seed


def twice(p):
    """A product's node that runs for the input, then again for the weight.

    A norm's node likewise.
    """
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


@example("torch-hook-zero")
def _(p):
    p.op(NODE + "AddBackward0", 0, 10, tid=ENGINE, sequence=5)
    p.op("aten::_foreach_zero_", 1, 9, tid=ENGINE)
    return p.kernel("multi_tensor_apply", 2, tid=ENGINE)


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


EXAMPLES["torch-weight-cast"], EXAMPLES["torch-rows-backward"] = (
    fed("ToCopyBackward0"),
    fed("IndexSelectBackward0"),
)


@example("matmul-wgrad-operands")
def _(p):
    return batched(p, weight=True)


@example("matmul-dgrad-operands")
def _(p):
    return batched(p, weight=False)


@example("matmul-forward")
def _(p):
    p.trained().op("aten::mm", 0, 10, sequence=5)  # its backward lies outside the window
    p.op("aten::relu", 11, 12, sequence=6)
    return p.kernel("nvjet_TNN", 1)
