"""Answers to test examples: written, read, and enough to recompute the numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lra.base.errors import UserError
from lra.metrics import Answers
from lra.metrics.target import Classes, decode
from lra.runs.answers import read_answers, write_answers

TEN = Classes(10)


@pytest.fixture
def example() -> tuple[Answers, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(500, 10, generator=generator)
    labels = torch.randint(10, (500,), generator=generator)
    parts = zip(logits.split(64), labels.split(64), strict=True)
    return TEN.collect([TEN.reduce(*part) for part in parts]), logits, labels


def test_accuracy_and_loss_follow(example):
    stored, logits, labels = example
    assert (stored.right == (logits.argmax(-1) == labels).numpy()).all()
    assert TEN.loss_of(stored) == pytest.approx(F.cross_entropy(logits, labels).item(), abs=1e-3)


def test_many_log_probabilities_are_rounded_and_their_mean_is_not(example):
    _, logits, labels = example
    logits, labels = logits.repeat(4, 1), labels.repeat(4)
    stored = TEN.store(logits, labels)
    assert stored.log_p.dtype == np.uint8
    exact = -logits.log_softmax(-1).amax(-1).numpy()
    assert (abs(decode(stored.log_p) - exact) < 0.11 * (1 + exact)).all()
    assert TEN.loss_of(stored) == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-4)


def test_the_loss_of_equal_answers_stays_exact():
    """A network that answers all alike: errors of rounding would add up."""
    logits, labels = torch.tensor([[0.3, 0.0]]).expand(2000, 2), torch.arange(2000) % 2
    exact = F.cross_entropy(logits, labels).item()
    two = Classes(2)
    assert two.loss_of(two.store(logits, labels)) == pytest.approx(exact, abs=1e-4)


def test_the_file_keeps_them(example, tmp_path: Path):
    stored, *_ = example
    write_answers(tmp_path / "a.npz", {"run": stored})
    again = read_answers(tmp_path / "a.npz", "run", stored.digests())
    assert TEN.loss_of(again) == TEN.loss_of(stored)
    assert (tmp_path / "a.npz").stat().st_size < 500 * 5 + 1000


def test_the_digest_is_of_the_values(example):
    stored, *_ = example
    other = stored.answers.copy()
    other[3] ^= 1
    changed = dataclasses.replace(stored, answers=other)
    assert changed.digests()["packed"] != stored.digests()["packed"]
    assert changed.digests()["labels"] == stored.digests()["labels"]


@pytest.mark.parametrize("kind", ["cut", "text", "lengths", "wrong answers"])
def test_a_damaged_file_is_named(example, tmp_path: Path, kind: str):
    stored, *_ = example
    path = tmp_path / "a.npz"
    changed = {"lengths": {"log_p": stored.log_p[:-1]}, "wrong answers": {"answers": stored.labels}}
    forged = dataclasses.replace(stored, **changed.get(kind, {}))
    write_answers(path, {"run": forged})
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:100])
    elif kind == "text":
        path.write_text("no answers", encoding="utf-8")
    with pytest.raises(UserError, match=r"a\.npz is damaged"):
        read_answers(path, "run", forged.digests())


def test_large_vocabularies_and_hopeless_answers_fit():
    logits = torch.zeros(4, 300)
    logits[:, 299] = 1e6
    stored = Classes(300).store(logits, torch.tensor([299, 299, 299, 0]))
    assert stored.answers.tolist() == [299] * 4
    assert np.isfinite(Classes(300).loss_of(stored))


@pytest.mark.parametrize("log_p", [-1.0, 60000.0, float("nan")])
def test_impossible_probabilities_are_refused(tmp_path: Path, log_p: float):
    labels = torch.arange(500) % 10
    given = torch.where(torch.arange(500) < 200, labels, (labels + 1) % 10)
    stored = TEN.store(torch.eye(10)[given], labels)
    forged = dataclasses.replace(stored, log_p=np.full_like(stored.log_p, log_p))
    write_answers(tmp_path / "a.npz", {"run": forged})
    with pytest.raises(UserError, match="no log-probability"):
        read_answers(tmp_path / "a.npz", "run", forged.digests())
