"""Ops in the text of NVTX ranges, against patterns with groups, one text at a time."""

from __future__ import annotations

import re

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.parsers.torch_ranges import parse_ops

PIECES = [
    "aten::mm",
    "c10d::send",
    "my range",
    "é",
    "\u4e16" * 9,
    ", ",
    ", seq = ",
    ", op_id = ",
    ", sizes = ",
    "[",
    "]",
    "[]",
    " ",
]
PIECES += [
    "[[2, 3], []]",
    ", input_op_ids = ",
    "[(1,0)]",
    "-1",
    "0",
    "883",
    "99999999999999999999",
    "9223372036854775807",
]


def ops(*texts, **other):
    frame = pl.DataFrame(
        {"kind": "annotation", "tid": 1, "domain_id": 0, "text": list(texts)} | other
    )
    return parse_ops(frame).select("kind", "name", "sequence", "external_id", "shapes").rows()


def number(pattern, text):
    match = re.search(pattern, text)
    return int(match[1]) if match and int(match[1]) < 1 << 63 else None


def expected(text):
    """Name, sequence number, op id and shapes."""
    if not re.search(r", (?:seq = -?\d|op_id = \d|sizes = \[)", text):
        return text, None, None, None
    name = re.search(r"^(.*?), (?:seq = |op_id = |sizes = \[)", text)[1]
    sizes = re.search(r", sizes = (\[.*?\])(?:, input_op_ids = .*)?$", text)
    shapes = sizes[1].replace(" ", "") if sizes else None
    return name, number(r", seq = (\d+)", text), number(r", op_id = (\d+)", text), shapes


def test_any_text_is_taken_apart_as_the_patterns_say():
    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(
        st.lists(
            st.lists(st.sampled_from(PIECES), max_size=9).map("".join), min_size=1, max_size=40
        )
    )
    def check(texts):
        assert [row[1:] for row in ops(*texts)] == [expected(text) for text in texts]

    check()


@pytest.mark.parametrize(
    ("text", "row"),
    [
        (
            "aten::mm, seq = 5, op_id = 1, sizes = [[2, 3], [3, 4]]",
            ("cpu_op", "aten::mm", 5, 1, "[[2,3],[3,4]]"),
        ),
        (
            "aten::t, op_id = 7, sizes = [[2, 3]], input_op_ids = [(1,0)]",
            ("cpu_op", "aten::t", None, 7, "[[2,3]]"),
        ),
        ("aten::empty, sizes = []", ("cpu_op", "aten::empty", None, None, "[]")),
        ("step, seq = 12", ("cpu_op", "step", 12, None, None)),
        ("load batch 3", ("annotation", "load batch 3", None, None, None)),
        ("aten::add", ("cpu_op", "aten::add", None, None, None)),
        ("lines\nof text, op_id = 4", ("annotation", "lines\nof text", None, 4, None)),
        ("a, op_id = 4, \u4e16\u754c\u4e16\u754c\u4e16", ("annotation", "a", None, 4, None)),
        ("", ("annotation", "", None, None, None)),
    ],
)
def test_texts_by_hand(text, row):
    assert ops(text) == [row]


def test_only_ranges_of_a_thread_in_the_default_domain_are_ops():
    text = "aten::mm, seq = 5"
    assert (
        ops(text, domain_id=3)
        == ops(text, kind="annotation", domain_id=9)
        == [("annotation", text, None, None, None)]
    )
    assert ops(text, kind="mark") == [("mark", text, None, None, None)]
    assert ops(text, tid=pl.Series([None], dtype=pl.Int64)) == [
        ("annotation", text, None, None, None)
    ]
