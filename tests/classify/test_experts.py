"""Exchanges between experts: dispatch or combine, forward or backward, by their turns."""

from __future__ import annotations

import pytest

from tests.classify.conftest import ENGINE, event_row
from tracekit.classify import classify


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
    got = [
        (event_row(labelled, i)["label"], event_row(labelled, i)["pass"])
        for i in (first, second, third, fourth)
    ]
    assert got == [
        ("ep_combine", "backward"),
        ("ep_dispatch", "forward"),
        ("ep_dispatch", "backward"),
        ("ep_combine", "forward"),
    ]


def train_moe(program, parts, *, counts=False):
    """Two layers forward and backward; *parts* says how many all-to-alls a dispatch takes.

    Returns roles by id.

    With *counts* the ranks tell each other beforehand, in the forward alone, how many tokens they
    will send.
    """
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
        run("aten::mm", "gemm")
        run("aten::_flash_attention_forward", "flash_fwd")
        run("aten::mm", "gemm")
        if counts:
            expected[program.nccl("all_to_all", clock, group="5", bytes=32)] = (
                "ep_dispatch",
                "forward",
            )
            clock += 10
        for _ in range(parts):
            run("AllToAll", "", "dispatch")
        run("aten::mm", "gemm")
        run("AllToAll", "", "combine")
    program.op("aten::sum", clock, clock + 1, sequence=number)
    for name, kernel, role, made in reversed(backward):
        clock += 20
        node = {"aten::mm": "MmBackward0", "AllToAll": "AllToAllBackward"}.get(
            name, "FlashAttentionBackward0"
        )
        program.node(node, clock, clock + 10, made)
        if role:
            expected[program.nccl("all_to_all", clock + 2, tid=ENGINE, group="5")] = (
                f"ep_{role}",
                "backward",
            )
        else:
            if name == "aten::mm":
                program.op("aten::mm", clock + 1, clock + 9, tid=ENGINE)
            program.kernel(kernel, clock + 2, tid=ENGINE)
    return expected


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("described", [True, False])
def test_all_to_alls_take_turns(program, described, counts):
    expected = train_moe(program, parts=1, counts=counts)
    if described:
        for row in program.rows:
            row["group_desc"] = "mesh_ep" if row.get("group") else None
    labelled = classify(program.events())
    assert {
        i: (event_row(labelled, i)["label"], event_row(labelled, i)["pass"]) for i in expected
    } == expected


@pytest.mark.parametrize(
    ("start_us", "labels"),
    [
        (0, ["ep_dispatch", "ep_dispatch"]),  # no product runs between the two
        (None, ["ep_dispatch", "ep_combine"]),  # no product is recognised at all: they alternate
    ],
)
def test_a_product_at_the_very_start_of_a_recording_is_one(program, start_us, labels):
    program.trained()
    if start_us is not None:
        program.op("aten::mm", start_us, start_us + 8, sequence=100)
        program.kernel("gemm", start_us)
        program.node("MmBackward0", 9600, 9601, 100)
    exchanges = [
        program.nccl("all_to_all", start, group="5", group_desc="EXPERT_MODEL_PARALLEL_GROUP")
        for start in (20, 40)
    ]
    labelled = classify(program.events())
    assert [event_row(labelled, i)["label"] for i in exchanges] == labels


def test_a_dispatch_in_two_parts(program):
    """Tokens and their weights may travel apart: the turn changes only after the experts' product."""
    expected = train_moe(program, parts=2)
    for row in program.rows:
        row["group_desc"] = "EXPERT_MODEL_PARALLEL_GROUP" if row.get("group") else None
    labelled = classify(program.events())
    assert {
        i: (event_row(labelled, i)["label"], event_row(labelled, i)["pass"]) for i in expected
    } == expected


@pytest.mark.parametrize("group", ["5", None])
@pytest.mark.parametrize("inputs", [1, 3])
def test_all_to_alls_around_attention_exchange_heads_and_not_tokens(program, inputs, group):
    """Two layers: queries, keys and values (or all in one) are exchanged before attention, its output after it."""
    clock, number, exchanges, backward = 0, 100, [], []

    def run(name, kernel):
        nonlocal clock, number
        program.op(name, clock, clock + 8, sequence=number)
        if kernel is None:
            exchanges.append(program.nccl("all_to_all", clock + 2, group=group))
        else:
            program.kernel(kernel, clock + 2)
        backward.append((name, kernel, number))
        clock, number = clock + 10, number + 1

    for _ in range(2):
        run("aten::mm", "gemm")
        for _ in range(inputs):
            run("AllToAll", None)
        run("aten::_flash_attention_forward", "flash_fwd")
        run("AllToAll", None)
        run("aten::mm", "gemm")
    program.op("aten::sum", clock, clock + 1, sequence=number)
    for name, kernel, made in reversed(backward):
        clock += 20
        node = {"aten::mm": "MmBackward0", "AllToAll": "AllToAllBackward"}.get(
            name, "FlashAttentionBackward0"
        )
        program.node(node, clock, clock + 10, made)
        if kernel is None:
            exchanges.append(program.nccl("all_to_all", clock + 2, tid=ENGINE, group=group))
        else:
            program.kernel(kernel, clock + 2, tid=ENGINE)
    labelled = classify(program.events())
    assert {event_row(labelled, i)["label"] for i in exchanges} == {"cp_comm"}


@pytest.mark.parametrize("group", ["5", None])
def test_keys_that_go_round_between_attentions_are_no_pipeline_not_even_the_first(program, group):
    """A layer's first message follows its projections.

    The messages of a pipeline are between products.
    """
    program.trained()
    kernels = [
        "gemm",
        "ring",
        "flash_fwd",
        "ring",
        "flash_fwd",
        "ring",
        "flash_fwd",
        "gemm",
        "stage",
        "gemm",
    ]
    messages = {"ring": [], "stage": []}
    for k, kernel in enumerate(kernels):
        if kernel in messages:
            stream = 20 if kernel == "ring" else 21
            messages[kernel].append(
                program.nccl("send", 10 * k, stream=stream, group=group and f"{group}{stream}")
            )
        else:
            program.kernel(kernel, 10 * k)
    labelled = classify(program.events())
    assert [event_row(labelled, i)["label"] for i in messages["ring"]] == ["cp_comm"] * 3
    assert [event_row(labelled, i)["label"] for i in messages["stage"]] == ["pp_comm"]
