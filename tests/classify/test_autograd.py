"""The passes that autograd's nodes tell: forward, input and weight gradients, recompute, and nodes that run twice."""

from __future__ import annotations

import polars as pl
import pytest

from tests.classify.conftest import ENGINE, NODE, event_row
from tracekit.classify import classify


def test_gradients_scaled_before_the_optimizer_are_no_forward_though_the_next_step_takes_their_number(
    program,
):
    """They repeat the number of the next node to come, and that is made after the next step's first receive."""
    program.op("aten::relu", 0, 5, sequence=5)
    program.kernel("k", 1)
    program.node("ReluBackward0", 10, 20, 5)
    program.kernel("k", 11, tid=ENGINE)
    scaled = []
    for start in (30, 40):
        program.op("aten::div_", start, start + 5, sequence=6)
        scaled.append(program.kernel("k", start + 1))
    program.note("Optimizer.step#AdamW.step", 50, 60)
    program.kernel("k", 51)
    program.op("c10d::recv_", 70, 71, sequence=6)
    program.op("aten::relu", 80, 85, sequence=7)
    forward = program.kernel("k", 81)
    program.op("aten::relu", 90, 91, sequence=8)
    program.node("ReluBackward0", 100, 110, 7)
    labelled = classify(program.events())
    assert [event_row(labelled, k)["label"] for k in (*scaled, forward)] == [
        "optimizer",
        "optimizer",
        "forward",
    ]


def test_an_optimizer_that_runs_the_forward_and_the_backward_itself_updates_behind_them(program):
    """``optimizer.step(closure)``, as Lightning calls every optimizer."""
    program.note("Optimizer.step#AdamW.step", 0, 60)
    program.op("aten::relu", 1, 5, sequence=5)
    forward = program.kernel("k", 2)
    program.node("ReluBackward0", 10, 20, 5)
    backward = program.kernel("k", 11, tid=ENGINE)
    program.op("aten::mul_", 30, 35)
    update = program.kernel("k", 31)
    labelled = classify(program.events())
    labels = [event_row(labelled, k)["label"] for k in (forward, backward, update)]
    assert labels == ["forward", "dgrad", "optimizer"]


def test_a_node_knows_its_forward(program):
    program.op("aten::linear", 0, 10, sequence=7)
    program.op("aten::mm", 1, 9, sequence=7)
    forward = program.kernel("nvjet_TNN", 2)
    program.op("aten::relu", 11, 12, sequence=8)
    program.node("MmBackward0", 20, 30, 7)
    backward = program.kernel("k", 21, tid=ENGINE)
    labelled = classify(program.events())
    assert event_row(labelled, forward)["label"] == "forward"
    row = event_row(labelled, backward)
    assert (row["node"], row["fwd_op"], row["autograd_sequence"]) == ("MmBackward0", "aten::mm", 7)


def test_a_node_has_the_number_of_its_own_range_and_not_of_hooks_around_it(program):
    program.op("aten::mm", 0, 10, sequence=7)
    program.op("aten::relu", 11, 12, sequence=8)
    program.op(NODE + "MmBackward0", 20, 60, tid=ENGINE)  # without a number
    program.op("_ToFloat8ConstrFunc", 21, 25, tid=ENGINE, sequence=64)
    program.op("MmBackward0", 30, 40, tid=ENGINE, sequence=7)
    backward = program.kernel("k", 31, tid=ENGINE)
    program.op("_ToFloat8ConstrFunc", 41, 45, tid=ENGINE, sequence=99)
    row = event_row(classify(program.events()), backward)
    assert (row["node"], row["fwd_op"], row["autograd_sequence"]) == ("MmBackward0", "aten::mm", 7)


@pytest.mark.parametrize(
    ("node", "order"), [("MmBackward0", ["wgrad", "dgrad"]), ("AddmmBackward0", ["dgrad", "wgrad"])]
)
def test_order_inside_a_node(program, node, order):
    program.node(node, 0, 100, 5)
    ids = []
    for start in (1, 50):
        program.op("aten::mm", start, start + 10, tid=ENGINE)
        ids.append(program.kernel("gemm_kernel", start + 1, tid=ENGINE))
    labelled = classify(program.events())
    assert [event_row(labelled, i)["label"] for i in ids] == order


def zero_bubble(program, node="MmBackward0", turned="TBackward0"):
    """Two micro-batches of one linear layer: the backward by the input first, by the weight later."""
    number, ids = 100, []
    for start in (0, 20):
        program.op("aten::t", start, start + 2, sequence=number)
        program.op(
            "aten::mm", start + 5, start + 15, sequence=number + 1, shapes="[[64,64],[64,64]]"
        )
        ids.append((program.kernel("gemm_kernel", start + 6), "forward"))
        number += 2
    program.op("aten::relu", 40, 41, sequence=number)
    for start, made, label in (
        (100, 101, "dgrad"),
        (120, 103, "dgrad"),
        (140, 101, "wgrad"),
        (160, 103, "wgrad"),
    ):
        program.node(node, start, start + 8, made)
        program.op("aten::mm", start + 1, start + 7, tid=ENGINE, shapes="[[64,64],[64,64]]")
        ids.append((program.kernel("gemm_kernel", start + 2, tid=ENGINE), label))
        if label == "wgrad":
            if turned:
                program.node(turned, start + 9, start + 10, made - 1)
            program.op(NODE + "torch::autograd::AccumulateGrad", start + 11, start + 12, tid=ENGINE)
            program.op("aten::add_", start + 14, start + 18)
            ids.append((program.kernel("add", start + 15), "wgrad"))
    return ids


@pytest.mark.parametrize(
    ("node", "turned"),
    [("MmBackward0", "TBackward0"), ("MmBackward0", None), ("LinBackward", None)],
)
def test_a_node_that_runs_twice_serves_the_input_then_the_weight(program, node, turned):
    """Square matrices, and names that say nothing: only the engine's two visits tell."""
    ids = zero_bubble(program, node, turned)
    labelled = classify(program.events())
    assert [(i, event_row(labelled, i)["label"]) for i, _ in ids] == ids


def test_norm_weights_under_the_inputs_range(program):
    """A stage that defers its products alone still gives its norms' weight gradients with the input's."""
    program.note("PP:1I0", 0, 100)
    program.node("NativeLayerNormBackward0", 10, 20, 5)
    dgrad = program.kernel("layer_norm_grad_input_kernel", 11, tid=ENGINE)
    wgrad = program.kernel("GammaBetaBackwardCUDAKernelTemplate", 13, tid=ENGINE)
    program.op(NODE + "torch::autograd::AccumulateGrad", 21, 30, tid=ENGINE)
    added = program.kernel("add", 22, tid=ENGINE)
    labelled = classify(program.events())
    assert [event_row(labelled, i)["label"] for i in (dgrad, wgrad, added)] == [
        "dgrad",
        "wgrad",
        "wgrad",
    ]


def test_files_without_numbers(program):
    """Without sequence numbers, a linear layer outside the engine is forward, and the weight's transpose tells."""
    ids = zero_bubble(program)
    program.op("aten::linear", 4.5, 15.5)
    program.op("aten::linear", 24.5, 35.5)
    events = program.events().with_columns(
        sequence=pl.lit(None, pl.Int64), shapes=pl.lit(None, pl.Categorical())
    )
    labelled = classify(events)
    products = [(i, label) for i, label in ids if event_row(labelled, i)["op"] == "aten::mm"]
    assert len(products) == 6
    assert [(i, event_row(labelled, i)["label"]) for i, _ in products] == products


def test_a_window_that_ends_before_the_weights_turn(program):
    ids = zero_bubble(program)
    cut = program.events().filter(pl.col("start_ns") < 140_000)
    labelled = classify(cut)
    assert [event_row(labelled, i)["label"] for i, _ in ids[:4]] == [
        "forward",
        "forward",
        "dgrad",
        "dgrad",
    ]


def test_a_graph_kept_and_run_twice_is_no_split(program):
    """Frozen weights and a graph that is kept: both visits serve the input."""
    ids = []
    program.op("aten::mm", 0, 10, sequence=5)
    program.op("aten::relu", 11, 12, sequence=6)
    for start in (20, 40):
        program.node("MmBackward0", start, start + 8, 5)
        program.op("aten::mm", start + 1, start + 7, tid=ENGINE)
        ids.append(program.kernel("gemm_kernel", start + 2, tid=ENGINE))
        program.node("ReluBackward0", start + 9, start + 12, 4)
        ids.append(program.kernel("relu", start + 10, tid=ENGINE))
    labelled = classify(program.events())
    assert {event_row(labelled, i)["label"] for i in ids} == {"dgrad"}


@pytest.mark.parametrize(
    ("shapes", "label"),
    [("[[64,8],[8,32]]", "dgrad"), ("[[32,64],[64,8]]", "wgrad"), ("[[8,64],[64,32]]", "wgrad")],
)
def test_shapes_decide(program, shapes, label):
    """Forward [64 tokens, 32] x [32, 8]: dgrad contracts 8, wgrad contracts 64."""
    program.op("aten::mm", 0, 10, sequence=5, shapes="[[64,32],[32,8]]")
    program.kernel("gemm", 1)
    program.op("aten::relu", 11, 12, sequence=6)
    program.node("LinBackward", 20, 40, 5)
    program.op("aten::mm", 21, 30, tid=ENGINE, shapes=shapes)
    target = program.kernel("gemm", 22, tid=ENGINE)
    assert event_row(classify(program.events()), target)["label"] == label


def test_forward_work_inside_a_node_is_recompute(program):
    program.node("CheckpointFunctionBackward", 0, 100, 5)
    program.op("aten::gelu", 1, 10, tid=ENGINE, sequence=50)
    again = program.kernel("gelu", 2, tid=ENGINE)
    program.node("GeluBackward0", 20, 30, 50)
    back = program.kernel("gelu_backward", 21, tid=ENGINE)
    labelled = classify(program.events())
    assert (event_row(labelled, again)["label"], event_row(labelled, back)["label"]) == (
        "recompute",
        "dgrad",
    )


@pytest.mark.parametrize(("formula_follows", "label"), [(True, "recompute"), (False, "dgrad")])
def test_a_formula_that_is_differentiable_itself_is_not_run_again(program, formula_follows, label):
    """With ``create_graph`` formulas have numbers; behind a forward that runs again they have none."""
    program.node("MulBackward0", 0, 100, 5)
    program.op("MulBackward0", 1, 90, tid=ENGINE, sequence=5)
    program.op("aten::mul", 2, 10, tid=ENGINE, sequence=50)
    target = program.kernel("mul", 3, tid=ENGINE)
    if formula_follows:
        program.op("aten::mul", 20, 30, tid=ENGINE)
        program.kernel("mul", 21, tid=ENGINE)
    program.node("MulBackward0", 200, 300, 50)
    assert event_row(classify(program.events()), target)["label"] == label


@pytest.mark.parametrize("start", [0, 200])
def test_what_only_a_forward_runs_is_recompute_inside_a_node_also_in_the_first_range(
    program, start
):
    if start:
        program.op("aten::relu", 0, 10, sequence=5)
    program.node("MyBlockBackward", start, start + 100, 5)
    program.op("aten::native_layer_norm", start + 1, start + 10, tid=ENGINE)
    again = program.kernel("vectorized_layer_norm", start + 2, tid=ENGINE)
    labelled = classify(program.events())
    assert event_row(labelled, again)["label"] == "recompute"
