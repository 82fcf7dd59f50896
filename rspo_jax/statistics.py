"""Intervals for success rates and means: every number that a report or a table claims comes with one."""

import math
import statistics
from collections.abc import Sequence

import numpy as np
import scipy.special

Interval = tuple[float, float]


def wilson_interval(successes: int, n: int, level: float = 0.95) -> Interval:
    """Wilson's score interval of a success rate (Wilson 1927), without continuity correction.

        (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n),   p = successes / n

    It stays inside [0, 1] and is sensible at 0 and n successes. n = 0 says nothing: (0, 1).

    Raises:
        ValueError: successes outside [0, n], or level outside (0, 1).
    """
    _check(successes, n, level)
    if n == 0:
        return 0.0, 1.0
    z = _normal_quantile(level)
    rate = successes / n
    centre = rate + z * z / (2 * n)
    half = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = 0.0 if successes == 0 else (centre - half) / scale
    high = 1.0 if successes == n else (centre + half) / scale
    return low, high


def difference_interval(
    successes_before: int, n_before: int, successes_after: int, n_after: int, level: float = 0.95
) -> Interval:
    """Interval of rate_after - rate_before: Newcombe's hybrid of two Wilson intervals (Newcombe 1998, method 10).

    The two samples are taken as independent. On one fixed panel the outcomes are positively correlated, so the interval
    is then wider than need be: it never claims too much. An empty sample gives (-1, 1).
    """
    if n_before == 0 or n_after == 0:
        return -1.0, 1.0
    before, after = successes_before / n_before, successes_after / n_after
    low_before, high_before = wilson_interval(successes_before, n_before, level)
    low_after, high_after = wilson_interval(successes_after, n_after, level)
    difference = after - before
    return (
        difference - math.hypot(after - low_after, high_before - before),
        difference + math.hypot(high_after - after, before - low_before),
    )


def mean_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Student's t interval of a mean, for a few independent runs (seeds): mean -+ t(n-1) * std / sqrt(n).

    The t distribution and not a bootstrap: with three seeds a bootstrap can only repeat the three values and is far too
    narrow. One value says nothing about spread: (-inf, inf).

    Raises:
        ValueError: no values, a value that is not finite, or level outside (0, 1).
    """
    _check(0, 0, level)
    data = np.asarray(values, np.float64)
    if data.ndim != 1 or data.size == 0 or not np.isfinite(data).all():
        raise ValueError(f"mean_interval needs at least one finite value, got {list(np.ravel(data))}")
    if data.size == 1:
        return -math.inf, math.inf
    mean = float(data.mean())
    half = float(scipy.special.stdtrit(data.size - 1, 0.5 + level / 2) * data.std(ddof=1) / math.sqrt(data.size))
    return mean - half, mean + half


def bootstrap_interval(values: Sequence[float], level: float = 0.95, *, seed: int, resamples: int = 2000) -> Interval:
    """Percentile bootstrap interval of a mean (Efron 1979), for many values of unknown shape, such as episode scores.

    Raises:
        ValueError: no values, a value that is not finite, or level outside (0, 1).
    """
    _check(0, 0, level)
    data = np.asarray(values, np.float64)
    if data.ndim != 1 or data.size == 0 or not np.isfinite(data).all():
        raise ValueError(f"bootstrap_interval needs at least one finite value, got {list(np.ravel(data))}")
    rng = np.random.default_rng(seed)
    # One resample at a time: [resamples, n] index arrays would be large for long lists.
    means = [data[rng.integers(data.size, size=data.size)].mean() for _ in range(resamples)]
    low, high = np.quantile(means, [0.5 - level / 2, 0.5 + level / 2])
    return float(low), float(high)


def _normal_quantile(level: float) -> float:
    return statistics.NormalDist().inv_cdf(0.5 + level / 2)


def _check(successes: int, n: int, level: float) -> None:
    if not 0 <= successes <= n:
        raise ValueError(f"successes must be between 0 and n, got {successes} of {n}")
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1 (0.95 for 95 %), got {level}")
