"""Statistics against values known in closed form or from printed tables."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from lra.report.stats import (
    deviation,
    half_width,
    holm,
    interval_of_spearman,
    spearman,
    ties,
    welch,
)


def test_deviation_divides_by_n_minus_one():
    assert deviation([1.0, 2.0, 3.0]) == 1
    assert deviation([1.0]) is None


@pytest.mark.parametrize(("n", "t"), [(2, 12.7062047), (5, 2.77644511), (121, 1.97993041)])
def test_the_interval_of_a_mean_has_students_quantile(n: int, t: float):
    values = [float(i % 3) for i in range(n)]
    assert half_width([values]) == pytest.approx(t * deviation(values) / math.sqrt(n), rel=1e-8)
    assert half_width([[1.0], [2.0]]) is None


def test_the_interval_of_groups_is_from_the_spread_within_them():
    # Squares 2 + 2 over 3 degrees of freedom; variances 1/3 and 1/2; t(0.975, 3) = 3.182446
    expected = 3.182446 * (4 / 3 * (1 / 3 + 1 / 2)) ** 0.5 / 2
    assert half_width([[1.0, 2.0, 3.0], [101.0, 103.0]]) == pytest.approx(expected, rel=1e-6)
    # A group of one adds no spread: squares 2, 1 degree of freedom, variances 1 and 1/2
    assert half_width([[1.0], [2.0, 4.0]]) == pytest.approx(12.7062047 * 3**0.5 / 2, rel=1e-8)


def test_welch_at_equal_and_unequal_variances():
    # t = -3 / sqrt(1/3 + 1/3), 4 degrees of freedom; survival in closed form
    t = -3 / math.sqrt(2 / 3)
    s = t / math.sqrt(4 + t * t)
    assert welch([1, 2, 3], [4, 5, 6]) == pytest.approx(1 - abs(s * (1 + (1 - s * s) / 2)))
    # Variances 1 and 100 over 3: t = 3.102, 2.0399 degrees of freedom
    assert welch([1.0, 2.0, 3.0], [10.0, 20.0, 30.0]) == pytest.approx(0.08783, abs=1e-4)


def test_welch_needs_two_values_and_stands_no_spread():
    assert welch([1.0], [1.0, 2.0]) is None
    assert welch([1.0, 1.0], [1.0, 1.0]) == 1
    assert welch([1.0, 1.0], [2.0, 2.0]) == 0


def test_holm_steps_down_and_never_decreases():
    adjusted = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert adjusted == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}


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
    )


def test_a_rank_correlation_and_its_interval():
    # The example of the textbooks: IQ against hours of television, -29/165.
    iq = [106, 100, 86, 101, 99, 103, 97, 113, 112, 110]
    hours = [7, 27, 2, 50, 28, 29, 20, 12, 6, 17]
    assert spearman(iq, hours) == pytest.approx(-29 / 165)
    assert spearman([1, 2, 3], [5, 5, 5]) == 0
    # tanh(atanh(0.5) -+ 1.96 sqrt(1.06 / 19))
    assert interval_of_spearman(0.5, 22) == pytest.approx((0.0858, 0.7667), abs=1e-3)
    assert interval_of_spearman(1.0, 5) is None  # five methods in one order prove little


def test_commands_start_without_scipy():
    code = (
        "import sys, lra.cli, lra.report.commands, lra.report.table; print('scipy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
