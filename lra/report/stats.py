"""Statistics of a few seeds: deviations, intervals, tests with Holm's correction, rank correlation.

scipy is imported where it is used, so that the other commands start without it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)

LEVEL = 0.05  # below it, two rows count as different


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float | None:
    """Sample standard deviation (n - 1); None for a single value."""
    if len(values) < 2:
        return None
    centre = mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1))


def welch(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Two-sided p-value of equal means at unequal variances; None with fewer than two on a side."""
    if min(len(a), len(b)) < 2:
        return None
    if len(set(a)) == len(set(b)) == 1:  # no spread at all: equal, or certainly different
        return float(a[0] == b[0])
    from scipy.stats import ttest_ind_from_stats

    moments = [x for side in (a, b) for x in (mean(side), deviation(side), len(side))]
    return float(ttest_ind_from_stats(*moments, equal_var=False).pvalue)


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Holm's step-down adjusted p-values: compare each with the level itself."""
    adjusted, floor = {}, 0.0
    for rank, key in enumerate(sorted(p_values, key=lambda k: p_values[k])):
        floor = max(floor, min(1.0, (len(p_values) - rank) * p_values[key]))
        adjusted[key] = floor
    return adjusted


def ties(samples: Mapping[Key, Sequence[float]]) -> tuple[set[Key], dict[Key, float]]:
    """The samples with the best mean (several, if it is the same), and those that do not differ
    significantly from the first of them, with their adjusted p-values. A sample of one value is not
    tested."""
    means = {key: mean(sample) for key, sample in samples.items()}
    first = max(means, key=lambda key: means[key])
    best = {key for key in means if math.isclose(means[key], means[first], abs_tol=1e-9)}
    p_values = {key: welch(samples[first], samples[key]) for key in samples if key not in best}
    tested = {key: p for key, p in p_values.items() if p is not None}
    return best, {key: p for key, p in holm(tested).items() if p >= LEVEL}


def half_width(groups: Sequence[Sequence[float]]) -> float | None:
    """Half the width of the 95 % interval of the mean of the groups' means, by Student's
    distribution, from the spread within groups; None where every group has a single value."""
    freedom = sum(len(values) - 1 for values in groups)
    if freedom == 0:
        return None
    from scipy.stats import t

    squares = math.fsum((v - mean(values)) ** 2 for values in groups for v in values)
    variance = squares / freedom * math.fsum(1 / len(values) for values in groups)
    return float(t.isf(LEVEL / 2, freedom)) * math.sqrt(variance) / len(groups)


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Rank correlation; 0 where one side has no order at all."""
    if 1 in (len(set(xs)), len(set(ys))):
        return 0.0
    from scipy.stats import spearmanr

    return float(spearmanr(xs, ys).statistic)


def interval_of_spearman(r: float, n: int) -> tuple[float, float] | None:
    """The 95 % interval of the rank correlation r of n methods, as if they were drawn at random:
    atanh(r) has the variance 1.06 / (n - 3) (Fieller, Hartley and Pearson 1957). The spread of
    seeds is not in it. None for a perfect order, whose atanh(r) is infinite."""
    if math.isclose(abs(r), 1):
        return None
    z, half = math.atanh(r), 1.96 * math.sqrt(1.06 / (n - 3))
    return math.tanh(z - half), math.tanh(z + half)


# stub until the real one lands
import dataclasses


@dataclasses.dataclass(frozen=True)
class Verdict:
    best: bool
    p: float | None
    worse: bool
    seeds_needed: int | None


NOTE = "↓: shown to be worse."


def compare_with_best(samples, answers):
    best, tied = ties(samples)
    return {
        k: Verdict(
            k in best,
            None if k in best else 0.5,
            k not in best and k not in tied and len(samples[k]) > 1,
            None,
        )
        for k in samples
    }
