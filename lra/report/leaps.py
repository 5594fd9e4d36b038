"""Columns whose runs are of two kinds: those that learned to do something, and those that did not.

Where a run either leaps or stays, three seeds of one kind look like certainty, and a test of means
marks equal rows in up to half of such columns. Here the rows are compared by how many of their
seeds leapt. scripts/study/significance.py simulates both; docs/significance.md has the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

Array = np.ndarray

BETWEEN = 0.05  # the most scores that lie in the middle third of the way from one kind to the other
APART = 5.0  # the least distance of the kinds, in standard deviations of seeds of one kind
FAR = 0.25  # the least distance of the kinds, of that between a constant answer and the best score
RATES = np.linspace(0, 1, 201)[1:-1]  # chances of a leap that are tried
SAME = 1e-9  # rates k/n that are equal may differ by rounding


def two_kinds(
    samples: Sequence[Sequence[float]], *, noise: float = 0.0, floor: float | None = None
) -> float | None:
    """The score between the two kinds of runs of a column, one sample a row; None where its scores
    are not of two kinds. `noise` is that of drawing the test examples again, `floor` the score of
    the same answer to everything.

    They are, if the split with the largest variance between its sides leaves almost nothing in the
    middle, its sides are far apart beside the seeds of a row on one side, beside the noise and the
    best score, some row has seeds on both, and each side has seeds of two rows or more: a single
    row that scatters is a noisy row."""
    scores = np.sort(np.concatenate([np.asarray(values, float) for values in samples]))
    if scores[0] == scores[-1]:
        return None
    low, high = _sides(scores)
    third = (high - low) / 3
    middle = (scores > low + third) & (scores < high - third)
    stayed = [min(values) <= low + third for values in samples]
    leapt = [max(values) >= high - third for values in samples]
    both = [a and b for a, b in zip(stayed, leapt, strict=True)]
    if middle.mean() > BETWEEN or min(sum(stayed), sum(leapt)) < 2 or not any(both):
        return None
    limit, apart = (low + high) / 2, high - low
    deviation = _deviation_within(samples, limit)
    if deviation is None or apart < APART * max(deviation, noise):
        return None
    return None if floor is not None and apart < FAR * (scores[-1] - floor) else float(limit)


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


def p_fewer(leapt: Array, seeds: Array) -> Array:
    """p-values of "no row leaps more often than this one", for the rows of a column: the chance
    that the rates of *any* two rows differ by as much as this one's and the highest, if all leap
    with one chance, whichever it is. So it holds for the choice of the best row and of the one that
    is marked, and no correction comes after it. Rows that leap less often than the others only
    bring the highest rate down."""
    rates = leapt / seeds
    return np.array([chance_of_gap(seeds, gap) for gap in rates.max() - rates])


def chance_of_gap(seeds: Array, gap: float) -> float:
    """The chance that the highest and the lowest of binomial rates lie `gap` apart or more, with
    the chance of a leap that makes it largest (an exact, unconditional test)."""
    if gap <= SAME:
        return 1.0
    rows = Counter(int(n) for n in seeds)
    kinds = {n: _binomial(n) for n in rows}
    smaller = np.zeros_like(RATES)  # the chance of a smaller gap, summed over the lowest rate
    for lowest in sorted({k / n for n in rows for k in range(n + 1)}):
        at_least, above = np.ones_like(RATES), np.ones_like(RATES)
        for n, times in rows.items():
            rate = np.arange(n + 1) / n
            near = rate < lowest + gap - SAME
            at_least *= kinds[n][:, near & (rate > lowest - SAME)].sum(1) ** times
            above *= kinds[n][:, near & (rate > lowest + SAME)].sum(1) ** times
        smaller += at_least - above
    return float((1 - smaller).max())


def _binomial(n: int) -> Array:
    """The chances (RATES, n + 1) of 0 to n leaps."""
    from scipy.special import comb

    k = np.arange(n + 1)
    return comb(n, k) * RATES[:, None] ** k * (1 - RATES[:, None]) ** (n - k)
