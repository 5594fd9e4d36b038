"""Compare procedures that mark the rows of a column that are worse than its best, on columns whose
truth is known: results/significance/simulation.csv.

Half of the rows of a column have the best mean, the others lie a gap below it; with gap 0 all are
equal. Size is the share of columns in which a row with the best mean is marked, power the share of
the worse rows that are marked. docs/significance.md discusses the result."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtr

from lra.report.stats import LEVEL, compare_with_best, moderated, p_worse

RESULTS = Path("results/significance/simulation.csv")
COLUMNS = 1000  # simulated per case
ANSWERS = 10_000  # many, so that the noise is what the scenario says and not the binomial one
BEST = 80.0
SEEDS, ROWS, GAPS = (3, 5, 10), (20, 3), (0, 1, 5, 20, 70)
OURS = "moderated, Dunnett"
Array = np.ndarray
Scenario = Callable[[np.random.Generator, Array, int], Array]  # (columns, rows, seeds)


def normal(spread: Callable[[np.random.Generator, int], Array]) -> Scenario:
    def draw(rng: np.random.Generator, truth: Array, seeds: int) -> Array:
        noise = rng.normal(size=(COLUMNS, len(truth), seeds))
        return truth[:, None] + spread(rng, len(truth))[..., None] * noise

    return draw


def mixed(rng: np.random.Generator, rows: int) -> Array:
    return np.clip(2 * np.exp(rng.normal(size=(COLUMNS, rows))), 0.3, 14)


def ceiling(rng: np.random.Generator, truth: Array, seeds: int) -> Array:
    """The best rows always have 100; the last row learns with two of three seeds."""
    scores = np.clip(normal(mixed)(rng, truth + 100 - BEST, seeds), 0, 100)
    scores[:, truth == BEST] = 100
    scores[:, -1:] = bimodal(rng, truth[-1:], seeds)
    return scores


def bimodal(rng: np.random.Generator, truth: Array, seeds: int) -> Array:
    shape = (COLUMNS, len(truth), seeds)
    return np.where(rng.random(shape) < 2 / 3, 99.5, 20) + rng.normal(0, 0.2, shape)


SCENARIOS: dict[str, Scenario] = {
    "equal spread": normal(lambda _, rows: np.ones(rows)),
    "mixed spread": normal(mixed),
    "one noisy row": normal(lambda _, rows: np.where(np.arange(rows) == 0, 14.0, 0.5)),
    "ceiling": ceiling,
    "bimodal": bimodal,
}


def holm(p: Array, tests: int) -> Array:
    """Holm's adjustment of every column for so many tests; the best row, of p = 1, comes last."""
    order = p.argsort(-1)
    left = np.maximum(tests - np.arange(p.shape[-1]), 1)
    adjusted = np.maximum.accumulate(np.minimum(1, np.take_along_axis(p, order, -1) * left), -1)
    result = np.empty_like(p)
    np.put_along_axis(result, order, adjusted, -1)
    return result


def against_best(means: Array, errors: Array, freedom: Any, sides: int = 1) -> Array:
    """Welch's tests against the best mean, adjusted for their number but not for its choice;
    errors are squared standard errors of the means."""
    first = means.argmax(-1)[:, None]
    errors, freedom = np.maximum(errors, 1e-9) + 0 * means, freedom + 0 * means
    best, error, of_best = (np.take_along_axis(a, first, -1) for a in (means, errors, freedom))
    welch = (errors + error) ** 2 / (errors**2 / freedom + error**2 / of_best)
    p = sides * stdtr(welch, (means - best) / np.sqrt(errors + error))
    np.put_along_axis(p, first, 1.0, -1)
    return holm(p, means.shape[-1] - 1)


def procedures(scores: Array) -> Iterator[tuple[str, Array]]:
    rows, seeds = scores.shape[1:]
    means, variances, sizes = scores.mean(-1), scores.var(-1, ddof=1), np.full(rows, seeds)
    pooled = np.maximum(variances.mean(-1, keepdims=True), 1e-9) + 0 * means
    of_pooled = rows * (seeds - 1) / 2  # of one of two rows
    yield "Welch, two-sided", against_best(means, variances / seeds, seeds - 1, sides=2)
    yield "Welch, one-sided", against_best(means, variances / seeds, seeds - 1)
    yield "pooled", against_best(means, pooled / seeds, of_pooled)
    for name, variance, shared in (
        ("Welch, Dunnett", np.maximum(variances, 1e-9), np.zeros((COLUMNS, 1))),
        ("pooled, Dunnett", pooled, np.full((COLUMNS, 1), of_pooled - seeds + 1)),
        (OURS, *moderated(means, variances, sizes, np.full(rows, ANSWERS))),
    ):
        yield name, holm(p_worse(means, variance, sizes, shared), rows)


def simulate() -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    for rows, (name, draw), seeds, gap in itertools.product(ROWS, SCENARIOS.items(), SEEDS, GAPS):
        if (gap == 0 and name == "ceiling") or (gap > 0 and name == "bimodal"):
            continue
        good = np.arange(rows) < ((rows + 1) // 2 if gap else rows)
        scores = draw(rng, np.where(good, BEST, BEST - gap), seeds)
        for procedure, p in procedures(scores):
            if procedure == OURS:  # the arrays here are the product's own verdicts
                verdicts = compare_with_best(scores[0].tolist(), [ANSWERS] * rows)
                for i, ours in verdicts["p"].dropna().items():
                    assert np.isclose(ours, p[0, i])
            marked, regular = p < LEVEL, ~good
            rates = {"size": marked[:, good].any(-1)}
            if name == "ceiling":
                rates["power, bimodal row"] = marked[:, -1]
                regular = regular & (np.arange(rows) < rows - 1)
            if regular.any():
                rates["power"] = marked[:, regular].mean(-1)
            for measure, values in rates.items():
                case = {"scenario": name, "rows": rows, "seeds": seeds, "gap": gap}
                case |= {"procedure": procedure, "measure": measure, "rate": values.mean().round(4)}
                yield case | {"error": (values.std() / COLUMNS**0.5).round(4)}


if __name__ == "__main__":
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(simulate()).to_csv(RESULTS, index=False)
