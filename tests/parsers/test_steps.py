"""Steps: which one each event belongs to."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tracekit.parsers.steps import assign_steps
from tracekit.schema import EVENTS, conform


def table(rows):
    names = ("kind", "name", "start_ns", "end_ns", "correlation")
    return conform(
        pl.DataFrame(rows, schema=list(names), orient="row", infer_schema_length=None), EVENTS
    )


def test_by_hand():
    events = table(
        [
            ("annotation", "ProfilerStep#1", 10, 20, None),
            ("annotation", "ProfilerStep#2", 20, 30, None),
            ("gpu_annotation", "ProfilerStep#1", 15, 40, None),
            ("cpu_op", "before", 9, 12, None),
            ("cpu_op", "first", 10, 50, None),
            ("cpu_op", "on the border", 20, 21, None),
            ("cpu_op", "after", 30, 31, None),
            ("runtime", "launch", 19, 20, 1),
            ("kernel", "ends after its step", 25, 45, 1),
            ("kernel", "launch not in the file", 25, 26, 2),
            ("kernel", "no launch", 25, 26, None),
            ("runtime", "no id", 15, 16, None),
            ("driver", "late", 31, 32, 3),
            ("memcpy", "launched outside", 25, 26, 3),
        ]
    )
    assert assign_steps(events)["step"].to_list() == [
        1,
        2,
        None,
        None,
        1,
        2,
        None,
        1,
        1,
        None,
        None,
        1,
        None,
        None,
    ]


def test_marks_within_a_mark():
    events = table(
        [
            ("annotation", "ProfilerStep#1", 0, 100, None),
            ("cpu_op", "ProfilerStep#1", 10, 10, None),
            ("annotation", "ProfilerStep#2", 40, 60, None),
            ("cpu_op", "after the empty mark", 20, 21, None),
            ("cpu_op", "in the inner", 50, 51, None),
            ("cpu_op", "in the outer again", 60, 61, None),
        ]
    )
    assert assign_steps(events)["step"].to_list() == [1, 1, 2, 1, 2, 1]


def test_no_marks_no_steps():
    events = table([("cpu_op", "a", 1, 2, None), ("kernel", "b", 1, 2, 1)])
    assert assign_steps(events)["step"].to_list() == [None, None]
    assert assign_steps(events.clear()).height == 0


def test_marks_of_ones_own():
    events = table([("annotation", "ProfilerStep#9", 0, 9, None), ("cpu_op", "a", 3, 4, None)])
    marks = pl.DataFrame({"step": [5], "start_ns": [3], "end_ns": [8]})
    assert assign_steps(events, marks)["step"].to_list() == [None, 5]


times = st.integers(0, 60)


@given(
    st.lists(
        st.tuples(st.sampled_from(["cpu_op", "runtime", "kernel"]), times, st.integers(0, 4)),
        max_size=20,
    )
)
def test_equals_looking_it_up_one_by_one(rows):
    steps = [(n, 10 * n, 10 * n + 7) for n in range(1, 5)]
    marks = [("annotation", f"ProfilerStep#{n}", s, e, None) for n, s, e in steps]
    events = table([*marks, *((kind, "x", start, start + 1, c or None) for kind, start, c in rows)])

    def time_us(time):
        return next((n for n, s, e in steps if s <= time < e), None)

    launches = {c: start for kind, start, c in rows if kind == "runtime" and c}
    expected = [
        time_us(launches.get(c, -1)) if kind == "kernel" else time_us(start)
        for kind, start, c in rows
    ]
    assert assign_steps(events)["step"].to_list()[4:] == expected
