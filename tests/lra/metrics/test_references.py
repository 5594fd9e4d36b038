"""Every metric gives what scikit-learn and scipy give, also on ties, and is defined where they are
not."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as sk

from lra.base.errors import UserError
from lra.metrics import Answers, metric, target
from lra.metrics.target import Classes, Labels, Numbers, Target
from luna.convert.tasks import metrics as glue

N = 60


def classes(seed: int, k: int) -> Answers:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, k, N)
    return Answers(np.where(rng.random(N) < 0.5, labels, rng.integers(0, k, N)), labels)


def labels(seed: int, k: int = 4) -> Answers:
    """Logits with many ties; nobody has the last label."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(N, k)).round(0).astype(np.float16)
    there = (rng.random((N, k)) < [0.1, 0.5, 0.8, 0]).astype(np.uint8)
    return Answers(logits, there)


def numbers(seed: int, *shape: int) -> Answers:
    rng = np.random.default_rng(seed)
    wanted = rng.normal(3, 2, (N, *shape)).round(0)
    given = wanted + rng.normal(size=(N, *shape)).round(0)
    return Answers(given.astype(np.float32), wanted.astype(np.float32))


def columns(of: Callable[..., float], a: Answers) -> float:
    """The mean of a score over columns, in double precision."""
    pairs = zip(
        *(x.astype(float).reshape(len(a), -1).T for x in (a.answers, a.labels)), strict=True
    )
    return float(np.mean([of(given, wanted) for given, wanted in pairs]))


REFERENCES: dict[str, Callable[[Answers], float]] = {
    "r2": lambda a: sk.r2_score(a.labels, a.answers),
    "rmse": lambda a: columns(lambda x, y: sk.root_mean_squared_error(y, x), a),
    "mae": lambda a: sk.mean_absolute_error(a.labels, a.answers),
    "pearson": lambda a: 100 * columns(lambda x, y: stats.pearsonr(x, y)[0], a),
    "spearman": lambda a: 100 * columns(lambda x, y: stats.spearmanr(x, y)[0], a),
    "pearson_spearman": lambda a: (REFERENCES["pearson"](a) + REFERENCES["spearman"](a)) / 2,
    "f1": lambda a: 100 * sk.f1_score(a.labels, a.answers > 0, average="micro", zero_division=0),
    "average_precision": lambda a: (
        100
        * sk.average_precision_score(
            a.labels[:, :3], a.answers[:, :3].astype(float), average="macro"
        )
    ),
    "accuracy": lambda a: 100 * sk.accuracy_score(a.labels, a.answers),
    "matthews": lambda a: 100 * sk.matthews_corrcoef(a.labels, a.answers),
    "accuracy_f1": lambda a: (
        50 * sk.accuracy_score(a.labels, a.answers)
        + 50 * sk.f1_score(a.labels, a.answers, zero_division=0)
    ),
}
OF_NUMBERS = ("r2", "rmse", "mae", "pearson", "spearman", "pearson_spearman")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", REFERENCES)
def test_a_score_is_that_of_the_reference(name: str, seed: int):
    made = metric.get(name)
    several: list[tuple[Answers, Target]] = []
    if "numbers" in made.targets:
        several = [(numbers(seed), Numbers(1)), (numbers(seed, 3), Numbers(3))]
    elif "labels" in made.targets:
        several = [(labels(seed), Labels(4))]
    else:
        several = [(classes(seed, 2), Classes(2))]
    for answers, asked in several:
        assert made.score(answers, asked) == pytest.approx(REFERENCES[name](answers), rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_scores_of_the_next_byte_are_the_cross_entropy(seed: int):
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=(N, 5)).astype(np.float32))
    wanted = rng.integers(0, 5, N)
    answers = Classes(5).store(logits, torch.from_numpy(wanted))
    nats = sk.log_loss(wanted, logits.double().softmax(-1).numpy(), labels=range(5))
    found = {m: metric.get(m).score(answers, Classes(5)) for m in ("bits_per_byte", "perplexity")}
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2), rel=1e-3)
    assert found["perplexity"] == pytest.approx(math.exp(nats), rel=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_glue_scores_are_those_that_conversions_train_by(seed: int):
    def both(name: str, other: Callable, a: Answers, asked: Target) -> tuple[float, float]:
        tensors = torch.from_numpy(a.answers), torch.from_numpy(a.labels)
        return metric.get(name).score(a, asked), 100 * other(*tensors)["score"]

    pairs = [
        both("accuracy", glue.classified, classes(seed, 3), Classes(3)),
        both("accuracy_f1", glue.paraphrase, classes(seed, 2), Classes(2)),
        both("matthews", glue.acceptable, classes(seed, 2), Classes(2)),
        both("pearson_spearman", glue.similarity, numbers(seed), Numbers(1)),
    ]
    for ours, theirs in pairs:
        assert ours == pytest.approx(theirs, rel=1e-9)


# ---------------------------------------------------------------------- where references end


def test_answers_that_do_not_vary_have_no_correlation():
    same = Answers(np.full(N, 0.1, np.float32), numbers(0).labels)
    for name in ("pearson", "spearman", "pearson_spearman"):
        assert metric.get(name).score(same, Numbers(1)) == 0
    one = Answers(np.ones(N, int), classes(0, 2).labels)
    assert metric.get("matthews").score(one, Classes(2)) == 0


def test_a_label_that_nobody_has_takes_no_part_in_average_precision():
    made, a = metric.get("average_precision"), labels(1)
    without = Answers(a.answers[:, :3], a.labels[:, :3])
    assert made.score(a, Labels(4)) == made.score(without, Labels(3))


def test_nothing_answered_and_nothing_there_is_no_hit():
    nothing = Answers(np.full((3, 2), -1.0, np.float16), np.zeros((3, 2), np.uint8))
    assert metric.get("f1").score(nothing, Labels(2)) == 0
    assert metric.get("average_precision").score(nothing, Labels(2)) == 0
    none = Answers(np.zeros(3, int), np.zeros(3, int))
    assert metric.get("accuracy_f1").score(none, Classes(2)) == 50


@pytest.mark.parametrize("name", [n for n in REFERENCES if n != "average_precision"])
def test_one_example_has_a_score(name: str):
    made = metric.get(name)
    kinds = {
        "numbers": (Answers(np.float32([2]), np.float32([5])), Numbers(1)),
        "labels": (Answers(np.float16([[2, -1]]), np.uint8([[1, 1]])), Labels(2)),
        "classes": (Answers(np.array([1]), np.array([1])), Classes(2)),
    }
    answers, asked = kinds[made.targets[0]]
    expected = {
        "rmse": 3,
        "mae": 3,
        "f1": 100 * 2 / 3,
        "accuracy": 100,
        "accuracy_f1": 100,
    }
    assert made.score(answers, asked) == pytest.approx(expected.get(name, 0))
    assert made.noise(answers, asked) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name", ["r2", "pearson", "spearman", "pearson_spearman"])
def test_targets_that_are_all_the_same_are_refused(name: str):
    varied = np.float32([[1, 5], [2, 5], [3, 5]])
    metric.get(name).check(varied[:, 0])
    with pytest.raises(UserError, match=f"all targets are 5, so that {metric.get(name).title}"):
        metric.get(name).check(varied)
    metric.get("rmse").check(varied)


def test_labels_that_nobody_has_at_all_are_refused():
    with pytest.raises(UserError, match="no example has a label"):
        metric.get("average_precision").check(np.zeros((4, 2), np.uint8))


# ---------------------------------------------------------------------- one answer to everything


@pytest.mark.parametrize("seed", range(4))
def test_the_best_constant_is_the_best_of_all(seed: int):
    """Of classes and sets of labels all are tried; of numbers none on a fine grid is better."""
    a, b = classes(seed, 3), classes(seed + 9, 3)
    best = max(range(3), key=lambda c: (a.labels == c).sum())
    expected = 100 * int((b.labels == best).sum()) / N
    assert metric.get("accuracy").constant(a.labels, b.labels, Classes(3)) == expected

    rows, f1 = labels(seed).labels, metric.get("f1")
    sets = [np.broadcast_to(np.float64(s) - 0.5, rows.shape) for s in product((0, 1), repeat=4)]
    highest = max(f1.score(Answers(s, rows), Labels(4)) for s in sets)
    assert f1.constant(rows, rows, Labels(4)) == highest

    wanted = numbers(seed).labels
    for name in ("rmse", "mae", "r2"):
        made = metric.get(name)
        grid = [np.full(N, x, np.float32) for x in np.linspace(wanted.min(), wanted.max(), 99)]
        scores = [made.sign * made.score(Answers(x, wanted), Numbers(1)) for x in grid]
        assert made.sign * made.constant(wanted, wanted, Numbers(1)) >= max(scores)
    assert metric.get("r2").constant(wanted, wanted, Numbers(1)) == pytest.approx(0, abs=1e-6)


def test_the_constant_of_average_precision_is_the_mean_frequency():
    rows = labels(0).labels
    shares = 100 * rows[:, :3].mean()
    assert metric.get("average_precision").constant(rows, rows, Labels(4)) == pytest.approx(shares)


def test_the_constant_of_bytes_is_their_entropy():
    text = np.array([0] * 5000 + [1] * 5000)
    bits = metric.get("bits_per_byte").constant(text, text, Classes(2))
    assert bits == pytest.approx(1, abs=1e-6)


def test_better_is_by_the_direction_of_the_metric_and_never_nan():
    r2, rmse, nan = metric.get("r2"), metric.get("rmse"), math.nan
    assert r2.better(0.5, 0.4)
    assert not r2.better(0.4, 0.4)
    assert rmse.better(0.4, 0.5)
    assert not rmse.better(0.5, 0.4)
    for made in (r2, rmse):
        assert made.better(-9.0, nan)
        assert not made.better(nan, -9.0)
        assert not made.better(nan, nan)


def test_every_metric_is_tested_here():
    assert {*REFERENCES, "bits_per_byte", "perplexity"} == {*metric.BUILTIN}
    assert {*target.TARGETS} == {"classes", "labels", "numbers"}
