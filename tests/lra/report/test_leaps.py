"""Columns whose runs are of two kinds: found, compared by counts, and never averaged over both."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from lra.report.latex import paper
from lra.report.leaps import chance_of_gap, p_fewer, two_kinds
from lra.report.render import markdown, to_csv, wide
from lra.report.stats import compare_with_best

from ..synthetic import Make, table

STAYED, LEAPT = 17.5, 35.0


def column(*leaps: int, seeds: int = 3) -> list[list[float]]:
    """Rows of which so many seeds leapt, a little apart from each other."""
    return [
        [(LEAPT if i < k else STAYED) + 0.1 * ((7 * row + 3 * i) % 5) for i in range(seeds)]
        for row, k in enumerate(leaps)
    ]


# ---------------------------------------------------------------------- two kinds


def test_runs_that_leap_or_stay_are_of_two_kinds():
    assert STAYED + 1 < two_kinds(column(3, 2, 0, 1)) < LEAPT - 1
    assert two_kinds(column(3, 2, 0, 1), noise=1.0, floor=16.0) is not None


@pytest.mark.parametrize(
    ("why", "samples"),
    [
        ("each row is of one kind, so it is the row", column(3, 0, 3, 0)),
        ("one row scatters alone", [[99.0, 99.2, 20.0], [99.1, 99.3, 99.2], [98.9, 99.0, 99.4]]),
        ("scores of all sizes", [[20, 60, 90], [25, 50, 95], [30, 70, 80], [40, 55, 99]]),
        ("all are equal", [[5.0, 5.0], [5.0, 5.0]]),
        ("kinds that lie as far apart as the seeds", [[50, 51, 56], [51, 55, 57], [50.5, 56, 52]]),
    ],
)
def test_what_is_no_leap(why: str, samples: list[list[float]]):
    assert two_kinds(samples) is None, why


def test_a_leap_is_large_beside_the_test_set_and_the_best_score():
    samples = [[79.9, 81.4, 81.5], [79.8, 79.9, 79.8], [81.4, 81.5, 81.5]]
    assert two_kinds(samples) is not None
    assert two_kinds(samples, noise=1.3) is None
    assert two_kinds(samples, floor=50.0) is None, "1.6 points of 31.5"


@pytest.mark.parametrize("kind", ["normal", "unequal", "heavy"])
def test_seeds_that_scatter_about_one_value_are_rarely_taken_for_two_kinds(kind: str):
    rng = np.random.default_rng(0)
    draw = {
        "normal": lambda: rng.normal(size=(8, 5)),
        "unequal": lambda: rng.normal(size=(8, 5)) * rng.choice([0.5, 2], (8, 1)),
        "heavy": lambda: rng.standard_t(3, (8, 5)),
    }[kind]
    found = [two_kinds(80 + draw(), floor=10.0, noise=0.3) is not None for _ in range(200)]
    assert sum(found) == 0


# ---------------------------------------------------------------------- the exact test


@pytest.mark.parametrize("seeds", [[3, 3], [3, 3, 3], [2, 3, 5]])
def test_the_chance_of_a_gap_is_that_of_every_outcome(seeds: list[int]):
    """By listing them all, for the chance of a leap at which it is largest."""
    for gap in (1.0, 2 / 3, 0.5, 0.4):
        largest = 0.0
        for p in np.linspace(0, 1, 201)[1:-1]:
            chances = [binom.pmf(range(n + 1), n, p) for n in seeds]
            total = 0.0
            for leapt in itertools.product(*(range(n + 1) for n in seeds)):
                rates = [k / n for k, n in zip(leapt, seeds, strict=True)]
                if max(rates) - min(rates) >= gap - 1e-9:
                    total += np.prod([c[k] for c, k in zip(chances, leapt, strict=True)])
            largest = max(largest, total)
        assert chance_of_gap(np.array(seeds), gap) == pytest.approx(largest, abs=1e-12)


def test_three_seeds_of_many_rows_say_nothing_and_ten_do():
    three, ten = np.full(11, 3), np.full(11, 10)
    assert p_fewer(np.array([0, *[3] * 10]), three)[0] > 0.2
    assert p_fewer(np.array([0, *[10] * 10]), ten)[0] < 1e-3
    assert list(p_fewer(np.array([3, 3]), np.array([3, 3]))) == [1, 1]


@pytest.mark.parametrize("chance", [0.5, 0.8])
@pytest.mark.parametrize("rows", [5, 11, 29])
def test_equal_rows_that_leap_at_random_are_rarely_marked(rows: int, chance: float):
    """The test of means marked 22, 43 and 44 % of such columns at three seeds."""
    rng, wrong = np.random.default_rng(1), 0
    for _ in range(100):
        scores = np.where(rng.random((rows, 3)) < chance, LEAPT, STAYED)
        scores = scores + rng.normal(0, 0.4, scores.shape)
        wrong += compare_with_best(scores.tolist(), [0.5] * rows, floor=16.0)["worse"].any()
    assert wrong <= 6


# ---------------------------------------------------------------------- verdicts and tables


def test_rows_are_compared_by_how_often_they_leapt():
    verdicts = compare_with_best(column(10, 9, 2, 0, 5, seeds=10), [0.5] * 5, floor=16.0)
    assert list(verdicts["leapt"]) == [10, 9, 2, 0, 5]
    assert list(verdicts["best"]) == [True, False, False, False, False]
    assert list(verdicts["worse"]) == [False, False, True, True, False]
    assert verdicts["p"][1] == pytest.approx(1)


def test_rows_that_always_leap_are_also_compared_by_their_means():
    rows = column(5, 5, 3, 0, seeds=5)
    rows[1] = [score + 9 for score in rows[1]]
    verdicts = compare_with_best(rows, [0.3] * 4, floor=16.0)
    assert list(verdicts["best"]) == [False, True, False, False]
    assert verdicts["worse"][0], "9 points below, at a spread of 0.2"
    assert not verdicts["worse"][2], "3 of 5 may be chance"


def of_rows(make: Make, leaps: dict[str, int]) -> None:
    for (method, _), scores in zip(leaps.items(), column(*leaps.values()), strict=True):
        for seed, score in enumerate(scores, start=1):
            make(method, round(score / 100, 4), seed=seed)


def test_a_table_shows_the_seeds_and_no_mean(make: Make, runs: Path):
    of_rows(make, {"luna": 3, "linear": 2, "softmax": 0})
    made = table(runs)
    shown = wide(made)["listops"].str.strip()
    assert shown["linear"] == "2 of 3 leapt: 17.8, 35.0, 35.2"
    assert shown["luna"].startswith("35.")
    assert "the runs are of two kinds, below and above 26." in markdown(made, runs)
    lines = to_csv(made, runs).splitlines()
    names = lines[0].split(",")
    of_linear = dict(zip(names, next(x for x in lines if ",linear," in x).split(","), strict=True))
    assert (of_linear["score"], of_linear["deviation"], of_linear["leapt"]) == ("", "", "2")
    assert of_linear["values"] == "35.20 35.00 17.80"
    assert "17.8, 35.0, 35.2" in paper(made, runs)


def test_many_seeds_are_shown_as_ranges(make: Make, runs: Path):
    for method, leapt in (("luna", 6), ("linear", 2), ("softmax", 0)):
        for seed, score in enumerate(column(leapt, seeds=6)[0], start=1):
            make(method, round(score / 100, 4), seed=seed)
    shown = wide(table(runs))["listops"].str.strip()
    assert shown["linear"] == "2 of 6 leapt: 17.5 to 17.9, 35.0 to 35.3"
    assert shown["softmax"].startswith("17.7 ± 0.2 (6)")
