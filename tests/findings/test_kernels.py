"""Operators against the GPU's limits: an H200 does 989.4 TFLOP/s in BF16 and moves 4.8 TB/s."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tracekit import analyze
from tracekit.errors import OptionError
from tracekit.findings.kernels import (
    MAX_KERNELS,
    common_device,
    fewest_multiprocessors,
    find_slower_than,
    kind_of_product,
    product_sizes,
    reason_of,
)
from tracekit.metrics.flop import flop

BF16 = "c10::BFloat16"
SQUARE_NS = 2 * 4096**3 / 989.4e3
"""Time of a product of two matrices of 4,096 rows and columns at peak: 139 µs."""
ADD_NS = 3 * 8192 * 8192 * 4 / 4800
"""Time of an addition of two matrices of 8,192 rows and columns in FP32 at the memory's bandwidth:
168 µs."""


def calls_of(op, shapes, dtype, ns, *, count=4, name="gemm_bf16"):
    """Return a step of *count* calls of an operator, each of which takes *ns*, one behind the other."""

    def fill(recording, start, _):
        args = {
            "Input Dims": shapes,
            "Input type": [dtype if shape else "Scalar" for shape in shapes],
        }
        for number in range(count):
            begin = start + 2 + number * ns / 1e6
            recording.kernel(
                start + 0.1 + number * 0.05, begin, begin + ns / 1e6, op=op, name=name, args=args
            )

    return fill


def product(ns, size=4096):
    return calls_of("aten::mm", [[size, size], [size, size]], BF16, ns)


def addition(ns, size=8192):
    return calls_of(
        "aten::add", [[size, size], [size, size], []], "float", ns, name="vectorized_elementwise"
    )


def test_a_product_at_half_the_peak_has_the_time_above_seven_tenths_to_gain(findings_of):
    finding = findings_of(product(2 * SQUARE_NS))["slow_kernel"]
    assert finding.cost_ns == pytest.approx(4 * (2 - 1 / 0.7) * SQUARE_NS, rel=0.02)
    assert finding.evidence["share_of_limit"] == pytest.approx(0.5, rel=0.01)
    assert (finding.evidence["limit"], finding.evidence["peak_dtype"]) == ("peak", "bf16")
    assert finding.text.endswith("it reaches 50 % of the GPU's peak rate in bf16")
    assert (finding.case, finding.saves_ns, finding.certain) == ("product", None, "possible")


@pytest.mark.parametrize(("times", "is_slow"), [(1.3, False), (1.6, True)])
def test_work_at_seven_tenths_of_its_limit_is_good(findings_of, times, is_slow):
    assert ("slow_kernel" in findings_of(product(times * SQUARE_NS))) is is_slow
    assert ("slow_kernel" in findings_of(addition(times * ADD_NS))) is is_slow


def test_an_addition_is_limited_by_the_memorys_bandwidth(findings_of):
    finding = findings_of(addition(3 * ADD_NS))["slow_kernel"]
    assert (finding.case, finding.evidence["limit"]) == ("elementwise", "bandwidth")
    assert finding.evidence["share_of_limit"] == pytest.approx(1 / 3, rel=0.01)
    assert finding.text.endswith("of the memory bandwidth")


@pytest.mark.parametrize(("ns", "is_slow"), [(4_600, False), (5_600, True)])
def test_a_kernel_may_take_five_microseconds_whatever_its_work(findings_of, ns, is_slow):
    assert ("slow_kernel" in findings_of(product(ns, size=64))) is is_slow


def test_a_skinny_product_is_limited_by_the_memory(findings_of):
    """131,072 rows of 32 times 32 columns: 17 MB, 3.5 µs at the bandwidth and 0.3 µs at peak."""
    fill = calls_of("aten::mm", [[131072, 32], [32, 32]], BF16, 14_000)
    finding = findings_of(fill)["slow_kernel"]
    assert (finding.case, finding.evidence["limit"]) == ("skinny", "bandwidth")
    assert finding.evidence["share_of_limit"] == pytest.approx(
        2 * 131072 * 32 * 2 / 4800 / 14_000, rel=0.02
    )


def test_without_shapes_or_a_known_gpu_no_kernel_is_slow(findings_of):
    assert "slow_kernel" not in findings_of(product(9 * SQUARE_NS), device="Abacus")
    assert "slow_kernel" not in findings_of(calls_of("aten::mm", [], BF16, 9 * SQUARE_NS))


def test_the_ten_operators_with_most_to_gain_are_counted(findings_of):
    def fill(recording, start, number):
        for size in range(12):
            shapes = [[4096 + 128 * size, 4096], [4096, 4096]]
            args = {"Input Dims": shapes, "Input type": [BF16, BF16]}
            begin = start + 1 + size
            recording.kernel(start + 0.1 + 0.05 * size, begin, begin + 1, args=args)

    at_peak_ns = [2 * (4096 + 128 * size) * 4096 * 4096 / 989.4e3 for size in range(12)]
    gains = sorted(1_000_000 - ns / 0.7 for ns in at_peak_ns)
    assert MAX_KERNELS == 10
    assert findings_of(fill)["slow_kernel"].cost_ns == pytest.approx(sum(gains[-10:]), rel=0.01)


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ("[[4096,4097],[4097,4096]]", "misaligned"),
        (
            "[[4097,4096],[4096,4096]]",
            "product",
        ),  # where rows begin does not depend on their number
        ("[[4096,4100],[4100,4096]]", "misaligned"),  # a multiple of 4, not of 8
        ("[[4104,4104],[4104,4104]]", "product"),  # a multiple of 8, not of 16
        ("[[8192,64],[64,8192]]", "skinny"),
        ("[[8192,72],[72,8192]]", "product"),
        ("[[4096,40],[40,4096]]", "skinny"),
        ("[[512,4096],[4096,1920]]", "few_tiles"),  # 60 tiles for 132 multiprocessors
        ("[[512,4096],[4096,2304]]", "product"),  # 72
        # 72 tiles of 128 rows; with tiles of 256 it would be 20.
        (
            "[[1024,4096],[4096,1152]]",
            "product",
        ),
        # 32 tiles of 128 rows; with tiles of 64 it would be 128.
        (
            "[[256,4096],[4096,2048]]",
            "few_tiles",
        ),
    ],
)
def test_sizes_say_why_a_product_is_slow(shapes, reason):
    assert reason_of("aten::mm", "product", shapes, multiprocessors=132) == reason


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        ("aten::mm", [[7, 300], [300, 50]]),
        ("aten::addmm", [[50], [7, 300], [300, 50]]),
        ("aten::bmm", [[4, 7, 300], [4, 300, 50]]),
        ("aten::linear", [[7, 300], [50, 300]]),
    ],
)
def test_a_product_of_seven_rows_has_300_inner_values_and_50_columns(op, shapes):
    assert product_sizes(op, shapes) == (7, 300, 50)


def test_what_stands_before_the_last_dimension_of_a_linear_layers_input_are_rows():
    assert product_sizes("aten::linear", [[4, 7, 300], [50, 300]]) == (28, 300, 50)


@pytest.mark.parametrize(
    ("length", "reason"), [(128, "short_sequence"), (480, "short_sequence"), (576, "attention")]
)
def test_sequences_of_up_to_512_are_short(length, reason):
    shapes = str([[16, length, 32, 128]] * 3)
    assert (
        reason_of("aten::_flash_attention_forward", "attention", shapes, multiprocessors=132)
        == reason
    )


CONVOLUTION = [[8, 256, 62, 62], [256, 256, 3, 3]]
CONVOLUTION_NS = 2 * 8 * 256 * 64 * 64 * 256 * 9 / 989.4e3
"""Time at peak of a convolution of 8 images whose 62 rows and columns are padded to 64 and more: 39
µs."""


def convolution(ns, shapes=CONVOLUTION, op="aten::cudnn_convolution"):
    return calls_of(op, shapes, BF16, ns, name="conv_fprop")


def test_a_convolution_is_held_against_the_most_that_it_can_compute(findings_of):
    """Its stride and padding are not recorded: with a stride it computes less, and is slower still."""
    finding = findings_of(convolution(4 * CONVOLUTION_NS))["slow_kernel"]
    assert (finding.case, finding.evidence["limit"]) == ("convolution", "peak")
    assert finding.evidence["share_of_limit"] == pytest.approx(0.25, rel=0.01)
    assert "at most 25 %" in finding.text
    assert "slow_kernel" not in findings_of(convolution(1.3 * CONVOLUTION_NS))


def test_a_depthwise_convolution_is_limited_by_the_memory(findings_of):
    """8 images of 1,024 channels: 30 × 30 in and 32 × 32 out of 2 bytes each, 32 MB: 6.6 µs."""
    shapes = [[8, 1024, 30, 30], [1024, 1, 3, 3]]
    moved = 2 * (8 * 1024 * (30 * 30 + 32 * 32) + 1024 * 9)
    finding = findings_of(convolution(10 * moved / 4800, shapes))["slow_kernel"]
    assert (finding.case, finding.evidence["limit"]) == ("depthwise", "bandwidth")
    assert finding.evidence["share_of_limit"] == pytest.approx(0.1, rel=0.01)
    assert "slow_kernel" not in findings_of(convolution(1.3 * moved / 4800, shapes))


@pytest.mark.parametrize(
    ("inputs", "weight", "reason"),
    [
        ([8, 3, 64, 64], [64, 3, 7, 7], "channels"),
        ([8, 64, 64, 64], [20, 64, 3, 3], "channels"),
        ([8, 64, 64, 64], [24, 8, 3, 3], "convolution"),  # eight groups of eight channels
        ([8, 64, 64, 64], [64, 1, 3, 3], "depthwise"),
        ([8, 1, 64, 64], [64, 1, 3, 3], "channels"),  # one channel is no group of several
    ],
)
def test_channels_say_why_a_convolution_is_slow(inputs, weight, reason):
    shapes = str([inputs, weight])
    assert reason_of("aten::convolution", "convolution", shapes, multiprocessors=132) == reason
    backward = "aten::convolution_backward"
    shapes = str([[*inputs[:1], weight[0], *inputs[2:]], inputs, weight])
    assert kind_of_product(backward, shapes) == "convolution"
    assert reason_of(backward, "convolution", shapes, multiprocessors=132) == reason


def test_a_fused_optimizer_is_not_told_to_be_fused(analysis_of_steps):
    """It takes ten times what its lists of 34 MB need; the operator is in the table of those that move memory."""
    fill = calls_of("aten::_fused_adamw_", [[[4096, 4096]]] * 4, "TensorList", 500_000)
    analysis = analysis_of_steps(fill)
    table = analysis.tables["memory_bound"]
    assert table["kind"].to_list() == ["optimizer"]
    assert (table["ns"] > 10 * table["limit_ns"]).all()
    assert "slow_kernel" not in {finding.code for finding in analysis.findings}


def experts(ns, tokens=8192, count=8, per_token=1, op="vllm::outplace_fused_experts"):
    """Return a step of calls of experts with two matrices of 4,096 × 2,048 into 1,024 and back each."""
    shapes = [[tokens, 4096], [count, 2048, 4096], [count, 4096, 1024], [tokens, per_token]]
    return calls_of(op, shapes, BF16, ns, name="fused_moe_kernel")


WEIGHTS = 2048 * 4096 + 4096 * 1024
EXPERTS_NS = 2 * 8192 * WEIGHTS / 989.4e3
"""Time at peak of 8,192 tokens that pass one expert each: 208 µs."""


@pytest.mark.parametrize("op", ["vllm::outplace_fused_experts", "mine::experts"])
def test_fused_experts_are_known_by_their_shapes(findings_of, op):
    finding = findings_of(experts(4 * EXPERTS_NS, op=op))["slow_kernel"]
    assert (finding.case, finding.evidence["limit"]) == ("experts", "peak")
    assert finding.evidence["share_of_limit"] == pytest.approx(0.25, rel=0.01)
    assert "slow_kernel" not in findings_of(experts(1.3 * EXPERTS_NS, op=op))


@pytest.mark.parametrize(("experts_read", "is_slow"), [(25, False), (40, False), (80, True)])
def test_experts_of_few_tokens_may_take_as_long_as_their_weights_do(
    findings_of, experts_read, is_slow
):
    """Four tokens with 8 of 128 experts each read from 8 to 32 of them: 40 take 0.21 ms."""
    ns = experts_read * WEIGHTS * 2 / 4800
    findings = findings_of(experts(ns, tokens=4, count=128, per_token=8))
    assert ("slow_kernel" in findings) is is_slow
    if is_slow:
        assert findings["slow_kernel"].case == "few_tokens"


@pytest.mark.parametrize(("tokens", "reason"), [(2048, "few_tokens"), (4096, "experts")])
def test_sixty_four_tokens_for_an_expert_are_few(tokens, reason):
    shapes = str([[tokens, 64], [128, 32, 64], [128, 64, 16], [tokens, 4]])
    assert reason_of("vllm::fused_experts", "experts", shapes, multiprocessors=132) == reason


@pytest.mark.parametrize(
    "shapes",
    [
        "[[4,8],[16,12,9],[16,8,6],[4,2]]",  # another width
        "[[4,8],[16,12,8],[15,8,6],[4,2]]",  # unequal numbers of experts
        "[[4,8],[16,12,8],[16,8,5],[4,2]]",  # 12 is neither 5 nor twice 5
        "[[4,8],[16,12,8],[16,8,6],[]]",  # no row for each token
        "[[4,8],[16,12,8],[16,8,6],[4,17]]",  # more experts for each token than there are
    ],
)
def test_other_shapes_are_no_experts(shapes):
    assert flop("vllm::fused_experts", shapes) is None


def test_a_gpu_without_known_peaks_is_refused(samples):
    with pytest.raises(OptionError, match="no peak rates are known for the GPU 'Abacus'"):
        analyze(samples / "rates", gpu="Abacus")


def named(samples, tmp_path, gpu):
    """The trace of products, whose GPU has another name."""
    path = tmp_path / "rank0.pt.trace.json"
    text = gzip.decompress((samples / "rates" / "rank0.pt.trace.json.gz").read_bytes()).decode()
    path.write_text(text.replace("NVIDIA H200", gpu))
    return path


def test_a_gpu_that_the_trace_contradicts_is_refused(samples):
    message = "--gpu 'L40S': the trace of rank 0 names another GPU, NVIDIA H200"
    with pytest.raises(OptionError, match=message):
        analyze(samples / "rates", gpu="L40S")


def test_a_name_without_known_peaks_gives_way_to_the_gpu_that_was_named(samples, tmp_path):
    path = named(samples, tmp_path, "AMD Radeon Graphics")
    assert analyze(path).sources[0].devices == ("AMD Radeon Graphics",)
    assert analyze(path, gpu="MI300X").sources[0].devices == ("MI300X",)


EVALUATIONS = {
    "conv_01_large_spatial_small_ch": "channels",
    "conv_04_depthwise": "depthwise",
    "moe_02_few_experts_many_tokens": "experts",
    "moe_06_tiny_batch_many_experts": "few_tokens",
    "elem_01_add_poor_bw": "elementwise",
    "gemm_03_compute_misaligned": "padding",
    "gemm_04_memory_tall_skinny": "skinny",
    "sdpa_01_long_seq_low_eff": "attention",
    "sdpa_03_short_seq_overhead": "short_sequence",
}
MIN_EVALUATION_SHARE = {"moe_06_tiny_batch_many_experts": 0.2}
"""Where most of the time is between the kernels."""
CORPUS = Path(os.environ.get("TRACEKIT_CORPUS", "nowhere")) / "public/tracelens-evals"


@pytest.mark.skipif(
    not CORPUS.is_dir(), reason="TRACEKIT_CORPUS is not set: the traces are not in this repository"
)
@pytest.mark.parametrize(("name", "case"), EVALUATIONS.items())
def test_evaluation_traces_show_the_problem_in_their_name(name, case):
    findings = analyze(CORPUS / f"{name}.json.gz", gpu="MI300X").findings
    (finding,) = [finding for finding in findings if finding.code == "slow_kernel"]
    assert (finding.case, finding.share > MIN_EVALUATION_SHARE.get(name, 0.3)) == (case, True)


@pytest.mark.parametrize(
    ("limit_ns", "calls", "ns", "gain_ns"),
    [
        (70_000, 2, 200_000, 100_000),  # seven tenths of the limit are good
        (70_000, 2, 100_000, None),
        (700, 2, 20_000, 10_000),  # two kernels take 5 µs each whatever they do
        (700, 2, 10_000, None),
    ],
)
def test_an_operator_gains_what_it_takes_beyond_a_good_kernel(limit_ns, calls, ns, gain_ns):
    row = {"op": "aten::mm", "module": None, "shapes": None, "calls": calls, "ns": ns}
    found = list(find_slower_than(limit_ns, row, "product", 4, is_compute=True))
    assert [(slow.ns, slow.limit_ns, slow.gain_ns) for slow in found] == (
        [] if gain_ns is None else [(ns / 4, limit_ns / 4, pytest.approx(gain_ns / 4))]
    )


@pytest.mark.parametrize(
    ("kind", "shapes", "reason"),
    [
        ("attention", "[[16,512,32,128]]", "short_sequence"),
        ("attention", "[[16,513,32,128]]", "attention"),
        ("attention", "[[16,32,513,128]]", "attention"),  # heads before tokens
        ("attention", "[[16,512,32]]", "attention"),
        ("attention", "[]", "attention"),
        ("convolution", "[[8,32,9,9],[64,1,3,3]]", "depthwise"),
        ("convolution", "[[8,1,9,9],[64,1,3,3]]", "channels"),  # one channel, no groups
        ("convolution", "[[8,16,9,9],[64,16,3,3]]", "convolution"),
        ("convolution", "[[8,16,9,9],[60,16,3,3]]", "channels"),
        ("convolution", "[[8,12,9,9],[64,12,3,3]]", "channels"),
        ("convolution", "[[8,16,9,9]]", "convolution"),
        ("product", "[[4096,4096]]", "product"),
        ("elementwise", "[[7,7],[7,7]]", "elementwise"),
        ("experts", "[[7,7],[7,7]]", "experts"),  # no sizes of experts
    ],
)
def test_sizes_say_why_an_operator_is_slow(kind, shapes, reason):
    assert reason_of("aten::op", kind, shapes, multiprocessors=132) == reason


@pytest.mark.parametrize(("tokens", "reason"), [(64, "few_tokens"), (65, "experts")])
def test_experts_of_64_tokens_each_are_few(tokens, reason):
    """Of two experts each takes half of the tokens of one each."""
    shapes = f"[[{2 * tokens},8],[2,12,8],[2,8,6],[{2 * tokens},1]]"
    assert reason_of("fused_experts", "experts", shapes, multiprocessors=132) == reason


def test_without_multiprocessors_few_tiles_are_no_reason():
    assert (
        reason_of("aten::mm", "product", "[[128,4096],[4096,128]]", multiprocessors=None)
        == "product"
    )


@pytest.mark.parametrize(
    ("devices", "device"),
    [
        ([("H200",), ("H200",)], "H200"),
        ([("H200",), ("H100",)], None),
        ([("H200",), ()], "H200"),
        ([()], None),
    ],
)
def test_the_gpu_is_known_if_all_ranks_name_the_same(devices, device):
    sources = [SimpleNamespace(devices=names) for names in devices]
    assert common_device(SimpleNamespace(analysis=SimpleNamespace(sources=sources))) == device


@pytest.mark.parametrize(
    ("counts", "fewest"), [([132, 66], 66), ([None, 132], 132), ([None], None)]
)
def test_multiprocessors_are_the_fewest_of_all_ranks(counts, fewest):
    sources = [SimpleNamespace(multiprocessors=count) for count in counts]
    assert (
        fewest_multiprocessors(SimpleNamespace(analysis=SimpleNamespace(sources=sources))) == fewest
    )
