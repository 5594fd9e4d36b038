"""The metrics of GLUE, as the benchmark defines them.

Published tables do not say which of two metrics a column shows. `score` is their mean, as in the
LOTFormer code of the same group; both are reported beside it, so that any other convention can be
computed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from scipy.stats import rankdata
from torch import Tensor

Metric = Callable[[Tensor, Tensor], dict[str, float]]


def classified(predicted: Tensor, labels: Tensor) -> dict[str, float]:
    right = float((predicted == labels).double().mean())
    return {"accuracy": right, "score": right}


def paraphrase(predicted: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy, and F1 of class 1: 0 if it is neither present nor predicted."""
    hits = int(((predicted == 1) & (labels == 1)).sum())
    total = int((predicted == 1).sum() + (labels == 1).sum())
    accuracy = classified(predicted, labels)["score"]
    f1 = 2 * hits / total if total else 0.0
    return {"accuracy": accuracy, "f1": f1, "score": (accuracy + f1) / 2}


def acceptable(predicted: Tensor, labels: Tensor) -> dict[str, float]:
    mcc = pearson(predicted, labels)  # Matthews correlation: Pearson's of binary variables
    return {"mcc": mcc, "accuracy": classified(predicted, labels)["score"], "score": mcc}


def similarity(predicted: Tensor, labels: Tensor) -> dict[str, float]:
    r = pearson(predicted, labels)
    rho = pearson(*(torch.from_numpy(rankdata(t.numpy())) for t in (predicted, labels)))
    return {"pearson": r, "spearman": rho, "score": (r + rho) / 2}


def pearson(x: Tensor, y: Tensor) -> float:
    """Return the correlation of two variables; 0 if either is constant, where scipy has NaN."""
    x, y = (t.double() - t.double().mean() for t in (x, y))
    norm = float((x.square().sum() * y.square().sum()).sqrt())
    return float((x * y).sum()) / norm if norm > 0 else 0.0


def constant(labels: Tensor, metric: Metric) -> dict[str, float]:
    """Return the floor: the best scores of a model that gives every example the same answer."""
    answers = labels.unique() if not labels.is_floating_point() else labels.mean().view(1)
    scores = [metric(torch.full_like(labels, a.item()), labels) for a in answers]
    return max(scores, key=lambda s: s["score"])
