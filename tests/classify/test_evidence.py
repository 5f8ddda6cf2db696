"""The evidence itself: nesting, launches, autograd, collectives, copies, on traces that can be counted by hand."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.classify.conftest import ENGINE, NODE
from tracekit.classify import classify, explain
from tracekit.classify._nest import ANNOTATION, OP, nest
from tracekit.classify.evidence import gather
from tracekit.errors import OptionError

RANGES = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 40), st.integers(0, 20), st.sampled_from([OP, ANNOTATION])), max_size=25
)
POINTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), max_size=10)


@settings(deadline=None, max_examples=80)
@given(RANGES, POINTS)
def test_nesting_agrees_with_a_search_of_all_ranges(rows, points):
    """The innermost range is the latest to start among those that hold the point and are not yet left."""
    rows = _calls(rows)
    thread, start, end, what = (np.array([r[i] for r in rows], np.int64) for i in range(4))
    asked = [np.array([p[i] for p in points], np.int64) for i in range(2)]
    found = nest(thread, start, end, what, np.zeros(len(rows), np.int64), *asked, siblings=True)

    def around(t, at, kind, before):
        held = [j for j, (u, a, b, w) in enumerate(rows[:before]) if w == kind and u == t and a <= at < b]
        return held[-1] if held else -1

    for i, (t, s, _, _) in enumerate(rows):
        assert found.op_of[i] == around(t, s, OP, i)
        assert found.ann_of[i] == around(t, s, ANNOTATION, i)
    for i, (t, _, _, w) in enumerate(rows):
        same = [j for j, row in enumerate(rows) if (row[0], row[3], found.op_of[j]) == (t, OP, found.op_of[i])]
        assert found.before[i] == max((j for j in same if j < i and w == OP), default=-1)
        assert found.after[i] == min((j for j in same if j > i and w == OP), default=-1)
    for i, (t, at) in enumerate(points):
        assert found.asked_op[i] == around(t, at, OP, len(rows))
        assert found.asked_ann[i] == around(t, at, ANNOTATION, len(rows))


def _calls(rows):
    """Sort ranges by thread and start, and cut those of one thread so that they nest as calls do."""
    out = []
    for t, s, length, w in sorted(rows, key=lambda r: (r[0], r[1], -r[2], r[3])):
        end = s + length
        for u, a, b, _ in out:
            if u == t and a <= s < b:
                end = min(end, b)
        out.append((t, s, end, w))
    return out


def one(labelled, target):
    return labelled.filter(pl.col("id") == target).row(0, named=True)


def test_the_innermost_op_and_the_chain(program):
    program.note("outer", 0, 100)
    program.note("inner", 1, 50)
    program.op("aten::linear", 2, 40)
    program.op("aten::mm", 3, 30)
    inside, after = program.kernel("k", 4), program.kernel("k", 60)
    labelled = classify(program.events())
    row = one(labelled, inside)
    assert (row["op"], row["chain"]) == ("aten::mm", "aten::linear > aten::mm")
    assert (row["annotation"], row["annotations"]) == ("inner", "outer > inner")
    row = one(labelled, after)
    assert (row["op"], row["annotations"]) == (None, "outer")


def test_the_engines_work_borrows_the_annotation_its_caller_waits_in(program):
    program.note("PP:1B3", 0, 100)
    program.op("aten::relu", 1, 2, sequence=5)
    program.node("ReluBackward0", 10, 20, 5)
    target = program.kernel("k", 11, tid=ENGINE)
    row = one(classify(program.events()), target)
    assert (row["stage"], row["microbatch"]) == (1, 3)


def test_gradients_scaled_before_the_optimizer_are_no_forward_though_the_next_step_takes_their_number(program):
    """They repeat the number of the next node to come, and that is made after the next step's first receive."""
    program.op("aten::relu", 0, 5, sequence=5)
    program.kernel("k", 1)
    program.node("ReluBackward0", 10, 20, 5)
    program.kernel("k", 11, tid=ENGINE)
    scaled = []
    for at in (30, 40):
        program.op("aten::div_", at, at + 5, sequence=6)
        scaled.append(program.kernel("k", at + 1))
    program.note("Optimizer.step#AdamW.step", 50, 60)
    program.kernel("k", 51)
    program.op("c10d::recv_", 70, 71, sequence=6)
    program.op("aten::relu", 80, 85, sequence=7)
    forward = program.kernel("k", 81)
    program.op("aten::relu", 90, 91, sequence=8)
    program.node("ReluBackward0", 100, 110, 7)
    labelled = classify(program.events())
    assert [one(labelled, k)["label"] for k in (*scaled, forward)] == ["optimizer", "optimizer", "forward"]


def test_a_node_knows_its_forward(program):
    program.op("aten::linear", 0, 10, sequence=7)
    program.op("aten::mm", 1, 9, sequence=7)
    forward = program.kernel("nvjet_TNN", 2)
    program.op("aten::relu", 11, 12, sequence=8)
    program.node("MmBackward0", 20, 30, 7)
    backward = program.kernel("k", 21, tid=ENGINE)
    labelled = classify(program.events())
    assert one(labelled, forward)["label"] == "forward"
    row = one(labelled, backward)
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
    assert [one(labelled, i)["label"] for i in ids] == order


def zero_bubble(program, node="MmBackward0", turned="TBackward0"):
    """Two micro-batches of one linear layer: the backward by the input first, by the weight later."""
    number, ids = 100, []
    for start in (0, 20):
        program.op("aten::t", start, start + 2, sequence=number)
        program.op("aten::mm", start + 5, start + 15, sequence=number + 1, shapes="[[64,64],[64,64]]")
        ids.append((program.kernel("gemm_kernel", start + 6), "forward"))
        number += 2
    program.op("aten::relu", 40, 41, sequence=number)
    for start, made, label in ((100, 101, "dgrad"), (120, 103, "dgrad"), (140, 101, "wgrad"), (160, 103, "wgrad")):
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
    ("node", "turned"), [("MmBackward0", "TBackward0"), ("MmBackward0", None), ("LinBackward", None)]
)
def test_a_node_that_runs_twice_serves_the_input_then_the_weight(program, node, turned):
    """Square matrices, and names that say nothing: only the engine's two visits tell."""
    ids = zero_bubble(program, node, turned)
    labelled = classify(program.events())
    assert [(i, one(labelled, i)["label"]) for i, _ in ids] == ids


def test_norm_weights_under_the_inputs_range(program):
    """A stage that defers its products alone still gives its norms' weight gradients with the input's."""
    program.note("PP:1I0", 0, 100)
    program.node("NativeLayerNormBackward0", 10, 20, 5)
    dgrad = program.kernel("layer_norm_grad_input_kernel", 11, tid=ENGINE)
    wgrad = program.kernel("GammaBetaBackwardCUDAKernelTemplate", 13, tid=ENGINE)
    program.op(NODE + "torch::autograd::AccumulateGrad", 21, 30, tid=ENGINE)
    added = program.kernel("add", 22, tid=ENGINE)
    labelled = classify(program.events())
    assert [one(labelled, i)["label"] for i in (dgrad, wgrad, added)] == ["dgrad", "wgrad", "wgrad"]


def test_files_without_numbers(program):
    """Without sequence numbers, a linear layer outside the engine is forward, and the weight's transpose tells."""
    ids = zero_bubble(program)
    program.op("aten::linear", 4.5, 15.5)
    program.op("aten::linear", 24.5, 35.5)
    events = program.events().with_columns(sequence=pl.lit(None, pl.Int64), shapes=pl.lit(None, pl.Categorical()))
    labelled = classify(events)
    products = [(i, label) for i, label in ids if one(labelled, i)["op"] == "aten::mm"]
    assert len(products) == 6
    assert [(i, one(labelled, i)["label"]) for i, _ in products] == products


def test_a_window_that_ends_before_the_weights_turn(program):
    ids = zero_bubble(program)
    cut = program.events().filter(pl.col("start_ns") < 140_000)
    labelled = classify(cut)
    assert [one(labelled, i)["label"] for i, _ in ids[:4]] == ["forward", "forward", "dgrad", "dgrad"]


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
    assert {one(labelled, i)["label"] for i in ids} == {"dgrad"}


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
    assert one(classify(program.events()), target)["label"] == label


def test_forward_work_inside_a_node_is_recompute(program):
    program.node("CheckpointFunctionBackward", 0, 100, 5)
    program.op("aten::gelu", 1, 10, tid=ENGINE, sequence=50)
    again = program.kernel("gelu", 2, tid=ENGINE)
    program.node("GeluBackward0", 20, 30, 50)
    back = program.kernel("gelu_backward", 21, tid=ENGINE)
    labelled = classify(program.events())
    assert (one(labelled, again)["label"], one(labelled, back)["label"]) == ("recompute", "dgrad")


def test_a_batch_of_messages_names_one_peer_or_none(program):
    def batch(at, *messages):
        for i, (way, peer) in enumerate(messages):
            program.op(
                "record_param_comms", at + i, at + i + 0.5, collective=way, peer=peer, group="1", group_desc="pp"
            )
        program.note("nccl:coalesced", at + 5, at + 9)
        return program.kernel("ncclDevKernel_SendRecv(args)", at + 6, stream=20)

    both = batch(0, ("send", 2), ("recv", 2))
    sent = batch(20, ("send", 1))
    apart = batch(40, ("recv", 1), ("send", 3))
    labelled = classify(program.events())
    assert [one(labelled, i)["peer"] for i in (both, sent, apart)] == [2, 1, None]
    assert [one(labelled, i)["collective"] for i in (both, sent, apart)] == ["coalesced", "send", "coalesced"]
    assert {one(labelled, i)["label"] for i in (both, sent, apart)} == {"pp_comm"}
    assert {one(labelled, i)["group_desc"] for i in (both, sent, apart)} == {"pp"}


def messages(program, plan, *, wait):
    """Point-to-point kernels of one rank in turn: (way, peer, pass of the compute around it). Returns their ids."""
    ids = []
    for i, (way, peer, work) in enumerate(plan):
        at = 100 * i
        if way == "send":
            _compute(program, at, work)
        program.op("record_param_comms", at + 30, at + 31, collective=way, peer=peer, group="1", group_desc="pp")
        program.note("nccl:coalesced", at + 32, at + 40)
        ids.append(program.kernel("ncclDevKernel_SendRecv(args)", at + 33, stream=20))
        if wait:
            program.op("record_param_comms", at + 50, at + 51, collective="wait", group="1")
        if way == "recv":
            _compute(program, at + 60, work)
    if not wait:
        for i in range(len(plan)):
            program.op("record_param_comms", 9000 + i, 9000.5 + i, collective="wait", group="1")
    return ids


def _compute(program, at, work):
    if work == "forward":
        program.op("aten::relu", at, at + 10, sequence=int(at) + 1000)
        program.op("aten::relu", at + 15, at + 16, sequence=int(at) + 1001)
        program.node("ReluBackward0", 20_000 + at, 20_002 + at, int(at) + 1000)
        program.kernel("relu", at + 1)
    else:
        program.node("GeluBackward0", at, at + 10, 7)
        program.kernel("gelu", at + 1, tid=ENGINE)


def test_a_receive_answers_what_is_sent_to_its_peer(program):
    """Forward work goes to rank 1 and backward work to rank 0: what comes from them is the other way round."""
    plan = [("send", 1, "forward"), ("send", 0, "backward"), ("recv", 1, "forward"), ("recv", 0, "backward")]
    ids = messages(program, plan, wait=False)
    labelled = classify(program.events())
    assert [one(labelled, i)["pass"] for i in ids] == ["forward", "backward", "backward", "forward"]


def test_a_receive_between_ranks_that_send_both_ways(program):
    """Waited for in turn, the work after the wait tells; waited for at the end, nothing does, and none is made up."""
    plan = [("send", 1, "forward"), ("send", 1, "backward"), ("recv", 1, "forward"), ("recv", 1, "backward")] * 3
    ids = messages(program, plan, wait=True)
    labelled = classify(program.events())
    assert [one(labelled, i)["pass"] for i in ids] == [work for _, _, work in plan]
    late = type(program)()
    ids = messages(late, plan, wait=False)
    labelled = classify(late.events())
    assert [one(labelled, i)["pass"] for i in ids] == [None if way == "recv" else w for way, _, w in plan]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("PP:2SEND_F5", (2, 5, "forward")),
        ("PP:2RECV_F5", (2, 5, "forward")),
        ("PP:7SEND_B0", (7, 0, "backward")),
        ("PP:7RECV_B0", (7, 0, "backward")),
    ],
)
def test_a_range_says_what_a_message_carries(program, name, expected):
    program.trained()
    program.note(name, 0, 10)
    way = "send" if "SEND" in name else "recv"
    target = program.nccl(way, 1, group_desc="pp")
    row = one(classify(program.events()), target)
    assert (row["stage"], row["microbatch"], row["pass"]) == expected
    assert row["label"] == "pp_comm"


def test_small_saved_tensors_are_offloaded_too(program):
    """Statistics of a norm leave in the forward and return inside the backward; a loss that is read does not."""
    gone, back = [], []
    for i in range(3):
        program.op("aten::native_layer_norm", 20 * i, 20 * i + 10, sequence=10 + i)
        gone.append(program.copy("DtoH (Device -> Pinned)", 20 * i + 12, bytes=8192))
        program.node("NativeLayerNormBackward0", 1000 - 20 * i, 1010 - 20 * i, 10 + i)
        back.append(program.copy("HtoD (Pinned -> Device)", 1001 - 20 * i, bytes=8192, tid=ENGINE))
    loss = program.copy("DtoH (Device -> Pageable)", 2000, bytes=4)
    index = program.copy("HtoD (Pageable -> Device)", 2010, bytes=512)
    labelled = classify(program.events())
    assert {one(labelled, i)["label"] for i in gone} == {"offload"}
    assert {one(labelled, i)["label"] for i in back} == {"onload"}
    assert {one(labelled, i)["label"] for i in (loss, index)} == {"memory"}


@pytest.mark.parametrize(("ranks", "peer"), [(None, 3), ("[1, 3, 5, 7]", 7)])
def test_a_single_message_spells_its_peer(program, ranks, peer):
    program.note("nccl:send 0->3", 0, 10)
    program.op("record_param_comms", 1, 9, collective="send", group="1", group_ranks=ranks)
    target = program.kernel("ncclDevKernel_SendRecv(args)", 2, stream=20)
    assert one(classify(program.events()), target)["peer"] == peer


def test_sendrecv_is_nothing_by_its_name_alone(program):
    program.trained()
    target = program.kernel("ncclDevKernel_SendRecv(args)", 1, stream=20)
    assert one(classify(program.events()), target)["label"] == "comm"


def test_the_backward_of_combine_runs_a_dispatch_kernel(program):
    """One layer forward and one backward at once, as DeepEP launches them."""
    program.trained()
    dispatch, combine = "deep_ep::internode::dispatch<8>(", "deep_ep::internode::combine<8>("
    program.kernel("deep_ep::internode::cached_notify<8>(", 0, stream=27)
    first = program.kernel(dispatch, 2, stream=27)
    program.kernel("deep_ep::internode::notify_dispatch<8>(", 4, stream=27)
    second = program.kernel(dispatch, 6, stream=27)
    third, fourth = program.kernel(combine, 8, stream=27), program.kernel(combine, 10, stream=27)
    labelled = classify(program.events())
    got = [(one(labelled, i)["label"], one(labelled, i)["pass"]) for i in (first, second, third, fourth)]
    assert got == [
        ("ep_combine", "backward"),
        ("ep_dispatch", "forward"),
        ("ep_dispatch", "backward"),
        ("ep_combine", "forward"),
    ]


def train_moe(program, parts):
    """Two layers forward and backward; *parts* says how many all-to-alls a dispatch takes. Returns roles by id."""
    clock, number, expected, backward = 0, 100, {}, []

    def run(name, kernel, role=None):
        nonlocal clock, number
        program.op(name, clock, clock + 8, sequence=number)
        if role:
            expected[program.nccl("all_to_all", clock + 2, group="5")] = (f"ep_{role}", "forward")
        else:
            program.kernel(kernel, clock + 2)
        backward.append((name, kernel, role, number))
        clock, number = clock + 10, number + 1

    for _ in range(2):
        run("aten::_flash_attention_forward", "flash_fwd")
        for _ in range(parts):
            run("AllToAll", "", "dispatch")
        run("aten::mm", "gemm")
        run("AllToAll", "", "combine")
    program.op("aten::sum", clock, clock + 1, sequence=number)
    for name, kernel, role, made in reversed(backward):
        clock += 20
        node = {"aten::mm": "MmBackward0", "AllToAll": "AllToAllBackward"}.get(name, "FlashAttentionBackward0")
        program.node(node, clock, clock + 10, made)
        if role:
            expected[program.nccl("all_to_all", clock + 2, tid=ENGINE, group="5")] = (f"ep_{role}", "backward")
        else:
            if name == "aten::mm":
                program.op("aten::mm", clock + 1, clock + 9, tid=ENGINE)
            program.kernel(kernel, clock + 2, tid=ENGINE)
    return expected


@pytest.mark.parametrize("described", [True, False])
def test_all_to_alls_take_turns(program, described):
    expected = train_moe(program, parts=1)
    if described:
        for row in program.rows:
            row["group_desc"] = "mesh_ep" if row.get("group") else None
    labelled = classify(program.events())
    assert {i: (one(labelled, i)["label"], one(labelled, i)["pass"]) for i in expected} == expected


def test_a_dispatch_in_two_parts(program):
    """Tokens and their weights may travel apart: the turn changes only after the experts' product."""
    expected = train_moe(program, parts=2)
    for row in program.rows:
        row["group_desc"] = "EXPERT_MODEL_PARALLEL_GROUP" if row.get("group") else None
    labelled = classify(program.events())
    assert {i: (one(labelled, i)["label"], one(labelled, i)["pass"]) for i in expected} == expected


def test_a_launch_the_file_lost_is_known_by_its_namesakes(program):
    program.op("aten::relu", 0, 10, sequence=5)
    program.kernel("relu_kernel", 1)
    program.node("ReluBackward0", 20, 30, 5)
    program.kernel("other_kernel", 21, tid=ENGINE)
    lost, stranger = program.kernel("relu_kernel", 100, launched=False), program.kernel("new", 50, launched=False)
    labelled = classify(program.events())
    assert one(labelled, lost)["label"] == "forward"
    assert one(labelled, stranger)["label"] == "other"


def test_explain_names_the_rule_and_why_others_failed(program):
    program.op("aten::relu", 0, 10, sequence=5)
    target = program.kernel("relu_kernel", 1)
    program.node("ReluBackward0", 20, 30, 5)
    events = program.events()
    by_id, by_name = explain(events, target), explain(events, "relu_k")
    assert by_id.event == by_name.event
    assert by_id.winner is not None
    assert by_id.winner.rule == classify(events)["rule"].to_list()[0] == "torch-forward"
    assert by_id.evidence["site"] == "forward"
    failed = next(t for t in by_id.tried if t.rule == "torch-recompute")
    assert (failed.matched, failed.failed) == (False, "site is forward, not recompute")
    text = by_id.render()
    assert "✓ torch-forward" in text
    assert "relu_kernel" in text
    with pytest.raises(OptionError, match="nothing_like_it"):
        explain(events, "nothing_like_it")


def test_explain_counts_all_that_a_name_means(samples, load):
    events = load(samples / "1f1b/rank1.pt.trace.json.gz")
    found = explain(events, "nvjet")
    assert dict(found.others) == {"forward": 96, "dgrad": 96, "wgrad": 96}
    assert found.to_dict()["label"] in ("forward", "dgrad", "wgrad")


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("DtoH (Device -> Pinned)", "d2h"),
        ("HtoD (Pageable -> Device)", "h2d"),
        ("HtoD (Host -> Device)", "h2d"),
        ("M2D (MEMORY(Unknown) -> DEVICE)", "h2d"),
        ("D2M (DEVICE -> MEMORY(Unknown))", "d2h"),
        ("D2D (DEVICE -> DEVICE)", "d2d"),
        ("DtoD (Device -> Device)", "d2d"),
        ("PtoP (Device -> Device)", "p2p"),
    ],
)
def test_directions_of_copies_by_every_vendors_name(program, name, way):
    program.copy(name, 1, bytes=1 << 20)
    assert gather(program.events()).text("copy").strings() == [way]
