"""Scores of classes."""

from __future__ import annotations

import numpy as np

from lra.metrics.answers import Answers
from lra.metrics.metric import Metric
from lra.metrics.target import Target


class Accuracy(Metric):
    """The share of right answers: of examples, or of their scored tokens."""

    name, title, unit, digits = "accuracy", "accuracy", "%", 1
    targets = ("classes",)

    def score(self, answers: Answers, target: Target) -> float:
        return percent(int(answers.right.sum()), len(answers))

    def from_counts(self, loss: float, right: int, scored: int) -> float:
        return percent(right, scored)

    def best_constant(self, train: np.ndarray, target: Target) -> np.ndarray:
        return np.asarray(np.bincount(train.astype(np.int64)).argmax())

    def noise(self, answers: Answers, target: Target) -> float:
        return 100 * answers.error_of_mean(answers.right.astype(float))


def percent(right: int, n: int) -> float:
    """100 times before the division: 291 of 2,000 are 14.55, and not 14.549999999999999."""
    return 100 * right / n
