"""Interval arithmetic against a brute force that paints every nanosecond."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit import intervals
from tracekit.intervals import EMPTY, Intervals, overlaps_any, union

WIDTH = 40
rows = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, WIDTH), st.integers(0, 12)), max_size=25
)


def columns(raw):
    group = np.array([g for g, _, _ in raw], np.int64)
    start = np.array([s for _, s, _ in raw], np.int64)
    return start, start + np.array([d for _, _, d in raw], np.int64), group


def paint(raw):
    """How many intervals cover each nanosecond of each group."""
    canvas = np.zeros((3, WIDTH + 13), int)
    for g, s, d in raw:
        canvas[g, s : s + d] += 1
    return canvas


def painted(result: Intervals):
    """As paint, from a result; and check that the result is sorted, disjoint and not touching."""
    canvas = np.zeros((3, WIDTH + 13), int)
    for g, s, e in zip(result.group, result.start_ns, result.end_ns, strict=True):
        assert e > s
        canvas[g, s:e] += 1
    key = list(zip(result.group, result.start_ns, result.end_ns, strict=True))
    for (g1, _, e1), (g2, s2, _) in itertools.pairwise(key):
        assert g1 < g2 or (g1 == g2 and e1 < s2)
    return canvas


@given(rows)
def test_union_covers_what_is_painted(raw):
    assert (painted(union(*columns(raw))) == (paint(raw) > 0)).all()


@given(rows, rows)
def test_two_sets(raw_a, raw_b):
    a, b = union(*columns(raw_a)), union(*columns(raw_b))
    on_a, on_b = paint(raw_a) > 0, paint(raw_b) > 0
    assert (painted(a | b) == (on_a | on_b)).all()
    assert (painted(a & b) == (on_a & on_b)).all()
    assert (painted(a - b) == (on_a & ~on_b)).all()
    assert (a & b).total_ns == a.total_ns + b.total_ns - (a | b).total_ns


@given(rows, rows, rows)
def test_three_sets(raw_a, raw_b, raw_c):
    a, b, c = (union(*columns(raw)) for raw in (raw_a, raw_b, raw_c))
    assert (
        painted(a & b & c) == ((paint(raw_a) > 0) & (paint(raw_b) > 0) & (paint(raw_c) > 0))
    ).all()


@given(rows)
def test_totals_gaps_and_hull(raw):
    result, on = union(*columns(raw)), paint(raw) > 0
    assert result.totals_ns(3).tolist() == on.sum(axis=1).tolist()
    holes = np.zeros_like(on)
    for g in range(3):
        where = np.flatnonzero(on[g])
        if len(where):
            holes[g, where[0] : where[-1]] = ~on[g, where[0] : where[-1]]
    assert (painted(result.gaps()) == holes).all()
    assert (painted(result.hull() - result) == holes).all()
    for g in range(3):
        assert result.of(g).total_ns == on[g].sum()


@given(rows, rows)
def test_covered(raw, query):
    result, on = union(*columns(raw)), paint(raw) > 0
    start, end, group = columns(query)
    expected = [on[g, s:e].sum() for s, e, g in zip(start, end, group, strict=True)]
    assert result.covered_ns(start, end, group).tolist() == expected
    zero = [on[0, s:e].sum() for s, e in zip(start, end, strict=True)]
    assert result.of(0).covered_ns(start, end).tolist() == zero


@settings(max_examples=40)
@given(rows, rows)
def test_groups_far_apart(raw_a, raw_b):
    """Clocks half an epoch apart: the answer is the same."""
    far = 1 << 60
    (sa, ea, ga), (sb, eb, gb) = columns(raw_a), columns(raw_b)
    a, b = union(sa + ga * far, ea + ga * far, ga), union(sb + gb * far, eb + gb * far, gb)
    near_a, near_b = union(sa, ea, ga), union(sb, eb, gb)
    for got, wanted in (
        (a, near_a),
        (a & b, near_a & near_b),
        (a | b, near_a | near_b),
        (a - b, near_a - near_b),
    ):
        assert got == Intervals(
            wanted.group, wanted.start_ns + wanted.group * far, wanted.end_ns + wanted.group * far
        )
    query = a.covered_ns(sb + gb * far, eb + gb * far, gb)
    assert query.tolist() == near_a.covered_ns(sb, eb, gb).tolist()


def test_large_random_sets_take_the_other_sorts():
    rng = np.random.default_rng(7)
    start = rng.integers(1_700_000_000_000_000_000, 1_700_000_001_000_000_000, 300_000)
    end = start + rng.integers(0, 4_000, len(start))
    group = rng.integers(0, 5, len(start))
    result = union(start, end, group)
    for g in range(5):
        order = np.argsort(start[group == g])
        s, e = start[group == g][order], end[group == g][order]
        # The classic one-pass sweep, as the oracle.
        reached = np.concatenate([s[:1], np.maximum.accumulate(e)[:-1]])
        assert result.of(g).total_ns == np.maximum(e - np.maximum(s, reached), 0).sum()


@given(rows)
def test_group_numbers_far_apart(raw):
    """Numbers with wide holes between them, or below zero, cost no room and answer the same."""
    start, end, group = columns(raw)
    result, near = union(start, end, (group - 1) * 10**12), union(start, end, group)
    assert result == Intervals((near.group - 1) * 10**12, near.start_ns, near.end_ns)


def test_empty():
    assert union([], []) == EMPTY
    assert union([5], [5]) == EMPTY
    assert EMPTY.total_ns == 0
    assert EMPTY.totals_ns(2).tolist() == [0, 0]
    assert len(EMPTY.gaps()) == len(EMPTY.hull()) == 0
    assert EMPTY.covered_ns([1], [3]).tolist() == [0]
    assert (EMPTY - union([0], [1])) == EMPTY
    assert (EMPTY | union([0], [1])) == union([0], [1])


def test_it_travels_between_processes():
    a = union([0, 5], [2, 9], [0, 1])
    assert a.totals_ns(2).tolist() == [2, 4]
    assert pickle.loads(pickle.dumps(a)) == a


def test_equality_and_hash():
    assert union([0], [1]) != union([0], [2])
    assert union([0], [1]) != "other"
    with pytest.raises(TypeError):
        hash(union([0], [1]))


def test_repr_is_short():
    assert repr(intervals.union(np.arange(0, 40, 4), np.arange(1, 41, 4))).endswith("[28, 29), …)")


@given(rows, rows)
def test_what_touches_a_stretch(raw, query):
    stretches = union(*columns([(0, s, d) for _, s, d in raw]))
    start, end, _ = columns(query)
    touched = overlaps_any(start, end, stretches.start_ns, stretches.end_ns)
    pairs = list(zip(stretches.start_ns, stretches.end_ns, strict=True))
    expected = [any(b > s and a < e for a, b in pairs) for s, e in zip(start, end, strict=True)]
    assert touched.tolist() == expected
