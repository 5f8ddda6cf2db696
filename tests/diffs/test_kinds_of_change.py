"""How a finding changed and what was predicted of it, by figures on both sides of each limit."""

from __future__ import annotations

import pytest

from tracekit.diffs.finding_changes import (
    FindingTotal,
    StepChange,
    change_of_finding,
    kind_of_change,
    predicted_saving,
)
from tracekit.documents.findings import Finding

STEP = StepChange(1_000, 800, None)


def total(cost_ns, *, cost_bytes=None, **saving):
    if cost_ns is None:
        return None
    finding = Finding(code="idle", case="a", cost_ns=round(cost_ns), share=0.0)
    return FindingTotal(finding, cost_ns, cost_bytes, **saving)


@pytest.mark.parametrize(
    ("old_ns", "new_ns", "kind"),
    [
        (None, 100, "new"),
        (100, None, "gone"),
        (100, 150, "worse"),
        (150, 100, "better"),
        (100, 100, None),
        # A fifth of the larger one.
        (100, 125, "worse"),
        (100, 124, None),
        (100, 80, "better"),
        (100, 81, None),
        # A hundredth of the step: 10 ns before, 8 ns after.
        (9, 100, "new"),
        (10, 100, "worse"),
        (100, 7, "gone"),
        (100, 8, "better"),
        (None, 10, "new"),
        (None, 9, None),  # too small a change
        (9, None, None),
        (None, None, None),
    ],
)
def test_a_finding_is_new_gone_worse_or_better_by_its_cost_in_a_step(old_ns, new_ns, kind):
    assert kind_of_change(total(old_ns), total(new_ns), STEP) == kind


@pytest.mark.parametrize(
    ("old_bytes", "new_bytes", "kind"),
    [
        (None, 5, "new"),
        (5, None, "gone"),
        (80, 100, "worse"),
        (81, 100, None),
        (100, 80, "better"),
        (100, 81, None),
    ],
)
def test_one_about_memory_by_its_bytes(old_bytes, new_bytes, kind):
    """Whatever it costs in time."""
    old, new = (
        None if size is None else total(0, cost_bytes=size) for size in (old_bytes, new_bytes)
    )
    assert kind_of_change(old, new, STEP) == kind


@pytest.mark.parametrize(
    ("old", "new", "saving", "saved_range"),
    [
        ((50, 40, 60), None, 50, (40, 60)),
        ((50, 40, 60), (20, 10, 30), 30, (20, 40)),  # less what is still predicted
        ((50, 40, 60), (45, 10, 30), 5, (0, 15)),
        ((50, 40, 60), (50, 10, 30), None, None),
        ((50, 40, 60), (60, 10, 30), None, None),
        ((50, 55, 45), None, 50, (50, 50)),
        ((None, 0, 0), None, None, None),
        ((50, 40, 60), (None, 0, 0), None, None),
    ],
)
def test_what_was_predicted_is_what_is_no_longer(old, new, saving, saved_range):
    names = ("saves_ns", "least_saving_ns", "largest_saving_ns")
    before, after = (
        None if each is None else total(100, **dict(zip(names, each, strict=True)))
        for each in (old, new)
    )
    assert predicted_saving(before, after) == (saving, saved_range)


@pytest.mark.parametrize(
    ("range_ns", "direction"),
    [(None, 0), ((1, 2), 1), ((0, 2), 0), ((-2, 0), 0), ((-2, -1), -1), ((-2, 2), 0)],
)
def test_a_step_changed_if_no_change_is_outside_its_range(range_ns, direction):
    assert StepChange(10, 10, range_ns).direction == direction


@pytest.mark.parametrize(
    ("old_ns", "new_ns", "range_ns", "agrees"),
    [
        (100, 200, (-90, -10), True),  # worse, and the step is slower
        (200, 100, (-90, -10), False),
        (200, 100, (10, 90), True),
        (None, 100, (10, 90), False),
        (100, None, (10, 90), True),
        (100, 200, (-10, 90), False),
    ],
)
def test_the_step_agrees_with_a_finding_that_changed_the_same_way(old_ns, new_ns, range_ns, agrees):
    change = change_of_finding(total(old_ns), total(new_ns), StepChange(1_000, 800, range_ns))
    assert change.step_agrees is agrees
    assert (change.share_before, change.share_after) == ((old_ns or 0) / 1_000, (new_ns or 0) / 800)


def test_a_finding_about_memory_needs_no_step_to_agree():
    change = change_of_finding(None, total(0, cost_bytes=5.4), STEP)
    assert (change.step_agrees, change.cost_before_bytes, change.cost_after_bytes) == (
        True,
        None,
        5,
    )
