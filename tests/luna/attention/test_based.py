"""Based: its kernel is the Taylor polynomial of softmax's."""

from __future__ import annotations

import pytest
import torch

from ..kit import build, difference, mask_of, qkv


@pytest.mark.parametrize("causal", [False, True])
def test_kernel_is_the_taylor_polynomial(causal: bool) -> None:
    attention = build("based", d_out=6, causal=causal)
    q, k, v = qkv(d_v=5)
    mask = mask_of("scatter")
    narrow = [
        torch.einsum("bhnd,hed->bhne", t, map.weight.double())
        for t, map in ((q, attention.map_q), (k, attention.map_k))
    ]
    s = torch.einsum("bhid,bhjd->bhij", *narrow) / 6**0.5
    weights = (1 + s + s**2 / 2) * mask[:, None, None, :]
    weights = weights.tril() if causal else weights
    expected = weights / weights.sum(-1, keepdim=True).clamp_min(1e-30) @ v
    assert difference(attention(q, k, v, mask), expected, mask) < 1e-10


def test_features_are_those_of_the_paper_up_to_equal_products() -> None:
    """1 + d' + d'^2 features in the paper, of which x_a x_b and x_b x_a are one here."""
    attention = build("based", d_out=4)
    q, k, _ = qkv()
    phi_q, phi_k = attention.features(q, k, None)
    assert phi_q.shape[-1] == attention.feature_dim == 1 + 4 + 10

    def paper(x: torch.Tensor) -> torch.Tensor:
        outer = x.unsqueeze(-1) * x.unsqueeze(-2)
        return torch.cat([x[..., :1] ** 0, x / 4**0.25, outer.flatten(-2) / (2 * 4) ** 0.5], -1)

    expected = paper(attention.map_q(q)) @ paper(attention.map_k(k)).mT
    assert difference(phi_q @ phi_k.mT, expected) < 1e-12
    assert expected.min() >= 0.5
