"""Dropout from 16 random bits a number: its rate, its stream, and attention whose weights drop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from luna import dropout as luna_dropout
from luna.dropout import attend, dropout
from luna.heads import split_heads

N = 1_000_003  # no multiple of 4
STREAM, STAY = [1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1], 749714  # of seed 5


@pytest.fixture(autouse=True)
def _threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_rate_scale_and_gradient(p: float):
    torch.manual_seed(0)
    x = torch.ones(N, requires_grad=True)
    out = dropout(x, p)
    share = (out == 0).double().mean().item()
    assert abs(share - p) < 4 * (p * (1 - p) / N) ** 0.5
    assert out[out != 0].unique().item() == pytest.approx(1 / (1 - p), rel=2**-15)
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], out)


def test_nothing_all_and_evaluation():
    x = torch.randn(7)
    assert torch.equal(dropout(x, 0.0), x)
    assert torch.equal(dropout(x, 0.5, training=False), x)
    assert (dropout(x, 1.0) == 0).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_seed_is_a_stream_on_any_machine(threads: int):
    torch.set_num_threads(threads)
    torch.manual_seed(5)
    first, stored = dropout(torch.ones(N), 0.25), torch.get_rng_state()
    assert (first[:16] != 0).int().tolist() == STREAM
    assert int((first != 0).sum()) == STAY
    second = dropout(torch.ones(N), 0.25)
    torch.set_rng_state(stored)
    assert torch.equal(dropout(torch.ones(N), 0.25), second)


@pytest.mark.parametrize("block", [1, 64, 2**20])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_drops_weights(monkeypatch: pytest.MonkeyPatch, block: int, causal: bool):
    """Values that are a unit matrix show the weights; backward draws the same ones again."""
    monkeypatch.setattr(luna_dropout, "BLOCK", block)
    torch.manual_seed(0)
    q, k = torch.randn(2, 3, 2, 12, 4, dtype=torch.float64)
    v = torch.eye(12, dtype=torch.float64).expand(3, 2, 12, 12)
    scores = q @ k.mT / 2
    if causal:
        scores = scores.masked_fill(~torch.ones(12, 12).tril().bool(), -torch.inf)

    def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(1)
        return attend(q, k, v, None, 0.25, causal=causal)

    out = dropped(q, k, v)
    stays = out != 0
    torch.testing.assert_close(out, scores.softmax(-1) * stays / 0.75)
    assert 0.1 < 1 - stays.sum() / scores.isfinite().sum() < 0.4
    inputs = [t.clone().requires_grad_() for t in (q, k, v)]
    torch.autograd.gradcheck(dropped, inputs, fast_mode=True)


@pytest.mark.parametrize("together", [True, False])
def test_heads_of_one_projection(together: bool):
    """The same gradients where they stand side by side already, and 0 at padding."""
    mask = torch.tensor([[True, True, False], [True, False, False]])
    plain = torch.randn(2, 3, 3, 2, 4)
    qkv = plain.clone().requires_grad_()
    heads = split_heads(qkv * 1, mask)
    expected = plain.permute(2, 0, 3, 1, 4) * mask[:, None, :, None]
    assert torch.equal(torch.stack(heads), expected)
    wanted = torch.randn(2, 3, 3, 2, 4)
    grads = wanted.clone().permute(2, 0, 3, 1, 4).unbind(0)
    grads = grads if together else tuple(g.contiguous() for g in grads)
    [gradient] = torch.autograd.grad(heads, qkv, grads)
    assert torch.equal(gradient, wanted * mask[:, :, None, None, None])
