"""Tests of the rows of a column against its best, as arrays (..., rows): scripts/significance.py
runs them on many columns at once. docs/significance.md says why these. scipy is imported where it
is used, so that the other commands start without it."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray

MOST_SHARED = 4.0  # degrees of freedom that a row's variance takes from the other rows at most
NORMAL, NORMAL_WEIGHTS = np.polynomial.hermite_e.hermegauss(24)  # of a normal variable
_X, _WEIGHTS = np.polynomial.legendre.leggauss(24)
TAIL = ((_X + 1) / 2) ** 4  # probabilities, dense near 0: small estimates of the error decide
TAIL_WEIGHTS = 2 * ((_X + 1) / 2) ** 3 * _WEIGHTS


def moderated(means: Array, variances: Array, seeds: Array, answers: Any) -> tuple[Array, Array]:
    """Variances between seeds (..., rows), raised where they came out small by chance, and the
    degrees of freedom that each takes from the other rows (..., 1).

    A variance is counted in binomial variances of its score, of which it is at least one; these
    dispersions are squeezed towards a common one, and none is made smaller."""
    share = np.clip(means / 100, 1 / (np.add(answers, 2)), 1 - 1 / (np.add(answers, 2)))
    binomial = 1e4 * share * (1 - share) / answers
    dispersion = np.maximum(variances / binomial, 1)
    freedom = np.broadcast_to(seeds - 1, means.shape)
    prior, prior_freedom = prior_of(dispersion, freedom)
    rows = means.shape[-1]  # the prior of a few rows is little known
    shared = np.minimum(prior_freedom, min(MOST_SHARED, max(0, rows - 3) / 4))
    squeezed = (shared * prior + freedom * dispersion) / (shared + freedom)
    return binomial * np.maximum(squeezed, dispersion), shared


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
