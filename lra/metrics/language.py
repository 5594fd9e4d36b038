"""Scores of a network that predicts the next byte."""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np

from lra.metrics.answers import Answers
from lra.metrics.metric import Metric
from lra.metrics.target import Target, losses


class OfLosses(Metric):
    """A function of the mean loss, in nats per byte. It is computed from the stored
    log-probabilities, whose mean is right."""

    targets = ("classes",)
    higher_is_better = False
    needs_log_p = True

    def score(self, answers: Answers, target: Target) -> float:
        return self.of_loss(target.loss_of(answers))

    def from_counts(self, loss: float, right: int, scored: int) -> float:
        return self.of_loss(loss)

    @abstractmethod
    def of_loss(self, nats: float) -> float:
        """Give the score of this mean loss."""

    def constant(self, train: np.ndarray, test: np.ndarray, target: Target) -> float:
        """The one answer to everything is here one distribution: how often each byte occurs in the
        training text, each counted once more so that none is impossible."""
        counts = np.bincount(train, minlength=target.outputs) + 1
        nats = -np.log(counts / counts.sum())
        return self.of_loss(float(nats[test].mean()))

    def noise(self, answers: Answers, target: Target) -> float:
        """From the spread of the losses of whole texts: neighbouring bytes are not independent."""
        nats = losses(answers)
        error, middle = answers.error_of_mean(nats), nats.mean()
        return abs(self.of_loss(middle + error) - self.of_loss(middle - error)) / 2


class BitsPerByte(OfLosses):
    name, title, digits = "bits_per_byte", "bits per byte", 3

    def of_loss(self, nats: float) -> float:
        return nats / math.log(2)


class Perplexity(OfLosses):
    """The perplexity per byte, which is not that per word."""

    name, title, digits = "perplexity", "perplexity per byte", 2

    def of_loss(self, nats: float) -> float:
        return math.exp(nats)
