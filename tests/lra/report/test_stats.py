"""Statistics against values known in closed form or from printed tables."""

from __future__ import annotations

import math

import pytest

from lra.report.stats import (
    deviation,
    half_width,
    half_width_within,
    holm,
    incomplete_beta,
    t_tails,
    ties,
    welch,
)  # fmt: skip


@pytest.mark.parametrize(
    ("a", "b", "x", "value"),
    [
        (2, 3, 0.4, 0.5248),  # 1 - sum of binomial terms
        (1, 1, 0.3, 0.3),
        (5, 1, 0.9, 0.9**5),
        (1, 4, 0.2, 1 - 0.8**4),
        (0.5, 0.5, 0.25, 1 / 3),  # arcsine law: 2/pi asin(sqrt x)
        (0.5, 0.5, 0.99, 2 / math.pi * math.asin(math.sqrt(0.99))),
        (3, 2, 0, 0),
        (3, 2, 1, 1),
    ],
)
def test_incomplete_beta(a: float, b: float, x: float, value: float):
    assert incomplete_beta(a, b, x) == pytest.approx(value, abs=1e-13)


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [  # two-sided 5 % and 1 % points, to the digits of the printed table
        (12.7062047, 1, 0.05),
        (4.30265273, 2, 0.05),
        (2.22813885, 10, 0.05),
        (4.60409487, 4, 0.01),
        (1.95996398, 1e8, 0.05),
    ],
)
def test_t_tails(t: float, freedom: float, p: float):
    assert t_tails(t, freedom) == pytest.approx(p, abs=2e-8)
    assert t_tails(-t, freedom) == t_tails(t, freedom)


@pytest.mark.parametrize(("n", "t"), [(2, 12.7062047), (5, 2.77644511), (121, 1.97993041)])
def test_the_interval_of_a_mean_has_students_quantile(n: int, t: float):
    values = [float(i % 3) for i in range(n)]
    expected = t * deviation(values) / math.sqrt(n)
    assert half_width(values) == pytest.approx(expected, rel=1e-8)
    assert half_width([1.0]) is None


def test_the_interval_of_a_mean_of_groups_knows_their_spread_alone():
    # Squares 2 + 2 over 3 degrees of freedom; variances 1/3 and 1/2; t(0.975, 3) = 3.182446
    groups = [[1.0, 2.0, 3.0], [101.0, 103.0]]
    expected = 3.182446 * (4 / 3 * (1 / 3 + 1 / 2)) ** 0.5 / 2
    assert half_width_within(groups) == pytest.approx(expected, rel=1e-6)
    assert half_width_within([[1.0], [2.0]]) is None
    # A group of one adds no spread: squares 2, 1 degree of freedom, variances 1 and 1/2
    assert half_width_within([[1.0], [2.0, 4.0]]) == pytest.approx(
        12.7062047 * 3**0.5 / 2, rel=1e-8
    )


def test_welch_with_equal_sizes_and_variances_is_students_test():
    # t = -3 / sqrt(1/3 + 1/3), 4 degrees of freedom; survival in closed form
    t = -3 / math.sqrt(2 / 3)
    s = t / math.sqrt(4 + t * t)
    p = 1 - abs(s * (1 + (1 - s * s) / 2))
    assert welch([1, 2, 3], [4, 5, 6]) == pytest.approx(p, abs=1e-14)


def test_welch_takes_the_degrees_of_freedom_of_unequal_variances():
    # variances 1 and 100 over 3: freedom = (101/3)^2 / ((1/3)^2/2 + (100/3)^2/2) = 2.0399
    a, b = [1.0, 2.0, 3.0], [10.0, 20.0, 30.0]
    freedom = (101 / 3) ** 2 / ((1 / 3) ** 2 / 2 + (100 / 3) ** 2 / 2)
    assert welch(a, b) == pytest.approx(t_tails(18 / math.sqrt(101 / 3), freedom), abs=1e-14)
    assert 2 < freedom < 2.05


def test_welch_needs_two_values_and_stands_no_spread():
    assert welch([1.0], [1.0, 2.0]) is None
    assert welch([1.0, 1.0], [1.0, 1.0]) == 1
    assert welch([1.0, 1.0], [2.0, 2.0]) == 0


def test_holm_steps_down_and_never_decreases():
    adjusted = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert adjusted == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}


def test_deviation_divides_by_n_minus_one():
    assert deviation([1.0, 2.0, 3.0]) == 1
    assert deviation([1.0]) is None


def test_ties_are_what_the_seeds_cannot_tell_from_the_best():
    best, tied = ties(
        {"a": [60.0, 60.5, 61.0], "b": [60.0, 60.4, 60.9], "c": [50.0, 50.5, 51.0], "d": [59.0]}
    )
    assert best == {"a"}
    assert set(tied) == {"b"}
    assert tied["b"] > 0.5


def test_equal_means_are_all_the_best():
    best, tied = ties({"a": [50.0, 52.0], "b": [51.0, 51.0], "c": [51.0], "d": [10.0, 10.5]})
    assert best == {"a", "b", "c"}
    assert tied == {}


def test_holm_in_a_column_by_hand():
    """Three rows against the best, each Welch's p with two degrees of freedom in closed form."""
    column = {"best": [50.0, 60.0], "a": [45.0, 55.0], "b": [20.0, 30.0], "c": [0.0, 10.0]}

    def p(difference: float) -> float:  # equal variances 50, n = 2: t = difference / sqrt(50)
        t = difference / math.sqrt(50)
        return 1 - t / math.sqrt(2 + t * t)

    # ascending: c (50), b (30), a (5); times 3, 2, 1
    _, tied = ties(column)
    assert tied == pytest.approx(
        {"c": 3 * p(50), "b": max(3 * p(50), 2 * p(30)), "a": max(2 * p(30), p(5))}, abs=1e-12
    ), {"c": p(50), "b": p(30), "a": p(5)}
