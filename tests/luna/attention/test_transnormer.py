"""TransNormer: both of its attentions, and which layers have which."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import elu

from ..kit import MASKS, build, difference, mask_of, qkv


@pytest.mark.parametrize(("n_layers", "early"), [(1, 0), (2, 1), (4, 2), (5, 2)])
def test_the_first_half_of_the_layers_sees_blocks(n_layers: int, early: int):
    """int(n_layers / 2) of them, as in the authors' code."""
    layers = [build("transnormer", layer=i, n_layers=n_layers) for i in range(n_layers)]
    assert [layer.diagonal for layer in layers] == [i < early for i in range(n_layers)]
    parameters = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    assert parameters == [0] * early + [2 * 32] * (n_layers - early)


@pytest.mark.parametrize("kind", MASKS)
def test_norm_attention(kind: str):
    """One root mean square over the channels of all heads: the heads' outputs side by side."""
    q, k, v = qkv()
    mask = mask_of(kind)
    A = (elu(q) + 1) @ (elu(k) + 1).mT * mask[:, None, None, :]
    joined = (A @ v).transpose(1, 2).flatten(2)  # (B, n, H d)
    expected = torch.nn.functional.rms_norm(joined, (2 * 32,), eps=1e-30)
    out = build("transnormer")(q, k, v, mask)
    assert difference(out.transpose(1, 2).flatten(2)[:, None], expected[:, None], mask) < 1e-12


@pytest.mark.parametrize("kind", MASKS)
def test_diag_attention(kind: str):
    """As the authors cut it, the last block filled up; here filling is not seen."""
    b, n = 12, 64
    q, k, v = qkv(d_v=5)
    mask = mask_of(kind)
    blocks = [slice(i, min(i + b, n)) for i in range(0, n, b)]

    def within(at: slice) -> Tensor:
        scores = q[:, :, at] @ k[:, :, at].mT / 32**0.5
        scores = scores.masked_fill(~mask[:, None, None, at], -1e30)
        return scores.softmax(-1) @ v[:, :, at]

    expected = torch.cat([within(at) for at in blocks], 2)
    attention = build("transnormer", block=b, n_layers=2)
    assert difference(attention(q, k, v, mask), expected, mask) < 1e-12
