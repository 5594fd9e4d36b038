"""Rules that are not linear in what they read: gradient boosting (rounds.py) on whole numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lra.data.arrays import Layout, Split
from lra.data.rounds import MOST, need_scikit_learn, trees
from lra.metrics.answers import Answers
from lra.metrics.metric import get

WIDEST = 512  # tokens of a vocabulary that is counted: a column for each
MOST_OUTPUTS = 16  # of trees, one of which is grown for each in every round
PATCH = 4  # pixels, the side of a patch; half of it in pictures of 8 x 8
READ = 4096  # examples at once


def suits(layout: Layout) -> bool:
    """Whether an ensemble on tallies or patches is fitted in about a minute."""
    return layout.classes <= MOST_OUTPUTS and layout.vocab <= WIDEST


def by_boosting(read: Callable[[Split], np.ndarray]) -> Callable[..., Any]:
    """Answer from columns (examples, columns); the number of rounds is the best on val."""

    def answer(train: Split, val: Split, splits: list[Split]) -> list[np.ndarray]:
        need_scikit_learn("boosted trees")  # before what is read, which takes longer
        target, labels = train.layout.target, np.asarray(val.labels)
        metric = get(train.layout.metric_names[0])

        def score(answers: np.ndarray) -> float:
            given = metric.score(Answers(answers, labels), target)
            return -math.inf if math.isnan(given) else metric.sign * given

        train = train.first(MOST)
        parts = [read(split) for split in (train, val, *splits)]
        return trees(target, parts, np.asarray(train.labels), score)[1:]

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
