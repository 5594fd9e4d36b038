"""Agent attention: agents from a plain loop over segments, both softmaxes from their formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ..kit import assert_defined, build, by_example, softmax_attention


@pytest.mark.parametrize("m", [5, 61])  # 61: more agents than some example has tokens
def test_formula(m: int) -> None:
    def agents(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = q.shape[2]
        count = min(m, n)
        segments: list[list[int]] = [[] for _ in range(count)]
        for token in range(n):
            segments[token * count // n].append(token)
        means = torch.stack([q[:, :, segment].mean(2) for segment in segments], 2)
        return softmax_attention(q, means, softmax_attention(means, k, v))

    assert_defined(build("agent", agents=m), by_example(agents), d_v=5)
