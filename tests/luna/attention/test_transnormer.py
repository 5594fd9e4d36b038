"""TransNormer: both of its attentions, and which layers have which."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import elu, rms_norm

from ..kit import assert_defined, build, softmax_attention


@pytest.mark.parametrize(("n_layers", "early"), [(1, 0), (2, 1), (4, 2), (5, 2)])
def test_the_first_half_of_the_layers_sees_blocks(n_layers: int, early: int):
    """int(n_layers / 2) of them, as in the authors' code."""
    layers = [build("transnormer", layer=i, n_layers=n_layers) for i in range(n_layers)]
    assert [layer.diagonal for layer in layers] == [i < early for i in range(n_layers)]
    parameters = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    assert parameters == [0] * early + [2 * 32] * (n_layers - early)


def test_norm_attention():
    """One root mean square over the channels of all heads: the heads' outputs side by side."""

    def expected(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        A = (elu(q) + 1) @ (elu(k) + 1).mT * mask[:, None, None, :]
        joined = (A @ v).transpose(1, 2).flatten(2)  # (B, n, H d)
        return rms_norm(joined, (2 * 32,), eps=1e-30).unflatten(-1, (2, 32)).transpose(1, 2)

    assert_defined(build("transnormer"), expected)


def test_diag_attention():
    """As the authors cut it, the last block filled up; here filling is not seen."""
    b, n = 12, 64

    def expected(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        blocks = [slice(i, min(i + b, n)) for i in range(0, n, b)]
        tensors = ([t[:, :, at] for t in (q, k, v)] for at in blocks)
        parts = zip(tensors, blocks, strict=True)
        # A block of padding alone has no valid row.
        return torch.cat([softmax_attention(*t, mask[:, at]).nan_to_num() for t, at in parts], 2)

    assert_defined(build("transnormer", block=b, n_layers=2), expected, d_v=5)
