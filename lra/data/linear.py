"""Rules that are linear in what they read: logistic regression for classes and for each of several
labels, ridge regression for numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from lra.data.arrays import Split
from lra.data.rounds import need_scikit_learn
from lra.metrics.answers import Answers
from lra.metrics.metric import get
from lra.metrics.target import Numbers

STRENGTHS = (0.1, 1.0, 10.0, 100.0)  # inverse regularisations of a linear rule, chosen on val
TRIGRAMS = 2**18  # columns that byte trigrams are hashed into
SURE = 10.0  # logit of a label that all training examples have

Predict = Callable[[Any], np.ndarray]  # features -> answers


def linear(features: Callable[[Split], Any]) -> Callable[..., Any]:
    """Answer from features (examples, columns), regularised as is best on val."""

    def answer(train: Split, val: Split, splits: list[Split]) -> list[np.ndarray]:
        need_scikit_learn("linear rules")
        from sklearn.exceptions import ConvergenceWarning

        metric, target = get(train.layout.metric_names[0]), train.layout.target
        inputs, on_val, labels = features(train), features(val), np.asarray(val.labels)
        with warnings.catch_warnings():  # stopping early regularises, and val decides
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitted = [_fit(inputs, train, strength) for strength in STRENGTHS]
        scores = [metric.score(Answers(predict(on_val), labels), target) for predict in fitted]
        best = 0
        for i, score in enumerate(scores):
            best = i if metric.better(score, scores[best]) else best
        return [fitted[best](features(split)) for split in splits]

    return answer


def _fit(inputs: Any, train: Split, strength: float) -> Predict:
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    labels, target, n = np.asarray(train.labels), train.layout.target, len(train)

    def fitted(model: Any, wanted: np.ndarray) -> Any:
        return make_pipeline(StandardScaler(with_mean=False), model).fit(inputs, wanted)

    def logistic(wanted: np.ndarray) -> Any:
        return fitted(LogisticRegression(C=strength / n, max_iter=200), wanted)

    if isinstance(target, Numbers):
        ridge = fitted(Ridge(alpha=n / strength), (labels - target.centre) / target.spread)
        return lambda rows: target.given(ridge.predict(rows))
    if train.layout.asks == "labels":
        models = [None if (y == y[0]).all() else logistic(y) for y in labels.T]

        def logits(rows: Any) -> np.ndarray:
            always = np.where(labels[0], SURE, -SURE)  # of a label that does not vary
            columns = [
                np.full(rows.shape[0], usual) if model is None else model.decision_function(rows)
                for model, usual in zip(models, always, strict=True)
            ]
            return np.stack(columns, 1)

        return logits
    predict: Predict = logistic(labels).predict
    return predict


# ---------------------------------------------------------------------- what they read


def pixels(split: Split) -> np.ndarray:
    return np.concatenate([ids for ids, _ in split.blocks()]).astype(np.float32) / 255


PARTS = 4  # of an example, each with features of its own


def summaries(split: Split) -> np.ndarray:
    """Features of tokens that are numbers, (examples, columns): of each channel the mean, spread,
    least and largest number and the mean size of its steps, over all tokens and over each quarter;
    and how many tokens there are."""
    rows = []
    for numbers, lengths in split.blocks():
        for x, n in zip(numbers.astype(np.float64), lengths.tolist(), strict=True):
            bounds = np.linspace(0, n, PARTS + 1).astype(int)
            parts = [x[:n], *(x[a:b] for a, b in pairwise(bounds))]
            rows.append(np.hstack([[n], *(_summary(part) for part in parts)]))
    return np.stack(rows).astype(np.float32)


def _summary(x: np.ndarray) -> np.ndarray:
    """Of numbers (n, channels), 0 where there are too few."""
    if not len(x):
        return np.zeros(5 * x.shape[1])
    steps = np.abs(np.diff(x, axis=0)).mean(0) if len(x) > 1 else np.zeros(x.shape[1])
    return np.hstack([x.mean(0), x.std(0), x.min(0), x.max(0), steps])


def counts(split: Split) -> Any:
    """Square roots of the shares of each id, which tame frequent ones."""
    return _bags(split, lambda ids: ids, split.layout.vocab)


def trigrams(split: Split) -> Any:
    def codes(ids: np.ndarray) -> np.ndarray:
        a, b, c = (ids[..., at : ids.shape[-1] - 2 + at].astype(np.int64) for at in range(3))
        mixed = (a * 65_599 + b) * 65_599 + c
        return np.where((a > 0) & (b > 0) & (c > 0), mixed % (TRIGRAMS - 1) + 1, 0)

    return _bags(split, codes, TRIGRAMS)


def _bags(split: Split, codes: Callable[[np.ndarray], np.ndarray], columns: int) -> Any:
    """Count codes, of which 0 is padding; of a pair, give the difference and the product."""
    from scipy import sparse

    def bag(ids: np.ndarray) -> Any:
        ids = codes(ids)
        row, _ = np.nonzero(ids)
        code = ids[ids > 0]
        shape = (len(ids), columns)
        bag = sparse.csr_array((np.ones(len(code), np.float32), (row, code)), shape=shape)
        bag.sum_duplicates()
        bag.data = np.sqrt(bag.data / np.repeat(bag.sum(axis=1), np.diff(bag.indptr)))
        return bag

    blocks = []
    for ids, _ in split.blocks():
        if split.layout.dual:
            first, second = bag(ids[:, 0]), bag(ids[:, 1])
            blocks.append(sparse.hstack([abs(first - second), first.multiply(second)], "csr"))
        else:
            blocks.append(bag(ids))
    return sparse.vstack(blocks, "csr")
