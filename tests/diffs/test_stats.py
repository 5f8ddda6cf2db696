"""Statistics of the gate against scipy and brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy  # loads scipy.stats when it is first used
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.diffs import stats

values = st.lists(st.floats(0, 100, allow_nan=False).map(lambda v: round(v, 3)), min_size=2, max_size=12)


@settings(deadline=None)
@given(values, values)
def test_rank_test_agrees_with_scipy(x, y):
    got = stats.rank_test(x, y)
    tied = len(set(x + y)) < len(x + y)
    if len(set(x + y)) == 1:
        assert got == 1.0
        return
    method = "asymptotic" if tied else "exact"
    expected = scipy.stats.mannwhitneyu(x, y, alternative="greater", method=method).pvalue
    assert got == pytest.approx(expected, abs=1e-9)


def test_rank_test_by_counting_orders():
    x, y = [3.0, 5.0, 9.0], [1.0, 4.0, 6.0, 2.0]
    u = sum(a > b for a in x for b in y)
    pool = x + y
    splits = [set(c) for c in itertools.combinations(range(7), 3)]
    as_large = sum(sum(pool[i] > pool[j] for i in c for j in range(7) if j not in c) >= u for c in splits)
    assert stats.rank_test(x, y) == pytest.approx(as_large / len(splits))


def test_large_samples_agree_with_scipy():
    seed = np.random.default_rng(0)
    x, y = seed.normal(0.3, 1, 120), seed.normal(0, 1, 150)
    expected = scipy.stats.mannwhitneyu(x, y, alternative="greater", method="asymptotic").pvalue
    assert stats.rank_test(x, y) == pytest.approx(expected, rel=1e-9)


@given(st.floats(0.001, 0.999), st.integers(1, 200))
def test_student_agrees_with_scipy(probability, df):
    assert stats.student_quantile(probability, df) == pytest.approx(
        scipy.stats.t.ppf(probability, df), rel=1e-6, abs=1e-8
    )


@given(st.floats(-20, 20), st.integers(1, 200))
def test_student_cdf_agrees_with_scipy(t, df):
    assert stats.student_cdf(t, df) == pytest.approx(scipy.stats.t.cdf(t, df), abs=1e-9)


@given(values)
def test_pseudomedian_is_the_median_of_pair_means(x):
    pairs = [(x[i] + x[j]) / 2 for i in range(len(x)) for j in range(i, len(x))]
    assert stats.pseudomedian(x) == pytest.approx(np.median(pairs))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_stepping_down_rejects(ps):
    adjusted = stats.holm(ps)
    for level in (0.01, 0.05, 0.3):
        order, rejected = sorted(range(len(ps)), key=lambda i: ps[i]), set()
        for smaller, i in enumerate(order):
            if ps[i] * (len(ps) - smaller) > level:
                break
            rejected.add(i)
        assert {i for i, p in enumerate(adjusted) if p <= level} == rejected


def test_correlated_steps_count_for_less():
    assert stats.weaken(0.01, 0.0) == 0.01
    assert stats.weaken(0.01, 0.3) < stats.weaken(0.01, 0.6)
    assert stats.correlation([[1.0, 2.0] * 20]) < 0
    drifting = [stats.correlation([list(map(float, range(n)))]) for n in (8, 40, 400)]
    assert 0 < drifting[0] < drifting[1] < drifting[2] < 1.0


def test_bootstrap_covers_the_truth():
    seed = np.random.default_rng(4)
    inside = 0
    for _ in range(300):
        low, high = stats.bootstrap([list(seed.normal(1, 1, 12))], [list(seed.normal(0, 1, 12))]).interval(0.95)
        inside += low <= 1 <= high
    assert 0.9 < inside / 300 <= 1.0


def test_runs_that_differ_make_the_gate_less_sure():
    near = stats.between_runs([[5.0], [5.1]], [[4.0], [4.1]], prior=0.1, prior_df=4)
    far = stats.between_runs([[4.0], [6.1]], [[3.0], [5.1]], prior=0.1, prior_df=4)
    assert near.value == pytest.approx(far.value)
    assert near.p_not_above() < 0.01 < far.p_not_above()
