"""ReBased: the learned quadratic kernel, strict and as in the authors' code."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from luna import Attention

from ..kit import assert_defined, averaged, build, qkv


def learned(**options: object) -> Attention:
    """Away from gamma = 1 and beta = 0, each head and side in its own way."""
    torch.manual_seed(0)
    attention = build("rebased", d_out=6, **options).double()
    with torch.no_grad():
        for side in (attention.map_q, attention.map_k):
            side.gamma.add_(0.5 * torch.randn_like(side.gamma))
            side.beta.add_(0.5 * torch.randn_like(side.beta))
    return attention


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("profile", ["strict", "published"])
def test_kernel_is_the_square(profile: str, causal: bool) -> None:
    attention = learned(profile=profile, causal=causal)

    def narrow(x: Tensor, side: Attention) -> Tensor:
        x = torch.einsum("bhnd,hed->bhne", x, side.map.weight)
        if profile == "strict":
            x = layer_norm(x, (6,))
        else:  # all heads of a token side by side, as one vector
            joined = layer_norm(x.transpose(1, 2).flatten(2), (2 * 6,))
            x = joined.unflatten(-1, (2, 6)).transpose(1, 2)
        return x * side.gamma + side.beta

    def expected(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = narrow(q, attention.map_q) @ narrow(k, attention.map_k).mT
        return averaged(scores.square(), v, mask, causal=causal)

    assert_defined(attention, expected, d_v=5, close=1e-9)


def test_a_query_can_ignore_a_key() -> None:
    """Where q' and k' are orthogonal the weight is exactly 0, which Based's kernel never is."""
    attention = build("rebased", d_out=2, n_heads=1, head_dim=2).double()
    with torch.no_grad():
        for side, beta in ((attention.map_q, [1.0, 0.0]), (attention.map_k, [0.0, 1.0])):
            side.gamma.zero_()
            side.beta.copy_(torch.tensor(beta).view(1, 1, 2))
    q, k, _ = qkv(1, 1, 3, 2)
    phi_q, phi_k = attention.features(q, k, None)
    assert (phi_q @ phi_k.mT == 0).all()
