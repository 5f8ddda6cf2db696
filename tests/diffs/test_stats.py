"""Statistics of diff and gate against published values, closed forms and brute force."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tracekit.diffs import stats

values = st.lists(
    st.floats(0, 100, allow_nan=False).map(lambda v: round(v, 3)), min_size=2, max_size=12
)

HOLLANDER_WOLFE_TERM = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46]
HOLLANDER_WOLFE_EARLY = [1.15, 0.88, 0.90, 0.74, 1.21]
"""Permeability of membranes at term and early in pregnancy (Hollander and Wolfe 1973, page 69)."""


@pytest.mark.parametrize(("u", "orders"), list(enumerate([1, 2, 4, 7, 12, 17, 24, 31])))
def test_rank_test_gives_the_published_table_for_four_and_four(u, orders):
    """Mann and Whitney 1947, table I: of the 70 orders, so many have a U as extreme."""
    largest_rank_sum = 8 + 7 + 6 + 5
    worse = next(
        ranks
        for ranks in itertools.combinations(range(1, 9), 4)
        if sum(ranks) == largest_rank_sum - u
    )
    better = [rank for rank in range(1, 9) if rank not in worse]
    assert stats.rank_test(worse, better) == pytest.approx(orders / 70, abs=1e-9)


def test_rank_test_gives_the_published_p_value_of_an_experiment():
    p = stats.rank_test(HOLLANDER_WOLFE_TERM, HOLLANDER_WOLFE_EARLY)
    assert round(p, 4) == 0.1272
    assert p == pytest.approx(382 / 3003, abs=1e-9)


def test_rank_test_by_counting_orders():
    x, y = [3.0, 5.0, 9.0], [1.0, 4.0, 6.0, 2.0]
    u = sum(a > b for a in x for b in y)
    pool = x + y
    splits = [set(c) for c in itertools.combinations(range(7), 3)]
    as_large = sum(
        sum(pool[i] > pool[j] for i in c for j in range(7) if j not in c) >= u for c in splits
    )
    assert stats.rank_test(x, y) == pytest.approx(as_large / len(splits))


def normal_approximation(x, y):
    """The p-value by the textbook's formula: U from all pairs, variance less what ties take away."""
    n, m = len(x), len(y)
    pairs = [(a > b) + (a == b) / 2 for a in x for b in y]
    pool = [*x, *y]
    ties = sum(size**3 - size for size in (pool.count(value) for value in set(pool)))
    variance = n * m / 12 * (n + m + 1 - ties / ((n + m) * (n + m - 1)))
    z = (sum(pairs) - n * m / 2 - 0.5) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2)) / 2


@settings(deadline=None)
@given(values)
def test_tied_samples_use_the_normal_approximation(x):
    x, y = [*x, 50.0], [50.0, *(value + 1 for value in x)]
    if len({*x, *y}) > 1:
        assert stats.rank_test(x, y) == pytest.approx(normal_approximation(x, y), abs=1e-9)


def test_large_samples_use_the_normal_approximation():
    seed = np.random.default_rng(0)
    x, y = seed.normal(0.3, 1, 120), seed.normal(0, 1, 150)
    assert stats.rank_test(x, y) == pytest.approx(normal_approximation(list(x), list(y)), abs=1e-9)


def test_equal_samples_show_no_difference():
    assert stats.rank_test([2.0, 2.0], [2.0, 2.0, 2.0]) == 1.0


@given(st.floats(-20, 20))
@example(6.2e-09)
def test_student_cdf_agrees_with_its_closed_forms(t):
    """Abramowitz and Stegun 26.7.3 and 26.7.4, for one to four degrees of freedom."""
    angle = {df: math.atan(t / math.sqrt(df)) for df in (1, 2, 3, 4)}
    closed_forms = {
        1: 0.5 + angle[1] / math.pi,
        2: 0.5 + math.sin(angle[2]) / 2,
        3: 0.5 + (angle[3] + math.sin(angle[3]) * math.cos(angle[3])) / math.pi,
        4: 0.5 + math.sin(angle[4]) * (1 + math.cos(angle[4]) ** 2 / 2) / 2,
    }
    # scipy computes with t squared, which has no digits left beside 1 for t below 1e-7: there it is
    # 2.4e-9 off.
    tolerance = 1e-9 if abs(t) > 1e-7 else 3e-9
    for df, expected in closed_forms.items():
        assert stats.student_cdf(t, df) == pytest.approx(expected, abs=tolerance)


@given(st.floats(0.001, 0.999))
def test_student_quantile_agrees_with_its_closed_forms(probability):
    cauchy = math.tan(math.pi * (probability - 0.5))
    two = (2 * probability - 1) * math.sqrt(2 / (4 * probability * (1 - probability)))
    assert stats.student_quantile(probability, 1) == pytest.approx(cauchy, rel=1e-9, abs=1e-9)
    assert stats.student_quantile(probability, 2) == pytest.approx(two, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("df", "published"),
    [(1, 12.706), (2, 4.303), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042), (120, 1.980)],
)
def test_student_quantile_gives_the_printed_table(df, published):
    assert round(stats.student_quantile(0.975, df), 3) == published


def test_only_comparisons_import_scipy():
    code = "import sys, tracekit, tracekit.cli, tracekit.run.analyze, tracekit.report; print('scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


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
        low, high = stats.bootstrap(
            [list(seed.normal(1, 1, 12))], [list(seed.normal(0, 1, 12))]
        ).interval(0.95)
        inside += low <= 1 <= high
    assert 0.9 < inside / 300 <= 1.0


def test_runs_that_differ_make_the_gate_less_sure():
    near = stats.between_runs([[5.0], [5.1]], [[4.0], [4.1]], prior=0.1, prior_df=4)
    far = stats.between_runs([[4.0], [6.1]], [[3.0], [5.1]], prior=0.1, prior_df=4)
    assert near.value == pytest.approx(far.value)
    assert near.p_not_above() < 0.01 < far.p_not_above()
