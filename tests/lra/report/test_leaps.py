"""Columns whose runs may leap: found, compared by a test that assumes nothing of scores, and runs
of two kinds never averaged."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lra.report.latex import paper
from lra.report.leaps import may_hold_leaps, p_lower, two_kinds
from lra.report.render import markdown, to_csv, wide
from lra.report.specs import TableSpec
from lra.report.stats import LEVEL, compare_with_best, noise_of_share
from lra.report.trainings import build

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
    kinds = two_kinds(column(3, 2, 0, 1))
    assert STAYED + 1 < kinds.limit < LEAPT - 1
    assert kinds.has_both([17.4, 35.2])
    assert not kinds.has_both([17.4, 26.0, 35.2]), "one is on its way"
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


# ---------------------------------------------------------------------- columns that may hold leaps


@pytest.mark.parametrize(
    ("found", "samples"),
    [
        (True, column(3, 2, 0, 1)),
        (True, [[20, 60, 90], [25, 50, 95], [30, 70, 80]]),
        (False, column(3, 0, 3, 0)),  # the row decides
        (False, [[99.0, 99.2, 20.0], [99.1, 99.3, 99.2], [98.9, 99.0, 99.4]]),  # a noisy row
        (False, [[50.0, 51.0, 52.0], [50.5, 52.0, 53.5]]),
    ],
)
def test_seeds_of_a_row_far_apart_may_be_leaps(found: bool, samples: list[list[float]]):
    assert may_hold_leaps(samples, np.full(len(samples), 0.5)) == found


def how_low(rows: Sequence[Sequence[float]]) -> list[float]:
    """By how many standard errors each row is below the best k rows, for the best k, in loops."""
    ranked = sorted(range(len(rows)), key=lambda i: -float(np.mean(rows[i])))
    low = [-math.inf] * len(rows)
    for place, i in enumerate(ranked):
        for k in range(1, place + 1):
            above = [score for j in ranked[:k] for score in rows[j]]
            error = math.sqrt(1 / len(above) + 1 / len(rows[i]))
            low[i] = max(low[i], float(np.mean(above) - np.mean(rows[i])) / error)
    return low


def test_the_chance_of_the_lowest_row_is_its_share_of_all_deals():
    scores = [1, 2, 3, 4, 6, 5, 7, 8]  # ranks, of rows of 3, 3 and 2 seeds
    rows = [scores[:3], scores[3:6], scores[6:]]
    found = how_low(rows)
    deals = [
        max(how_low([order[:3], order[3:6], order[6:]]))
        for order in itertools.permutations(scores)
        if list(order[:3]) == sorted(order[:3]) and list(order[3:6]) == sorted(order[3:6])
    ]
    exact = [np.mean([d >= low - 1e-9 for d in deals]) for low in found]
    assert p_lower(rows) == pytest.approx(exact, abs=0.03)
    assert p_lower([[10 * s for s in row] for row in rows]) == pytest.approx(p_lower(rows))


def test_a_test_by_dealing_needs_no_equal_numbers_of_seeds():
    rng = np.random.default_rng(0)
    wrong = [
        (p_lower([rng.uniform(0, 100, n) for n in (3, 3, 8, 5, 3)]) < LEVEL).any()
        for _ in range(300)
    ]
    assert 0.01 < np.mean(wrong) < 0.09


def on_their_way(share: float, leap: float, rows: int, seeds: int, rng: np.random.Generator):
    """Scores of runs of which this share is on its way, and of the others so many have leapt."""
    way = np.where(rng.random((rows, seeds)) < leap, 1.0, 0.0)
    way = np.where(rng.random((rows, seeds)) < share, rng.random((rows, seeds)), way)
    return 1.5 + 96.5 * way + rng.normal(0, 0.3, (rows, seeds))


def marked(scores: np.ndarray, noise: float = 0.5) -> np.ndarray:
    return compare_with_best(scores.tolist(), [noise] * len(scores), needs=False)[
        "worse"
    ].to_numpy()


@pytest.mark.parametrize("leap", [0.5, 0.8])
@pytest.mark.parametrize("rows", [5, 11, 29])
def test_equal_rows_that_leap_at_random_are_rarely_marked(rows: int, leap: float):
    """The test of means marked 22, 43 and 44 % of such columns at three seeds."""
    rng = np.random.default_rng(1)
    wrong = [marked(on_their_way(0.0, leap, rows, 3, rng)).any() for _ in range(100)]
    assert np.mean(wrong) <= 0.1


@pytest.mark.rest
def test_equal_rows_some_of_whose_runs_are_on_their_way_are_rarely_marked():
    """With the test of means alone 36 % of these columns have a wrong mark."""
    rng = np.random.default_rng(2)
    wrong = [marked(on_their_way(0.2, 0.5, 10, 3, rng)).any() for _ in range(1500)]
    assert np.mean(wrong) <= 0.06


def test_a_row_ten_points_below_nine_others_is_marked():
    rng, noise = np.random.default_rng(3), noise_of_share(80, 2000)
    below = 80 - 10 * (np.arange(10) == 0)[:, None]
    found = [marked(below + rng.normal(size=(10, 3)), noise)[0] for _ in range(100)]
    assert np.mean(found) >= 0.8


@pytest.mark.parametrize("seeds", [3, 5])
def test_a_row_that_never_leaps_is_marked_beside_nine_that_mostly_do(seeds: int):
    rng, found = np.random.default_rng(4), []
    for _ in range(100):
        scores = on_their_way(0.2, 0.9, 10, seeds, rng)
        scores[0] = 1.5 + rng.normal(0, 0.3, seeds)
        found.append(marked(scores)[0])
    assert np.mean(found) >= 0.5


@pytest.mark.parametrize("gap", [50.0, 5.0])
def test_rows_of_two_seeds_are_never_marked(gap: float):
    assert not marked(np.array([[90.0, 90.2], [90.0 - gap, 90.1 - gap]])).any()
    three = [[90.0, 90.2, 90.1], [90.0 - gap, 90.1 - gap], [89.0 - gap, 89.2 - gap, 89.1 - gap]]
    verdicts = compare_with_best(three, [0.3] * 3)
    assert [*verdicts["worse"]] == [False, False, True]
    assert verdicts["p"].isna().tolist() == [True, True, False]


# ---------------------------------------------------------------------- verdicts and tables


def test_worse_rows_are_found_first_and_the_others_then_compared_without_them():
    """The rows that stay make the column one of leaps; those that leapt differ by nine points."""
    rows = column(5, 5, 3, 2, 0, seeds=5)
    rows[1] = [score + 9 for score in rows[1]]
    verdicts = compare_with_best(rows, [0.3] * 5)
    assert list(verdicts["best"]) == [False, True, False, False, False]
    assert verdicts["worse"][4], "it never leapt"
    assert verdicts["leaps"].all()
    assert verdicts["p"].idxmin() == 4, "a row that is tested later has no smaller p"


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
    assert "runs are of two kinds, below and above 26." in markdown(made, runs)
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
    assert shown["linear"] == "2 of 6 leapt: 17.5 to 17.9, 35.0 to 35.3 ↓"
    assert shown["softmax"].startswith("17.7 ± 0.2 (6)")


def test_a_row_is_of_two_kinds_only_if_all_its_known_seeds_are(make: Make, runs: Path):
    """Three seeds of a row that scatters evenly may look like a leap."""
    of_rows(make, {"luna": 3, "linear": 2, "softmax": 0, "nystrom": 1})
    three = table(runs).taken
    for seed, score in enumerate((0.24, 0.26, 0.28), start=4):
        make("linear", score, seed=seed)
    every = table(runs).taken

    def shown(known: pd.DataFrame) -> str:
        return wide(build(TableSpec(name="t", title="T"), three, known=known))["listops"][
            "linear"
        ].strip()

    assert shown(three).startswith("2 of 3 leapt")
    assert "leapt" not in shown(every)
