"""What held an event back, where two reasons could explain its start."""

from __future__ import annotations

import numpy as np
import pytest

from tracekit.metrics.start_constraints import (
    CONSTRAINT_KINDS,
    find_start_constraints,
    last_of_other_stream,
)

COMPUTE, COMM = 7, 20


@pytest.fixture
def held_by(labelled):
    """Return what held back the last of some events (label, stream, launch, start, end), in µs, and its blocker.

    Before them the rank shows that a launch takes 8 µs, the next kernel of a stream starts after 1 µs,
    and a stream that waits for another after 4.
    """
    usual = [
        ("forward", COMPUTE, 0, 8, 100),
        ("forward", COMPUTE, 20, 101, 200),  # behind the kernel before
        ("forward", COMPUTE, 300, 308, 400),  # behind its launch
        ("dp_comm", COMM, 310, 404, 500),  # behind the other stream
    ]

    def find(*rows, waits=()):
        events = labelled(
            *(
                {"label": label, "stream": stream, "launch_ns": launch * 1_000, "start_ns": round(start * 1_000),
                 "end_ns": round(end * 1_000), "id": i}
                for i, (label, stream, launch, start, end) in enumerate([*usual, *rows])
            )
        )  # fmt: skip
        calls = np.array(sorted({305_000, *(time * 1_000 for time in waits)}), np.int64)
        constraints = find_start_constraints(events, calls)
        last = len(events) - 1
        assert np.flatnonzero(constraints.is_certain).tolist() == list(range(len(events)))
        return CONSTRAINT_KINDS[constraints.kind[last]], int(constraints.blocker[last]) - len(usual)

    return find


@pytest.mark.parametrize(
    ("launch", "start", "kind"),
    [
        (1005, 1013, "launch"),  # 5 µs after its stream was free
        (995, 1003, "launch"),  # still on its way when its stream became free
        (994, 1002.2, "launch"),
        (992, 1001, "stream"),  # 1 µs after the kernel before, as all that were launched in time
        (900, 1001, "stream"),
    ],
)
def test_a_launch_on_its_way_holds_until_it_usually_arrives(held_by, launch, start, kind):
    kernel = ("forward", COMPUTE, 510, 518, 1000)
    assert held_by(kernel, ("forward", COMPUTE, launch, start, 1100))[0] == kind


@pytest.mark.parametrize(
    ("end", "start", "kind", "blocker"),
    [
        (1000.6, 1001, "stream", 0),  # 0.4 µs are too short for a stream that waits
        (1030, 1034, "other", 1),
    ],
)
def test_work_of_another_stream_that_ends_by_chance_held_nothing(
    held_by, end, start, kind, blocker
):
    kernel = ("forward", COMPUTE, 510, 518, 1000)
    reduction = ("dp_comm", COMM, 512, 522, end)
    told_to_wait = ("forward", COMPUTE, 530, start, 1100)
    assert held_by(kernel, reduction, told_to_wait, waits=[525]) == (kind, blocker)


def test_work_that_was_launched_later_was_not_waited_for(held_by):
    copy = ("offload", COMM, 510, 518, 1000)
    later_kernel = ("forward", COMPUTE, 700, 708, 1000.1)
    assert held_by(copy, later_kernel, ("offload", COMM, 520, 1003.5, 1100)) == ("stream", 0)
    # The kernel whose output the copy takes ended before that one.
    earlier = [("offload", COMM, 505, 518, 600), ("forward", COMPUTE, 512, 520, 998)]
    later_kernel = ("forward", COMPUTE, 700, 999, 1000)
    assert held_by(*earlier, later_kernel, ("offload", COMM, 520, 1002, 1100)) == ("other", 1)


@pytest.mark.parametrize(
    ("events", "other"),
    [
        # Stream, start and end in µs of each event; the row that it may have waited for.
        ([(0, 0, 10), (1, 10, 20)], [-1, 0]),
        ([(0, 0, 10), (0, 10, 20)], [-1, -1]),  # of its own stream
        ([(0, 0, 10), (1, 0, 12), (0, 13, 20)], [-1, -1, 1]),
        (
            [(1, 0, 5), (0, 0, 10), (0, 11, 12), (0, 13, 20)],
            [-1, -1, 0, 0],
        ),  # behind its own stream's
        ([(0, 0, 11), (1, 10, 20)], [-1, 0]),  # ends a microsecond later: clocks are no finer
        ([(0, 0, 12), (1, 10, 20)], [-1, -1]),
        ([(0, 10, 11), (1, 10, 20)], [-1, -1]),  # began with it
    ],
)
def test_the_last_event_of_another_stream_to_end_before_may_have_been_waited_for(events, other):
    stream, start, end = np.array(events).T
    unknown = np.zeros(len(stream), np.int64), np.zeros(len(stream), np.bool_)
    assert last_of_other_stream(stream, start * 1_000, end * 1_000, *unknown).tolist() == other
