"""Compare procedures that mark the rows of a column that are worse than its best, on columns whose
truth is known: results/significance/simulation.csv.

Half of the rows of a column have the best mean, the others lie a gap below it; with gap 0 all are
equal. Size is the share of columns in which a row with the best mean is marked, power the share of
the worse rows that are marked. A second part, results/significance/nulls.csv, holds the product's
own verdicts to more kinds of noise, among them runs that leap or stay, and to test sets of 250 to
10,000 answers. results/significance.md discusses the result."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtr

from lra.report.stats import LEVEL, compare_with_best, moderated, noise_of_share, p_worse

FOLDER = Path("results/significance")
COLUMNS = 1000  # simulated per case
FEW_COLUMNS = 250  # of a case that the product itself has to judge, one column after the other
ANSWERS = 10_000  # many, so that the noise is what the scenario says and not the binomial one
BEST = 80.0
NOISE = noise_of_share(BEST, ANSWERS)
STAYED, LEAPT = 17.5, 35.0  # of runs on full-length ListOps
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
        (OURS, *moderated(means, variances, sizes, np.full(rows, NOISE))),
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
                verdicts = compare_with_best(scores[0].tolist(), [NOISE] * rows)
                if not verdicts["leaps"].any():
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


# ---------------------------------------------------------------------- the product's own verdicts


def leaps(chance: float) -> Callable[[np.random.Generator, int, int], Array]:
    """Runs that leap with this chance, and else stay; each a little apart."""

    def draw(rng: np.random.Generator, rows: int, seeds: int) -> Array:
        scores = np.where(rng.random((rows, seeds)) < chance, LEAPT, STAYED)
        return scores + rng.normal(0, 0.4, scores.shape)

    return draw


def on_their_way(
    share: float, chance: float = 0.5
) -> Callable[[np.random.Generator, int, int], Array]:
    """Runs of which this share is on its way at the end; of the others so many have leapt."""

    def draw(rng: np.random.Generator, rows: int, seeds: int) -> Array:
        way = np.where(rng.random((rows, seeds)) < chance, 1.0, 0.0)
        way = np.where(rng.random((rows, seeds)) < share, rng.random((rows, seeds)), way)
        return STAYED + (LEAPT - STAYED) * way + rng.normal(0, 0.4, way.shape)

    return draw


def scaled(deviations: Callable[[np.random.Generator, int], Array]) -> Any:
    return lambda rng, rows, seeds: (
        BEST + deviations(rng, rows)[:, None] * rng.normal(size=(rows, seeds))
    )


def halves(_: np.random.Generator, rows: int) -> Array:
    return np.where(np.arange(rows) % 2, 5.0, 0.3)


def one_quiet(_: np.random.Generator, rows: int) -> Array:
    return np.where(np.arange(rows) == 0, 0.3, 5.0)


NULLS: dict[str, Callable[[np.random.Generator, int, int], Array]] = {
    "normal, one deviation": scaled(lambda _, rows: np.ones(rows)),
    "normal, deviations 0.3 and 5": scaled(halves),
    "normal, one quiet row": scaled(one_quiet),
    "normal, log-normal deviations": scaled(
        lambda rng, rows: np.clip(2 * np.exp(rng.normal(size=rows)), 0.3, 14)
    ),
    "exponential to the left": lambda rng, *shape: BEST - 2 * rng.exponential(size=shape),
    "t with 3 degrees": lambda rng, *shape: BEST + rng.standard_t(3, shape),
    "cut at 100": lambda rng, *shape: np.minimum(100, 100 + 3 * rng.normal(size=shape)),
    "half leap": leaps(1 / 2),
    "two of three leap": leaps(2 / 3),
    "four of five leap": leaps(4 / 5),
    "5 % on their way": on_their_way(0.05),
    "20 % on their way": on_their_way(0.2),
    "40 % on their way": on_their_way(0.4),
    "all on their way": on_their_way(1.0),
}


def verdicts_on(scores: Array, noise: float) -> pd.DataFrame:
    return compare_with_best(scores.tolist(), [noise] * len(scores), needs=False)


def nulls() -> Iterator[dict[str, Any]]:
    """The share of columns of equal rows in which a row is marked."""
    rng = np.random.default_rng(1)
    for (name, draw), rows, seeds in itertools.product(NULLS.items(), (2, 5, 10, 29), (3, 5, 10)):
        marked, leaps = np.zeros(FEW_COLUMNS), np.zeros(FEW_COLUMNS)
        for i in range(FEW_COLUMNS):
            verdicts = verdicts_on(draw(rng, rows, seeds), NOISE)
            marked[i], leaps[i] = verdicts["worse"].any(), verdicts["leaps"].any()
        case = {"truth": name, "rows": rows, "seeds": seeds, "measure": "size"}
        yield case | {"rate": marked.mean(), "leaps": leaps.mean()}


def powers() -> Iterator[dict[str, Any]]:
    """How often rows that are worse are marked: 5 or 10 points below, by the number of independent
    answers; and where runs leap."""
    rng = np.random.default_rng(2)
    for (gap, rows, worse), answers, seeds in itertools.product(
        ((5, 20, 10), (10, 10, 1)), (250, 2000, 10_000), (3, 5, 10)
    ):
        noise, below = noise_of_share(BEST, answers), gap * (np.arange(rows) < worse)
        spread = max(1.0, noise)  # the test set is part of the spread between seeds
        columns = [
            BEST - below[:, None] + spread * rng.normal(size=(rows, seeds))
            for _ in range(FEW_COLUMNS // 2)
        ]
        marked = [verdicts_on(scores, noise)["worse"][:worse].mean() for scores in columns]
        truth = f"{worse} of {rows} rows {gap} points below, {answers:,} answers"
        case = {"truth": truth, "rows": rows, "seeds": seeds, "measure": "power"}
        yield case | {"rate": np.mean(marked), "leaps": math.nan}
    stays, always = leaps(0.0), leaps(1.0)
    for truth, bad, good in (
        ("never leaps, the others always", stays, always),
        ("never leaps, the others mostly", stays, on_their_way(0.2, 0.9)),
        ("one of five leaps, of others four", leaps(0.2), leaps(0.8)),
    ):
        for rows, seeds in itertools.product((2, 5, 10, 29), (3, 5, 10)):
            columns = [
                np.concatenate([bad(rng, 1, seeds), good(rng, rows - 1, seeds)])
                for _ in range(FEW_COLUMNS // 2)
            ]
            marked = [verdicts_on(scores, NOISE)["worse"][0] for scores in columns]
            case = {"truth": truth, "rows": rows, "seeds": seeds, "measure": "power"}
            yield case | {"rate": np.mean(marked), "leaps": math.nan}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(simulate()).to_csv(FOLDER / "simulation.csv", index=False)
    table = pd.DataFrame([*nulls(), *powers()])
    table.to_csv(FOLDER / "nulls.csv", index=False, float_format="%.4f")
