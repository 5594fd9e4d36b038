"""The metrics of GLUE, as the benchmark defines them.

Published tables do not say which of two metrics a column shows. `score` is their mean, as in the
LOTFormer code of the same group; both are reported beside it, so that any other convention can be
computed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    return float((predicted == labels).double().mean())


def f1(predicted: Tensor, labels: Tensor) -> float:
    """The F1 score of class 1; 0 if it is neither present nor predicted."""
    hits = int(((predicted == 1) & (labels == 1)).sum())
    total = int((predicted == 1).sum() + (labels == 1).sum())
    return 2 * hits / total if total else 0.0


def pearson(x: Tensor, y: Tensor) -> float:
    """The correlation of two variables; 0 if either is constant."""
    x, y = (t.double() - t.double().mean() for t in (x, y))
    norm = float((x.square().sum() * y.square().sum()).sqrt())
    return float((x * y).sum()) / norm if norm > 0 else 0.0


def spearman(x: Tensor, y: Tensor) -> float:
    """The correlation of ranks; equal values share the mean of theirs."""
    return pearson(_ranks(x), _ranks(y))


def _ranks(x: Tensor) -> Tensor:
    _, place, counts = x.double().unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()  # of each group of equal values, counted from 1
    return (last - (counts.double() - 1) / 2)[place]


def classified(predicted: Tensor, labels: Tensor) -> dict[str, float]:
    right = accuracy(predicted, labels)
    return {"accuracy": right, "score": right}


def paraphrase(predicted: Tensor, labels: Tensor) -> dict[str, float]:
    both = {"accuracy": accuracy(predicted, labels), "f1": f1(predicted, labels)}
    return both | {"score": (both["accuracy"] + both["f1"]) / 2}


def acceptable(predicted: Tensor, labels: Tensor) -> dict[str, float]:
    mcc = pearson(predicted, labels)  # Matthews correlation: Pearson's of binary variables
    return {"mcc": mcc, "accuracy": accuracy(predicted, labels), "score": mcc}


def similarity(predicted: Tensor, labels: Tensor) -> dict[str, float]:
    both = {"pearson": pearson(predicted, labels), "spearman": spearman(predicted, labels)}
    return both | {"score": (both["pearson"] + both["spearman"]) / 2}


Metric = Callable[[Tensor, Tensor], dict[str, float]]


def constant(labels: Tensor, metric: Metric) -> dict[str, float]:
    """The floor: the best scores of a model that gives every example the same answer."""
    answers = labels.unique() if not labels.is_floating_point() else labels.mean().view(1)
    scores = [metric(torch.full_like(labels, a.item()), labels) for a in answers]
    return max(scores, key=lambda s: s["score"])
