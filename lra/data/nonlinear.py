"""Rules that are not linear in what they read: gradient boosting (boosting.py) on whole numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lra.data.arrays import Layout, Split
from lra.data.boosting import MOST, Kind, boosted
from lra.metrics.answers import Answers
from lra.metrics.metric import get
from lra.metrics.target import Numbers, Target

WIDEST = 512  # tokens of a vocabulary that is counted: a column for each
MOST_OUTPUTS = 16  # logits of an ensemble, which grows a tree for each in every round
PATCH = 4  # pixels, the side of a patch; half of it in pictures of 8 x 8
READ = 4096  # examples at once


def suits(layout: Layout) -> bool:
    """Whether an ensemble on tallies or patches is fitted in about a minute."""
    return layout.classes <= MOST_OUTPUTS and layout.vocab <= WIDEST


def kind_of(layout: Layout) -> Kind:
    two = layout.asks == "classes" and layout.classes == 2
    return Kind(layout.asks, 1 if two else layout.classes)


def wanted(labels: np.ndarray, target: Target) -> np.ndarray:
    """Give labels as an ensemble is fitted to them: numbers in units of their spread."""
    if isinstance(target, Numbers):
        return (labels.astype(np.float64) - target.centre) / target.spread
    return labels.astype(np.int64)


def given(outputs: np.ndarray, labels: np.ndarray, target: Target) -> np.ndarray:
    """Turn what an ensemble answers into answers like these labels."""
    if isinstance(target, Numbers):
        return target.given(outputs).reshape(labels.shape)
    return outputs


def by_boosting(read: Callable[[Split], np.ndarray]) -> Callable[..., Any]:
    """Answer from columns (examples, columns); the number of trees is the best on val."""

    def answer(train: Split, val: Split, splits: list[Split]) -> list[np.ndarray]:
        layout, target = train.layout, train.layout.target
        metric, labels = get(layout.metric_names[0]), np.asarray(val.labels)

        def score(outputs: np.ndarray) -> float:
            return metric.sign * metric.score(
                Answers(given(outputs, labels, target), labels), target
            )

        train = train.first(MOST)
        parts = [read(split) for split in (train, val, *splits)]
        fitted = boosted(kind_of(layout), parts, wanted(np.asarray(train.labels), target), score)
        return [
            given(outputs, np.asarray(split.labels), target)
            for outputs, split in zip(fitted[1:], splits, strict=True)
        ]

    return answer


# ---------------------------------------------------------------------- what they read


def tallies(split: Split) -> np.ndarray:
    """Count the tokens of each example (n, vocab - 1); of a pair, give how far both counts are
    apart, and the smaller one."""
    layout = split.layout
    parts = []
    for start in range(0, len(split), READ):
        ids = split.ids(np.arange(start, min(start + READ, len(split))))
        counts = tally(ids.reshape(-1, split.width), layout.vocab)[:, 1:]
        if layout.dual:
            a, b = counts[::2], counts[1::2]
            counts = np.hstack([abs(a - b), np.minimum(a, b)])
        parts.append(counts)
    return np.concatenate(parts)


def tally(ids: np.ndarray, vocab: int) -> np.ndarray:
    """Count how often each id occurs in each row: (rows, vocab)."""
    row = np.arange(len(ids))[:, None] * vocab
    return np.bincount((row + ids).ravel(), minlength=len(ids) * vocab).reshape(len(ids), vocab)


def patches(split: Split) -> np.ndarray:
    """Read the mean of each patch, and how far its pixels lie apart: (n, 2 patches)."""
    assert split.layout.grid is not None
    rows, columns = split.layout.grid
    side = PATCH if min(rows, columns) >= 4 * PATCH else PATCH // 2
    parts = []
    for ids, _ in split.blocks():
        pixels = ids.reshape(-1, rows, columns)[:, : rows // side * side, : columns // side * side]
        blocks = pixels.reshape(-1, rows // side, side, columns // side, side).astype(np.int64)
        total, highest, lowest = (f(axis=(2, 4)) for f in (blocks.sum, blocks.max, blocks.min))
        parts.append(np.stack([total, highest - lowest], 1).reshape(len(ids), -1))
    return np.concatenate(parts)
