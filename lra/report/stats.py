"""Statistics of a few seeds: means, deviations, intervals, Welch's t-test, Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)

LEVEL = 0.05  # below it, two rows count as different


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float | None:
    """Sample standard deviation (n - 1); None for a single value."""
    if len(values) < 2:
        return None
    centre = mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1))


def welch(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Two-sided p-value of equal means at unequal variances; None with fewer than two on a side."""
    if min(len(a), len(b)) < 2:
        return None
    va, vb = (deviation(x) ** 2 / len(x) for x in (a, b))  # type: ignore[operator]
    difference = mean(a) - mean(b)
    if va + vb == 0:  # no spread at all: equal, or certainly different
        return 1.0 if difference == 0 else 0.0
    t = difference / math.sqrt(va + vb)
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return t_tails(t, freedom)


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Holm's step-down adjusted p-values: compare each with the level itself."""
    adjusted, floor = {}, 0.0
    for rank, key in enumerate(sorted(p_values, key=lambda k: p_values[k])):
        floor = max(floor, min(1.0, (len(p_values) - rank) * p_values[key]))
        adjusted[key] = floor
    return adjusted


def ties(samples: Mapping[Key, Sequence[float]]) -> tuple[set[Key], dict[Key, float]]:
    """The samples with the best mean (several, if it is the same), and those that do not differ
    significantly from the first of them, with their adjusted p-values. A sample of one value is not
    tested."""
    means = {key: mean(sample) for key, sample in samples.items()}
    first = max(means, key=lambda key: means[key])
    best = {key for key in means if math.isclose(means[key], means[first], abs_tol=1e-9)}
    p_values = {key: welch(samples[first], samples[key]) for key in samples if key not in best}
    tested = {key: p for key, p in p_values.items() if p is not None}
    return best, {key: p for key, p in holm(tested).items() if p >= LEVEL}


def half_width(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of the mean, by Student's distribution; None for a single
    value."""
    return half_width_within([values])


def half_width_within(groups: Sequence[Sequence[float]]) -> float | None:
    """The same of the mean of the groups' means, from the spread within groups; None where every
    group has a single value."""
    freedom = sum(len(values) - 1 for values in groups)
    if freedom == 0:
        return None
    squares = math.fsum((v - mean(values)) ** 2 for values in groups for v in values)
    variance = squares / freedom * math.fsum(1 / len(values) for values in groups)
    return _quantile(freedom) * math.sqrt(variance) / len(groups)


def _quantile(freedom: float) -> float:
    """The t outside of which, on both sides, lies LEVEL."""
    low, high = 0.0, 1.0
    while t_tails(high, freedom) > LEVEL:
        low, high = high, 2 * high
    for _ in range(60):  # bisection: t_tails falls
        middle = (low + high) / 2
        low, high = (middle, high) if t_tails(middle, freedom) > LEVEL else (low, middle)
    return high


def t_tails(t: float, freedom: float) -> float:
    """P(|T| >= |t|) of Student's distribution."""
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - incomplete_beta(b, a, 1 - x)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) - log_beta) / a
    return front * _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """1 / (1 + d_1 / (1 + d_2 / ...)), evaluated forwards by Lentz's method."""
    tiny = 1e-300
    value, c, d = 1.0, 1.0, 0.0
    for step in range(1, 10_000):
        m, odd = divmod(step - 1, 2)
        if odd == 0:  # d_{2m+1}
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:  # d_{2m}
            m += 1
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / ((1 + term * d) or tiny)
        c = (1 + term / c) or tiny
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            return 1 / value
    raise ArithmeticError(f"incomplete beta({a}, {b}, {x}) does not converge")
