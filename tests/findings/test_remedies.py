"""Remedies of an H200's work: 66.9, 494.7 and 989.4 TFLOP/s in FP32, TF32 and BF16, and 4.8 TB/s."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from tracekit import analyze
from tracekit.findings import remedies
from tracekit.graph.change import parse_change
from tracekit.metrics.alternatives.attention import FusedAttention
from tracekit.metrics.alternatives.fusion import Fused, FusedLoss
from tracekit.metrics.alternatives.images import SLOWER_IN_16_BITS, slower_remedies
from tracekit.metrics.alternatives.own import NO_OWN_ADVICE
from tracekit.metrics.alternatives.stalls import FreeCpu
from tracekit.metrics.event_work import PATTERNS
from tracekit.metrics.rank_work import RankWork
from tracekit.metrics.speeds import Speeds

BF16 = "c10::BFloat16"
FLOAT = "float"
CORPUS = os.environ.get("TRACEKIT_CORPUS")
SIMT = "ampere_sgemm_128x64_nn"
SCORES = [2, 16, 1024, 1024]
"""Batch, heads, tokens and tokens."""


class Calls:
    """Calls of operators in a step, one behind the other."""

    def __init__(self):
        self.calls = []

    def add(
        self, op, shapes, dtypes, ns, *, name="void at::native::vectorized_elementwise_kernel<4>"
    ):
        self.calls.append((op, shapes, dtypes, ns, name))
        return self

    def __call__(self, recording, start, _):
        begin = start + 0.2
        for number, (op, shapes, dtypes, ns, name) in enumerate(self.calls):
            args = {"Input Dims": shapes}
            if dtypes is not None:
                args["Input type"] = dtypes
            end = begin + ns / 1e6
            recording.kernel(start + 0.1 + number * 0.03, begin, end, op=op, name=name, args=args)
            begin = end
        # The host waits for the GPU at the end of the step.
        launched = start + 0.15 + len(self.calls) * 0.03
        recording.call("cudaStreamSynchronize", launched, begin + 0.01)


def products(dtype, name, *, count=8, ns=1_000_000, shapes=((4096, 4096), (4096, 4096))):
    calls = Calls()
    for _ in range(count):
        calls.add("aten::mm", [list(shape) for shape in shapes], [dtype, dtype], ns, name=name)
    return calls


def test_products_of_float32_without_tensor_cores_take_their_flop_at_the_rate_of_tf32(
    findings_of,
):
    """137 GFLOP at 60 % of 494.7 TFLOP/s are 0.46 ms; a product of 3 ms reaches 68 % of FP32's peak."""
    finding = findings_of(products("float", SIMT, ns=3_000_000), period=30.0)["precision"]
    assert (finding.case, finding.change) == ("tf32", "tf32")
    assert finding.saves_ns == pytest.approx(8 * (3_000_000 - 463_000), rel=0.02)
    assert finding.saves_range_ns[0] < finding.saves_ns < finding.saves_range_ns[1]
    assert finding.evidence["further"] == "bf16"
    assert finding.evidence["further_ns"] > finding.saves_ns


def test_places_are_the_longest_stretches_of_changed_work(findings_of):
    """Three products in float32, one in bf16, two in float32, each of 3 ms, in each of four steps."""
    calls = products("float", SIMT, count=3, ns=3_000_000)
    shapes = [[4096, 4096], [4096, 4096]]
    calls.add("aten::mm", shapes, [BF16, BF16], 3_000_000, name="nvjet_tst")
    for _ in range(2):
        calls.add("aten::mm", shapes, ["float", "float"], 3_000_000, name=SIMT)
    places = findings_of(calls, period=22.0)["precision"].where
    lengths_ms = [round((place.end_ns - place.start_ns) / 1e6) for place in places]
    assert lengths_ms == [9, 9, 9, 9, 6]
    assert len({place.step for place in places[:4]}) == 4
    assert {place.name for place in places} == {"aten::mm"}


def test_products_in_tf32_are_advised_to_use_sixteen_bits(findings_of):
    calls = products("float", "sm90_xmma_gemm_f32f32_tf32f32_f32_tn", ns=430_000)
    finding = findings_of(calls, period=6.0)["precision"]
    assert (finding.case, finding.change) == ("narrow", "bf16")


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(BF16, "nvjet_tst_128x256"), ("float", "a_kernel_that_says_nothing"), ("signed char", SIMT)],
)
def test_products_in_narrow_types_or_of_unknown_kernels_get_no_advice_about_types(
    findings_of, dtype, name
):
    assert "precision" not in findings_of(products(dtype, name, ns=3_000_000), period=30.0)


def test_a_product_faster_than_float32_can_be_runs_on_tensor_cores(findings_of):
    """137 GFLOP in 1 ms are 137 TFLOP/s: twice the peak without tensor cores."""
    finding = findings_of(products("float", "kernel", ns=1_000_000), period=12.0)["precision"]
    assert finding.case == "narrow"


@pytest.mark.parametrize(
    ("node", "is_found"),
    [
        ("MmBackward0", True),
        ("LinalgCholeskyExBackward0", False),
        ("LinalgVectorNormBackward0", True),
    ],
)
def test_products_inside_factorisations_keep_their_precision(findings_of, node, is_found):
    calls = products("float", SIMT, ns=3_000_000)

    def fill(recording, start, index):
        calls(recording, start, index)
        recording.op(f"autograd::engine::evaluate_function: {node}", start + 0.01, start + 0.5)
        recording.op(node, start + 0.02, start + 0.5)

    assert ("precision" in findings_of(fill, period=30.0)) == is_found


def test_kernels_of_float64_tensors_are_found_and_double_scalars_are_not(findings_of):
    tensor = Calls().add("aten::mul", [[8192, 8192], [8192, 8192]], ["double", "double"], 4_000_000)
    finding = findings_of(tensor, period=6.0)["precision"]
    assert (finding.case, finding.saves_ns) == ("fp64", pytest.approx(2_000_000, rel=0.02))
    scalar = Calls().add("aten::mul", [[8192, 8192], []], ["float", "double"], 4_000_000)
    assert "precision" not in findings_of(scalar, period=6.0)


def test_weights_that_inference_casts_in_every_step_are_kept_in_sixteen_bits(findings_of):
    """Eight casts of 0.2 ms each, before products by the same weight."""
    weight = [4096, 4096]
    calls = Calls()
    for _ in range(8):
        types = [BF16, "float", "Scalar"]
        calls.add("aten::copy_", [weight, weight, []], types, 200_000)
        calls.add("aten::mm", [[64, 4096], weight], [BF16, BF16], 100_000, name="nvjet_tst")
    finding = findings_of(calls, period=4.0)["precision"]
    assert (finding.case, finding.change) == ("fixed_weights", "cast once")
    assert finding.saves_ns == pytest.approx(8 * 200_000, rel=0.08)
    assert "8 times a step" in finding.text


def written_out(scores=SCORES, *, head_size=64, softmax="aten::_softmax", mask=True):
    """Attention of one layer: product, scale, mask, softmax, product; 2 ms each."""
    batch, heads, queries, keys = scores
    flat = batch * heads
    calls = Calls()
    query = [flat, queries, head_size]
    key = [flat, head_size, keys]
    calls.add("aten::bmm", [query, key], [BF16, BF16], 2_000_000, name="nvjet_tst")
    calls.add("aten::mul", [scores, []], [BF16, "double"], 2_000_000)
    if mask:
        types = [BF16, "bool", "Scalar"]
        calls.add("aten::masked_fill_", [scores, [queries, keys], []], types, 2_000_000)
    calls.add(softmax, [scores, [], []], [BF16, "Scalar", "Scalar"], 2_000_000)
    value = [flat, keys, head_size]
    weights = [flat, queries, keys]
    calls.add("aten::bmm", [weights, value], [BF16, BF16], 2_000_000, name="nvjet_tst")
    return calls


def test_written_out_attention_of_grouped_heads_is_found_as_that_of_single_ones(findings_of):
    """Sixteen heads of queries, four for each head of keys: the products are of 4 × 1,024 rows."""
    scores = [2, 4, 4, 1024, 1024]
    calls = Calls()
    key = [8, 64, 1024]
    calls.add("aten::bmm", [[8, 4096, 64], key], [BF16, BF16], 2_000_000, name="nvjet_tst")
    calls.add("aten::mul", [scores, []], [BF16, "double"], 2_000_000)
    types = [BF16, "bool", "Scalar"]
    calls.add("aten::masked_fill_", [scores, [1024, 1024], []], types, 2_000_000)
    calls.add("aten::_softmax", [scores, [], []], [BF16, "Scalar", "Scalar"], 2_000_000)
    weights = [8, 4096, 1024]
    calls.add("aten::bmm", [weights, [8, 1024, 64]], [BF16, BF16], 2_000_000, name="nvjet_tst")
    grouped = findings_of(calls, period=14.0)["attention"]
    single = findings_of(written_out(), period=14.0)["attention"]
    assert grouped.saves_ns == pytest.approx(single.saves_ns, rel=0.001)


def test_written_out_attention_is_one_kernel_of_its_flop(findings_of):
    """4 × 32 × 1,024² × 64 FLOP, half of them behind the mask, at 39 % of 989.4 TFLOP/s: 11 µs."""
    finding = findings_of(written_out(), period=14.0)["attention"]
    assert (finding.case, finding.change) == ("written", "fused attention")
    assert finding.cost_ns == pytest.approx(10_000_000, rel=0.01)
    fused_ns = 4 * 32 * 1024**2 * 64 / 2 / 989.4e3 / 0.39
    assert finding.saves_ns == pytest.approx(10_000_000 - fused_ns, rel=0.02)


@pytest.mark.parametrize(
    "calls",
    [
        written_out([2, 16, 1, 1024]),  # one query of a decoder
        written_out(softmax="aten::sigmoid"),
        written_out(head_size=1024),  # products of an ordinary layer
    ],
)
def test_other_products_around_a_softmax_are_no_attention(findings_of, calls):
    assert "attention" not in findings_of(calls, period=14.0)


def test_attention_without_recorded_shapes_is_not_named(findings_of):
    calls = written_out()
    calls.calls = [(op, [], None, ns, name) for op, _, _, ns, name in calls.calls]
    found = findings_of(calls, period=14.0)
    assert {"attention", "unfused", "precision"}.isdisjoint(found)


def test_the_memory_efficient_kernel_is_named_where_flash_attention_takes_its_inputs(findings_of):
    inputs = [[8, 2048, 16, 64]] * 3
    types = [BF16] * 3
    op = "aten::_efficient_attention_forward"
    name = "fmha_cutlassF_bf16_aligned_64x64_rf_sm80"
    plain = Calls().add(op, [*inputs, []], [*types, ""], 4_000_000, name=name)
    assert findings_of(plain, period=6.0)["attention"].case == "efficient"
    biased = Calls().add(op, [*inputs, [8, 16, 2048, 2048]], [*types, BF16], 4_000_000, name=name)
    assert "attention" not in findings_of(biased, period=6.0)


def chain(*ops, size=(8192, 4096), ns=400_000):
    calls = Calls()
    for _ in range(4):
        for op in ops:
            calls.add(op, [list(size)], ["float"], ns)
        calls.add("aten::mm", [[8192, 4096], [4096, 8]], [BF16, BF16], 100_000, name="nvjet_tst")
    return calls


def test_a_chain_of_elementwise_kernels_reads_and_writes_its_tensor_once(findings_of):
    """134 MB in and out and 40 % more are 0.375 GB: 0.104 ms at three quarters of 4.8 TB/s."""
    finding = findings_of(chain("aten::pow", "aten::tanh", "aten::add", "aten::mul"), period=10.0)
    unfused = finding["unfused"]
    assert (unfused.change, unfused.evidence["what"]) == ("fuse", "activation")
    moved = 2 * 8192 * 4096 * 4
    fused_ns = 1.4 * moved / 4800 / 0.75
    assert unfused.saves_ns == pytest.approx(4 * (1_600_000 - fused_ns), rel=0.03)


@pytest.mark.parametrize(
    "ops",
    [
        ("aten::add", "aten::mul"),  # a residual and a factor
        ("aten::native_layer_norm", "aten::copy_", "aten::copy_"),  # fused already, and casts
        ("triton_poi_fused_add", "triton_poi_fused_mul", "triton_red_fused_sum"),
    ],
)
def test_what_is_short_or_fused_already_is_no_chain(findings_of, ops):
    assert "unfused" not in findings_of(chain(*ops), period=10.0)


def test_gradients_that_are_added_up_are_in_no_chain():
    """A bias' gradient is a sum, which is scaled and then added to the gradient before it."""

    def chains(node):
        size = {
            "dims": [64, 1024],
            "elements": 1 << 16,
            "width": 4,
            "shapes": "[[64,1024]]",
            "dtypes": '["float"]',
        }
        ops = {"aten::sum": "reduction", "aten::mul": "elementwise", "aten::add_": "elementwise"}
        events = [
            {"row": row, "op": op, "kind": kind, "ns": 9_000, "start_ns": row, "stream": 7, "part": 0,
             "call": row, "label": "wgrad", "is_backward": True, "node": node if op == "aten::add_" else None,
             "loop": None, "has_fp64": False, "name": "kernel", "chain": None, "pass": None, "dtype": None,
             "is_masked": False, **size}
            for row, (op, kind) in enumerate(ops.items())
        ]  # fmt: skip
        speeds = Speeds({}, 4800.0)
        frame = pl.DataFrame(events, schema_overrides={"node": pl.String})
        frame = frame.with_columns(loop=pl.lit(None, pl.Int32), has_fp64=pl.lit(value=False))
        calls = pl.DataFrame(schema=dict.fromkeys(("kind", "op", "dtype", "shapes"), pl.String))
        found = Fused().find(RankWork(frame, calls, speeds))
        return [chain for chain in found if not chain.is_empty()]

    assert chains("AccumulateGrad") == []
    assert len(chains("AddBackward0")) == 1


def test_a_loss_over_a_large_vocabulary_reads_its_logits_a_few_times(findings_of):
    """8,192 × 32,768 logits of two bytes, three times: 1.61 GB, 0.447 ms at three quarters of 4.8 TB/s."""
    logits = [8192, 32768]
    calls = Calls()
    calls.add("aten::copy_", [logits, logits, []], ["float", BF16, "Scalar"], 1_000_000)
    calls.add("aten::_log_softmax", [logits, [], []], ["float", "Scalar", "Scalar"], 2_000_000)
    types = ["float", "long int", "", "Scalar", "Scalar"]
    calls.add("aten::nll_loss_forward", [logits, [8192], [], [], []], types, 100_000)
    types = ["float", "float", "Scalar", "Scalar"]
    calls.add("aten::_log_softmax_backward_data", [logits, logits, [], []], types, 2_000_000)
    finding = findings_of(calls, period=8.0)["unfused"]
    assert (finding.case, finding.change) == ("loss", "fuse loss")
    fused_ns = 3 * 8192 * 32768 * 2 / 4800 / 0.75
    assert finding.saves_ns == pytest.approx(5_100_000 - fused_ns, rel=0.05)


def test_a_product_of_odd_sizes_is_padded_to_the_rate_of_the_others(findings_of):
    """Others reach half the peak: 137 GFLOP in 0.278 ms; 4,097 columns padded to 4,160 take 1.5 % longer."""
    calls = products(BF16, "nvjet_tst", ns=278_000)
    calls.add("aten::mm", [[4096, 4096], [4096, 4097]], [BF16, BF16], 4_000_000, name="cutlass_80")
    finding = findings_of(calls, period=8.0)["slow_kernel"]
    assert (finding.case, finding.change) == ("padding", "pad sizes")
    assert finding.saves_ns == pytest.approx(4_000_000 - 278_000 * 1.0157, rel=0.02)


def test_products_that_are_all_of_odd_sizes_are_padded_to_the_rate_of_this_gpu(findings_of):
    """137 GFLOP, 1.5 % more with 4,160 columns, take 0.199 ms at 71 % of the peak, as measured on an H200."""
    shapes = ((4096, 4096), (4096, 4097))
    calls = products(BF16, "cutlass_80", ns=4_000_000, shapes=shapes)
    finding = findings_of(calls, period=36.0)["slow_kernel"]
    assert (finding.case, finding.change) == ("padding", "pad sizes")
    padded_ns = 2 * 4096 * 4096 * 4160 / 989.4e3 / 0.71
    assert finding.saves_ns == pytest.approx(8 * (4_000_000 - padded_ns), rel=0.02)


def test_an_optimizer_that_goes_parameter_by_parameter_is_one_pass_over_all(analysis_of_steps):
    """32 parameters of 16 MB, three operations each; seven passes of 0.5 GB take 1.04 ms."""
    calls = Calls()
    shape = [4194304]
    for _ in range(32):
        for op in ("aten::lerp_", "aten::addcmul_", "aten::addcdiv_"):
            calls.add(op, [shape, shape, shape], ["float"] * 3, 100_000)

    def fill(recording, start, number):
        recording.annotation("Optimizer.step#AdamW.step", start + 0.05, start + 4.0)
        calls(recording, start, number)

    findings = analysis_of_steps(fill, period=12.0).findings
    finding = next(finding for finding in findings if finding.code == "optimizer")
    assert (finding.case, finding.change) == ("loop", "fused optimizer")
    fused_ns = 7 * 32 * 4194304 * 4 / 4800 / 0.75
    assert finding.saves_ns == pytest.approx(96 * 100_000 - fused_ns, rel=0.06)


def test_an_update_of_ones_own_is_known_by_its_squared_gradients(analysis_of_steps):
    """Adam for 32 parameters without an annotation, in nine operations of 10 µs each behind the backward."""
    shape = [512, 1024]
    ops = ("mul_", "add_", "mul_", "addcmul_", "mul", "sqrt", "add", "div", "sub_")

    def fill(recording, start, _):
        recording.op("autograd::engine::evaluate_function: MulBackward0", start + 0.1, start + 0.13)
        launches = ["mul", *(op for _ in range(32) for op in ops)]
        for number, op in enumerate(launches):
            at = start + 0.11 + number * 0.03
            name = "void at::native::vectorized_elementwise_kernel<4>"
            args = {"Input Dims": [shape, shape], "Input type": ["float", "float"]}
            recording.kernel(at, at + 0.015, at + 0.025, op=f"aten::{op}", name=name, args=args)

    findings = analysis_of_steps(fill, period=10.0).findings
    (finding,) = [finding for finding in findings if finding.code == "optimizer"]
    assert finding.case == "loop"
    # The first parameter's gradient is added behind the backward, and nothing follows the last update.
    assert finding.evidence["kernels_per_step"] == pytest.approx(32 * 9, abs=9)


@pytest.mark.parametrize(("gradients", "is_found"), [(80, True), (50, False)])
def test_gradients_clipped_one_by_one_are_clipped_together(analysis_of_steps, gradients, is_found):
    """Norms and scales of 10 µs behind the backward; three passes of 1 MB for each take 52 µs for 80."""
    shape = [256, 1024]

    def fill(recording, start, _):
        at = start + 0.1

        def run(op, shapes, ns, node=None):
            nonlocal at
            if node is not None:
                recording.op(node, at - 0.006, at + 0.016)
            name = "void at::native::vectorized_elementwise_kernel<4>"
            args = {"Input Dims": shapes, "Input type": ["float"] * len(shapes)}
            recording.kernel(at, at + 0.02, at + 0.02 + ns / 1e6, op=op, name=name, args=args)
            at += 0.022

        node = "autograd::engine::evaluate_function: MulBackward0"
        run("aten::mul", [shape, shape], 10_000, node)
        for _ in range(gradients):
            run("aten::linalg_vector_norm", [shape], 10_000)
        for _ in range(gradients):
            run("aten::mul_", [shape, []], 10_000)
        run("aten::_fused_adamw_", [[shape] * gradients] * 4, 10_000)

    analysis = analysis_of_steps(fill, period=4.0)
    findings = [finding for finding in analysis.findings if finding.code == "optimizer"]
    assert bool(findings) is is_found
    if is_found:
        assert (findings[0].case, findings[0].change) == ("clipping", "clip together")
        assert findings[0].evidence["kernels_per_step"] == 160
        few_ns = 80 * 3 * 256 * 1024 * 4 / 4800 / 0.75
        remedies = analysis.graph.graph.remedies
        assert remedies["likely_ns"].sum() == pytest.approx(4 * few_ns, rel=0.02)


@pytest.mark.parametrize(("copied", "is_small"), [(4_000, True), (1_000_000, False)])
def test_many_small_copies_are_one(findings_of, copied, is_small):
    def fill(recording, start, _):
        for number in range(40):
            launch = start + 0.1 + number * 0.2
            begin = launch + 0.05
            recording.copy(launch, launch + 0.15, begin, begin + 0.01, copied=copied)
        recording.kernel(start + 8.2, start + 8.3, start + 9.0)

    assert ("small_copies" in findings_of(fill, period=10.0)) is is_small


def test_the_host_waits_for_no_copy_once_all_are_one(findings_of):
    """After each of 20 copies it waits for a kernel that runs meanwhile; without that no idle time is left.

    A fifth of the recorded idle time, at most, is what recording the calls cost.
    """

    def fill(recording, start, _):
        busy = start + 0.1
        for _ in range(20):
            launch = busy
            recording.kernel(launch, launch + 0.01, launch + 0.4)
            recording.copy(launch + 0.02, launch + 0.41, launch + 0.4, launch + 0.405, copied=4_000)
            busy = launch + 0.5
        recording.kernel(busy, busy + 0.01, busy + 8.0)

    finding = findings_of(fill, period=20.0)["small_copies"]
    idle_ns = 20_000_000 - 20 * 390_000 - 7_990_000
    assert 0.8 * idle_ns < finding.saves_ns <= idle_ns


def test_conversions_around_convolutions_go_where_channels_are_last(findings_of):
    image = [32, 64, 56, 56]
    weight = [64, 64, 3, 3]
    op = "aten::cudnn_convolution"
    types = [BF16, BF16]
    calls = Calls()
    for _ in range(4):
        calls.add(op, [image, weight], types, 300_000, name="void cudnn::nchwToNhwcKernel<bf16>")
        calls.add(op, [image, weight], types, 500_000, name="sm80_xmma_fprop_bf16")
    finding = findings_of(calls, period=6.0)["layout"]
    assert finding.saves_ns == pytest.approx(4 * 300_000, rel=0.08)
    calls.calls = [call for call in calls.calls if "nchw" not in call[4]]
    assert "layout" not in findings_of(calls, period=6.0)


def test_channels_last_pays_for_group_norms_which_are_slower_there(findings_of):
    """Conversions of 1.2 ms go; group norms of 1 ms each take twice as long."""
    image = [32, 64, 56, 56]
    types = [BF16, BF16]
    conversion = "void cudnn::nchwToNhwcKernel<bf16>"
    calls = Calls()
    for _ in range(4):
        shapes = [image, [64, 64, 3, 3]]
        calls.add("aten::cudnn_convolution", shapes, types, 300_000, name=conversion)
        calls.add("aten::cudnn_convolution", shapes, types, 500_000, name="sm80_xmma_fprop_bf16")
    assert "layout" in findings_of(calls, period=12.0)
    for _ in range(4):
        calls.add("aten::native_group_norm", [image, [64]], types, 1_000_000)
    assert "layout" not in findings_of(calls, period=12.0)


@pytest.mark.parametrize(
    ("kernel", "is_faster"),
    [("cudnn::bn_bw_1C11_kernel_new", True), ("cudnn::batchnorm_bwtr_nhwc_semiPersist", False)],
)
def test_batch_norms_with_channels_first_are_faster_where_these_are_last(
    findings_of, kernel, is_faster
):
    """51 MB that are moved five times at 45 % of 4.8 TB/s take 0.12 ms, and not 2."""
    image = [64, 64, 56, 56]
    calls = Calls()
    for _ in range(4):
        shapes = [image, [64, 64, 3, 3]]
        calls.add("aten::cudnn_convolution", shapes, [FLOAT, FLOAT], 200_000, name="sm80_xmma_tf32")
        calls.add(
            "aten::cudnn_batch_norm_backward", [image, image], [FLOAT] * 2, 2_000_000, name=kernel
        )
    found = findings_of(calls, period=12.0)
    assert ("layout" in found) is is_faster
    if is_faster:
        moved_ns = 4 * 64 * 64 * 56 * 56 * 3 / 4800 / 0.45
        assert found["layout"].saves_ns == pytest.approx(4 * (2_000_000 - moved_ns), rel=0.05)


def test_16_bits_pay_for_batch_norms_that_cudnn_has_in_float32_alone():
    """With channels first they take longer by the table; with channels last cuDNN has them in both types."""
    names = ["cudnn::bn_fw_tr_1C11_singleread", "cudnn::batchnorm_fwtr_nhwc_semiPersist"]
    events = pl.DataFrame({"row": [0], "op": ["aten::cudnn_batch_norm"], "ns": [1000]})
    (remedy,) = slower_remedies(events, SLOWER_IN_16_BITS, "bf16").iter_rows(named=True)
    assert remedy["likely_ns"] == 1800
    is_first = pl.Series(names).str.contains(PATTERNS["channels_first_norm"])
    assert is_first.to_list() == [True, False]


def busy_host(*, stalled_ops, call=None):
    """Steps of 24 short operators, one after the other; three of them stand still for 5 ms."""

    def fill(recording, start, _):
        launch = start + 0.1
        for number in range(24):
            op = stalled_ops[number % len(stalled_ops)]
            is_stalled = number in (2, 9, 16)
            if is_stalled:
                recording.op(op, launch, launch + 5.0)
                if call:
                    recording.call(call, launch + 0.01, launch + 4.99)
                launch += 5.0
            recording.kernel(launch + 0.05, launch + 0.1, launch + 0.15, op=op)
            launch += 0.2

    return fill


OPERATORS = ("aten::view", "aten::add", "aten::mul", "aten::neg", "aten::t")


def test_short_operators_that_stand_still_again_and_again_mean_a_busy_cpu(findings_of):
    finding = findings_of(busy_host(stalled_ops=OPERATORS), period=21.0)["busy_cpu"]
    assert finding.change == "free cpu"
    assert finding.saves_ns == pytest.approx(15_000_000, rel=0.1)


@pytest.mark.parametrize(
    "fill",
    [
        busy_host(stalled_ops=("aten::add",)),  # one operator has a reason of its own
        busy_host(stalled_ops=OPERATORS, call="cudaMalloc"),
    ],
)
def test_one_slow_operator_and_slow_calls_are_no_busy_cpu(findings_of, fill):
    assert "busy_cpu" not in findings_of(fill, period=21.0)


def test_one_operator_again_and_again_is_no_chain(findings_of):
    assert "unfused" not in findings_of(chain("aten::add", "aten::add", "aten::add"), period=10.0)


def test_changes_of_types_and_of_attention_are_replayed_together(analysis_of_steps):
    calls = written_out()
    calls.calls += products("float", SIMT, ns=3_000_000, count=4).calls
    graph = analysis_of_steps(calls, period=30.0).graph
    attention = graph.predict([parse_change("fused attention")])
    precision = graph.predict([parse_change("tf32")])
    both = graph.predict([parse_change("fused attention"), parse_change("tf32")])
    assert both.saves_ns == pytest.approx(attention.saves_ns + precision.saves_ns, rel=0.001)
    assert graph.predict([parse_change("fuse loss")]).why_not is not None


@pytest.mark.skipif(CORPUS is None, reason="TRACEKIT_CORPUS names the recordings")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "code", "change", "saves_ms"),
    [
        ("fp32", "precision", "tf32", 88.04),
        ("math-attention", "attention", "fused attention", 77.71),
    ],
)
def test_a_twin_without_the_fault_saves_what_is_predicted(run, code, change, saves_ms):
    findings = analyze(Path(CORPUS) / "everyday-free" / run).findings
    first = findings[0]
    assert (first.code, first.change) == (code, change)
    assert first.saves_ns / 1e6 == pytest.approx(saves_ms, rel=0.1)
    low_ns, high_ns = first.saves_range_ns
    assert low_ns / 1e6 < saves_ms < high_ns / 1e6


@pytest.mark.skipif(CORPUS is None, reason="TRACEKIT_CORPUS names the recordings")
@pytest.mark.slow
def test_the_range_of_launching_holds_what_cuda_graphs_save():
    (finding,) = [
        finding
        for finding in analyze(Path(CORPUS) / "everyday-free" / "decode").findings
        if finding.code == "launch_bound"
    ]
    assert finding.saves_ns / 1e6 == pytest.approx(47.3, rel=0.1)
    low_ns, high_ns = finding.saves_range_ns
    assert low_ns / 1e6 < 47.3 < high_ns / 1e6


@pytest.mark.parametrize(
    ("operators", "kernels"),
    [
        (("pow", "mean", "add", "rsqrt", "mul"), "`torch.nn.RMSNorm`"),
        (("mul", "tanh", "add", "mul"), "`torch.nn.functional.gelu`"),
        (("pow", "sum", "neg", "exp", "mul"), ""),  # distances of a kernel function
    ],
)
def test_fused_kernels_are_advised_for_what_was_found(findings_of, operators, kernels):
    calls = chain(*(f"aten::{operator}" for operator in operators))
    advice = findings_of(calls, period=12.0)["unfused"].advice
    assert "`torch.compile` what they are part of" in advice
    if kernels:
        assert kernels in advice
    else:
        assert "torch.nn" not in advice


def advised(monkeypatch, entry, *, events=16, **predicted):
    """The findings of a change that is predicted to save 50 of 1,000 ns of work of this many kernels."""
    saving = {
        "measured_ns": 1_000,
        "free_ns": None,
        "saves_ns": 50,
        "saves_range_ns": (20, 80),
        **predicted,
    }
    monkeypatch.setattr(
        remedies, "select_remedies", lambda graph, change: pl.DataFrame({"event": [1]})
    )
    work = remedies.ChangedWork(
        ns=300.0, events=events, whats=("norm", "loss"), op="op", module=None
    )
    monkeypatch.setattr(remedies, "changed_work", lambda context, change: work)
    monkeypatch.setattr(remedies, "longest_places", lambda context, graph, change: ())
    context = SimpleNamespace(
        analysis=SimpleNamespace(
            graph=SimpleNamespace(graph=None), advice=NO_OWN_ADVICE, sources=()
        ),
        predict=lambda change: SimpleNamespace(**saving),
        share=lambda ns: ns / 1_000,
        framework=None,
        vendor="NVIDIA",
        found=[],
    )
    return [
        (finding.variant, finding.cost_ns, finding.saves_ns, finding.saves_range_ns)
        for finding in remedies.kind_of_alternative(entry).find(context)
    ]


@pytest.mark.parametrize(
    ("entry", "options", "found"),
    [
        (Fused(), {}, ("norm", 300, 50, (20, 80))),
        (Fused(), {"events": 15}, None),  # a mask or a position
        (FusedAttention(), {"events": 15}, ("norm", 300, 50, (20, 80))),
        (FusedLoss(), {"events": 1}, ("", 300, 50, (20, 80))),
        (FusedAttention(), {"saves_ns": 49}, None),
        (FusedAttention(), {"saves_ns": None}, None),
        (
            FusedAttention(),
            {"free_ns": 980, "saves_ns": 49},
            ("norm", 300, 49, (20, 80)),
        ),
        (FusedAttention(), {"free_ns": 2_000, "saves_ns": 99}, None),
        (FreeCpu(), {}, ("", 300, 50, (0, 50))),
    ],
)
def test_a_change_that_saves_a_twentieth_of_the_step_is_advised(monkeypatch, entry, options, found):
    assert advised(monkeypatch, entry, **options) == ([] if found is None else [found])
