"""Entries of the catalogue, each on steps with its fault and on a twin without it; an H200 moves 4.8 TB/s."""

from __future__ import annotations

import msgspec
import polars as pl
import pytest

from tests.findings.conftest import Recording
from tracekit import analyze
from tracekit.metrics.alternatives.host import HostConstants, OneCopy
from tracekit.metrics.alternatives.remedy import REMEDIES
from tracekit.metrics.attainable import Share
from tracekit.metrics.loops import find_loops
from tracekit.metrics.rank_work import HOST_OPERATORS, RankWork
from tracekit.metrics.speeds import Speeds
from tracekit.schema import conform

STEPS = 4
PERIOD_MS = 20.0


@pytest.fixture
def findings_of_steps(tmp_path):
    """Return the findings of four steps of 20 ms by code and case; ``fill(recording, start, number)`` adds to each."""

    def find(fill):
        recording = Recording()
        for number in range(STEPS):
            start = number * PERIOD_MS
            recording.step(number, start, start + PERIOD_MS)
            fill(recording, start, number)
        recording.write(tmp_path)
        analysis = analyze(tmp_path, schedule="none")
        return {(finding.code, finding.case): finding for finding in analysis.findings}

    return find


class Calls:
    """Kernels behind each other; operators are called every 0.02 ms, so that the GPU is the limit."""

    def __init__(self, recording, start):
        self.recording = recording
        self.launch = start + 0.1
        self.free = start + 0.2

    def add(self, op, sizes, ns, *, types=(), values=(), node=None, name="void kernel"):
        args = {"Input Dims": sizes, "Input type": list(types)}
        args["Concrete Inputs"] = [str(value) if value is not None else "" for value in values]
        begin = max(self.free, self.launch + 0.012)
        self.free = begin + ns / 1e6
        if node is not None:
            self.recording.op(node, self.launch - 0.007, self.launch + 0.017)
        self.recording.kernel(self.launch, begin, self.free, op=op, name=name, args=args)
        self.launch += 0.04

    def wait(self):
        self.recording.call("cudaStreamSynchronize", self.launch, self.free + 0.01)


BF16 = "c10::BFloat16"


def attention(mask):
    """Two calls of attention over 8192 tokens: 8192² × 16 × 64 × 4 FLOP are 0.28 ms at 989.4 TFLOP/s."""
    query = [1, 16, 8192, 64]

    def fill(recording, start, _):
        calls = Calls(recording, start)
        for _ in range(2):
            sizes = [query, query, query, mask, [], []]
            calls.add("aten::_cudnn_attention_forward", sizes, 4_000_000, types=[BF16] * 4)
        calls.wait()

    return fill


def test_a_dense_mask_keeps_attention_from_half_of_its_work(findings_of_steps):
    finding = findings_of_steps(attention([8192, 8192]))["attention", "mask"]
    causal_ns = 8192**2 * 16 * 64 * 2 / 989.4e3 / 0.39  # as measured on an H200
    assert finding.saves_ns == pytest.approx(2 * (4_000_000 - causal_ns), rel=0.02)
    assert finding.change == "causal attention"
    assert "if the mask is causal" in finding.advice


@pytest.mark.parametrize("mask", [[], [1, 1, 1, 8192], [1, 16, 8192, 8192]])
def test_attention_without_a_mask_or_with_one_of_keys_or_heads_is_as_it_should_be(
    findings_of_steps, mask
):
    assert ("attention", "mask") not in findings_of_steps(attention(mask))


def table(*, rows=4_000_000, indices=40_000, decay=0, dense=True):
    """A table of 64 columns whose gradient is dense, and its update: 1 GB is zeroed in 0.3 ms, updated in 2.5 ms."""

    def fill(recording, start, _):
        calls = Calls(recording, start)
        calls.add("aten::mm", [[4096, 4096], [4096, 4096]], 300_000, types=[BF16, BF16])
        if dense:
            size = [rows, 64]
            node = "EmbeddingBackward0"
            calls.add("aten::fill_", [size, []], 300_000, node=node)
            sizes = [[indices, 64], [indices], [], [], []]
            values = [None, None, rows, -1, False]
            op = "aten::embedding_dense_backward"
            calls.add(op, sizes, 100_000, values=values, node=node)
            lists = [[size]] * 4
            values = [*[None] * 6, 0.001, 0.9, 0.999, decay, 1e-08, False, False, None, None]
            calls.add("aten::_fused_adam_", [*lists, [], [[]]], 2_500_000, values=values)
        calls.add("aten::mm", [[4096, 4096], [4096, 4096]], 3_000_000, types=[BF16, BF16])
        calls.wait()

    return fill


def test_a_table_of_which_few_rows_are_used_is_updated_as_a_whole(findings_of_steps):
    """60 passes over 40,000 rows of 256 bytes at 75 % of 4.8 TB/s take 0.17 ms."""
    finding = findings_of_steps(table())["sparse_table", ""]
    assert finding.saves_ns == pytest.approx(300_000 + 2_500_000 - 171_000, rel=0.02)
    assert "1% of 4,000,000 rows" in finding.text


@pytest.mark.parametrize(
    "twin", [{"dense": False}, {"rows": 100_000}, {"decay": 0.01}, {"decay": None}]
)
def test_tables_with_sparse_gradients_or_that_cannot_have_them_get_no_advice(
    findings_of_steps, twin
):
    assert ("sparse_table", "") not in findings_of_steps(table(**twin))


def images(*, copied):
    """Group norms of images, behind copies that change their layout if channels are last."""
    size = [32, 256, 128, 128]

    def fill(recording, start, _):
        calls = Calls(recording, start)
        for _ in range(4):
            begin = calls.launch - 0.008
            if copied:
                for op in ("aten::group_norm", "aten::contiguous", "aten::clone"):
                    recording.op(op, begin, begin + 0.028)
                    begin += 0.0005
                calls.add("aten::copy_", [size, size, []], 900_000, types=[BF16] * 2)
            calls.add("aten::native_group_norm", [size, [256], [256]], 1_000_000, types=[BF16] * 3)
        calls.wait()

    return fill


def test_group_norms_copy_images_whose_channels_are_last(findings_of_steps):
    """Conversions for convolutions take four tenths of these copies."""
    finding = findings_of_steps(images(copied=True))["layout", "group_norm"]
    assert finding.saves_ns == pytest.approx(4 * 0.6 * 900_000, rel=0.05)
    assert ("layout", "group_norm") not in findings_of_steps(images(copied=False))


def cache(*, grows):
    """Eight tensors of 3,000 tokens that get one more in each step, or are as long in all."""

    def fill(recording, start, number):
        calls = Calls(recording, start)
        for _ in range(8):
            length = 3000 + number * grows
            sizes = [[[32, 16, length, 64], [32, 16, 1, 64]], []]
            calls.add("aten::cat", sizes, 600_000)
        calls.wait()

    return fill


def test_a_tensor_that_grows_by_cat_is_copied_in_every_step(findings_of_steps):
    finding = findings_of_steps(cache(grows=1))["growing_tensor", ""]
    assert finding.saves_ns == pytest.approx(8 * 598_000, rel=0.06)
    assert ("growing_tensor", "") not in findings_of_steps(cache(grows=0))


def loop(body, *, repetitions=64, counts=False, node=None):
    """A loop over operators of 2 µs on the GPU, 0.04 ms on the host each."""

    def fill(recording, start, _):
        calls = Calls(recording, start)
        calls.add("aten::sigmoid_backward", [[64, 64], [64, 64]], 2_000, node=node)
        for index in range(repetitions):
            for op in body:
                values = [None, index if counts else 7]
                calls.add(op, [[64, 64], [64, 64]], 2_000, types=["float"] * 2, values=values)
        if node:
            size = [[[64, 64]]]
            calls.add("aten::_fused_adam_", [*size * 4, [], [[]]], 50_000)
        calls.wait()

    return fill


def test_gradients_clipped_by_hand_are_one_loop(findings_of_steps):
    """128 operators of 0.04 ms on the host are one launch; the profiler's cost of them is no part of the saving."""
    fill = loop(["aten::pow", "aten::mul_"], node="MmBackward0")
    finding = findings_of_steps(fill)["loop", "clipping"]
    assert "64 times pow and mul_" in finding.text
    assert 0.4 * 127 * 40_000 < finding.saves_ns < 127 * 40_000


def test_averages_of_one_tensor_after_the_other_are_a_loop_and_no_chain_to_fuse(findings_of_steps):
    """256 operators of 0.04 ms on the host are two launches."""
    body = ["aten::mul", "aten::mul", "aten::add", "aten::copy_"]
    findings = findings_of_steps(loop(body))
    assert "64 times mul, add and copy_" in findings["loop", "tensors"].text
    assert not [code for code, _ in findings if code == "unfused"]


@pytest.mark.parametrize("op", ["sgl_kernel::silu_and_mul", "aten::add"])
def test_layers_of_operators_of_another_library_are_no_loop_over_tensors(findings_of_steps, op):
    findings = findings_of_steps(loop(["aten::mul", op]))
    assert (("loop", "tensors") in findings) is op.startswith("aten::")


@pytest.mark.parametrize(
    ("body", "case"),
    [(["aten::linalg_cholesky"], "index"), (["aten::linalg_vector_norm", "aten::item"], "results")],
)
def test_an_operator_that_checks_itself_on_the_host_takes_no_result_there(
    findings_of_steps, body, case
):
    def fill(recording, start, _):
        calls = Calls(recording, start)
        for index in range(64):
            for op in body:
                calls.add(op, [[64, 64]], 2_000, types=["float"], values=[None, 2 * index])
            copy = "Memcpy DtoH (Device -> Pageable)"
            calls.add(body[-1], [[64, 64]], 2_000, values=[None, 2 * index + 1], name=copy)
        calls.wait()

    assert ("loop", case) in findings_of_steps(fill)


def test_products_that_count_are_batched_and_those_of_layers_are_not(findings_of_steps):
    body = ["aten::select", "aten::mm"]
    finding = findings_of_steps(loop(body, counts=True))["loop", "products"]
    assert "64 times select and mm" in finding.text
    assert 0.4 * 128 * 40_000 < finding.saves_ns < 128 * 40_000
    assert ("loop", "products") not in findings_of_steps(loop(body))


@pytest.mark.parametrize(("routes", "is_named"), [([], False), (["aten::eq"], True)])
def test_layers_that_write_their_caches_by_index_are_not_batched_and_experts_are(
    findings_of_steps, routes, is_named
):
    body = ["aten::layer_norm", *routes, "aten::mm", "aten::select", "aten::copy_"]
    findings = findings_of_steps(loop(body, counts=True))
    assert (("loop", "products") in findings) is is_named


def test_a_recurrent_cell_step_by_step_is_the_module(findings_of_steps):
    body = ["aten::select", "aten::_thnn_fused_lstm_cell"]
    assert ("loop", "cells") in findings_of_steps(loop(body, counts=True))
    assert ("loop", "cells") not in findings_of_steps(loop(["aten::_cudnn_rnn"], repetitions=2))


@pytest.mark.parametrize(("repetitions", "is_loop"), [(16, True), (15, False)])
def test_a_loop_repeats_sixteen_times(repetitions, is_loop):
    names = [
        "aten::embedding",
        *["aten::pow", "aten::sum", "aten::add"] * repetitions,
        "aten::sqrt",
    ]
    assert (find_loops(operators(names), [1]).height == 1) is is_loop


def test_an_operator_more_or_less_does_not_end_a_loop():
    body = ["aten::eq", "aten::where", "aten::index", "aten::mm", "aten::gelu", "aten::index_add_"]
    names = [*body * 10, *body[:2], *body[3:], *body * 10]
    (found,) = find_loops(operators(names), [1]).iter_rows(named=True)
    assert found["repetitions"] in (20, 21)


def test_a_branch_that_half_of_the_repetitions_take_does_not_end_a_loop():
    body = ["aten::select", "aten::flip", "aten::mean", "aten::sub", "aten::div"]
    straight = [op for op in body if op != "aten::flip"]
    taken = [True, False, False, True, True, False, True, False, True, False, False] * 3
    names = ["aten::rand", *(op for flips in taken for op in (body if flips else straight))]
    (found,) = find_loops(operators(names), [1]).iter_rows(named=True)
    assert (found["repetitions"], found["body"].split()) == (33, straight)


def operators(names):
    """Operators of a thread, one behind the other."""
    starts = list(range(0, 10 * len(names), 10))
    columns = {
        "kind": "cpu_op",
        "tid": 1,
        "step": 1,
        "concrete": None,
        "shapes": None,
        "sequence": None,
    }
    ends = [start + 5 for start in starts]
    return pl.DataFrame({"name": names, "start_ns": starts, "end_ns": ends, **columns})


class Nested(Calls):
    """Calls whose operators stand in others: ``chain`` names these, the outermost first."""

    def add_in(self, chain, op, sizes, ns, **more):
        for depth, name in enumerate(chain):
            self.recording.op(name, self.launch - 0.012 + depth / 1000, self.launch + 0.02)
        self.add(op, sizes, ns, **more)


FLOAT = "float"
PRODUCT = ("aten::mm", [[4096, 4096], [4096, 4096]], 500_000)


def test_gradients_of_what_no_optimizer_updates_are_named(findings_of_steps):
    """The optimizer has one weight of two: the other's gradient comes last, behind it nothing is needed."""

    def backward(*, updates_both):
        def fill(recording, start, _):
            calls = Calls(recording, start)
            calls.add(*PRODUCT, types=[BF16] * 2)
            for size in ([128, 4096], [4096, 4096]):
                calls.add(
                    "aten::mm",
                    [[size[0], 8192], [8192, size[1]]],
                    1_500_000,
                    types=[BF16] * 2,
                    node="MmBackward0",
                )
                kept = calls.launch
                recording.op(
                    "torch::autograd::AccumulateGrad", kept, kept + 0.002, **{"Input Dims": [size]}
                )
                calls.launch += 0.01
            updated = [[128, 4096], [4096, 4096]] if updates_both else [[128, 4096]]
            calls.add("aten::_fused_adamw_", [updated] * 4 + [[], [[]]], 100_000, name="FusedAdam")
            calls.wait()

        return fill

    finding = findings_of_steps(backward(updates_both=False))["unused_gradients", ""]
    assert "1 tensor" in finding.text
    assert finding.saves_ns == pytest.approx(1_500_000, rel=0.1)
    assert ("unused_gradients", "") not in findings_of_steps(backward(updates_both=True))


def test_batch_norms_in_training_mode_and_dropouts_are_named_in_inference(findings_of_steps):
    """134 MB that are read once and written at 35 % of 4.8 TB/s take 0.16 ms and not 1."""

    def infer(*, training):
        def fill(recording, start, _):
            calls = Calls(recording, start)
            size = [64, 64, 128, 128]
            for _ in range(4):
                sizes = [size, [64], [64], [64], [64], [], [], []]
                values = [None] * 5 + [training, 0.1, 1e-5]
                calls.add(
                    "aten::native_batch_norm", sizes, 1_000_000, types=[BF16] * 5, values=values
                )
                if training:
                    calls.add("aten::native_dropout", [size, [], []], 400_000, types=[BF16])
            calls.wait()

        return fill

    finding = findings_of_steps(infer(training=True))["training_mode", ""]
    assert finding.saves_ns == pytest.approx(4 * (1_000_000 - 159_800 + 400_000), rel=0.03)
    assert "`model.eval()`" in finding.advice
    assert ("training_mode", "") not in findings_of_steps(infer(training=False))


TYPES = [BF16] * 3


@pytest.mark.parametrize(("probability", "saved_ns"), [(0.1, 4_000_000), (0, None)])
def test_attention_that_drops_scores_in_inference_takes_twice_as_long(
    findings_of_steps, probability, saved_ns
):
    def fill(recording, start, _):
        calls = Calls(recording, start)
        values = [None] * 6 + [512, 512, False, probability, False]
        calls.add(
            "aten::_cudnn_attention_forward",
            [[16, 16, 512, 64]] * 3,
            8_000_000,
            types=TYPES,
            values=values,
        )
        calls.wait()

    found = findings_of_steps(fill).get(("training_mode", ""))
    assert (found and found.saves_ns) == (saved_ns and pytest.approx(saved_ns, rel=0.02))


@pytest.mark.parametrize(("length", "is_awkward"), [(16381, True), (16384, False)])
def test_transforms_of_awkward_length_are_named_with_a_better_one(
    findings_of_steps, length, is_awkward
):
    def fill(recording, start, _):
        calls = Calls(recording, start)
        values = [None, [1], 0, True]
        for _ in range(4):
            calls.add("aten::_fft_c2c", [[4096, length], [], [], []], 2_000_000, values=values)
        calls.wait()

    found = findings_of_steps(fill)
    assert (("transform_length", "") in found) is is_awkward
    if is_awkward:
        finding = found["transform_length", ""]
        assert "16,381 (better 16,384)" in finding.text
        once_ns = 4096 * length * 8 * 2 / 4800 / 0.75
        assert finding.saves_ns == pytest.approx(4 * (2_000_000 - once_ns), rel=0.05)


def test_weights_of_8_bits_that_are_converted_for_each_product_are_named(findings_of_steps):
    def products(*, converts):
        def fill(recording, start, _):
            calls = Calls(recording, start)
            for _ in range(6):
                weight = [4096, 4096]
                if converts:
                    types = [BF16, "signed char", "Scalar"]
                    calls.add("aten::copy_", [weight, weight, []], 400_000, types=types)
                    calls.add("aten::mul", [weight, [4096, 1]], 400_000, types=[BF16] * 2)
                calls.add("aten::mm", [[64, 4096], weight], 200_000, types=[BF16] * 2)
            calls.wait()

        return fill

    finding = findings_of_steps(products(converts=True))["dequantised", ""]
    assert finding.saves_ns == pytest.approx(6 * 800_000, rel=0.05)
    assert ("dequantised", "") not in findings_of_steps(products(converts=False))


def test_adapters_beside_their_weights_are_merged_in_inference(findings_of_steps):
    def layers(*, adapters, rank=16):
        def fill(recording, start, _):
            calls = Calls(recording, start)
            tokens, hidden = 4096, 2048
            for _ in range(6):
                calls.add(
                    "aten::mm", [[tokens, hidden], [hidden, hidden]], 400_000, types=[BF16] * 2
                )
                if adapters:
                    calls.add(
                        "aten::mm", [[tokens, hidden], [hidden, rank]], 100_000, types=[BF16] * 2
                    )
                    calls.add(
                        "aten::mm", [[tokens, rank], [rank, hidden]], 100_000, types=[BF16] * 2
                    )
                    calls.add("aten::add", [[tokens, hidden]] * 2, 200_000, types=[BF16] * 2)
            calls.wait()

        return fill

    finding = findings_of_steps(layers(adapters=True))["adapters", ""]
    assert finding.saves_ns == pytest.approx(6 * 400_000, rel=0.05)
    assert ("adapters", "") not in findings_of_steps(layers(adapters=False))
    # A layer with a narrow middle is no adapter.
    assert ("adapters", "") not in findings_of_steps(layers(adapters=True, rank=1024))


def test_a_bias_in_front_of_a_batch_norm_is_needless(findings_of_steps):
    def layers(*, norm):
        def fill(recording, start, _):
            calls = Nested(recording, start)
            size = [64, 64, 128, 128]
            for _ in range(4):
                calls.add_in(
                    ["aten::_convolution"],
                    "aten::add_",
                    [size, [1, 64, 1, 1], []],
                    600_000,
                    types=[BF16] * 2,
                )
                op = "aten::native_batch_norm" if norm else "aten::relu"
                calls.add(op, [size, [64], [64]], 600_000, types=[BF16] * 3)
            calls.wait()

        return fill

    finding = findings_of_steps(layers(norm=True))["needless_bias", ""]
    assert finding.saves_ns == pytest.approx(4 * 600_000, rel=0.05)
    assert ("needless_bias", "") not in findings_of_steps(layers(norm=False))


def test_logits_that_nothing_reads_are_named(findings_of_steps):
    def head(*, reads_all):
        def fill(recording, start, _):
            calls = Calls(recording, start)
            calls.add("aten::mm", [[8192, 1024], [1024, 32000]], 4_000_000, types=[BF16] * 2)
            rows = 8192 if reads_all else 8
            calls.add("aten::argmax", [[rows, 32000]], 50_000, types=[BF16])
            calls.wait()

        return fill

    finding = findings_of_steps(head(reads_all=False))["unused_logits", ""]
    assert "8 of 8,192" in finding.text
    assert finding.saves_ns == pytest.approx(4_000_000, rel=0.02)
    assert ("unused_logits", "") not in findings_of_steps(head(reads_all=True))


def test_loss_scales_without_float16_are_needless(findings_of_steps):
    def steps(kind):
        def fill(recording, start, _):
            calls = Calls(recording, start)
            calls.add(*PRODUCT, types=[kind] * 2, node="MmBackward0")
            for _ in range(4):
                calls.add("aten::_amp_foreach_non_finite_check_and_unscale_", [[[64]]], 300_000)
            calls.wait()

        return fill

    finding = findings_of_steps(steps(BF16))["needless_scaler", ""]
    assert finding.saves_ns == pytest.approx(4 * 300_000, rel=0.1)
    assert ("needless_scaler", "") not in findings_of_steps(steps("c10::Half"))


def test_every_gradient_checked_for_nan_is_anomaly_mode(findings_of_steps):
    def backward(*, checks):
        def fill(recording, start, _):
            calls = Nested(recording, start)
            for _ in range(20):
                calls.add(*PRODUCT[:2], 200_000, types=[BF16] * 2, node="MmBackward0")
                if checks:
                    chain = [
                        "autograd::engine::evaluate_function: MmBackward0",
                        "MmBackward0",
                        "aten::isnan",
                    ]
                    calls.add_in(chain, "aten::ne", [[4096, 4096]] * 2, 200_000, types=[BF16] * 2)
            calls.wait()

        return fill

    finding = findings_of_steps(backward(checks=True))["debug_mode", "anomaly"]
    assert finding.saves_ns == pytest.approx(20 * 200_000, rel=0.1)
    assert ("debug_mode", "anomaly") not in findings_of_steps(backward(checks=False))


def test_work_one_index_after_the_other_is_batched(findings_of_steps):
    """What counts, or is stacked behind a loop, is one index of it."""
    body = ["aten::select", "aten::multinomial"]
    finding = findings_of_steps(loop(body, counts=True))["loop", "index"]
    assert "64 times select and multinomial" in finding.text
    assert ("loop", "index") not in findings_of_steps(loop(body))


@pytest.mark.parametrize(("joined", "is_loop"), [(8, True), (5, False)])
def test_a_short_loop_is_one_if_its_results_are_joined_behind_it(joined, is_loop):
    names = [
        "aten::layer_norm",
        *["aten::linear", "aten::mul", "aten::softmax"] * 8,
        "aten::cat",
        "aten::linear",
    ]
    tensors = [[4, 64]] * joined
    shapes = [f"[{tensors},[]]" if name == "aten::cat" else None for name in names]
    found = find_loops(
        operators(names).with_columns(shapes=pl.Series(shapes, dtype=pl.String)), [1]
    )
    assert (found.height == 1) is is_loop


def test_results_of_hooks_are_one_habit_where_modules_run_between_them():
    modules = ["aten::linear", "aten::relu", "aten::layer_norm", "aten::tanh", "aten::silu"]
    modules += ["aten::gelu", "aten::bmm", "aten::softmax", "aten::embedding", "aten::conv2d"]
    modules += ["aten::relu", "aten::gelu", "aten::linear", "aten::silu", "aten::tanh", "aten::bmm"]
    hook = ["aten::linalg_vector_norm", "aten::item"]
    names = [name for module in modules for name in (module, *hook)]
    found = find_loops(operators(names), [1])
    assert found["body"].to_list() == [" ".join(hook)] * 16
    assert find_loops(operators(names[:-3]), [1]).is_empty()


def test_tables_of_positions_that_every_layer_builds_are_built_once(findings_of_steps):
    """Eight layers build a table in two kernels of 0.3 ms; fourteen of sixteen go."""

    def layers(*, rebuilt):
        def fill(recording, start, _):
            calls = Calls(recording, start)
            for layer in range(8):
                if rebuilt or not layer:
                    calls.add("aten::arange", [[], [], [], [0]], 300_000, values=[0, 512, 1])
                    calls.add("aten::cos", [[512, 64]], 300_000, types=[FLOAT])
                calls.add("aten::mm", [[4096, 4096]] * 2, 500_000, types=[BF16] * 2)
            calls.wait()

        return fill

    finding = findings_of_steps(layers(rebuilt=True))["rebuilt_tables", ""]
    assert finding.saves_ns == pytest.approx(14 * 300_000, rel=0.05)
    assert ("rebuilt_tables", "") not in findings_of_steps(layers(rebuilt=False))


def test_a_group_of_parameters_for_each_parameter_is_a_loop(findings_of_steps):
    body = ["aten::_foreach_add_", "aten::_fused_adamw_"]
    finding = findings_of_steps(loop(body))["loop", "tensors"]
    assert "64 times _foreach_add_ and _fused_adamw_" in finding.text
    assert ("loop", "tensors") not in findings_of_steps(loop(body, repetitions=2))


def test_rows_sorted_for_their_largest_values_are_named(findings_of_steps):
    """33 MB that are read twelve times at 4.8 TB/s take 0.08 ms."""

    def sample(*, reads_all):
        def fill(recording, start, _):
            calls = Calls(recording, start)
            calls.add("aten::sort", [[64, 128000], [], [], []], 2_000_000, types=[FLOAT])
            calls.add("aten::cumsum", [[64, 128000 if reads_all else 50]], 50_000, types=[FLOAT])
            calls.wait()

        return fill

    finding = findings_of_steps(sample(reads_all=False))["full_sort", ""]
    assert finding.saves_ns == pytest.approx(2_000_000 - 82_000, rel=0.02)
    assert ("full_sort", "") not in findings_of_steps(sample(reads_all=True))


def test_loops_that_communicate_are_no_loops_over_tensors(findings_of_steps):
    body = ["c10d::allreduce_", "aten::mul_"]
    assert ("loop", "tensors") not in findings_of_steps(loop(body))
    assert ("loop", "tensors") in findings_of_steps(loop(["aten::add_", "aten::mul_"]))


LOGITS = [4096, 8192]


@pytest.mark.parametrize("program", ["measures", "trains", "distils"])
def test_figures_of_all_logits_are_named_unless_a_loss_takes_them(findings_of_steps, program):
    """A teacher's logits come from a head of its own."""

    def fill(recording, start, _):
        calls = Calls(recording, start)
        head = ("aten::mm", [[4096, 1024], [1024, 8192]], 2_000_000)
        for _ in range(2 if program == "distils" else 1):
            calls.add(*head, types=[BF16] * 2)
        calls.add("aten::_log_softmax", [LOGITS, [], []], 500_000, types=[BF16])
        if program != "trains":
            calls.add("aten::_softmax", [LOGITS, [], []], 1_000_000, types=[BF16])
            calls.add("aten::topk", [LOGITS, [], [], [], []], 1_500_000, types=[BF16])
        node = "LogSoftmaxBackward0"
        calls.add("aten::_log_softmax_backward_data", [LOGITS] * 2, 500_000, node=node)
        calls.add("aten::_fused_adamw_", [[[8192, 1024]]] * 4 + [[], [[]]], 100_000)
        calls.wait()

    found = findings_of_steps(fill).get(("figures", ""))
    assert (found is not None) is (program == "measures")
    if found:
        assert found.saves_ns == pytest.approx(2_500_000, rel=0.05)
        assert "topk, softmax" in found.text


@pytest.mark.parametrize(
    ("times", "second_order", "is_named"), [(2, False, True), (2, True, False), (1, False, False)]
)
def test_a_graph_that_two_backwards_go_through_is_named(
    findings_of_steps, times, second_order, is_named
):
    def fill(recording, start, number):
        calls = Calls(recording, start)
        calls.add(*PRODUCT, types=[BF16] * 2)
        for run in range(times):
            for layer in range(10):
                suffix = "BackwardBackward0" if second_order and run else "Backward0"
                node = f"autograd::engine::evaluate_function: Mm{suffix}"
                sequence = {"Sequence number": 100 * number + 20 - layer}
                recording.op(node, calls.launch - 0.008, calls.launch + 0.018, **sequence)
                calls.add(*PRODUCT, types=[BF16] * 2)
        calls.add("aten::_fused_adamw_", [[[4096, 4096]]] * 4 + [[], [[]]], 100_000)
        calls.wait()

    found = findings_of_steps(fill).get(("repeated_backward", ""))
    assert (found is not None) is is_named
    if found:
        assert found.saves_ns == pytest.approx(10 * 500_000, rel=0.05)
        assert "(10 nodes run again)" in found.text


@pytest.mark.parametrize(("op", "is_product"), [("aten::pow", True), ("aten::tanh", False)])
def test_sums_over_all_pairs_are_a_product_unless_something_else_is_done_to_each(
    findings_of_steps, op, is_product
):
    """2 × 4096 × 1024 × 64 FLOP take a fraction of the millisecond that each pass over all pairs takes."""
    pairs = [4096, 1024, 64]

    def fill(recording, start, _):
        calls = Calls(recording, start)
        sizes = [[4096, 1, 64], [1, 1024, 64], []]
        calls.add("aten::sub", sizes, 1_000_000, types=["float"] * 2)
        calls.add(op, [pairs, []], 1_000_000, types=["float"])
        calls.add("aten::sum", [pairs, [], []], 1_000_000, types=["float"])
        calls.wait()

    found = findings_of_steps(fill).get(("pairs", ""))
    assert (found is not None) is is_product
    if found:
        assert found.saves_ns == pytest.approx(3_000_000, rel=0.03)


@pytest.mark.parametrize(("inner", "is_named"), [(1, True), (2, False)])
def test_casts_around_one_operator_are_named_and_those_around_several_are_not(
    findings_of_steps, inner, is_named
):
    size = [4096, 8192]

    def fill(recording, start, _):
        calls = Nested(recording, start)
        for _ in range(4):
            to = ["aten::to", "aten::_to_copy"]
            calls.add_in(to, "aten::copy_", [size] * 2, 300_000, types=["float", BF16])
            for _ in range(inner):
                calls.add("aten::silu", [size], 400_000, types=["float"])
            calls.add_in(to, "aten::copy_", [size] * 2, 300_000, types=[BF16, "float"])
        calls.wait()

    found = findings_of_steps(fill).get(("precision", "casts"))
    assert (found is not None) is is_named
    if found:
        assert found.saves_ns == pytest.approx(4 * (600_000 + 0.45 * 400_000), rel=0.03)


@pytest.mark.parametrize(("step", "is_named"), [(0, True), (524_288, False)])
def test_heads_that_are_copied_for_several_queries_are_named(findings_of_steps, step, is_named):
    """A tensor that was expanded has steps of nothing between its copies."""

    def fill(recording, start, _):
        calls = Calls(recording, start)
        size, strides = [2, 4, 8, 4096, 128], [2_097_152, 524_288, step, 128, 1]
        for _ in range(2):
            for _ in range(2):
                begin = calls.launch
                calls.add("aten::copy_", [size, size, []], 400_000, types=[BF16] * 2)
                (copy,) = (
                    event
                    for event in recording.events
                    if event["name"] == "aten::copy_" and abs(event["ts"] / 1e3 - begin) < 0.006
                )
                copy["args"]["Input Strides"] = [strides, strides, []]
            calls.add(
                "aten::_flash_attention_forward", [[2, 32, 4096, 128]] * 3, 1_000_000, types=TYPES
            )
        calls.wait()

    found = findings_of_steps(fill).get(("attention", "repeated_heads"))
    assert (found is not None) is is_named
    if found:
        assert found.saves_ns == pytest.approx(4 * 400_000, rel=0.03)
        assert "8 times" in found.text


@pytest.mark.parametrize(("grows", "is_named"), [(1, True), (0, False)])
def test_tokens_generated_without_a_cache_are_named(findings_of_steps, grows, is_named):
    """Each token alone takes 1/1000 of what all take, or 2 µs, or as long as 33 MB of weights are read at 75 %."""

    def fill(recording, start, number):
        calls = Calls(recording, start)
        length = 1000 + grows * number
        for _ in range(4):
            sizes = [[length, 4096], [4096, 4096]]
            calls.add("aten::mm", sizes, 1_000_000, types=[BF16] * 2)
            query = [1, 32, length, 128]
            calls.add("aten::_flash_attention_forward", [query] * 3, 500_000, types=TYPES)
        calls.wait()

    found = findings_of_steps(fill).get(("no_cache", ""))
    assert (found is not None) is is_named
    if found:
        read_ns = 2 * 4096**2 / 4800 / 0.75
        expected = 4 * (1_500_000 - read_ns - 2_000)
        assert found.saves_ns == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("tokens", "types", "code"),
    [
        (64, [BF16, BF16], "weights_made_again"),
        (64, ["unsigned char"] * 2, "dequantised"),
        (4096, [BF16, BF16], None),  # an activation may be as large as a weight
        (64, [BF16, "float"], None),  # autocast's
    ],
)
def test_weights_that_are_made_in_front_of_their_products_are_named(
    findings_of_steps, tokens, types, code
):
    def fill(recording, start, _):
        calls = Calls(recording, start)
        for _ in range(6):
            calls.add("aten::copy_", [[4096, 4096]] * 2, 400_000, types=types)
            calls.add("aten::native_layer_norm", [[tokens, 4096]], 5_000, types=[BF16])
            calls.add("aten::mm", [[tokens, 4096], [4096, 4096]], 100_000, types=[BF16] * 2)
        calls.wait()

    found = findings_of_steps(fill)
    named = {name for name, _ in found} & {"weights_made_again", "dequantised"}
    assert named == ({code} if code else set())
    if code:
        assert found[code, ""].saves_ns == pytest.approx(6 * 400_000, rel=0.05)


def test_what_numpy_does_with_a_copied_tensor_is_work_on_the_host(findings_of_steps):
    """2 ms of a copy, and 5 ms in which no operator runs until the next launch."""

    def fill(recording, start, _):
        calls = Calls(recording, start)
        calls.add(*PRODUCT, types=[BF16] * 2)
        begin = calls.launch + 0.1
        name = "Memcpy DtoH (Device -> Pageable)"
        recording.op("aten::to", begin, begin + 2.1)
        recording.kernel(begin + 0.05, begin + 0.07, begin + 2.07, op="aten::copy_", name=name)
        recording.events[-1]["args"]["bytes"] = 1 << 26
        recording.op("aten::detach", begin + 2.11, begin + 2.12)
        calls.launch = calls.free = begin + 7.2
        calls.add(*PRODUCT, types=[BF16] * 2)
        calls.wait()

    finding = findings_of_steps(fill)["work_on_host", "results"]
    assert "Python or NumPy" in finding.text


def rank_work(*events, bandwidth=None):
    """Work of a GPU whose memory moves as many bytes per ns, of which kernels reach the half, all or twice that."""
    works = [("memory", "*"), ("optimizer", "*")]
    speeds = Speeds({}, bandwidth, dict.fromkeys(works, Share(0.5, 1.0, 2.0)))
    frame = pl.DataFrame(list(events), infer_schema_length=None)
    missing = [pl.lit(None, pl.String).alias(name) for name in ("node",) if name not in frame]
    return RankWork(frame.with_columns(missing), pl.DataFrame(), speeds)


def remedies_of(entry, *events, bandwidth=None):
    """The remedies that an entry finds in events."""
    found = list(entry.find(rank_work(*events, bandwidth=bandwidth)))
    return pl.concat([REMEDIES.to_frame(), *found])


def copies(count, size=65_536, part=0):
    return [
        {"row": 100 * part + n, "part": part, "step": part, "start_ns": n, "launch_ns": n, "ns": 3,
         "name": "Memcpy HtoD", "copied_bytes": size}
        for n in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "gone"),
    [
        (copies(16), list(range(1, 16))),
        (copies(15), []),
        (copies(16, 65_537), []),
        (copies(10) + copies(10, part=1), []),  # ten in each of two steps
    ],
)
def test_of_sixteen_copies_of_64_kb_in_a_step_one_remains(rows, gone):
    remedies = remedies_of(OneCopy(), *rows)
    assert remedies.filter(pl.col("host_share") == 0)["row"].to_list() == gone
    remaining = remedies.filter(pl.col("host_share") > 0)
    assert remaining.select("row", "likely_ns").rows() == ([(0, 3)] if gone else [])
    assert not remedies["waits"].any()


@pytest.mark.parametrize("constants", [0, 5, 20])
def test_a_small_copy_is_of_a_constant_or_joined_with_others_never_both(constants):
    """The first of twenty copies, 1 ms one from the other, are of tensors made of Python's numbers just before."""
    rows = [
        {**row, "start_ns": row["row"] * 1_000_000 + 9_000, "launch_ns": row["row"] * 1_000_000}
        for row in copies(20, size=64)
    ]
    made = [
        {"name": "aten::lift_fresh", "step": 0, "start_ns": row["launch_ns"] - 5_000}
        for row in rows[:constants]
    ]
    operators = conform(
        pl.DataFrame(made, schema=None if made else {"step": pl.Int64}), HOST_OPERATORS
    )
    rank = msgspec.structs.replace(rank_work(*rows), operators=operators)
    gone = {}
    for entry in (HostConstants(), OneCopy()):
        remedies = pl.concat([REMEDIES.to_frame(), *entry.find(rank)])
        gone[entry.change] = remedies["row"].to_list()
    joined = sorted(gone["one copy"])
    assert gone["constants on the GPU"] == list(range(constants))
    # Fifteen are too few to be joined.
    assert joined == (list(range(20)) if constants == 0 else [])
