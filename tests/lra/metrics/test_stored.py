"""What is stored of answers gives the same scores again, bit by bit; and how far chance moves a
score."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lra.base.errors import UserError
from lra.metrics import Answers, Metric, metric
from lra.metrics.target import IGNORED, Classes, Labels, Numbers, Target
from lra.runs.answers import read_answers, write_answers

TARGETS: dict[str, Target] = {
    "classes": Classes(5),
    "many classes": Classes(300),
    "labels": Labels(4),
    "number": Numbers(1, (37.0,), (12.0,)),
    "numbers": Numbers(3, (0.0, 5.0, -1.0), (1.0, 0.1, 9.0)),
}


def answered(asked: Target, n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and labels as the loader gives them."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, asked.outputs, generator=generator)
    if isinstance(asked, Classes):
        return logits, torch.randint(asked.outputs, (n,), generator=generator)
    if isinstance(asked, Labels):
        return logits, torch.randint(2, logits.shape, generator=generator).float()
    shape = (n,) if asked.outputs == 1 else (n, asked.outputs)
    return logits, 10 * torch.randn(shape, generator=generator)


@pytest.mark.parametrize("n", [1, 80, 1200])
@pytest.mark.parametrize("name", TARGETS)
def test_scores_follow_from_the_file_bit_by_bit(name: str, n: int, tmp_path: Path):
    asked = TARGETS[name]
    logits, labels = answered(asked, n)
    stored = asked.store(logits, labels)
    write_answers(tmp_path / "answers.npz", {"run": stored})
    found = read_answers(tmp_path / "answers.npz", "run", stored.digests())
    for (key, ours), (other, theirs) in zip(stored.arrays(), found.arrays(), strict=True):
        assert (key, ours.dtype) == (other, theirs.dtype)
        assert np.array_equal(ours, theirs)
    assert asked.loss_of(found) == asked.loss_of(stored)
    for each in metric.suited(asked.name):
        made = metric.get(each)
        assert made.score(found, asked) == made.score(stored, asked)
    assert asked.loss_of(stored) == pytest.approx(float(asked.loss(logits, labels)), rel=2e-3)


def test_answers_of_other_targets_are_told_apart(tmp_path: Path):
    """Runs of one task share their labels in a file; those of other values do not."""
    runs = {}
    for seed, name in enumerate(("labels", "number", "numbers", "labels")):
        runs[f"run{seed}"] = TARGETS[name].store(*answered(TARGETS[name], 9, seed))
    write_answers(tmp_path / "all.npz", runs)
    for run, stored in runs.items():
        found = read_answers(tmp_path / "all.npz", run, stored.digests())
        assert np.array_equal(found.answers, stored.answers)
    with pytest.raises(UserError, match="not the answers of the record"):
        read_answers(tmp_path / "all.npz", "run0", runs["run3"].digests())


def test_classes_are_stored_in_one_byte_up_to_256():
    for classes, dtype in ((256, np.uint8), (257, np.uint16)):
        logits = torch.zeros(2, classes)
        logits[:, -1] = 1
        stored = Classes(classes).store(logits, torch.tensor([classes - 1, 0]))
        assert stored.answers.dtype == dtype
        assert stored.answers.tolist() == [classes - 1, classes - 1]


def test_numbers_are_given_in_the_units_of_their_labels():
    asked = TARGETS["numbers"]
    logits, labels = torch.tensor([[0.0, 1.0, -2.0]]), torch.tensor([[0.0, 5.1, -19.0]])
    assert asked.store(logits, labels).answers == pytest.approx(np.array([[0.0, 5.1, -19.0]]))
    assert float(asked.loss(logits, labels)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("centre", "spread", "problem"),
    [
        ((0.0, 1.0), (1.0,), "centre of the targets must be one finite number, or 3"),
        ((0.0,), (1.0, float("inf"), 1.0), "spread of the targets must be one finite number"),
        ((0.0,), (0.0,), "spread of the targets must be above 0: give 1 where all are equal"),
    ],
)
def test_a_centre_or_spread_that_cannot_be_is_refused(centre, spread, problem: str):
    with pytest.raises(UserError, match=problem):
        Numbers(3, centre, spread)


def test_what_is_scored_of_each_target():
    tokens = np.array([[1, IGNORED], [0, 2]])
    assert Classes(3).scored(tokens).tolist() == [[True, False], [True, True]]
    for asked, labels in (
        (Numbers(1), np.array([1.0, np.nan])),
        (Numbers(2), np.array([[1.0, 2.0], [np.nan, np.nan]])),
        (Labels(2), torch.tensor([[1.0, 0.0], [torch.nan, torch.nan]])),
    ):
        assert asked.scored(labels).tolist() == [True, False]


# ---------------------------------------------------------------------- chance


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("accuracy", Classes(5)),
        ("bits_per_byte", Classes(5)),
        ("rmse", TARGETS["number"]),
        ("r2", TARGETS["number"]),
        ("spearman", TARGETS["number"]),
        ("f1", Labels(4)),
        ("average_precision", Labels(4)),
    ],
)
def test_noise_is_how_scores_of_other_test_sets_scatter(name: str, asked: Target):
    """Of 60 test sets of 300 examples, the mean noise is the deviation of the scores."""
    made = metric.get(name)
    each = [asked.store(*answered(asked, 300, seed)) for seed in range(60)]
    scatter = np.std([made.score(answers, asked) for answers in each])
    claimed = np.mean([made.noise(answers, asked) for answers in each[:12]])
    assert claimed == pytest.approx(scatter, rel=0.35)
    assert made.noise(each[0], asked) == made.noise(each[0], asked)


@pytest.mark.parametrize("name", ["accuracy", "bits_per_byte", "f1"])
def test_noise_draws_examples_and_not_their_tokens(name: str):
    """Examples of 1 to 15 tokens that are all answered well or all badly: as independent tokens
    they would seem far surer."""
    asked, made = (Labels(4) if name == "f1" else Classes(5)), metric.get(name)
    rng = np.random.default_rng(0)

    def answers_of(seed: int) -> Answers:
        sizes = rng.integers(1, 16, 200)
        logits, labels = answered(asked, int(sizes.sum()), seed)
        good = torch.from_numpy(np.repeat(rng.random(200) < 0.5, sizes))
        right = labels * 40.0 - 20 if name == "f1" else 20 * torch.eye(5)[labels]
        logits = torch.where(good[:, None], right, logits)
        return asked.store(logits, labels).grouped(sizes)

    each = [answers_of(seed) for seed in range(60)]
    scatter = np.std([made.score(answers, asked) for answers in each])
    claimed = np.mean([made.noise(answers, asked) for answers in each[:12]])
    assert claimed == pytest.approx(scatter, rel=0.35)
    alone = made.noise(replace(each[0], sizes=np.empty(0)), asked)
    assert alone < 0.7 * claimed


def test_the_noise_of_an_accuracy_is_that_of_a_share():
    asked, n = Classes(3), 500
    answers = asked.store(*answered(asked, n, 0))
    share = answers.right.mean()
    expected = 100 * math.sqrt(share * (1 - share) / n)
    assert metric.get("accuracy").noise(answers, asked) == pytest.approx(expected, rel=1e-12)


# ---------------------------------------------------------------------- names


class Close(Metric):
    name, title, unit = "close", "answers within 0.1", "%"
    targets = ("numbers",)

    def score(self, answers: Answers, target: Target) -> float:
        return 100 * float((np.abs(answers.answers - answers.labels) < 0.1).mean())


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    metric.suited("numbers")  # imports all that are ours, which happens once
    monkeypatch.setattr(metric.METRICS, "added", dict(metric.METRICS.added))


def test_a_metric_of_ones_own_is_known_by_its_name(registered: None):
    assert metric.named((Close, "rmse"), Numbers(1)) == ["close", "rmse"]
    assert metric.get("close").text(12.5) == "12.5000 %"
    assert "close" in metric.suited("numbers")


@pytest.mark.parametrize(
    ("metrics", "problem"),
    [
        (
            ("accuracy",),
            "'accuracy' scores classes, but the task asks for numbers: choose among r2",
        ),
        (("rsme",), "there is no metric 'rsme'; did you mean rmse"),
        (("rmse", "rmse"), "a metric is named twice"),
        ((type("Bad", (Close,), {"name": "mae"}),), "there is a metric 'mae' already"),
        ((type("Bare", (), {}),), "metric 'Bare' lacks name, title, targets"),
        (
            (type("Own", (), vars(Close) | {"__slots__": ()}),),
            "'Own' must extend lra.metrics.Metri",
        ),
    ],
)
def test_a_metric_that_does_not_fit_is_refused(metrics, problem: str, registered: None):
    with pytest.raises(UserError, match=problem):
        metric.named(metrics, Numbers(1))
