"""Which events belong to which step."""

from __future__ import annotations

import pytest

from tracekit.align.steps import assign_parts, parse_steps, select_steps
from tracekit.errors import OptionError


def test_a_step_runs_to_the_end_of_its_last_kernel_even_past_the_next_start(labelled):
    events = labelled(
        {"label": "forward", "start_ns": 0, "end_ns": 50, "step": 1},
        {"label": "dp_comm", "start_ns": 50, "end_ns": 90, "step": 1},
        {"label": "forward", "start_ns": 60, "end_ns": 100, "step": 2},
    )
    _, table, notices = assign_parts(events)
    assert table.select("step", "start_ns", "end_ns", "span_ns").rows() == [(1, 0, 90, 90), (2, 60, 100, 40)]
    assert not notices


def test_without_marks_the_whole_trace_is_one_step_without_a_number(labelled):
    kept, table, _ = assign_parts(labelled(("forward", 0, 5), ("forward", 9, 12)))
    assert table.select("step", "span_ns").rows() == [(None, 12)]
    assert kept["part"].to_list() == [0, 0]


def test_graph_kernels_without_a_launch_join_the_step_around_them(labelled):
    events = labelled(
        {"label": "forward", "start_ns": 0, "end_ns": 10, "step": 1},
        {"label": "forward", "start_ns": 30, "end_ns": 40, "step": 1},
        {"label": "forward", "start_ns": 12, "end_ns": 28, "step": None, "launch_ns": None},
    )
    kept, _, notices = assign_parts(events)
    assert len(kept) == 3
    assert not notices


def test_work_launched_outside_every_step_is_left_out_and_said(labelled):
    events = labelled(
        {"label": "forward", "start_ns": 100, "end_ns": 200, "step": 1},
        {"label": "forward", "start_ns": 0, "end_ns": 50, "step": None, "launch_ns": 0},
    )
    kept, table, notices = assign_parts(events)
    assert len(kept) == 1
    assert table["span_ns"].to_list() == [100]
    assert [n.code for n in notices] == ["outside-steps"]


def test_only_the_steps_asked_for(labelled):
    rows = [{"label": "forward", "start_ns": 10 * s, "end_ns": 10 * s + 5, "step": s} for s in (3, 4, 5)]
    kept, table, _ = assign_parts(labelled(*rows), "4:")
    assert table["step"].to_list() == [4, 5]
    assert kept["part"].to_list() == [0, 1]


def test_a_cut_step_is_flagged(labelled):
    rows = [
        {"label": "forward", "start_ns": 100 * s + i, "end_ns": 100 * s + i + 1, "step": s}
        for s in range(4)
        for i in range(10 if s < 3 else 2)
    ]
    assert assign_parts(labelled(*rows))[1]["partial"].to_list() == [False, False, False, True]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, [2, 3, 4, 5]),
        ("3", [3]),
        ("2:4", [2, 3]),
        ("3:", [3, 4, 5]),
        (":-1", [2, 3, 4]),
        ("-2:", [4, 5]),
        ("-1", [5]),
        ("2,5", [2, 5]),
        ("0:99", [2, 3, 4, 5]),
    ],
)
def test_selections(text, expected):
    assert select_steps([2, 3, 4, 5], text) == expected


@pytest.mark.parametrize("text", ["x", "", "1:2:3", ":", "1,,2", "1-3", "--1"])
def test_words_that_select_nothing_readable(text):
    with pytest.raises(OptionError, match="cannot read"):
        parse_steps(text)


def test_asking_for_steps_where_there_are_none_is_an_error(labelled):
    with pytest.raises(OptionError, match="no step marks"):
        assign_parts(labelled(("forward", 0, 5)), "2")
