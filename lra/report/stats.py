"""Statistics of a few seeds: which rows of a column are worse than its best, intervals of means,
rank correlation. docs/significance.md says why these. scipy and statsmodels are imported where they
are used, so that the other commands start without them."""

from __future__ import annotations

import bisect
import dataclasses
import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from statistics import fmean as mean
from typing import TypeVar

import numpy as np

from lra.report import significance
from lra.report.significance import Array

Key = TypeVar("Key", bound=Hashable)

LEVEL = 0.05  # the chance of a wrong mark anywhere in a column
POWER = 0.8  # the chance of a mark that `seeds_needed` asks for
MOST_SEEDS = 100  # `seeds_needed` is one more where even these are too few
ANSWERS = 1000  # test answers assumed where a record does not say how many there are
NOTE = (
    "↓ marks a row that is worse than the best of its column; chance alone puts such a mark "
    "anywhere into at most 5 of 100 columns. A row without it may be as good as the best or worse: "
    "these seeds cannot tell, and where a number is given, about so many seeds per row would."
)


@dataclasses.dataclass(frozen=True)
class Verdict:
    best: bool  # has the highest mean, as printed
    p: float | None = None  # adjusted by Holm's method; None for the best and for single seeds
    worse: bool = False  # p < LEVEL
    seeds_needed: int | None = None  # of a row that is tested and not marked


def compare_with_best(
    samples: Mapping[Key, Sequence[float]], answers: Mapping[Key, int | None]
) -> dict[Key, Verdict]:
    """Test every row of a column, one score in percent per seed, against the best mean of those
    with two seeds or more; `answers` are the independent test examples behind each score."""
    printed = {key: round(mean(values), 1) for key, values in samples.items()}
    best = {key for key in samples if printed[key] == max(printed.values())}
    verdicts = {key: Verdict(key in best) for key in samples}
    keys = [key for key, values in samples.items() if len(values) > 1]
    if len(keys) < 2:
        return verdicts
    from statsmodels.stats.multitest import multipletests

    means = np.array([mean(samples[key]) for key in keys])
    seeds = np.array([len(samples[key]) for key in keys])
    spread = np.array([statistics.variance(samples[key]) for key in keys])
    variances, shared = significance.moderated(
        means, spread, seeds, [answers[key] or ANSWERS for key in keys]
    )
    p_values = significance.p_worse(means, variances, seeds, shared)
    adjusted = multipletests(p_values, method="holm")[1]
    first, unmarked = int(means.argmax()), int((adjusted >= LEVEL).sum())
    for i, key in enumerate(keys):
        if key in best or i == first:
            continue
        worse, needed = bool(adjusted[i] < LEVEL), None
        if not worse:
            pair = means[[i, first]], variances[[i, first]]
            needed = _seeds_needed(*pair, shared.item(), len(keys), LEVEL / unmarked)
        verdicts[key] = Verdict(False, float(adjusted[i]), worse, needed)
    return verdicts


def _seeds_needed(
    means: Array, variances: Array, shared: float, rows: int, threshold: float
) -> int:
    """About how many seeds of both rows would give `POWER`, if these are their true means and
    variances, and p has to be below this threshold."""
    from scipy.special import stdtrit

    def enough(seeds: int) -> bool:
        error, of_best = variances / seeds
        freedom = np.array(shared + seeds - 1)
        welch = (error + of_best) ** 2 * freedom / (error**2 + of_best**2)
        unlucky = means[1] - means[0] + stdtrit(welch, 1 - POWER) * math.sqrt(error + of_best)
        p = significance.dunnett(unlucky, error, of_best, freedom, freedom, rows)
        return float(p) < threshold

    return bisect.bisect_left(range(MOST_SEEDS + 1), True, lo=2, key=enough)


def deviation(values: Sequence[float]) -> float | None:
    """Sample standard deviation (n - 1); None for a single value."""
    if len(values) < 2:
        return None
    centre = mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1))


def half_width(groups: Sequence[Sequence[float]]) -> float:
    """Half the width of the 95 % interval of the mean of the groups' means, by Student's
    distribution, from the spread within groups; not a number where all groups are single values."""
    freedom = sum(len(values) - 1 for values in groups)
    if freedom == 0:
        return math.nan
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
