"""The cross-entropy of attention rows; tests/luna/attention/test_hedgehog.py has the mean of it."""

from __future__ import annotations

import math

import torch

from luna.convert.losses import row_cross_entropy, row_entropy, softmax_rows


def test_the_loss_of_the_teacher_itself_is_its_entropy():
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 3, 4, 9, 8, generator=g, dtype=torch.float64).unbind(0)
    T = softmax_rows(q, k)
    torch.testing.assert_close(row_cross_entropy(T, T), row_entropy(T), atol=1e-7, rtol=0)
    hard = torch.zeros_like(T)
    hard[..., 0] = 1
    assert float(row_entropy(hard).abs().max()) == 0


def test_the_floor_bounds_small_weights_and_leaves_the_others():
    """An added floor would move every weight."""
    teacher = torch.tensor([[[[0.5, 0.3, 0.2]]]])
    student = torch.tensor([[[[0.0, 0.05, 0.95]]]])
    expected = -(0.5 * math.log(0.1) + 0.3 * math.log(0.1) + 0.2 * math.log(0.95))
    found = row_cross_entropy(teacher, student, floor=0.1)
    torch.testing.assert_close(found, torch.tensor([[[expected]]]))
