"""Which events belong to which step."""

from __future__ import annotations

from statistics import median

import polars as pl
import pytest

from tests.kept import measured_tables
from tracekit.align.steps import (
    assign_parts,
    host_ranges,
    number_steps,
    parse_steps,
    select_steps,
)
from tracekit.analysis.combine.combine_ranks import combine
from tracekit.diffs.run_samples import from_analysis
from tracekit.errors import OptionError
from tracekit.report.notices import notice_sentence
from tracekit.report.pace import Pace
from tracekit.report.write import document_of
from tracekit.run.load import load
from tracekit.schema import RankEvents


def test_a_step_runs_to_the_end_of_its_last_kernel_even_past_the_next_start(labelled):
    events = labelled(
        {"label": "forward", "start_ns": 0, "end_ns": 50, "step": 1},
        {"label": "dp_comm", "start_ns": 50, "end_ns": 90, "step": 1},
        {"label": "forward", "start_ns": 60, "end_ns": 100, "step": 2},
    )
    _, table, notices = assign_parts(events)
    assert table.select("step", "start_ns", "end_ns", "span_ns").rows() == [
        (1, 0, 90, 90),
        (2, 60, 100, 40),
    ]
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


def test_events_at_the_edge_of_a_step_whose_launch_is_missing_join_the_nearest(labelled):
    unknown = {"label": "forward", "step": None, "launch_ns": None}
    events = labelled(
        {**unknown, "start_ns": 90, "end_ns": 95},  # launched before the recording began
        {"label": "forward", "start_ns": 100, "end_ns": 1000, "step": 1},
        {**unknown, "start_ns": 1010, "end_ns": 1015},
        {**unknown, "start_ns": 1030, "end_ns": 1035},
        {"label": "forward", "start_ns": 1040, "end_ns": 2000, "step": 2},
        {**unknown, "start_ns": 2010, "end_ns": 2020},
        {**unknown, "start_ns": 3000, "end_ns": 3007},  # as far away as a step is long
    )
    kept, _, (earlier, later) = assign_parts(events)
    assert kept["step"].to_list() == [1, 1, 2, 2, 2]
    assert (earlier.code, earlier.values) == (
        "outside-steps",
        {"case": "before_first", "events": 1, "busy_ns": 5},
    )
    assert later.values == {"case": "no_launch", "events": 1, "busy_ns": 7}
    assert "is not in the file" in notice_sentence(later)


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
    rows = [
        {"label": "forward", "start_ns": 10 * s, "end_ns": 10 * s + 5, "step": s} for s in (3, 4, 5)
    ]
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


def unmarked(labelled, *labels):
    return labelled(
        *(
            {"label": label, "start_ns": 10 * n, "end_ns": 10 * n + 5}
            for n, label in enumerate(labels)
        )
    )


def test_without_marks_a_forward_after_an_optimizer_begins_a_step(labelled):
    events = unmarked(
        labelled,
        "forward",
        "dgrad",
        "optimizer",
        "dp_comm",
        "forward",
        "backward",
        "optimizer",
        "memory",
    )
    numbered, notices = number_steps(events)
    assert numbered["step"].to_list() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert [notice.code for notice in notices] == ["no-steps"]
    assert assign_parts(numbered)[1]["step"].to_list() == [0, 1]


def test_gradients_scaled_between_backwards_end_no_step(labelled):
    numbered, notices = number_steps(
        unmarked(labelled, "forward", "dgrad", "optimizer", "dgrad", "wgrad", "optimizer")
    )
    assert numbered["step"].null_count() == 6
    assert not notices


def test_it_is_the_order_of_launches_that_counts(labelled):
    rows = [
        {"label": "forward", "start_ns": 0, "end_ns": 5, "launch_ns": 0},
        {"label": "forward", "start_ns": 10, "end_ns": 15, "launch_ns": 9},
        {"label": "optimizer", "start_ns": 20, "end_ns": 25, "launch_ns": 4},
        {"label": "dgrad", "start_ns": 6, "end_ns": 8, "launch_ns": 2},
    ]
    assert number_steps(labelled(*rows))[0]["step"].to_list() == [0, 1, 0, 0]


def test_without_marks_kernels_launched_before_the_recording_began_are_outside_its_steps(labelled):
    """The GPU still runs the backward and the optimizer before while the host launches the forwards of step 0."""
    rows = [
        {"label": "backward", "start_ns": 0, "end_ns": 5, "launch_ns": None},
        {"label": "optimizer", "start_ns": 20, "end_ns": 25, "launch_ns": None},
        {"label": "forward", "start_ns": 40, "end_ns": 45, "launch_ns": 10},
        {"label": "forward", "start_ns": 50, "end_ns": 55, "launch_ns": 25},
        # Of a CUDA graph, say.
        {
            "label": "memory",
            "start_ns": 56,
            "end_ns": 57,
            "launch_ns": None,
        },
        {"label": "dgrad", "start_ns": 60, "end_ns": 65, "launch_ns": 30},
        {"label": "optimizer", "start_ns": 70, "end_ns": 75, "launch_ns": 35},
        {"label": "forward", "start_ns": 80, "end_ns": 85, "launch_ns": 40},
    ]
    numbered = number_steps(labelled(*rows))[0]
    assert numbered["step"].to_list() == [None, None, 0, 0, None, 0, 0, 1]
    kept, table, (notice,) = assign_parts(numbered)
    assert kept["start_ns"].to_list() == [40, 50, 56, 60, 70, 80]
    assert table["step"].to_list() == [0, 1]
    assert notice.code == "outside-steps"


def test_kernels_like_those_of_an_optimizer_between_forwards_begin_no_step(labelled):
    """Sharded weights are gathered with the same kernels that update them."""
    step = (
        "optimizer",
        "forward",
        "optimizer",
        "forward",
        "dgrad",
        "optimizer",
        "dgrad",
        "optimizer",
    )
    numbered = number_steps(unmarked(labelled, "forward", "dgrad", "optimizer", *step, "forward"))[
        0
    ]
    assert numbered["step"].to_list() == [0] * 4 + [1] * 7 + [2]


def test_a_recording_that_begins_in_the_optimizer_begins_with_the_end_of_a_step(labelled):
    numbered = number_steps(
        unmarked(labelled, "optimizer", "forward", "dgrad", "optimizer", "forward")
    )[0]
    assert numbered["step"].to_list() == [0, 1, 1, 1, 2]


def test_marks_are_never_overruled(labelled):
    events = unmarked(labelled, "forward", "optimizer", "forward").with_columns(
        step=pl.Series([4, 4, None], dtype=pl.Int64)
    )
    numbered, notices = number_steps(events)
    assert numbered["step"].to_list() == [4, 4, None]
    assert not notices


@pytest.mark.parametrize(("events", "partial"), [(5, False), (4, True)])
def test_a_step_with_less_than_half_the_usual_events_is_cut(labelled, events, partial):
    rows = [
        {"label": "forward", "start_ns": 100 * s + i, "end_ns": 100 * s + i + 1, "step": s}
        for s in range(4)
        for i in range(10 if s < 3 else events)
    ]
    assert assign_parts(labelled(*rows))[1]["partial"].to_list() == [False, False, False, partial]


@pytest.fixture(scope="module")
def cut_marks(samples):
    """Two ranks of several steps, as they are and without their marks."""
    trace = load(samples / "steps/a")
    whole = [trace.rank(rank) for rank in trace.ranks]
    bare = [
        RankEvents(one.events.with_columns(step=pl.lit(None, pl.Int64)), one.source)
        for one in whole
    ]
    return [
        combine([measured_tables(one) for one in ranks], schedule="auto") for ranks in (whole, bare)
    ]


@pytest.mark.slow
def test_without_marks_budget_and_pipeline_count_the_same_steps(cut_marks):
    marked, bare = cut_marks
    cases = [notice.values["case"] for notice in bare.notices if notice.code == "no-steps"]
    assert cases == ["by_optimizer"]
    steps = list(range(len(marked.ranks[0].steps)))
    assert len(steps) == 8
    assert [list(one.steps) for one in bare.ranks] == [steps, steps]
    assert sorted({held.pipeline.step for held in bare.comparison.all}) == steps
    assert [held.measured_ns for held in bare.comparison.all] == [
        held.measured_ns for held in marked.comparison.all
    ]
    assert (
        bare.tables["operations"]["wait_ns"].to_list()
        == marked.tables["operations"]["wait_ns"].to_list()
    )


def test_report_and_gate_agree_on_how_long_a_step_takes(cut_marks):
    for mark in cut_marks:
        took = Pace(mark)
        samples = from_analysis(document_of(mark), name="run").values("step_ms")
        assert len(samples) == took.steps == 8
        assert took.ns / 1e6 == pytest.approx(median(samples), abs=1e-6)


MARKED_STEPS = [
    ("annotation", 1, 0, 95),
    ("cpu_op", 1, 10, 90),
    ("annotation", 2, 100, 195),
    ("cpu_op", 2, 110, 190),
    ("annotation", 3, 200, 295),
    ("cpu_op", 3, 210, 290),
]
"""Three steps of 100, of which the host calls operators for 80 and then does something else for 10 before the next."""


@pytest.mark.parametrize(
    ("changed", "end_of_last"),
    [
        ([], 295),
        # An optimizer's range that began in the last step ends when the profiler has stopped.
        ([("annotation", 3, 280, 900)], 295),
        # The mark itself ends then: the host does what it usually does behind its last operator.
        ([("annotation", 3, 200, 900)], 300),
        ([("annotation", 3, 200, 900), ("runtime", 3, 292, 294)], 304),
    ],
)
def test_the_last_step_ends_as_the_steps_before_it_do(changed, end_of_last):
    schema = ["kind", "step", "start_ns", "end_ns"]
    events = pl.DataFrame(MARKED_STEPS + changed, schema=schema, orient="row")
    ranges = host_ranges(events)
    assert ranges["host_start_ns"].to_list() == [0, 100, 200]
    assert ranges["host_end_ns"].to_list() == [95, 195, end_of_last]


def test_a_step_without_a_mark_ends_with_its_last_event():
    events = pl.DataFrame(
        {"kind": ["cpu_op"] * 2, "step": [0, 0], "start_ns": [0, 5], "end_ns": [4, 9]}
    )
    assert host_ranges(events).rows() == [(0, 0, 9)]
