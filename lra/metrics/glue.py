"""The scores of GLUE, as the benchmark defines them; luna/convert/tasks/metrics.py trains by the
same formulas on tensors. Where GLUE prints two metrics, the score is their mean."""

from __future__ import annotations

import numpy as np

from lra.metrics.answers import Answers
from lra.metrics.classes import percent
from lra.metrics.metric import Metric
from lra.metrics.numbers import NeedsSpread, correlation, ranks
from lra.metrics.target import Target


class AccuracyF1(Metric):
    """The mean of accuracy and the F1 of class 1: 0 if it is neither present nor answered."""

    name, title, unit, digits = "accuracy_f1", "mean of accuracy and F1", "%", 1
    targets = ("classes",)

    def score(self, answers: Answers, target: Target) -> float:
        answered, is_one = answers.answers == 1, answers.labels == 1
        total = int(answered.sum()) + int(is_one.sum())
        f1 = percent(2 * int((answered & is_one).sum()), total) if total else 0.0
        return (percent(int(answers.right.sum()), len(answers)) + f1) / 2


class Matthews(Metric):
    """100 times Matthews' correlation: Pearson's of two variables that are 0 or 1."""

    name, title, digits = "matthews", "Matthews' correlation x 100", 1
    targets = ("classes",)

    def score(self, answers: Answers, target: Target) -> float:
        answered, labels = (x.astype(np.float64) for x in (answers.answers, answers.labels))
        return 100 * correlation(answered, labels)


class PearsonSpearman(NeedsSpread):
    """100 times the mean of the correlation of values and that of ranks."""

    name, title, digits = "pearson_spearman", "mean of Pearson and Spearman x 100", 1

    def of_column(self, answers: np.ndarray, labels: np.ndarray) -> float:
        of_ranks = correlation(ranks(answers), ranks(labels))
        return 100 * (correlation(answers, labels) + of_ranks) / 2
