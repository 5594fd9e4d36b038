"""Scores of several labels per example."""

from __future__ import annotations

import numpy as np

from lra.base.errors import UserError
from lra.metrics.answers import Answers
from lra.metrics.classes import percent
from lra.metrics.metric import Metric
from lra.metrics.target import Target


class F1(Metric):
    """2 hits / (answers + labels), over all examples and labels together (micro-averaged). A label
    is answered where its logit is above 0."""

    name, title, unit, digits = "f1", "F1", "%", 1
    targets = ("labels",)

    def score(self, answers: Answers, target: Target) -> float:
        answered = answers.answers > 0
        total = int(answered.sum()) + int(answers.labels.sum())
        hits = int((answered & (answers.labels == 1)).sum())
        return percent(2 * hits, total) if total else 0.0

    def best_constant(self, train: np.ndarray, target: Target) -> np.ndarray:
        """Answer the most frequent labels, and as many of them as is best."""
        counts = train.sum(0, dtype=np.int64)
        order = np.argsort(-counts, kind="stable")
        answers = len(train) * np.arange(1, len(counts) + 1)
        best = np.argmax(counts[order].cumsum() / (answers + counts.sum()))
        logits = np.full(len(counts), -1.0)
        logits[order[: best + 1]] = 1.0
        return logits


class AveragePrecision(Metric):
    """The area under precision over recall, without interpolation, as a mean over the labels that
    an example has (macro-averaged)."""

    name, title, unit, digits = "average_precision", "mean average precision", "%", 1
    targets = ("labels",)

    def check(self, labels: np.ndarray) -> None:
        if not labels.any():
            raise UserError("no example has a label, so that average precision says nothing")

    def score(self, answers: Answers, target: Target) -> float:
        columns = zip(answers.answers.T, answers.labels.T, strict=True)
        found = [average_precision(z, y) for z, y in columns if y.any()]
        return 100 * float(np.mean(found)) if found else 0.0


def average_precision(scores: np.ndarray, labels: np.ndarray) -> float:
    """Sum precision times the step of recall, from the highest score down; equal scores are one
    step, whatever their order."""
    order = np.argsort(-scores.astype(np.float64), kind="stable")
    scores, hits = scores[order], np.cumsum(labels[order], dtype=np.int64)
    last = np.flatnonzero(np.append(scores[1:] != scores[:-1], True))  # of each group of equals
    precision = hits[last] / (last + 1)
    steps = np.diff(hits[last], prepend=0) / hits[-1]
    return float((precision * steps).sum())
