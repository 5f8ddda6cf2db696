"""Cells a run names itself: what the ranges say is one cell, whatever ran inside.

Counted on fingers.
"""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.pipeline.reconstruct.chunk_table import find_partners
from tracekit.pipeline.reconstruct.rank_pipeline import rank_pipeline
from tracekit.schema import LABELLED, Source, conform

LABEL = {"F": "forward", "D": "dgrad", "V": "wgrad", "L": "wgrad"}


def cells(text):
    """Chunks of ``D4@2I0 …``: a kernel (F forward, D dgrad, V wgrad, L wgrad outside autograd), number, its range."""
    kernels = []
    for index, word in enumerate(text.split()):
        kernel, _, path = word.partition("@")
        kind, number = kernel[0], int(kernel[1:] or 0)
        kernels.append(
            {
                "label": LABEL[kind],
                "node": "MmBackward0" if kind in "DV" else None,
                "autograd_sequence": number if kind in "FDV" else None,
                "annotations": " > ".join(f"PP:{name}" for name in path.split(">"))
                if path
                else None,
                "launch_ns": index * 10,
                "start_ns": 1000 + index * 10,
                "end_ns": 1008 + index * 10,
                "id": index,
            }
        )
    rows = conform(pl.DataFrame(kernels, infer_schema_length=None), LABELLED)
    return rank_pipeline(rows, Source("x", "kineto", 0, "name")).chunks


def order(text):
    return " ".join(
        f"{s}{op}{m}" for s, op, m in cells(text).select("stage", "op", "microbatch").rows()
    )


def test_weight_gradients_in_several_engine_calls_are_one_cell():
    assert order("F1@4F0 F2@4F0 D2@4I0 D1@4I0 V2@4W0 V1@4W0 V2@4W0 V1@4W0") == "4F0 4I0 4W0"


def test_names_cut_where_no_message_does():
    assert order("F1@3F1 F2@4F1 D2@4B1 D1@3B1") == "3F1 4F1 4B1 3B1"


def test_a_backward_that_ran_under_its_w_is_whole_and_stands_there():
    assert order("F1@0F0 F2@0F1 D1@0W0 V1@0W0 D2@0I1 V2@0W1") == "0F0 0F1 0B0 0I1 0W1"


def test_a_block_has_two_halves_by_side_or_by_their_own_ranges():
    name = "(4F1;3B0)OVERLAP_F_B"
    both = f"F1@3F0 F2@{name} D1@{name} F3@{name} L@{name} D3@4B1 D2@4B1"
    nested = f"F1@3F0 F2@{name}>4F1 D1@{name}>3B0 F3@{name}>4F1 L@{name}>3B0 D3@4B1 D2@4B1"
    for text in (both, nested):
        result = cells(text)
        assert result.select("stage", "op", "microbatch", "beside").rows() == [
            (3, "F", 0, -1),
            (4, "F", 1, 2),
            (3, "B", 0, 1),
            (4, "B", 1, -1),
        ]
        assert result["confidence"].unique().to_list() == [1.0]


def test_a_block_launched_in_turns_is_one_block():
    result = cells("F1@3F0 F2@(4F1;3B0) D1@(4F1;3B0) F3@(4F1;3B0) D1@(4F1;3B0) D3@4B1")
    assert result.select("op", "beside").rows() == [("F", -1), ("F", 2), ("B", 1), ("B", -1)]


def test_neighbours_on_the_gpu_at_once_are_no_block_if_their_names_say_so():
    assert cells("F1@0F0 F2@0F1 D1@0B0 F3@0F2 D2@0B1 D3@0B2")["beside"].unique().to_list() == [-1]


def test_weight_gradients_held_back_past_the_range_are_the_backwards():
    result = cells("F1@0F0 F2@0F1 D1@0B0 L L F3@0F2 D2@0B1 L D3@0B2")
    assert " ".join(result["op"]) == "F F B F B B"
    assert result["end_ns"].to_list()[2] == 1048
    assert result["last_ns"].to_list()[2] == 20  # its output needs only the input gradient


def test_weight_gradients_nobody_named_are_counted_as_without_ranges():
    result = cells("F1@0F0 F2@0F1 D1@0I0 D2@0I1 L L")
    assert [f"{op}{pair}" for op, pair in result.select("op", "pair").rows()] == [
        "F0",
        "F1",
        "I0",
        "I1",
        "W0",
        "W1",
    ]


def test_the_same_names_again_are_the_next_iterations():
    assert order("F1@0F0 D1@0B0 F2@0F0 D2@0B0") == "0F0 0B0 0F0 0B0"
    twice = cells("F1@0F0 F2@0F1 F3@0F0 F4@0F1 D3@0B0 D4@0B1")
    assert twice.filter(op="F").height == 4


def test_ranges_around_a_part_alone_do_not_decide():
    result = cells("F1@0F0 F2 F3 D3 D2 D1@0B0")
    assert result.select("op", "start_ns", "end_ns").rows() == [
        ("F", 1000, 1028),
        ("B", 1030, 1058),
    ]


@pytest.mark.parametrize(
    ("launched", "ran", "block"),
    [
        ((10, 20), (110, 200), False),  # one after the other, whatever the range around both says
        ((8, 20), (110, 200), True),  # launched in turns
        ((10, 20), (90, 200), True),  # at once on the GPU for a tenth
        ((10, 20), (99, 200), False),  # but for the last kernel's tail
    ],
)
@pytest.mark.parametrize("from_ranges", [True, False])
def test_a_named_block_is_one_where_its_halves_ran_together(launched, ran, block, from_ranges):
    chunks = pl.DataFrame(
        {
            "block": ["PP:(0F1;0B0)"] * 2, "op": ["F", "B"], "pair": [1, 0],
            "launch_ns": [0, launched[0]], "last_ns": [9, launched[1]],
            "start_ns": [0, ran[0]], "end_ns": [100, ran[1]],
        }
    )  # fmt: skip
    assert find_partners(chunks, from_ranges=from_ranges).to_list() == (
        [1, 0] if block else [-1, -1]
    )


def test_a_block_whose_halves_did_not_meet_is_one_where_others_are():
    apart = "F1@0F0 F2@(0F1;0B0) D1@(0F1;0B0) F3@(0F2;0B1) D2@(0F2;0B1) D3@0B2"
    assert cells(apart)["beside"].to_list() == [-1] * 6
    one_met = "F1@0F0 F2@(0F1;0B0) D1@(0F1;0B0) F3@(0F2;0B1) D2@(0F2;0B1) F4@(0F2;0B1) D2@(0F2;0B1) D4@0B2 D3@0B2"
    assert cells(one_met)["beside"].to_list() == [-1, 2, 1, 4, 3, -1]
