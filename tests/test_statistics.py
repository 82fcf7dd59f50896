"""Intervals against published numbers, scipy and simulation-free properties."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from rspo_jax import statistics

counts = st.integers(0, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


# Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I, method 3.
@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_published_intervals(successes, n, low, high):
    assert statistics.wilson_interval(successes, n) == pytest.approx((low, high), abs=5e-5)


# Newcombe 1998, "Interval estimation for the difference between independent proportions", table II, method 10.
@pytest.mark.parametrize(
    ("before", "after", "low", "high"),
    [
        ((48, 80), (56, 70), 0.0524, 0.3339),
        ((3, 10), (9, 10), 0.1705, 0.8090),
        ((0, 29), (5, 56), -0.0381, 0.1926),
        ((0, 10), (10, 10), 0.6075, 1.0),
    ],
)
def test_difference_gives_the_published_intervals(before, after, low, high):
    assert statistics.difference_interval(*before, *after) == pytest.approx((low, high), abs=5e-5)


@given(counts, st.floats(0.5, 0.999))
def test_wilson_contains_the_rate_and_agrees_with_scipy(count, level):
    successes, n = count
    low, high = statistics.wilson_interval(successes, n, level)
    if n == 0:
        assert (low, high) == (0, 1)
        return
    assert 0 <= low <= successes / n <= high <= 1
    expected = scipy.stats.binomtest(successes, n).proportion_ci(level, method="wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-9)


@given(counts, counts)
def test_difference_changes_sign_when_the_samples_change_places(before, after):
    low, high = statistics.difference_interval(*before, *after)
    swapped_low, swapped_high = statistics.difference_interval(*after, *before)
    assert (low, high) == pytest.approx((-swapped_high, -swapped_low))
    assert -1 - 1e-9 <= low <= high <= 1 + 1e-9


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12), st.floats(0.5, 0.99))
def test_mean_interval_is_students(values, level):
    low, high = statistics.mean_interval(values, level)
    if np.std(values) < 1e-9:
        assert (low, high) == pytest.approx((values[0], values[0]), abs=1e-6)
        return
    expected = scipy.stats.t.interval(level, len(values) - 1, np.mean(values), scipy.stats.sem(values))
    assert (low, high) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_mean_interval_of_one_value_claims_nothing():
    assert statistics.mean_interval([0.7]) == (-math.inf, math.inf)


def test_bootstrap_depends_on_the_seed_only_and_nears_the_normal_interval():
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    first = statistics.bootstrap_interval(values, seed=1)
    assert first == statistics.bootstrap_interval(values, seed=1)
    assert first != statistics.bootstrap_interval(values, seed=2)
    assert first == pytest.approx(statistics.mean_interval(values), abs=0.05)


@pytest.mark.parametrize("successes, n, level", [(3, 2, 0.95), (-1, 2, 0.95), (1, 2, 95), (1, 2, 0.0)])
def test_impossible_counts_and_levels_are_refused(successes, n, level):
    with pytest.raises(ValueError, match="between 0 and"):
        statistics.wilson_interval(successes, n, level)


@pytest.mark.parametrize("values", [[], [1.0, math.nan]])
def test_a_mean_of_nothing_or_nan_is_refused(values):
    with pytest.raises(ValueError, match="finite value"):
        statistics.mean_interval(values)
    with pytest.raises(ValueError, match="finite value"):
        statistics.bootstrap_interval(values, seed=0)
