"""Statistics against values known in closed form, from scipy or from printed tables."""

from __future__ import annotations

import math
from statistics import stdev

import numpy as np
import pytest
from scipy.stats import multivariate_t, ttest_ind

from lra.report import stats
from lra.report.stats import LEVEL, MOST_SEEDS, compare_with_best, half_width

RECALL = {  # some rows of the table `recall` with 128 pairs
    "softmax": [100.0, 100.0, 100.0],
    "rff": [94.65, 93.77, 96.92],
    "hedgehog": [80.07, 73.81, 80.23],
    "linformer": [83.88, 91.06, 28.38],
    "luna": [71.63, 69.29, 68.92],
    "nystrom": [58.42, 54.08, 46.81],
    "t2r": [72.45, 61.65, 68.83],
    "luna nonneg": [38.03, 32.42, 12.13],
    "luna2021": [3.45, 3.25, 3.26],
    "uniform": [2.96, 2.96, 2.9],
}


def verdicts(column, answers=2000):
    noise = [stats.noise_of_share(np.mean(values), answers) for values in column.values()]
    return compare_with_best([*column.values()], noise).set_axis([*column])


@pytest.mark.parametrize(("n", "t"), [(2, 12.7062047), (5, 2.77644511), (121, 1.97993041)])
def test_the_interval_of_a_mean_has_students_quantile(n: int, t: float):
    values = [float(i % 3) for i in range(n)]
    assert half_width([values]) == pytest.approx(t * stdev(values) / math.sqrt(n), rel=1e-8)
    assert math.isnan(half_width([[1.0], [2.0]]))


def test_the_interval_of_groups_is_from_the_spread_within_them():
    # Squares 2 + 2 over 3 degrees of freedom; variances 1/3 and 1/2; t(0.975, 3) = 3.182446
    expected = 3.182446 * (4 / 3 * (1 / 3 + 1 / 2)) ** 0.5 / 2
    assert half_width([[1.0, 2.0, 3.0], [101.0, 103.0]]) == pytest.approx(expected, rel=1e-6)


def test_the_prior_of_variances_by_hand():
    """Smyth (2004): with three seeds, trigamma(1) = pi^2 / 6 of the logarithms' variance is chance.
    If as much again is left, d0 = 2, and the digammas cancel: the scale is the geometric mean."""
    step = math.pi / math.sqrt(6)  # logarithms 1 -+ step have the variance pi^2 / 3
    variances = np.exp([1 - step, 1 + step])
    scale, freedom = stats.prior_of(variances, np.array([2, 2]))
    assert freedom.item() == pytest.approx(2, rel=1e-6)
    assert scale.item() == pytest.approx(math.e, rel=1e-6)
    pooled = stats.prior_of(np.array([3.0, 4.0, 5.0]), np.array([2, 2, 2]))
    assert [x.item() for x in pooled] == [4, math.inf], "no more different than by chance"


def test_dunnetts_integral_is_the_multivariate_t():
    # Squared errors 0.3 and 0.7; both with 2.9 degrees of freedom: Welch's are 5
    lead, error, of_best, freedom = np.array([2.5, 0.3, 0.7, 2.9])
    p = stats.dunnett(*map(np.array, (lead, error, of_best, freedom, freedom)), rows=4)
    shape = np.full((3, 3), 0.3) + 0.7 * np.eye(3)
    exact = multivariate_t(shape=shape, df=5).cdf([lead] * 3, random_state=0)
    assert float(p) == pytest.approx(1 - exact, abs=3e-4)


def test_two_rows_are_compared_by_welchs_test():
    # No prior from two rows; which of them is the best is chance, so that the test is two-sided
    a, b = [60.0, 65.0, 58.0, 66.0], [45.0, 59.0, 41.0, 62.0, 50.0]
    welch = ttest_ind(a, b, equal_var=False).pvalue
    assert verdicts({"a": a, "b": b}).loc["b", "p"] == pytest.approx(welch, rel=1e-3)


@pytest.mark.parametrize(("effect", "seeds"), [(0.5, 64), (0.8, 26), (1.0, 17)])
def test_seeds_that_a_difference_needs_are_those_of_cohens_tables(effect: float, seeds: int):
    """So many of each of two groups find it in 80 of 100 tries, at a level of 5 % (Cohen 1992)."""
    a = np.array([-1.0, 0, 1])  # of deviation 1
    assert stats.welch_of(a, a + effect).needs == stats.welch_of(a + effect, a).needs == seeds
    assert stats.welch_of(a, a).needs == MOST_SEEDS + 1


def test_a_large_gap_of_noisy_rows_is_marked_at_three_seeds():
    result = verdicts(RECALL, 250)
    assert result.loc["luna nonneg", "worse"], "27.5 +- 13.6 against 100.0 +- 0.0"
    assert not result.loc["linformer", "worse"], "67.8 +- 34.3"
    assert 3 < result.loc["linformer", "needs"] <= MOST_SEEDS


def test_bests_are_equal_as_printed_and_single_seeds_untested():
    result = verdicts({"a": [100.0] * 3, "b": [99.97] * 3, "one": [10.0], "c": [50.0] * 3})
    assert list(result["best"]) == [True, True, False, False]
    assert list(result["p"].isna()) == [True, True, True, False]
    assert list(result["worse"]) == [False, False, False, True], "no spread, a gap of 50 points"
    lucky = verdicts({"one": [90.0], "a": [80.0, 80.5, 81.0], "b": [20.0, 20.5, 21.0]})
    assert lucky["best"]["one"]
    assert list(lucky["worse"]) == [False, False, True]
    assert not verdicts({"a": [1.0], "b": [50.0, 51.0]})["worse"].any()


def test_a_row_exactly_at_the_level_is_not_marked(monkeypatch):
    """It says how many seeds it needs, which no marked row does."""
    monkeypatch.setattr(stats, "holm", lambda p: np.array([1.0, LEVEL]))
    row = verdicts({"a": [60.0, 61.0, 62.0], "b": [50.0, 51.0, 52.0]}).loc["b"]
    assert (row["p"], row["worse"]) == (LEVEL, False)
    assert row["needs"] >= 2


def test_equal_rows_are_rarely_marked():
    rng = np.random.default_rng(0)
    columns = rng.normal(70, rng.choice([0.5, 1, 2], (400, 12, 1)), (400, 12, 3))
    means, seeds = columns.mean(-1), np.full(12, 3)
    noise = np.full(12, 0.65)
    moderated = stats.moderated(means, columns.var(-1, ddof=1), seeds, noise)
    p = stats.p_worse(means, moderated[0], seeds, moderated[1])
    assert 0 < (12 * p.min(-1) < LEVEL).mean() < 0.08  # Holm's first step


def test_a_rank_correlation_and_its_interval():
    # The example of the textbooks: IQ against hours of television, -29/165.
    iq = [106, 100, 86, 101, 99, 103, 97, 113, 112, 110]
    hours = [7, 27, 2, 50, 28, 29, 20, 12, 6, 17]
    r, low, high = stats.rank_correlation(iq, hours)
    assert r == pytest.approx(-29 / 165)
    half = 1.96 * math.sqrt(1.06 / 7)
    assert (math.atanh(low), math.atanh(high)) == pytest.approx(
        (math.atanh(r) - half, math.atanh(r) + half)
    )
    assert stats.rank_correlation([1, 2, 3, 4], [5, 5, 5, 5])[0] == 0
    assert math.isnan(stats.rank_correlation(range(5), range(5))[1]), "five in one order"
