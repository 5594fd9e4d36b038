"""Compare procedures that mark the rows of a column that are worse than its best, on columns whose
truth is known; write results/significance/simulation.csv and power.png, power.pdf, power.svg.

    python scripts/significance.py

Half of the rows of a column have the best mean, the others lie a gap below it (gap 0: all rows are
equal). Size is the share of columns in which a row with the best mean is marked, power the share of
the worse rows that are marked. docs/significance.md discusses the result.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtr

from lra.report.significance import moderated, p_worse, prior_of
from lra.report.stats import LEVEL, compare_with_best

FOLDER = Path("results/significance")
COLUMNS = 1000  # simulated per case
ANSWERS = 10_000  # few binomial errors, so that the noise is what the scenario says
BEST = 80.0
SEEDS, ROWS = (3, 5, 10), (20, 3)
GAPS = {"bimodal": (0,), "ceiling": (1, 5, 20, 70)}  # elsewhere all: 0 1 5 20 70
FLIPS = 999  # bootstrap samples
CHOSEN = "moderated, Dunnett"
Array = np.ndarray
Scenario = Callable[[np.random.Generator, Array, int], Array]

# ------------------------------------------------------------- columns: (columns, rows, seeds)


def normal(spread: Callable[[np.random.Generator, int], Array]) -> Scenario:
    def draw(rng: np.random.Generator, truth: Array, seeds: int) -> Array:
        noise = rng.normal(size=(COLUMNS, len(truth), seeds))
        return truth[:, None] + spread(rng, len(truth))[..., None] * noise

    return draw


def one_noisy(rng: np.random.Generator, rows: int) -> Array:
    return np.where(np.arange(rows) == 0, 14.0, 0.5)  # row 0 has the best mean


def mixed(rng: np.random.Generator, rows: int) -> Array:
    return np.clip(2 * np.exp(rng.normal(size=(COLUMNS, rows))), 0.3, 14)


def ceiling(rng: np.random.Generator, truth: Array, seeds: int) -> Array:
    """The best rows always have 100; one of the worse rows sometimes learns."""
    scores = np.clip(normal(mixed)(rng, truth + 100 - BEST, seeds), 0, 100)
    scores[:, truth == BEST] = 100
    scores[:, -1] = bimodal(rng, truth[-1:], seeds)[:, 0]
    return scores


def bimodal(rng: np.random.Generator, truth: Array, seeds: int) -> Array:
    """Two of three seeds learn, in every row."""
    size = (COLUMNS, len(truth), seeds)
    return np.where(rng.random(size) < 2 / 3, 99.5, 20 + truth[:, None] - BEST) + rng.normal(
        0, 0.2, size
    )


SCENARIOS: dict[str, Scenario] = {
    "equal spread": normal(lambda rng, rows: np.ones(rows)),
    "mixed spread": normal(mixed),
    "one noisy row": normal(one_noisy),
    "ceiling": ceiling,
    "bimodal": bimodal,
}

# ------------------------------------------------- procedures: adjusted p-values (columns, rows)


def holm(p: Array, tests: int) -> Array:
    """Holm's adjustment of every column for so many tests; the best row, of p = 1, comes last."""
    order = p.argsort(-1)
    left = np.maximum(tests - np.arange(p.shape[-1]), 1)
    adjusted = np.maximum.accumulate(np.minimum(1, np.take_along_axis(p, order, -1) * left), -1)
    result = np.empty_like(p)
    np.put_along_axis(result, order, adjusted, -1)
    return result


def against_best(means: Array, variances: Array, freedom: Any, sides: int = 1) -> Array:
    """Welch tests against the best mean, adjusted for their number but not for its choice;
    variances are those of the means."""
    first = means.argmax(-1)[:, None]
    error, freedom = np.maximum(variances, 1e-9), freedom + np.zeros_like(means)
    error = np.broadcast_to(error, means.shape)
    best = [np.take_along_axis(a, first, -1) for a in (means, error, freedom)]
    welch = (error + best[1]) ** 2 / (error**2 / freedom + best[1] ** 2 / best[2])
    p = sides * stdtr(welch, (means - best[0]) / np.sqrt(error + best[1]))
    np.put_along_axis(p, first, 1.0, -1)
    return holm(p, means.shape[-1] - 1)


def pooled(variances: Array) -> Array:
    return np.maximum(variances.mean(-1, keepdims=True), 1e-9)


def logit(scores: Array) -> Array:
    """Pooled variance of the scores' logits, of which each is at least binomial."""
    share = np.clip(scores / 100, 0.5 / ANSWERS, 1 - 0.5 / ANSWERS)
    logits, mean = np.log(share / (1 - share)), share.mean(-1)
    rows, seeds = scores.shape[-2:]
    variances = np.maximum(pooled(logits.var(-1, ddof=1)), 1 / (ANSWERS * mean * (1 - mean)))
    return against_best(logits.mean(-1), variances / seeds, rows * (seeds - 1) / 2)


def shrunk(means: Array, variances: Array, seeds: int) -> Array:
    """limma's variances with the binomial one as lower bound."""
    share = np.clip(means / 100, 1 / ANSWERS, 1 - 1 / ANSWERS)
    floor = 1e4 * share * (1 - share) / ANSWERS
    variances = np.maximum(variances, floor)
    scale, shared = prior_of(variances, np.full(means.shape, seeds - 1))
    shared = np.minimum(shared, 1e6)
    variances = (shared * scale + (seeds - 1) * variances) / (shared + seeds - 1)
    freedom = np.minimum(shared + seeds - 1, means.shape[-1] * (seeds - 1))
    return against_best(means, np.maximum(variances, floor) / seeds, freedom)


def bootstrap(scores: Array) -> Array:
    """Share of samples of the seeds, of every row alone, in which a row is as good as the best."""
    rows, seeds = scores.shape[1:]
    drawn = np.random.default_rng(1).multinomial(seeds, [1 / seeds] * seeds, (rows, FLIPS)) / seeds
    means = np.matmul(drawn[None], scores[..., None])[..., 0]  # (columns, rows, FLIPS)
    first = scores.mean(-1).argmax(-1)[:, None]
    best = np.take_along_axis(means, first[..., None], 1)
    p = (1 + (means >= best).sum(-1)) / (1 + FLIPS)
    return holm(p, rows - 1)


def chosen(means: Array, variances: Array, seeds: int) -> Array:
    answers = np.full(means.shape[-1], ANSWERS)
    variances, shared = moderated(means, variances, np.full(means.shape[-1], seeds), answers)
    p = p_worse(means, variances, np.full(means.shape[-1], seeds), shared)
    return holm(p, means.shape[-1])


def procedures(scores: Array) -> Iterator[tuple[str, Array]]:
    rows, seeds = scores.shape[-2:]
    means, variances = scores.mean(-1), scores.var(-1, ddof=1)
    yield "Welch, two-sided", against_best(means, variances / seeds, seeds - 1, sides=2)
    yield "Welch, one-sided", against_best(means, variances / seeds, seeds - 1)
    equal = pooled(variances) + np.zeros_like(means)
    yield "pooled", against_best(means, equal / seeds, rows * (seeds - 1) / 2)
    shared = np.full((COLUMNS, 1), (rows / 2 - 1) * (seeds - 1))
    sizes = np.full(rows, seeds)
    yield "pooled, Dunnett", holm(p_worse(means, equal, sizes, shared), rows)
    yield "pooled logits", logit(scores)
    yield "limma", shrunk(means, variances, seeds)
    yield "bootstrap", bootstrap(scores)
    yield CHOSEN, chosen(means, variances, seeds)


def simulate() -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    for rows, (name, draw), seeds in itertools.product(ROWS, SCENARIOS.items(), SEEDS):
        for gap in GAPS.get(name, (0, 1, 5, 20, 70)):
            good = np.arange(rows) < ((rows + 1) // 2 if gap else rows)
            scores = draw(rng, np.where(good, BEST, BEST - gap), seeds)
            case = {"scenario": name, "rows": rows, "seeds": seeds, "gap": gap}
            for procedure, p in procedures(scores):
                if procedure == CHOSEN:
                    check(scores[0], p[0])
                marked = p < LEVEL
                rates = {"size": marked[:, good].any(-1)}
                if gap:
                    worse = marked[:, ~good]
                    rates["power"] = worse[
                        :, : -1 if name == "ceiling" and rows > 3 else None
                    ].mean(-1)
                if name == "ceiling":
                    rates["power, bimodal row"] = marked[:, -1]
                for measure, values in rates.items():
                    rate, error = values.mean(), values.std() / COLUMNS**0.5
                    yield case | {
                        "procedure": procedure,
                        "measure": measure,
                        "rate": f"{rate:.4f}",
                        "error": f"{error:.4f}",
                    }


def check(scores: Array, p: Array) -> None:
    """The arrays here are the product's own verdicts."""
    column = dict(enumerate(scores.tolist()))
    for i, verdict in compare_with_best(column, dict.fromkeys(column, ANSWERS)).items():
        assert verdict.p is None or np.isclose(verdict.p, p[i])


def main() -> None:
    results = list(simulate())
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "simulation.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(results[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(results)


if __name__ == "__main__":
    main()
