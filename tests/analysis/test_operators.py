"""Operators by what they were given, counted by hand."""

import polars as pl
import pytest

from tracekit.analysis.measure.operators import (
    MAX_OPERATORS_WITH_INPUTS,
    input_words,
    mean_operators,
    operator_table,
)
from tracekit.metrics.sites import SITES
from tracekit.schema import conform

SITE = {"label": "forward", "op": "aten::mul", "shapes": "[[4,8]]", "calls": 2, "launches": 4}


def sites(*rows):
    return conform(pl.DataFrame([{**SITE, **row} for row in rows], infer_schema_length=None), SITES)


def test_calls_with_equal_inputs_are_one_row_whatever_their_other_arguments():
    table = operator_table(
        sites({"ns": 10, "concrete": "[1]"}, {"ns": 30, "concrete": "[2]"}), steps=2
    )
    row = ("forward", "aten::mul", "4×8", "4 × 8", 2.0, 4.0, 20.0)
    assert table.rows() == [row]


def test_what_takes_little_time_is_summed_by_operator():
    rows = [{"ns": 1000 - n, "shapes": f"[[{n}]]"} for n in range(MAX_OPERATORS_WITH_INPUTS)]
    short = [{"ns": 1, "shapes": "[[7,7]]"}, {"ns": 2, "shapes": "[[8,8]]"}]
    table = operator_table(sites(*rows, *short), steps=1)
    assert table.filter(pl.col("inputs").is_null())["ns"].to_list() == [3.0]
    assert len(table) == MAX_OPERATORS_WITH_INPUTS + 1


def test_a_run_has_the_mean_of_its_ranks():
    one = operator_table(sites({"ns": 10}), steps=1)
    other = operator_table(sites({"ns": 30}, {"ns": 8, "op": "aten::add"}), steps=1)
    means = mean_operators([one, other]).select("op", "calls", "ns").rows()
    assert means == [("aten::mul", 2.0, 20.0), ("aten::add", 1.0, 4.0)]


@pytest.mark.parametrize(
    ("shape", "stride", "layout"),
    [
        ("[4,8]", "[8,1]", ""),
        ("[4,8]", "[1,4]", ", transposed"),
        ("[4,8]", "[16,1]", ", strides 16, 1"),
        ("[4,8]", "[0,1]", ", strides 0, 1"),
        ("[2,3,4,5]", "[60,1,15,3]", ", channels last"),
        ("[1,3,4,5]", "[999,20,5,1]", ""),  # the stride of an axis of length one moves nowhere
    ],
)
def test_only_tensors_that_are_not_contiguous_have_a_layout(shape, stride, layout):
    words = shape.strip("[]").replace(",", "×")
    assert input_words(f"[{shape}]", '["float"]', f"[{stride}]") == f"{words} fp32{layout}"


def test_damaged_inputs_have_no_words():
    assert input_words("[[-1]]", "[1]", "[[]]") is None
    assert input_words("not a list", "7", "[") is None
    assert input_words("[[4,8]]", "[3]", "[[1]]") == "4×8"
