"""Compare procedures that mark the rows of a column that are worse than its best, on columns whose
truth is known: results/significance/simulation.csv and power.png, .svg, .pdf.

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

from lra.figures.style import save_figure
from lra.report.stats import LEVEL, compare_with_best, moderated, p_worse, prior_of

FOLDER = Path("results/significance")
COLUMNS = 1000  # simulated per case
ANSWERS = 10_000  # many, so that the noise is what the scenario says and not the binomial one
BEST = 80.0
SEEDS, ROWS, GAPS = (3, 5, 10), (20, 3), (0, 1, 5, 20, 70)
DRAWS = 999  # of the bootstrap
OURS = "moderated, Dunnett"
DRAWN = {  # colours of Okabe and Ito
    OURS: "#000000", "Welch, Dunnett": "#0072B2", "Welch, two-sided": "#56B4E9",
    "pooled, Dunnett": "#009E73", "limma": "#E69F00", "bootstrap": "#D55E00",
}  # fmt: skip
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


def of_logits(scores: Array) -> Array:
    """The pooled variance of logits, or the binomial one where that is larger."""
    rows, seeds = scores.shape[1:]
    share = np.clip(scores / 100, 0.5 / ANSWERS, 1 - 0.5 / ANSWERS)
    logits, mean = np.log(share / (1 - share)), share.mean(-1)
    variances = logits.var(-1, ddof=1).mean(-1, keepdims=True)
    variances = np.maximum(variances, 1 / (ANSWERS * mean * (1 - mean)))
    return against_best(logits.mean(-1), variances / seeds, rows * (seeds - 1) / 2)


def limma(means: Array, variances: Array, seeds: int) -> Array:
    """limma's variances; each is at least the binomial one."""
    share = np.clip(means / 100, 1 / ANSWERS, 1 - 1 / ANSWERS)
    floor = 1e4 * share * (1 - share) / ANSWERS
    variances, rows = np.maximum(variances, floor), means.shape[-1]
    scale, shared = prior_of(variances, np.full(rows, seeds - 1))
    shared = np.minimum(shared, 1e6)
    variances = (shared * scale + (seeds - 1) * variances) / (shared + seeds - 1)
    freedom = np.minimum(shared + seeds - 1, rows * (seeds - 1))
    return against_best(means, np.maximum(variances, floor) / seeds, freedom)


def bootstrap(scores: Array) -> Array:
    """The share of samples of every row's seeds in which a row is as good as the best."""
    rows, seeds = scores.shape[1:]
    drawn = np.random.default_rng(1).multinomial(seeds, [1 / seeds] * seeds, (rows, DRAWS)) / seeds
    means = np.matmul(drawn, scores[..., None])[..., 0]  # (columns, rows, DRAWS)
    first = scores.mean(-1).argmax(-1)[:, None, None]
    as_good = means >= np.take_along_axis(means, first, 1)
    return holm((1 + as_good.sum(-1)) / (1 + DRAWS), rows - 1)


def procedures(scores: Array) -> Iterator[tuple[str, Array]]:
    rows, seeds = scores.shape[1:]
    means, variances, sizes = scores.mean(-1), scores.var(-1, ddof=1), np.full(rows, seeds)
    pooled = np.maximum(variances.mean(-1, keepdims=True), 1e-9) + 0 * means
    of_pooled = rows * (seeds - 1) / 2  # of one of two rows
    yield "Welch, two-sided", against_best(means, variances / seeds, seeds - 1, sides=2)
    yield "Welch, one-sided", against_best(means, variances / seeds, seeds - 1)
    yield "pooled", against_best(means, pooled / seeds, of_pooled)
    yield "pooled logits", of_logits(scores)
    yield "limma", limma(means, variances, seeds)
    yield "bootstrap", bootstrap(scores)
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
                column = dict(enumerate(scores[0].tolist()))
                for i, ours in compare_with_best(column, [ANSWERS] * rows)["p"].dropna().items():
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


def draw_rates(results: pd.DataFrame, figure: Any) -> None:
    panels = figure.subplots(2, 3, sharey="row")
    percent = results[results.rows == 20].assign(rate=100 * results.rate)
    for (top, bottom), name in zip(panels.T, list(SCENARIOS)[:3], strict=True):
        there = percent[percent.scenario == name]
        size = there[there.measure == "size"].groupby(["procedure", "seeds"]).rate.max()
        power = there[(there.measure == "power") & (there.seeds == 3)]
        power = power.set_index(["procedure", "gap"]).rate
        for (procedure, color), marker in zip(DRAWN.items(), "osv^Dx", strict=True):
            style = {"color": color, "marker": marker, "label": procedure, "ms": 4}
            style |= {"lw": 2.2, "zorder": 3} if procedure == OURS else {"lw": 1.1}
            top.plot(size[procedure].index.astype(str), size[procedure], **style)
            style |= {} if size[procedure, 3] <= 6 else {"ls": ":", "alpha": 0.6}
            bottom.plot(power[procedure].index.astype(str), power[procedure], **style)
        top.axhline(100 * LEVEL, color="0.4", lw=0.8, ls="--")
        top.set(title=name, xlabel="seeds", yscale="log", ylim=(0.2, 100))
        top.set_yticks([0.2, 1, 5, 20, 100], ["0.2", "1", "5", "20", "100"], minor=False)
        top.minorticks_off()
        bottom.set(xlabel="gap, points (three seeds)", ylim=(-3, 103))
    panels[0, 0].set_ylabel("size, % of columns")
    panels[1, 0].set_ylabel("power, % of worse rows")
    panels[1, 0].text(3, 2, "dotted: size above 6 %", color="0.3", fontsize=8, ha="right")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)


if __name__ == "__main__":
    results = pd.DataFrame(simulate())
    FOLDER.mkdir(parents=True, exist_ok=True)
    results.to_csv(FOLDER / "simulation.csv", index=False)
    title = "Wrong marks among 20 rows, and power with three seeds"
    save_figure(FOLDER / "power", lambda f: draw_rates(results, f), title, height=5.6)
