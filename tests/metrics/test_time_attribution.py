"""Every busy nanosecond is charged to one event."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracekit.metrics.budget import budgets
from tracekit.metrics.label_intervals import COMPUTE_SET, Lanes, attribute_time
from tracekit.schema import LABELS

SOME = ("forward", "wgrad", "other", "dp_comm", "pp_comm", "offload")
EVENT = st.tuples(st.sampled_from(SOME), st.integers(0, 30), st.integers(0, 12))


def test_the_first_to_start_pays_and_compute_pays_before_communication(labelled):
    events = labelled(("forward", 0, 6), ("wgrad", 2, 9), ("wgrad", 3, 5), ("dp_comm", 0, 12))
    assert attribute_time(events, Lanes.of(events)).tolist() == [6, 3, 0, 3]


@given(st.lists(EVENT, min_size=1, max_size=12))
def test_against_a_count_of_every_nanosecond(labelled, rows):
    events = labelled(*((label, start, start + length) for label, start, length in rows))
    lanes = Lanes.of(events)
    paid = attribute_time(events, lanes)
    expected = np.zeros(len(rows), np.int64)
    order = sorted(range(len(rows)), key=lambda i: (rows[i][1], i))
    for now in range(50):
        running = [i for i in order if rows[i][1] <= now < rows[i][1] + rows[i][2]]
        compute = [i for i in running if rows[i][0] in COMPUTE_SET]
        rest = sorted(running, key=lambda i: LABELS.index(rows[i][0]))
        if compute or rest:
            expected[(compute or rest)[0]] += 1
    assert paid.tolist() == expected.tolist()
    budget = budgets(lanes)[0]
    assert paid.sum() == budget.compute_ns + sum(budget.exposed_ns.values())
