"""The rate that trials give."""

from __future__ import annotations

import pytest

from lra.base.errors import UserError
from lra.runs.trials import Outcome, rate_of

Scores = dict[float, list[float | None]]


def outcomes(scores: Scores, higher: bool = True) -> list[Outcome]:
    return [
        Outcome(rate, 11 + i, score, "run", higher)
        for rate, of_rate in scores.items()
        for i, score in enumerate(of_rate)
    ]


@pytest.mark.parametrize(
    ("scores", "rate"),
    [
        ({0.001: [50, 50, 50], 0.01: [60, 61, 62]}, 0.01),  # the mean decides
        ({0.001: [60, 60, 60], 0.01: [60, 60, 60]}, 0.001),  # a tie: the lower
        ({0.01: [60, 60, 60], 0.001: [60, 60, 60]}, 0.001),  # in whatever order
        # The best has a standard deviation of 3, so a standard error of 1.73.
        ({0.001: [58.4] * 3, 0.01: [57, 60, 63]}, 0.001),
        ({0.001: [58.2] * 3, 0.01: [57, 60, 63]}, 0.01),
        # The spread of the lower rate does not count.
        ({0.001: [40, 57, 74], 0.01: [60, 60, 60]}, 0.01),
        ({0.001: [50, 50, 50], 0.01: [99, 99, None]}, 0.001),  # a seed diverged
        ({0.001: [50], 0.01: [50.1]}, 0.01),  # one seed has no standard error
    ],
)
def test_the_lowest_rate_within_a_standard_error_of_the_best(scores: Scores, rate: float):
    assert rate_of(outcomes(scores)) == rate


def test_a_score_may_be_better_the_lower_it_is():
    scores: Scores = {0.001: [3.0, 3.1], 0.01: [2.0, 2.1], 0.1: [None, 1.0]}
    assert rate_of(outcomes(scores, higher=False)) == 0.01


def test_if_all_diverge_there_is_no_rate():
    with pytest.raises(UserError, match="at every rate of"):
        rate_of(outcomes({0.1: [None, 3.0], 1.0: [None, None]}))
