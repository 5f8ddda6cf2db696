"""Cutting one rank's kernels into chunks: cases small enough to count on fingers."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.pipeline.reconstruct.kernels import LOOSE_WGRAD, UNUSED, Kernels, prepare
from tracekit.pipeline.reconstruct.rank_pipeline import rank_pipeline
from tracekit.pipeline.reconstruct.segment import segment_step
from tracekit.schema import LABELLED, Source, conform


def table(*rows):
    """Rows as (what, number): F forward, D dgrad, V wgrad, L wgrad outside autograd, > send, < receive."""
    kernels = []
    for index, (what, number, *more) in enumerate(rows):
        label = {
            "F": "forward",
            "D": "dgrad",
            "V": "wgrad",
            "L": "wgrad",
            ">": "pp_comm",
            "<": "pp_comm",
        }[what]
        kernels.append(
            {
                "label": label,
                "name": more[0] if more else what,
                "node": "MmBackward0" if what in "DV" else None,
                "autograd_sequence": number if what in "FDV" else None,
                "p2p": {">": f"send:{number}", "<": f"recv:{number}"}.get(what),
                "launch_ns": index * 10,
                "start_ns": 1000 + index * 10,
                "end_ns": 1008 + index * 10,
                "id": index,
            }
        )
    return conform(pl.DataFrame(kernels, infer_schema_length=None), LABELLED)


def cut(*rows):
    result = segment_step(Kernels(prepare(table(*rows))))
    return " ".join(f"{op}{pair}" for op, pair in zip(result.op, result.pair, strict=True))


def test_a_jump_up_in_sequence_numbers_is_a_new_backward():
    assert (
        cut(
            ("F", 1), ("F", 2), (">", 1), ("F", 3), ("F", 4), ("D", 2), ("D", 1), ("D", 4), ("D", 3)
        )
        == "F0 F1 B0 B1"
    )


def test_last_in_first_out_backwards_are_cut_where_both_passes_had_a_message():
    rows = [("F", 1), ("F", 2), (">", 1), ("F", 3), ("F", 4), (">", 1)]
    back = [("<", 1), ("D", 4), ("D", 3), ("<", 1), ("D", 2), ("D", 1)]
    assert cut(*rows, *back) == "F0 F1 B1 B0"
    # Nothing between: nothing to cut by.
    assert cut(*rows, ("D", 4), ("D", 3), ("D", 2), ("D", 1)) == "F0 B0"


def test_a_message_in_the_middle_of_a_forward_alone_cuts_nothing():
    assert cut(("F", 1), (">", 1), ("F", 2), ("D", 2), ("D", 1)) == "F0 B0"


def test_a_second_walk_over_the_same_numbers_is_the_weight_gradient():
    rows = [("F", 1), ("F", 2), (">", 1), ("F", 3), ("F", 4)]
    back = [("D", 2), ("D", 1), ("D", 4), ("D", 3), ("V", 2), ("V", 1), ("V", 4), ("V", 3)]
    assert cut(*rows, *back) == "F0 F1 I0 I1 W0 W1"


def test_weight_gradients_in_one_engine_call_after_another_are_one_w():
    rows = [("F", 1), ("F", 2), (">", 1), ("F", 3), ("F", 4), (">", 1)]
    # W begins with I's last number.
    first = [
        ("D", 2),
        ("D", 1),
        (">", 0),
        ("L", 0),
        ("V", 1),
        ("L", 0),
        ("V", 2),
    ]
    second = [("D", 4), ("D", 3), (">", 0), ("L", 0), ("V", 3), ("L", 0), ("V", 4), ("L", 0)]
    result = segment_step(Kernels(prepare(table(*rows, *first, *second))))
    assert result.op == ["F", "F", "I", "W", "I", "W"]
    assert result.pair.tolist() == [0, 1, 0, 0, 1, 1]
    assert result.chunk.tolist() == [
        0,
        0,
        -1,
        1,
        1,
        -1,
        2,
        2,
        -1,
        3,
        3,
        3,
        3,
        4,
        4,
        -1,
        5,
        5,
        5,
        5,
        5,
    ]


def test_a_node_with_a_weight_gradient_outside_autograd_in_its_middle_is_run_once():
    assert cut(("F", 1), ("F", 2), ("D", 2), ("L", 0), ("D", 2), ("D", 1)) == "F0 B0"


def test_a_kernel_without_a_number_between_equal_numbers_cuts_no_walk():
    for unnumbered in ([], [("D", None)]):
        middle = [
            ("D", 5),
            ("D", 5),
            *unnumbered,
            ("L", 0),
            *unnumbered,
            ("D", 5),
            *unnumbered,
            ("D", 5),
        ]
        assert cut(("F", 4), ("F", 5), ("F", 6), ("D", 6), *middle, ("D", 4)) == "F0 B0"


def test_loose_weight_gradients_are_counted_off_in_order():
    rows = [("F", 1), (">", 1), ("F", 2), (">", 1), ("F", 3)]
    back = [
        ("D", 1),
        (">", 0),
        ("D", 2),
        (">", 0),
        ("L", 0),
        ("L", 0),
        ("D", 3),
        (">", 0),
        ("L", 0),
    ]
    assert cut(*rows, *back) == "F0 F1 F2 I0 I1 W0 W1 I2 W2"


def test_loose_weight_gradients_inside_a_backward_are_part_of_it():
    assert cut(("F", 1), ("F", 2), ("D", 2), ("L", 0), ("D", 1), ("L", 0)) == "F0 B0"


def test_kernels_without_a_number_at_a_backwards_start_are_its_own():
    rows = table(("F", 1), ("D", 1), ("<", 2), ("F", 2), ("D", None), ("D", 2))
    result = segment_step(Kernels(prepare(rows)))
    assert result.op == ["F", "B", "F", "B"]
    assert result.chunk.tolist() == [0, 1, -1, 2, 3, 3]


def test_two_stages_without_a_message_between_are_told_apart_at_the_end_of_the_line():
    first = [
        ("<", 0),
        ("F", 1, "a"),
        ("F", 2, "a"),
        (">", 0),
        ("<", 0),
        ("D", 2),
        ("L", 0),
        ("D", 1),
        (">", 0),
        ("L", 0),
    ]
    second = [(w, n + 2 if w in "FD" else n, *m) for w, n, *m in first]
    assert cut(*first, *second).count("F") == 4
    # Two neighbours: one stage a walk.
    middle = [(w, 7 if w == "<" else n, *m) for w, n, *m in (*first, *second)]
    assert cut(*middle).count("F") == 2


def test_a_forward_and_a_backward_launched_in_turns_are_one_block():
    rows = table(
        ("F", 1), ("F", 2), (">", 1), ("F", 3), ("D", 2), ("F", 4), ("D", 1), ("D", 4), ("D", 3)
    )
    chunks = rank_pipeline(rows, Source("x", "kineto", 0, "name")).chunks
    assert chunks["op"].to_list() == ["F", "F", "B", "B"]
    assert chunks["beside"].to_list() == [-1, 2, 1, -1]


def test_annotations_name_stage_and_microbatch():
    rows = table(("F", 1), ("D", 1)).with_columns(
        annotations=pl.Series(["PP:2F7", None], dtype=pl.Categorical()),
    )
    chunks = rank_pipeline(rows, Source("x", "kineto", 0, "name")).chunks
    # The backward by its forward's.
    assert chunks.select("stage", "microbatch").rows() == [
        (2, 7),
        (2, 7),
    ]


def test_forward_without_backward_is_said():
    rows = table(("F", 1), (">", 1), ("F", 2), ("D", 1))
    result = rank_pipeline(rows, Source("x", "kineto", 3, "name"))
    assert [n.code for n in result.notices] == ["forward-without-backward"]


def test_nothing_to_cut_gives_empty_tables():
    result = rank_pipeline(
        conform(pl.DataFrame({"label": []}), LABELLED), Source("x", "kineto", 0, "name")
    )
    assert result.chunks.is_empty()
    assert result.messages.is_empty()


def test_recomputed_layers_walk_over_new_numbers_and_are_tied_by_order():
    rows = [
        ("F", 1),
        (">", 1),
        ("F", 2),
        (">", 1),
        ("<", 1),
        ("D", 102),
        ("D", 101),
        ("D", 104),
        (">", 0),
        ("D", 202),
    ]
    result = rank_pipeline(table(*rows), Source("x", "kineto", 0, "name"))
    assert [f"{op}{pair}" for op, pair in result.chunks.select("op", "pair").rows()] == [
        "F0",
        "F1",
        "B0",
        "B1",
    ]
    assert result.chunks["confidence"].max() == 0.5
    assert [n.code for n in result.notices] == ["pairs-by-order"]


def test_a_send_before_the_delayed_weight_gradients_is_the_backwards():
    rows = [("F", 1), ("F", 2), ("D", 2), ("L", 0), ("D", 1), (">", 0), ("L", 0)]
    chunks = rank_pipeline(table(*rows), Source("x", "kineto", 0, "name")).chunks
    assert chunks["op"].to_list() == ["F", "B"]
    assert chunks["last_ns"][1] == 40  # the last input gradient, before the send at 50
    assert chunks["end_ns"][1] == 1068  # the last weight gradient, after it


def test_gradients_of_all_micro_batches_are_in_no_cell():
    """After two micro-batches the stage scales its gradients and FSDP packs them, both outside the engine."""
    rows = table(("F", 1), ("F", 2), ("D", 1), ("D", 2), ("L", None), ("L", None))
    ranges = [
        *["ProfilerStep#3"] * 4,
        "ProfilerStep#3 > PP:1REDUCE_GRAD",
        "FSDP::post_backward_reduce (layers.0)",
    ]
    annotated = prepare(
        rows.with_columns(annotations=pl.Series(ranges, dtype=rows["annotations"].dtype))
    )
    assert [step for step in segment_step(Kernels(annotated)).op if step == "W"] == []
    assert annotated["category"].to_list()[-2:] == [UNUSED, UNUSED]
    assert prepare(rows)["category"].to_list()[-2:] == [LOOSE_WGRAD, LOOSE_WGRAD]


def of_length(rows, lengths):
    """The table of *rows*, each kernel as long as *lengths* say."""
    kernels = table(*rows)
    return kernels.with_columns(end_ns=kernels["start_ns"] + pl.Series(lengths))


@pytest.mark.parametrize(
    ("stray_ns", "chunks"), [(25, ["F", "F", "B", "B"]), (35, ["F", "F", "F", "B", "B"])]
)
def test_a_run_of_forwards_shorter_than_three_tenths_of_a_forward_is_none_of_its_own(
    stray_ns, chunks
):
    """Two forwards of 100 ns; between messages, kernels of no backward."""
    rows = [
        ("F", 1),
        (">", 1),
        ("F", None),
        ("<", 1),
        ("F", 2),
        (">", 1),
        ("D", 1),
        (">", 1),
        ("D", 2),
    ]
    result = segment_step(
        Kernels(prepare(of_length(rows, [100, 1, stray_ns, 1, 100, 1, 100, 1, 100])))
    )
    assert result.op == chunks


@pytest.mark.parametrize(("inside_ns", "op"), [(40, "I"), (60, "B")])
def test_a_backward_with_half_of_the_weight_gradients_inside_left_none_out(inside_ns, op):
    """Weight gradients of 100 ns run outside, behind another forward; some run inside."""
    rows = [
        ("F", 1),
        ("F", 2),
        ("D", 2),
        ("V", 2),
        ("D", 1),
        (">", 1),
        ("F", 3),
        (">", 1),
        ("L", 0),
        ("D", 3),
    ]
    result = segment_step(
        Kernels(prepare(of_length(rows, [100, 100, 100, inside_ns, 100, 1, 100, 1, 100, 100])))
    )
    assert result.op[1] == op
