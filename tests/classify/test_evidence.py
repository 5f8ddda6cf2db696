"""Surroundings of a kernel's launch: ranges that nest, the innermost op and annotation, and launches the file lost."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.classify.conftest import ENGINE, event_row
from tracekit._loops.nesting import ANNOTATION, OP
from tracekit.classify import classify
from tracekit.classify.host_ranges import nest

RANGES = st.lists(
    st.tuples(
        st.integers(0, 1), st.integers(0, 40), st.integers(0, 20), st.sampled_from([OP, ANNOTATION])
    ),
    max_size=25,
)
POINTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), max_size=10)


@settings(deadline=None, max_examples=40)
@given(RANGES, POINTS)
def test_nesting_agrees_with_a_search_of_all_ranges(rows, points):
    """The innermost range is the latest to start among those that hold the point and are not yet left."""
    rows = _calls(rows)
    thread, start, end, kinds = (np.array([r[i] for r in rows], np.int64) for i in range(4))
    nested = nest(
        thread=thread,
        start=start,
        end=end,
        kind=kinds,
        name=np.zeros(len(rows), np.int64),
        point_thread=np.array([thread for thread, _ in points], np.int64),
        point_time=np.array([time for _, time in points], np.int64),
        siblings=True,
    )

    def around(t, moment, kind, before):
        containing = [
            j
            for j, (u, a, b, w) in enumerate(rows[:before])
            if w == kind and u == t and a <= moment < b
        ]
        return containing[-1] if containing else -1

    for i, (t, s, _, _) in enumerate(rows):
        assert nested.op_of[i] == around(t, s, OP, i)
        assert nested.ann_of[i] == around(t, s, ANNOTATION, i)
    for i, (t, _, _, w) in enumerate(rows):
        same = [
            j
            for j, row in enumerate(rows)
            if (row[0], row[3], nested.op_of[j]) == (t, OP, nested.op_of[i])
        ]
        assert nested.previous_op[i] == max((j for j in same if j < i and w == OP), default=-1)
        assert nested.next_op[i] == min((j for j in same if j > i and w == OP), default=-1)
    for i, (t, moment) in enumerate(points):
        assert nested.point_op[i] == around(t, moment, OP, len(rows))
        assert nested.point_annotation[i] == around(t, moment, ANNOTATION, len(rows))


def test_an_annotation_that_begins_within_another_and_lies_mostly_behind_it_is_outside():
    """The mark of a step begins within the optimizer's range of the step before, whose hook sets it."""
    rows = [(0, 90, 101), (0, 100, 200), (0, 110, 115), (0, 198, 203)]
    thread, start, end = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    nested = nest(
        thread=thread,
        start=start,
        end=end,
        kind=np.full(4, ANNOTATION),
        name=np.arange(4),
        point_thread=np.array([0, 0]),
        point_time=np.array([150, 202]),
        siblings=False,
    )
    assert nested.ann_of.tolist() == [-1, -1, 1, -1]
    assert nested.point_annotation.tolist() == [1, 3]


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


def test_the_innermost_op_and_the_chain(program):
    program.note("outer", 0, 100)
    program.note("inner", 1, 50)
    program.op("aten::linear", 2, 40)
    program.op("aten::mm", 3, 30)
    inside, after = program.kernel("k", 4), program.kernel("k", 60)
    labelled = classify(program.events())
    row = event_row(labelled, inside)
    assert (row["op"], row["chain"]) == ("aten::mm", "aten::linear > aten::mm")
    assert (row["annotation"], row["annotations"]) == ("inner", "outer > inner")
    row = event_row(labelled, after)
    assert (row["op"], row["annotations"]) == (None, "outer")


def test_the_engines_work_borrows_the_annotation_its_caller_waits_in(program):
    program.note("PP:1B3", 0, 100)
    program.op("aten::relu", 1, 2, sequence=5)
    program.node("ReluBackward0", 10, 20, 5)
    target = program.kernel("k", 11, tid=ENGINE)
    row = event_row(classify(program.events()), target)
    assert (row["stage"], row["microbatch"]) == (1, 3)


def test_a_launch_the_file_lost_is_known_by_its_namesakes(program):
    program.op("aten::relu", 0, 10, sequence=5)
    program.kernel("relu_kernel", 1)
    program.node("ReluBackward0", 20, 30, 5)
    program.kernel("other_kernel", 21, tid=ENGINE)
    lost, stranger = (
        program.kernel("relu_kernel", 100, launched=False),
        program.kernel("new", 50, launched=False),
    )
    labelled = classify(program.events())
    assert event_row(labelled, lost)["label"] == "forward"
    assert event_row(labelled, stranger)["label"] == "other"
