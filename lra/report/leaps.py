"""Columns whose runs may leap: some learned to do something, others did not, or not yet.

There seeds do not scatter about one value, so that three of one kind look like certainty, and a
test of means marks equal rows in up to half of such columns. So a mark needs a second test, which
asks nothing of how scores are distributed: scores are dealt out to the rows again and again.
The study has a simulation of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

Array = np.ndarray

BETWEEN = 0.05  # the most scores that lie in the middle third of the way from one kind to the other
APART = 5.0  # the least gap of a leap, in standard deviations
FAR = 0.25  # the least distance of the kinds, of that between a constant answer and the best score
DEALS = 1999  # how often the scores of a column are dealt out; with the true one 2,000


# ---------------------------------------------------------------------- columns that may hold leaps


def may_hold_leaps(samples: Sequence[Sequence[float]], noise: Array) -> bool:
    """Whether two seeds of a row lie further apart than drawing the test examples again explains
    (`noise`, one a row), with seeds of two rows or more on both sides of this gap. A single row on
    one side is a noisy row, which the test of means judges by its own variance."""
    least, most = (np.array([f(values) for values in samples]) for f in (min, max))
    for values in samples:
        scores = np.sort(np.asarray(values, float))
        gaps = np.diff(scores)
        for i in np.flatnonzero(gaps > APART * np.max(noise)):
            middle = (scores[i] + scores[i + 1]) / 2
            if min((least < middle).sum(), (most > middle).sum()) > 1:
                return True
    return False


def p_lower(samples: Sequence[Sequence[float]]) -> Array:
    """p-values of "this row is no lower than those above it", for the rows of a column: how often a
    row is as low if all scores of the column are dealt out anew. So it holds whatever the scores
    look like, as long as equal rows draw from one distribution, and for the lowest of all rows.

    A row is as low as its mean rank is below that of the best k rows, in standard errors, for the k
    that makes this largest: k = 1 finds a single winner, all other rows find a single loser."""
    sizes = np.array([len(values) for values in samples])
    row = np.repeat(np.arange(len(sizes)), sizes)
    ranks = pd.Series(np.concatenate([np.asarray(v, float) for v in samples])).rank().to_numpy()
    member = (row[:, None] == np.arange(len(sizes))).astype(float)  # (scores, rows)
    rng = np.random.default_rng(0)  # the same column always gives the same values
    dealt = rng.permuted(np.broadcast_to(ranks, (DEALS, len(ranks))), axis=1)
    lowest = _how_low(dealt @ member, sizes).max(-1)  # (deals,)
    found = _how_low((ranks @ member)[None], sizes)[0]  # (rows,)
    return (1 + (lowest[:, None] >= found - 1e-9).sum(0)) / (1 + DEALS)


def _how_low(sums: Array, sizes: Array) -> Array:
    """By how many standard errors each row lies below the best rows (columns, rows)."""
    order = np.argsort(-sums / sizes, axis=-1, kind="stable")
    ranked, n = np.take_along_axis(sums, order, -1), sizes[order]
    means, best, seeds = ranked / n, ranked.cumsum(-1), n.cumsum(-1)
    errors = np.full(means.shape, -np.inf)
    for k in range(1, len(sizes)):  # the best k against each of the others
        above = (best / seeds)[:, k - 1, None] - means[:, k:]
        above /= np.sqrt(1 / seeds[:, k - 1, None] + 1 / n[:, k:])
        np.maximum(errors[:, k:], above, out=errors[:, k:])
    low = np.empty_like(means)
    np.put_along_axis(low, order, errors, -1)
    return low


# ---------------------------------------------------------------------- two kinds of runs


@dataclass(frozen=True)
class Kinds:
    """The mean scores of runs that stayed, and of those that leapt."""

    low: float
    high: float

    @property
    def limit(self) -> float:
        return (self.low + self.high) / 2

    def between(self, scores: Array) -> Array:
        """Which scores lie in the middle third of the way."""
        third = (self.high - self.low) / 3
        return (scores > self.low + third) & (scores < self.high - third)

    def has_both(self, scores: Sequence[float]) -> bool:
        """Whether runs of a row are of both kinds, and none is on its way."""
        array = np.asarray(scores, float)
        return bool(array.min() < self.limit < array.max() and not self.between(array).any())


def two_kinds(
    samples: Sequence[Sequence[float]], *, noise: float = 0.0, floor: float | None = None
) -> Kinds | None:
    """The two kinds of runs of a column, one sample a row; None where its scores are not of two
    kinds. `noise` is that of drawing the test examples again, `floor` the score of the same answer
    to everything.

    They are, if the split with the largest variance between its sides leaves almost nothing in the
    middle, its sides are far apart beside the seeds of a row on one side, beside the noise and the
    best score, some row has seeds on both, and each side has seeds of two rows or more: a single
    row that scatters is a noisy row."""
    scores = np.sort(np.concatenate([np.asarray(values, float) for values in samples]))
    if scores[0] == scores[-1]:
        return None
    kinds = Kinds(*_sides(scores))
    stayed = sum(min(values) < kinds.limit for values in samples)
    leapt = sum(max(values) > kinds.limit for values in samples)
    mixed = any(kinds.has_both(values) for values in samples)
    if kinds.between(scores).mean() > BETWEEN or min(stayed, leapt) < 2 or not mixed:
        return None
    deviation, apart = _deviation_within(samples, kinds.limit), kinds.high - kinds.low
    if deviation is None or apart < APART * max(deviation, noise):
        return None
    return None if floor is not None and apart < FAR * (scores[-1] - floor) else kinds


def _sides(scores: Array) -> tuple[float, float]:
    """The means of both sides of the best split of sorted scores (Otsu 1979)."""
    n, sums = len(scores), scores.cumsum()
    left = np.arange(1, n)
    low, high = sums[:-1] / left, (sums[-1] - sums[:-1]) / (n - left)
    between = left * (n - left) * (high - low) ** 2
    best = np.where(scores[1:] > scores[:-1], between, -1).argmax()
    return float(low[best]), float(high[best])


def _deviation_within(samples: Sequence[Sequence[float]], limit: float) -> float | None:
    """The standard deviation of the seeds of a row on one side of the limit; None where no row has
    two there."""
    squares, freedom = 0.0, 0
    for values in samples:
        row = np.asarray(values, float)
        for side in (row[row < limit], row[row >= limit]):
            if len(side):
                squares += float(np.square(side - side.mean()).sum())
                freedom += len(side) - 1
    return (squares / freedom) ** 0.5 if freedom else None
