"""Orders against each other: equal up to grain, distance, differences."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from tracekit.errors import ScheduleError
from tracekit.pipeline.against_ideal.identify import (
    candidates,
    count_edits,
    distance,
    exact_match,
    find_differences,
    match_with,
    named_candidates,
    nearest_match,
    pattern,
    same_work,
    units,
)
from tracekit.pipeline.schedules import Op, generate, names
from tracekit.pipeline.schedules.registry import describe

OPS = st.builds(Op, st.sampled_from(["F", "I", "W", "B"]), st.integers(0, 1), st.integers(0, 2))


def ops(text):
    return [Op.parse(word) for word in text.split()]


def lcs_distance(a, b):
    """The textbook table: insertions and deletions only."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(last[j - 1] if x == y else 1 + min(last[j], row[-1]))
    return row[-1]


@settings(max_examples=30, deadline=None)
@given(st.lists(OPS, max_size=12), st.lists(OPS, max_size=12))
def test_distance_is_the_textbooks(a, b):
    left, right = [u for op in a for u in units(op)], [u for op in b for u in units(op)]
    assert distance(a, b) == lcs_distance(left, right)


@pytest.mark.parametrize(
    ("ran", "plan", "same"),
    [
        ("0F0 0F1 0B0", "0F0 (0F1;0B0)", True),
        ("0F0 0B0 0F1", "0F0 (0F1;0B0)", True),
        ("(0F1;0B0)", "0F1 0I0 0W0", True),
        ("0I0 0F1 0W0", "0B0 0F1", False),
        ("0F0 0F1", "0F1 0F0", False),
        ("0B0", "0I0", False),
    ],
)
def test_work_is_the_same_whatever_was_fused(ran, plan, same):
    assert same_work(ops(ran), ops(plan)) is same


def test_any_weight_gradient_will_do_where_they_were_counted():
    assert not same_work(ops("0I0 0I1 0W1 0W0"), ops("0I0 0I1 0W0 0W1"))
    assert same_work(ops("0I0 0I1 0W1 0W0"), ops("0I0 0I1 0W0 0W1"), any_weight_gradient=True)


def test_a_pattern_forgets_names_and_keeps_pairs():
    assert pattern(ops("3F9 7F2 7B2 3B9")) == ops("0F0 0F1 0B1 0B0")


@pytest.mark.parametrize("name", [n for n in names() if describe(n).pipeline])
def test_every_schedule_is_among_its_candidates(name):
    pp, microbatches = {"dualpipe": (4, 8), "dualpipev": (2, 4)}.get(name, (4, 4))
    plan = generate(name, pp=pp, microbatches=microbatches)
    forwards = sum(op.kind in ("F", "FB") for op in plan.ranks[0])
    assert any(s.name == name and s.ranks == plan.ranks for s in candidates(pp, forwards))


def test_messages_decide_between_equal_patterns():
    plan = generate("gpipe", pp=2, microbatches=2)
    orders = dict(enumerate(plan.ranks))
    wrong = {0: {1: 1}, 1: {0: 2}}
    assert exact_match(orders, [plan], traffic={0: {1: 2}, 1: {0: 2}}).schedule is plan
    assert exact_match(orders, [plan], traffic=wrong) is None


def test_nearest_lists_what_differs():
    plan = generate("1f1b", pp=2, microbatches=4)
    orders = {0: list(plan.ranks[0]), 1: list(plan.ranks[1])}
    orders[1][2], orders[1][3] = orders[1][3], orders[1][2]
    match = nearest_match(orders, [generate("gpipe", pp=2, microbatches=4), plan])
    assert match.schedule is plan
    assert not match.exact
    assert {d.rank for d in match.differences} == {1}


def test_a_whole_backward_for_its_halves_is_no_difference():
    """Of both splits the first is granularity alone.

    The second also moves the W behind the next forward.
    """
    measured, planned = ops("0F0 0B0 0F1 0B1 0F2"), ops("0F0 0I0 0W0 0F1 0I1 0F2 0W1")
    listed = [
        (d.rank, d.position, d.measured, d.expected) for d in find_differences(3, measured, planned)
    ]
    assert listed == [(3, 3, ("0B1",), ("0I1",)), (3, 5, (), ("0W1",))]


def test_a_schedule_of_another_size_is_refused():
    with pytest.raises(ScheduleError, match="is for 2 ranks"):
        match_with({3: ops("0F0")}, generate("1f1b", pp=2, microbatches=2))
    assert named_candidates("dualpipe", 3, 12) == []  # needs an even number of ranks


def test_edits_are_as_many_as_the_longest_common_subsequence_leaves():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        limit = int(rng.integers(2, 30))
        a = rng.integers(0, 4, 15).tolist()
        b = rng.integers(0, 4, rng.integers(0, 20)).tolist()
        common = np.zeros((len(a) + 1, len(b) + 1), int)
        for i, left in enumerate(a):
            for j, right in enumerate(b):
                common[i + 1, j + 1] = (
                    common[i, j] + 1 if left == right else max(common[i, j + 1], common[i + 1, j])
                )
        expected = min(len(a) + len(b) - 2 * int(common[-1, -1]), limit + 1)
        assert count_edits(a, b, limit=limit) == expected
