"""Kernels and launches alone: no operator, no annotation, only who launched what."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tests.classify.conftest import ENGINE, MAIN, Program
from tracekit.classify import classify
from tracekit.classify.pass_direction import name_windows

FORWARD, BACKWARD = (
    "void at::native::softmax_warp_forward<x>(y)",
    "void at::native::softmax_warp_backward<x>(y)",
)
ATTENTION = "void flash::flash_fwd_kernel<x>(flash::Flash_fwd_params)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
PASSES = {"dgrad": "backward", "wgrad": "backward", "backward": "backward"}


def labels(story, **more):
    """Labels of kernels given as (name, thread), each launched after the one before."""
    program = Program()
    for k, (name, thread) in enumerate(story):
        program.kernel(name, 10 * k, tid=thread, **more)
    return classify(program.events()).sort("launch_ns")["label"].cast(pl.String).to_list()


def test_the_thread_that_runs_what_is_named_backward_runs_the_backward():
    story = [
        (FORWARD, MAIN),
        ("relu", MAIN),
        (FORWARD, MAIN),
        ("relu", ENGINE),
        (BACKWARD, ENGINE),
        ("relu", ENGINE),
    ]
    assert labels(story) == ["forward"] * 3 + ["backward"] * 3


def test_its_products_go_by_their_layouts():
    story = [
        (FORWARD, MAIN),
        (BACKWARD, ENGINE),
        ("nvjet_h_128x64_NNN", ENGINE),
        ("nvjet_h_128x64_NTN", ENGINE),
    ]
    assert labels(story) == ["forward", "backward", "dgrad", "wgrad"]


def test_attention_run_ahead_on_that_thread_is_the_forward_run_again():
    story = [
        (ATTENTION, MAIN),
        (ATTENTION, ENGINE),
        ("nvjet_h_1_TNN", ENGINE),
        ("nvjet_h_1_NNN", ENGINE),
    ]
    story += [("void flash::flash_bwd_dot_do_o_kernel<x>(y)", ENGINE)]
    assert labels(story) == ["forward", "recompute", "recompute", "dgrad", "dgrad"]


def test_a_forward_convolution_may_serve_a_gradient():
    """A backward by the input may run the library's forward kernel."""
    story = [("sm80_xmma_fprop_implicit_gemm_x", MAIN), ("sm80_xmma_fprop_implicit_gemm_x", ENGINE)]
    story += [("sm80_xmma_wgrad_implicit_gemm_x", ENGINE)]
    assert labels(story) == ["forward", "backward", "wgrad"]


def test_one_thread_for_all_says_nothing():
    story = [("relu", MAIN), (FORWARD, MAIN), (BACKWARD, MAIN), ("nvjet_h_1_TNN", MAIN)]
    assert labels(story)[1:3] == ["forward", "backward"]
    assert "custom-backward" not in classify(Program().events())["rule"].cast(pl.String).to_list()


def test_a_thread_that_prepares_data_does_not_make_the_other_the_engines():
    """One thread replays whole steps.

    Another launches a few kernels that happen to be called forward.
    """
    step = [(FORWARD, MAIN), ("relu", MAIN), (BACKWARD, MAIN)] * 8
    actual = labels([*step, ("image_forward", 9)])
    assert [actual[k] for k in (0, 3, 6)] == ["forward"] * 3
    whole = [*step, ("multi_tensor_apply_kernel<Adam>", MAIN)] + [("image_forward", 9)] * 30
    assert [labels(whole)[k] for k in (0, 3, 6)] == ["forward"] * 3


@pytest.mark.parametrize(
    "name", ["1f1b/rank1", "overlapped/rank0", "compile/rank0", "dualpipe/rank3"]
)
def test_captures_without_their_operators_keep_their_passes(samples, load, name):
    events = load(samples / f"{name}.pt.trace.json.gz")
    bare = classify(events.filter(~pl.col("kind").is_in(["cpu_op", "annotation"])))
    both = (
        classify(events)
        .filter(pl.col("label").is_in(["forward", *PASSES]))
        .join(bare, on="id", suffix="_bare")
    )
    length = pl.col("end_ns") - pl.col("start_ns")
    whole = both.select(length.sum()).item()
    same, silent = pl.col("pass").eq_missing(pl.col("pass_bare")), pl.col("label_bare") == "other"
    assert both.filter(same | silent).select(length.sum()).item() > 0.99 * whole
    assert both.filter(same).select(length.sum()).item() > 0.9 * whole


def test_inference_is_no_optimizer_though_it_copies_many_tensors_at_once():
    """Engines that serve models update many small tensors with the kernel that optimizers use."""
    multi = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<x>(y)"
    story = [
        ("fmhaSm100fKernel_x", MAIN),
        ("nvjet_h_1_TNN", MAIN),
        (multi, MAIN),
        ("nvjet_h_1_NTN", MAIN),
    ]
    assert labels(story) == ["forward"] * 4


def test_lost_launches_and_no_operators(program):
    """External ids without one operator to answer them."""
    for k in range(3):
        program.kernel("k", 10 * k, launched=False, external_id=k, correlation=100 + k)
    assert set(classify(program.events())["label"]) == {"other"}


TN, NN, NT = (f"nvjet_h_128x64_{letters}" for letters in ("TNN", "NNN", "NTN"))
SUM, SCALE = "vectorized_elementwise_kernel<8, CUDAFunctor_add<bf16>>", "elementwise_kernel<mul>"
NORM = "vectorized_layer_norm_kernel<x>"


def test_a_product_that_is_summed_right_after_is_a_weights():
    """Attention differentiates with the same layouts, and nothing is summed."""
    ahead = [(FORWARD, MAIN), (TN, MAIN), (SCALE, MAIN), (NN, MAIN), (TN, MAIN)]
    linear = [(NN, ENGINE), (NT, ENGINE), (SUM, ENGINE)]
    attention = [(name, ENGINE) for name in (NT, TN, BACKWARD, NN, SCALE, NT, SCALE)]
    actual = labels([*ahead, *linear, *attention, *linear, *linear])
    layer = ["dgrad", "wgrad", "wgrad"]
    assert actual == ["forward"] * 5 + layer + ["dgrad"] * 7 + layer * 2


def test_a_first_micro_batch_has_nothing_to_sum_and_follows_the_others():
    ahead = [(FORWARD, MAIN), (TN, MAIN)]
    first = [(BACKWARD, ENGINE), (NN, ENGINE), (NT, ENGINE)]
    actual = labels([*ahead, *first, *ahead, *first, (SUM, ENGINE), *ahead, *first, (SUM, ENGINE)])
    assert actual[2:5] == ["dgrad", "dgrad", "wgrad"]
    assert actual[7:11] == ["dgrad", "dgrad", "wgrad", "wgrad"]


def test_without_sums_what_is_no_product_stays_undivided():
    story = [(FORWARD, MAIN), (BACKWARD, ENGINE), (NN, ENGINE), (NT, ENGINE), (SCALE, ENGINE)]
    assert labels(story) == ["forward", "backward", "dgrad", "wgrad", "backward"]


def test_a_stretch_of_the_forward_on_the_engines_thread_is_run_again():
    """Kernel by kernel the same, with a product in it.

    Elementwise kernels alone may be alike by chance.
    """
    layer = [NORM, TN, SCALE, FORWARD, NN, TN]
    back = [NN, NT, SUM, BACKWARD, SCALE, NN, NT, SUM]
    story = [(name, MAIN) for name in layer] + [(name, ENGINE) for name in layer + back]
    actual = labels(story)
    assert actual[:6] == ["forward"] * 6
    assert actual[6:12] == ["recompute"] * 6
    assert actual[12:] == ["dgrad", "wgrad", "wgrad", "dgrad", "dgrad", "dgrad", "wgrad", "wgrad"]


def summed(program, begin, group, size, *, tid, call="allreduce"):
    """An NCCL call in a range of its own, and its kernel."""
    facts = {"collective": call, "group": group, "bytes": size}
    program.op("record_param_comms", begin, begin + 2, tid=tid, **facts)
    kernel = {
        "allreduce": "AllReduce",
        "reduce_scatter": "ReduceScatter",
        "all_gather": "AllGather",
    }[call]
    return program.kernel(
        f"ncclDevKernel_{kernel}_Sum(args)", begin + 1, tid=tid, stream=20, **facts
    )


def test_communicators_are_told_by_what_is_summed_on_them_and_when():
    """Activations are summed in both passes, gradients at the end.

    What replicas gather is theirs too.
    """
    program, large = Program(), 4 << 20
    kinds: dict[str, list[int]] = {"tp_comm": [], "dp_comm": []}
    for step in range(3):
        start = 200 * step
        for k, name in enumerate((FORWARD, TN)):
            program.kernel(name, start + 10 * k)
            kinds["tp_comm"].append(summed(program, start + 10 * k + 4, "tensor", large, tid=MAIN))
        for k, name in enumerate((BACKWARD, NN, NT, SUM)):
            program.kernel(name, start + 50 + 10 * k, tid=ENGINE)
        kinds["tp_comm"].append(summed(program, start + 64, "tensor", large, tid=ENGINE))
        kinds["dp_comm"].append(
            summed(program, start + 95, "data", large, tid=MAIN, call="reduce_scatter")
        )
        program.kernel("multi_tensor_apply_kernel<Adam>", start + 110)
        kinds["dp_comm"].append(
            summed(program, start + 120, "data", large, tid=MAIN, call="all_gather")
        )
    actual = dict(classify(program.events()).select("id", pl.col("label").cast(pl.String)).rows())
    for label, ids in kinds.items():
        assert {actual[i] for i in ids} == {label}


@pytest.mark.parametrize(("summed", "alone", "told"), [(4, 4, True), (4, 5, False)])
def test_sums_tell_weights_where_half_of_their_products_are_summed(summed, alone, told):
    """MOST: else a product goes by its layout alone."""
    linear, attention = (
        [(NN, ENGINE), (NT, ENGINE), (SUM, ENGINE)],
        [(BACKWARD, ENGINE), (NT, ENGINE), (SCALE, ENGINE)],
    )
    ahead = [(FORWARD, MAIN), (TN, MAIN)] * 4
    actual = labels([*ahead, *linear * summed, *attention * alone])[len(ahead) + 3 * summed :]
    assert (actual[1] == "dgrad") is told


def test_four_kernels_in_a_row_make_a_repetition():
    """REPEATED."""
    assert [len(name_windows(np.arange(count))) for count in (3, 4, 5)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("forward_sums", "backward_label"), [(0, "dp_comm"), (1, "dp_comm"), (2, "comm")]
)
def test_without_groups_a_run_that_sums_in_the_forward_too_need_not_sum_gradients(
    forward_sums, backward_label
):
    """Tensor parallelism sums activations in both passes, maybe on two streams.

    A loss is summed once.
    """
    program = Program()
    story = [(FORWARD, MAIN, 7), *[(ALL_REDUCE, MAIN, 21), (FORWARD, MAIN, 7)] * forward_sums]
    story += [(BACKWARD, ENGINE, 7), *[(ALL_REDUCE, ENGINE, 20), (BACKWARD, ENGINE, 7)] * 2]
    for k, (name, thread, stream) in enumerate(story):
        program.kernel(name, 10 * k, tid=thread, stream=stream)
    labelled = classify(program.events()).sort("launch_ns").filter(pl.col("stream") >= 20)
    assert (
        labelled["label"].cast(pl.String).to_list()
        == ["comm"] * forward_sums + [backward_label] * 2
    )
