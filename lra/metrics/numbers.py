"""Scores of numbers. Of several numbers per example a score is the mean over them."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from lra.base.errors import UserError
from lra.metrics.answers import Answers
from lra.metrics.metric import Metric
from lra.metrics.target import Target


class OfNumbers(Metric):
    """The mean over columns of one function of (answers, labels), both (n,) float64."""

    targets = ("numbers",)

    def score(self, answers: Answers, target: Target) -> float:
        a, y = (
            x.astype(np.float64).reshape(len(answers), -1)
            for x in (answers.answers, answers.labels)
        )
        columns = zip(a.T, y.T, strict=True)
        return float(np.mean([self.of_column(x, truth) for x, truth in columns]))

    @abstractmethod
    def of_column(self, answers: np.ndarray, labels: np.ndarray) -> float:
        """Give the score of one column."""


class NeedsSpread(OfNumbers):
    """What compares answers with how much the labels vary."""

    def check(self, labels: np.ndarray) -> None:
        columns = labels.reshape(len(labels), -1)
        constant = np.flatnonzero((columns == columns[:1]).all(0))
        if len(constant):
            raise UserError(
                f"all targets are {columns[0, constant[0]]:g}, so that {self.title} says nothing: "
                "use rmse or mae"
            )


class R2(NeedsSpread):
    """1 - squared errors / squared deviations of the labels from their mean: 0 for their mean."""

    name, title = "r2", "R2"

    def of_column(self, answers: np.ndarray, labels: np.ndarray) -> float:
        deviations = np.square(labels - labels.mean()).sum()
        if deviations == 0:  # of a few labels that were drawn again
            return 0.0
        return float(1 - np.square(answers - labels).sum() / deviations)


class RMSE(OfNumbers):
    """The root of the mean squared error."""

    name, title, higher_is_better = "rmse", "RMSE", False

    def of_column(self, answers: np.ndarray, labels: np.ndarray) -> float:
        return float(np.sqrt(np.square(answers - labels).mean()))


class MAE(OfNumbers):
    """The mean absolute error."""

    name, title, higher_is_better = "mae", "MAE", False

    def of_column(self, answers: np.ndarray, labels: np.ndarray) -> float:
        return float(np.abs(answers - labels).mean())


class Pearson(NeedsSpread):
    """100 times the correlation, as GLUE prints it; 0 where all answers are equal."""

    name, title, digits = "pearson", "Pearson's r x 100", 1

    def of_column(self, answers: np.ndarray, labels: np.ndarray) -> float:
        return 100 * correlation(answers, labels)


class Spearman(NeedsSpread):
    """100 times the correlation of ranks; equal values share the mean of theirs."""

    name, title, digits = "spearman", "Spearman's rho x 100", 1

    def of_column(self, answers: np.ndarray, labels: np.ndarray) -> float:
        return 100 * correlation(ranks(answers), ranks(labels))


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson's; 0 where one side does not vary, and scipy has NaN."""
    if (x == x[0]).all() or (y == y[0]).all():  # whose mean need not be x[0] exactly
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / np.sqrt(np.square(x).sum() * np.square(y).sum()))


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1; equal values share the mean of theirs. scipy.stats takes a second to import."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + 1 + last) / 2)[place]
