"""Answers to test examples: written, read, and enough to recompute the numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lra.base.config import UserError
from lra.runs import answers
from lra.runs.answers import Answers


@pytest.fixture
def given() -> tuple[Answers, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(500, 10, generator=generator)
    labels = torch.randint(10, (500,), generator=generator)
    return Answers.of(logits.split(64), labels.split(64)), logits, labels


def test_accuracy_and_loss_follow(given):
    found, logits, labels = given
    assert found.accuracy == pytest.approx((logits.argmax(-1) == labels).double().mean().item())
    assert found.loss == pytest.approx(F.cross_entropy(logits, labels).item(), abs=1e-3)


def test_the_file_keeps_them(given, tmp_path: Path):
    found, *_ = given
    found.write(tmp_path / "a.npz")
    again = answers.read(tmp_path / "a.npz")
    assert again.digest == found.digest
    assert again.loss == found.loss
    assert (tmp_path / "a.npz").stat().st_size < 500 * 5 + 1000


def test_the_digest_is_of_the_values(given):
    found, *_ = given
    other = found.answers.copy()
    other[3] ^= 1
    changed = Answers(other, found.labels, found.log_p, found.log_p_label)
    assert changed.digest != found.digest
    assert changed.labels_digest == found.labels_digest


@pytest.mark.parametrize("kind", ["cut", "text", "lengths", "wrong answers"])
def test_a_damaged_file_is_named(given, tmp_path: Path, kind: str):
    found, *_ = given
    path = tmp_path / "a.npz"
    found.write(path)
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:100])
    elif kind == "text":
        path.write_text("no answers", encoding="utf-8")
    elif kind == "lengths":
        Answers(found.answers, found.labels, found.log_p[:-1], found.log_p_label).write(path)
    else:
        Answers(found.labels, found.labels, found.log_p, found.log_p_label).write(path)
    with pytest.raises(UserError, match=r"a\.npz is damaged"):
        answers.read(path)


def test_large_vocabularies_and_hopeless_answers_fit():
    logits = torch.zeros(4, 300)
    logits[:, 299] = 1e6
    found = Answers.of([logits], [torch.tensor([299, 299, 299, 0])])
    assert found.answers.tolist() == [299] * 4
    assert np.isfinite(found.loss)
