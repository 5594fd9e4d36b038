"""Boosted trees: they learn what linear rules cannot, and their sums are exact."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lra.data import boosting
from lra.data.boosting import SLOPE, UNIT, Kind, boosted, exp


def accuracy(labels: np.ndarray) -> Callable[[np.ndarray], float]:
    return lambda answers: float((answers == labels).mean())


def drawn(n: int = 3000) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 6, (n, 4))


@pytest.mark.parametrize("classes", [2, 3])
def test_trees_learn_what_no_linear_rule_does(classes: int) -> None:
    x = drawn()
    y = (x[:, 0] + x[:, 1]) % classes
    kind = Kind("classes", 1 if classes == 2 else classes)
    val, test = boosted(kind, [x[:2000], x[2000:2500], x[2500:]], y[:2000], accuracy(y[2000:2500]))
    assert (val == y[2000:2500]).mean() > 0.97
    assert (test == y[2500:]).mean() > 0.97


def test_trees_give_numbers_and_several_labels() -> None:
    x = drawn()
    number = (x[:, 0] * x[:, 1]).astype(float) / 10

    def error(answers: np.ndarray) -> float:
        return -float(((answers[:, 0] - number[2000:2500]) ** 2).mean())

    parts = [x[:2000], x[2000:2500], x[2500:]]
    _, test = boosted(Kind("numbers", 1), parts, number[:2000], error)
    assert np.abs(test[:, 0] - number[2500:]).mean() < 0.05
    labels = np.stack([x[:, 2] > 2, x[:, 3] == 1], 1).astype(int)
    _, test = boosted(
        Kind("labels", 2),
        parts,
        labels[:2000],
        lambda z: float(((z > 0) == labels[2000:2500]).mean()),
    )
    assert ((test > 0) == labels[2500:]).mean() > 0.99


def test_rounds_are_chosen_on_val() -> None:
    """On noise no tree helps: all answers are those of the constant, or few are not."""
    x, rng = drawn(600), np.random.default_rng(1)
    y = (rng.random(600) < 0.3).astype(int)
    seen: list[float] = []

    def score(answers: np.ndarray) -> float:
        seen.append(float((answers == y[200:400]).mean()))
        return seen[-1]

    val, _ = boosted(Kind("classes", 1), [x[:200], x[200:400], x[400:]], y[:200], score)
    assert (val == y[200:400]).mean() == max(seen)
    assert len(seen) < boosting.ROUNDS  # it stops where nothing is gained


def test_exp_is_right_and_whole() -> None:
    logits = np.arange(0.0, -16 * UNIT, -1)
    values = exp(logits)
    assert np.abs(values - SLOPE * np.exp(logits / UNIT)).max() <= 0.51
    assert (values == np.rint(values)).all()


def test_slopes_are_those_of_the_loss() -> None:
    rng = np.random.default_rng(2)
    logits, labels = np.rint(rng.normal(0, UNIT, (50, 4))), rng.integers(0, 4, 50)
    kind = Kind("classes", 4)
    slope, curve = kind.slopes(logits, kind.wanted(labels))
    p = np.exp(logits / UNIT)
    p /= p.sum(1, keepdims=True)
    assert np.abs(slope / SLOPE - (np.eye(4)[labels] - p)).max() < 1e-5
    assert np.abs(curve - p * (1 - p)).max() < 1e-5


def test_examples_in_another_order_give_the_same_trees() -> None:
    """Sums of floats would differ by the order, as they do between machines."""
    x = drawn(2000)
    y = (x[:, 0] * x[:, 1] + x[:, 2]) % 5
    order = np.random.default_rng(3).permutation(1500)
    kind, val = Kind("classes", 5), x[1500:]
    one = boosted(kind, [x[:1500], val, val], y[:1500], accuracy(y[1500:]), rounds=8)
    two = boosted(kind, [x[:1500][order], val, val], y[:1500][order], accuracy(y[1500:]), rounds=8)
    assert np.array_equal(one[1], two[1])
