"""Answers to test examples: written, read, and enough to recompute the numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lra.base.config import UserError
from lra.runs.answers import Answers, read_answers


@pytest.fixture
def example() -> tuple[Answers, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(500, 10, generator=generator)
    labels = torch.randint(10, (500,), generator=generator)
    return Answers.of(logits.split(64), labels.split(64)), logits, labels


def test_accuracy_and_loss_follow(example):
    stored, logits, labels = example
    assert stored.accuracy == pytest.approx((logits.argmax(-1) == labels).double().mean().item())
    assert stored.loss == pytest.approx(F.cross_entropy(logits, labels).item(), abs=1e-3)


def test_the_file_keeps_them(example, tmp_path: Path):
    stored, *_ = example
    stored.write(tmp_path / "a.npz")
    again = read_answers(tmp_path / "a.npz")
    assert again.digest == stored.digest
    assert again.loss == stored.loss
    assert (tmp_path / "a.npz").stat().st_size < 500 * 5 + 1000


def test_the_digest_is_of_the_values(example):
    stored, *_ = example
    other = stored.answers.copy()
    other[3] ^= 1
    changed = Answers(other, stored.labels, stored.log_p, stored.log_p_label)
    assert changed.digest != stored.digest
    assert changed.labels_digest == stored.labels_digest


@pytest.mark.parametrize("kind", ["cut", "text", "lengths", "wrong answers"])
def test_a_damaged_file_is_named(example, tmp_path: Path, kind: str):
    stored, *_ = example
    path = tmp_path / "a.npz"
    stored.write(path)
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:100])
    elif kind == "text":
        path.write_text("no answers", encoding="utf-8")
    elif kind == "lengths":
        Answers(stored.answers, stored.labels, stored.log_p[:-1], stored.log_p_label).write(path)
    else:
        Answers(stored.labels, stored.labels, stored.log_p, stored.log_p_label).write(path)
    with pytest.raises(UserError, match=r"a\.npz is damaged"):
        read_answers(path)


def test_large_vocabularies_and_hopeless_answers_fit():
    logits = torch.zeros(4, 300)
    logits[:, 299] = 1e6
    stored = Answers.of([logits], [torch.tensor([299, 299, 299, 0])])
    assert stored.answers.tolist() == [299] * 4
    assert np.isfinite(stored.loss)
