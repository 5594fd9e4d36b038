"""Statistics of a few seeds: which rows of a column are worse than its best, intervals of means,
rank correlation. The study says why these. Only scipy.special is imported, and where it
is used: statsmodels and scipy.stats take longer to import than a table takes to be made."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from lra.report.leaps import may_hold_leaps, p_lower

Array = np.ndarray

LEVEL = 0.05  # the chance of a wrong mark anywhere in a column
POWER = 0.8  # the chance of a mark that `needs` asks for
MOST_SEEDS = 100  # `needs` is one more where even these are too few
ANSWERS = 1000  # test answers assumed where a record does not say how many there are
LEAST_SEEDS = 3  # of a row that is compared: two that leapt by chance look like certainty
NOTE = (
    "↓ marks a row that is shown to be worse than the best of its column; chance alone puts such a "
    "mark into about 5 of 100 columns at most. A row without a mark may be as good as the best or "
    "worse: these seeds cannot tell. A number says about how many seeds per row would."
)
FEW = "rows of fewer than three seeds are not compared, because their differences may be chance."
LEAPS = (
    "On {column} seeds of one row lie far apart, as where some runs leap and others do not. A row "
    "is marked there only if that holds, too, when all scores are dealt out to the rows at random."
)
KINDS = "On {column} runs are of two kinds, below and above {limit}. A row of both shows its seeds."
MOST_SHARED = 4.0  # degrees of freedom that a row's variance takes from the other rows at most
NORMAL, NORMAL_WEIGHTS = np.polynomial.hermite_e.hermegauss(24)  # of a normal variable
_X, _WEIGHTS = np.polynomial.legendre.leggauss(24)
TAIL = ((_X + 1) / 2) ** 4  # probabilities, dense near 0: small estimates of the error decide
TAIL_WEIGHTS = 2 * ((_X + 1) / 2) ** 3 * _WEIGHTS


def compare_with_best(
    samples: Sequence[Sequence[float]],
    noise: Sequence[float],
    *,
    digits: int = 1,
    needs: bool = True,
) -> pd.DataFrame:
    """Test every row of a column, one score per seed, of which higher is better, against the best
    of those with LEAST_SEEDS or more. `noise` says by how much drawing the test examples again
    moves the scores of a row (`noise_of_share`): their standard deviation is never taken to be
    smaller.

    best:  the row has the highest mean, as printed
    p:     corrected for the number of rows; none for the best and for rows of few seeds
    worse: p < LEVEL
    needs: about how many seeds per row would be needed, of a row that is tested and not worse,
           where that is asked for and known
    leaps: whether the column may hold leaps, and p is the larger of two tests (leaps.py)
    """
    least = np.asarray(noise, float)
    means = np.array([math.fsum(values) / len(values) for values in samples])
    best = np.array([round(mean, digits) == round(means.max(), digits) for mean in means])
    verdicts = pd.DataFrame({"best": best, "p": np.nan, "worse": False, "needs": np.nan})
    left = [i for i, values in enumerate(samples) if len(values) >= LEAST_SEEDS]
    verdicts["leaps"] = leaps = may_hold_leaps([samples[i] for i in left], least[left])
    marked_at = 0.0  # the largest p so far: a row that is tested later has no smaller one
    while len(left) > 1:
        of_left = [samples[i] for i in left]
        column = _by_means(of_left, least[left], needs=needs and not leaps)
        if leaps:
            column["p"] = np.maximum(column["p"], p_lower(of_left))
        column["p"] = column["p"].clip(lower=marked_at)
        column.index = pd.Index(left)
        tested = column[~best[left] & column["p"].notna()]
        verdicts.loc[tested.index, ["p", "needs"]] = tested[["p", "needs"]]
        worse = [i for i in left if i in tested.index and tested["p"][i] < LEVEL]
        verdicts.loc[worse, "worse"] = True
        if not leaps or not worse:
            break
        # The worse rows are found; without them the others may hold no leaps.
        marked_at = tested["p"][worse].max()
        left = [i for i in left if i not in worse]
        leaps = may_hold_leaps([samples[i] for i in left], least[left])
    return verdicts


def _by_means(samples: Sequence[Sequence[float]], noise: Array, *, needs: bool) -> pd.DataFrame:
    """Test each row against the best: `p` by Dunnett's and Holm's methods, none of the best."""
    seeds = np.array([len(values) for values in samples])
    means = np.array([math.fsum(values) / len(values) for values in samples])
    spread = np.array([np.var(values, ddof=1) for values in samples])
    variances, shared = moderated(means, spread, seeds, noise)
    p = holm(p_worse(means, variances, seeds, shared))
    first, unmarked = int(means.argmax()), int((p >= LEVEL).sum())
    column = pd.DataFrame({"p": p, "needs": np.nan})
    column.loc[first, "p"] = np.nan
    if needs:
        for i in range(len(means)):
            if i == first or p[i] < LEVEL:
                continue
            pair = means[[i, first]], variances[[i, first]]
            number = _seeds_needed(*pair, shared.item(), len(means), LEVEL / unmarked)
            column.loc[i, "needs"] = max(number, LEAST_SEEDS)
    return column


class Welch(NamedTuple):
    """Welch's two-sided test of two means, with the 95 % interval of their difference."""

    difference: float
    p: float
    low: float
    high: float
    needs: int  # about how many seeds of each side would show such a difference


def welch_of(a: Sequence[float], b: Sequence[float]) -> Welch:
    """The mean of `a` minus that of `b`, two scores or more each."""
    from scipy.special import nctdtr, stdtr, stdtrit

    variances = [float(np.var(side, ddof=1)) for side in (a, b)]
    difference = float(np.mean(a) - np.mean(b))

    def error_and_freedom(*seeds: int) -> tuple[float, float]:
        errors = [variance / n for variance, n in zip(variances, seeds, strict=True)]
        parts = [error**2 / (n - 1) for error, n in zip(errors, seeds, strict=True)]
        return math.sqrt(sum(errors)), sum(errors) ** 2 / sum(parts)

    def enough(seeds: int) -> bool:  # if these are the true means and variances
        error, freedom = error_and_freedom(seeds, seeds)
        limit = stdtrit(freedom, 1 - LEVEL / 2)
        return float(1 - nctdtr(freedom, abs(difference) / error, limit)) > POWER

    error, freedom = error_and_freedom(len(a), len(b))
    half = float(stdtrit(freedom, 1 - LEVEL / 2)) * error
    p = 2 * float(stdtr(freedom, -abs(difference) / error))
    needs = 2 + bisect.bisect_left(range(2, MOST_SEEDS + 1), True, key=enough)
    return Welch(difference, p, difference - half, difference + half, needs)


def noise_of_share(percent: float, answers: float) -> float:
    """The noise of a percentage of independent answers. Of none or all of them, one more or less
    could have been right."""
    least = 1 / (answers + 2)
    share = min(max(percent / 100, least), 1 - least)
    return 100 * math.sqrt(share * (1 - share) / answers)


def holm(p: Sequence[float] | Array) -> Array:
    """Adjust p-values for their number by Holm's method."""
    p, order = np.asarray(p), np.argsort(p)
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1)
    return adjusted


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
        p = dunnett(unlucky, error, of_best, freedom, freedom, rows)
        return float(p) < threshold

    return bisect.bisect_left(range(MOST_SEEDS + 1), True, lo=2, key=enough)


# ---------------------------------------------------------------------- tests of many columns
# Arrays are (..., rows), so that many columns are tested at once.


def moderated(means: Array, variances: Array, seeds: Array, noise: Array) -> tuple[Array, Array]:
    """Variances between seeds (..., rows), raised where they came out small by chance, and the
    degrees of freedom that each takes from the other rows (..., 1).

    A variance is counted in the least that it can be, that of drawing the test examples again.
    These dispersions are squeezed towards a common one, and none is made smaller."""
    least = np.maximum(np.square(noise), np.finfo(float).tiny)  # of answers that are all right
    dispersion = np.maximum(variances / least, 1)
    freedom = np.broadcast_to(seeds - 1, means.shape)
    prior, prior_freedom = prior_of(dispersion, freedom)
    rows = means.shape[-1]  # the prior of a few rows is little known
    shared = np.minimum(prior_freedom, min(MOST_SHARED, max(0, rows - 3) / 4))
    squeezed = (shared * prior + freedom * dispersion) / (shared + freedom)
    return least * np.maximum(squeezed, dispersion), shared


def prior_of(variances: Array, freedom: Array) -> tuple[Array, Array]:
    """The scaled inverse chi-squared distribution from which variances (..., rows) come: its scale
    and degrees of freedom, by the moments of their logarithms (Smyth 2004, section 6.2)."""
    from scipy.special import polygamma, psi

    logs = np.log(variances) - psi(freedom / 2) + np.log(freedom / 2)
    excess = logs.var(-1, ddof=1, keepdims=True)
    excess = excess - polygamma(1, freedom / 2).mean(-1, keepdims=True)
    target = np.maximum(excess, 1e-9)
    half = 0.5 + 1 / target
    for _ in range(20):  # Newton's method for polygamma(1, half) = target
        value = polygamma(1, half)
        half = half + value * (1 - value / target) / polygamma(2, half)
    scale = np.exp(logs.mean(-1, keepdims=True) + psi(half) - np.log(half))
    equal = excess <= 0  # they differ no more than by chance
    scale = np.where(equal, variances.mean(-1, keepdims=True), scale)
    return scale, np.where(equal, np.inf, 2 * half)


def p_worse(means: Array, variances: Array, seeds: Array, shared: Array) -> Array:
    """p-values (..., rows) of "no row is better than this one" against the best mean."""
    first = means.argmax(-1)[..., None]
    error, freedom = variances / seeds, shared + seeds - 1
    of_best, freedom_of_best = (np.take_along_axis(a, first, -1) for a in (error, freedom))
    difference = np.take_along_axis(means, first, -1) - means
    p = dunnett(difference, error, of_best, freedom, freedom_of_best, means.shape[-1])
    np.put_along_axis(p, first, 1.0, -1)
    return p


def dunnett(
    difference: Array,
    error: Array,
    of_best: Array,
    freedom: Array,
    freedom_of_best: Array,
    rows: int,
) -> Array:
    """The chance that the best of `rows` - 1 equally good others leads a row by this difference:
    Dunnett's (1955) integral over the row's own error and the estimate of the standard error, with
    Welch's degrees of freedom. `error` and `of_best` are squared standard errors."""
    from scipy.special import chdtri, ndtr

    total = error + of_best
    welch = total**2 / (error**2 / freedom + of_best**2 / freedom_of_best)
    scale = np.sqrt(chdtri(welch[..., None], 1 - TAIL) / welch[..., None])
    t = (difference / np.sqrt(total))[..., None] * scale
    shift = np.sqrt(error / of_best)[..., None, None] * NORMAL
    below = ndtr(t[..., None] * np.sqrt(total / of_best)[..., None, None] + shift) ** (rows - 1)
    return 1 - (below @ NORMAL_WEIGHTS / NORMAL_WEIGHTS.sum()) @ TAIL_WEIGHTS


# ---------------------------------------------------------------------- intervals


def half_width(groups: Sequence[Sequence[float]]) -> float:
    """Half the width of the 95 % interval of the mean of the groups' means, by Student's
    distribution, from the spread within groups; nan where every group has a single value."""
    freedom = sum(len(values) - 1 for values in groups)
    if freedom == 0:
        return math.nan
    from scipy.special import stdtrit

    squares = sum(float(np.var(values)) * len(values) for values in groups)
    variance = squares / freedom * sum(1 / len(values) for values in groups)
    return float(stdtrit(freedom, 1 - LEVEL / 2)) * math.sqrt(variance) / len(groups)


def rank_correlation(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float, float]:
    """Spearman's correlation, 0 where one side has no order at all, and its 95 % interval, as if
    methods were drawn at random: atanh(r) has the variance 1.06 / (n - 3) (Fieller, Hartley and
    Pearson 1957). A perfect order, whose atanh is infinite, has no interval."""
    varied = len(set(xs)) > 1 and len(set(ys)) > 1
    r = float(pd.Series(xs).rank().corr(pd.Series(ys).rank())) if varied else 0.0
    if math.isclose(abs(r), 1):
        return r, math.nan, math.nan
    z, half = math.atanh(r), 1.96 * math.sqrt(1.06 / (len(xs) - 3))
    return r, math.tanh(z - half), math.tanh(z + half)
