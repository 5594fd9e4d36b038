"""Boosted trees and a small network: what they learn, and that dev alone decides when they stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from threadpoolctl import threadpool_info, threadpool_limits

from lra.data import rounds
from lra.metrics.target import Classes, Labels, Numbers, Target

CUT = (2000, 2500)  # where dev begins, and test
Fit = Callable[..., list[np.ndarray]]


@pytest.fixture(autouse=True)
def _small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "STEPS", 450)
    monkeypatch.setattr(rounds, "WIDTHS", (64, 64))


def drawn(n: int = 3000) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 6, (n, 4))


def accuracy(labels: np.ndarray) -> Callable[[np.ndarray], float]:
    return lambda answers: float((answers == labels).mean())


def answers_to_test(
    fit: Fit, target: Target, labels: np.ndarray, score: Callable[[np.ndarray], float]
) -> np.ndarray:
    """Fit to the first rows of `drawn`, choose by `score` on dev, and answer the last rows."""
    parts = np.split(drawn().astype(np.float32) - 2.5, CUT)
    dev, test = fit(target, parts, labels[: CUT[0]], score, lambda: True)
    assert dev.shape == labels[slice(*CUT)].shape
    return test


@pytest.mark.parametrize("fit", [rounds.trees, rounds.network])
@pytest.mark.parametrize("classes", [2, 3])
def test_classes_that_no_linear_rule_tells_apart(fit: Fit, classes: int) -> None:
    x = drawn()
    y = np.minimum(abs(x[:, 0] - x[:, 1]), classes - 1)
    given = answers_to_test(fit, Classes(classes), y, accuracy(y[slice(*CUT)]))
    assert (given == y[CUT[1] :]).mean() > 0.97


@pytest.mark.parametrize("fit", [rounds.trees, rounds.network])
@pytest.mark.parametrize("outputs", [1, 2])
def test_numbers_in_their_own_units(fit: Fit, outputs: int) -> None:
    x = drawn()
    y = 40 + np.stack([x[:, 0] * x[:, 1], x[:, 2] * 2.0], 1)
    y = y if outputs == 2 else y[:, 0]
    target = Numbers(outputs, *([float(f(y))] for f in (np.mean, np.std)))

    def error(answers: np.ndarray) -> float:
        return -float(((answers - y[slice(*CUT)]) ** 2).mean())

    given = answers_to_test(fit, target, y, error)
    assert np.abs(given - y[CUT[1] :]).mean() < 0.05 * y.std()


@pytest.mark.parametrize("fit", [rounds.trees, rounds.network])
@pytest.mark.parametrize("columns", [[0], [0, 1], [0, 1, 2, 3]])
def test_logits_of_several_labels(fit: Fit, columns: list[int]) -> None:
    """Of the labels that never vary, one is always there and one never."""
    x = drawn()
    every = [x[:, 2] > 2, x[:, 3] == 1, x[:, 0] >= 0, x[:, 0] < 0]
    y = np.stack(every, 1)[:, columns].astype(np.uint8)
    given = answers_to_test(
        fit, Labels(len(columns)), y, lambda z: float(((z > 0) == y[slice(*CUT)]).mean())
    )
    assert np.isfinite(given).all()
    assert ((given > 0) == y[CUT[1] :]).all(1).mean() > 0.97


# ---------------------------------------------------------------------- dev decides


@pytest.mark.parametrize("early", [False, True])
def test_trees_stop_at_the_round_that_is_best_on_dev(early: bool) -> None:
    """Labels of train are noisy, so that the last rounds are better there and worse on dev; a dev
    split with the answers of an early round has that as its best."""
    rng = np.random.default_rng(1)
    x = drawn()
    y = (x[:, 0] * x[:, 1] + x[:, 2] + x[:, 3]) % 4
    y[: CUT[0]] = np.where(rng.random(CUT[0]) < 0.3, rng.integers(0, 4, CUT[0]), y[: CUT[0]])
    train, dev, test = np.split(x, CUT)
    model = HistGradientBoostingClassifier(**rounds.TREES, early_stopping=False, random_state=0)
    model.fit(train, y[: CUT[0]])
    on_dev = list(model.staged_predict(dev))[2] if early else y[slice(*CUT)]
    scores = [accuracy(on_dev)(answers) for answers in model.staged_predict(dev)]
    best = expected_round(scores)
    every = list(model.staged_predict(test))
    on_train = [accuracy(y[: CUT[0]])(answers) for answers in model.staged_predict(train)]
    _, given = rounds.trees(Classes(4), [train, dev, test], y[: CUT[0]], accuracy(on_dev))
    assert np.array_equal(given, every[best])
    assert not np.array_equal(given, every[int(np.argmax(on_train))])
    assert not np.array_equal(given, every[-1])
    assert best == 2 if early else best > rounds.MORE  # which a later fit finds


def expected_round(scores: list[float]) -> int:
    """The best one, unless so many rounds before it were no better than an earlier one."""
    best = 0
    for i, score in enumerate(scores):
        if i - best > rounds.PATIENCE:
            break
        best = i if score > scores[best] else best
    return best


def test_of_rounds_the_first_of_the_best_is_taken_and_patience_ends() -> None:
    seen = []

    def answers(score: float) -> list[np.ndarray]:
        seen.append(score)
        return [np.array([score]), np.array([float(len(seen))])]

    order = [float("-inf"), 1.0, 3.0, 3.0, 2.0, 2.0, 9.0]
    kept = rounds.best_round(map(answers, order), lambda given: float(given[0]), patience=3)
    assert kept[1].tolist() == [3.0]
    assert seen == order[:-1]


@pytest.mark.parametrize("fit", [rounds.trees, rounds.network])
def test_the_clock_ends_a_fit_and_dev_chooses_among_the_rounds_until_then(fit: Fit) -> None:
    x, scores = drawn(), list[float]()
    y = (x[:, 0] * x[:, 1] + x[:, 2]) % 5

    def score(answers: np.ndarray) -> float:
        scores.append(accuracy(y[slice(*CUT)])(answers))
        return scores[-1]

    parts = np.split(x.astype(np.float32), CUT)
    dev, _ = fit(Classes(5), parts, y[: CUT[0]], score, lambda: False)
    assert len(scores) == (rounds.MORE if fit is rounds.trees else 1)
    assert accuracy(y[slice(*CUT)])(dev) == max(scores)


# ---------------------------------------------------------------------- threads


@pytest.mark.parametrize("fit", [rounds.trees, rounds.network])
def test_the_number_of_threads_changes_nothing(fit: Fit) -> None:
    """All sums are those of one thread, whose number is as before when a fit has ended."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 4)).astype(np.float32)
    y = x @ rng.normal(size=4) + x[:, 0] * x[:, 1]
    during: list[int] = []

    def score(answers: np.ndarray) -> float:
        during.extend(threads())
        return -float(((answers - y[slice(*CUT)]) ** 2).mean())

    given = []
    for n in (1, 2):
        with threadpool_limits(n):
            before = threads()
            target = Numbers(1, [0.0], [float(y.std())])
            given += [fit(target, np.split(x, CUT), y[: CUT[0]], score, lambda: True)]
            assert threads() == before == [n] * len(before)
    assert {*during} == {1}
    for one, two in zip(*given, strict=True):
        assert np.array_equal(one, two)


def threads() -> list[Any]:
    return [library["num_threads"] for library in threadpool_info()]
