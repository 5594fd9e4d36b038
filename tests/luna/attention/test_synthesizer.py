"""Synthesizer: its forms, their sums, and the official code's quirks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import luna

from ..kit import assert_defined, averaged, build, difference, mask_of, qkv

FORMS = [
    "random",
    "factorized_random",
    "dense",
    "factorized_dense",
    "random+dot",
    "dense+factorized_random",
    "factorized_dense+random+dot",
]


def logits(attention: luna.Attention, part: str, q: Tensor, k: Tensor) -> Tensor:
    """The definition of each part, entry by entry where it is short enough."""
    p, n = attention.parts[part], q.shape[2]
    if part == "random":
        return p.R.double()[None, :, :n, :n]
    if part == "factorized_random":
        return torch.einsum("hir,hrj->hij", p.R1.double()[:, :n], p.R2.double()[:, :, :n])[None]
    if part == "dense":
        all_columns = q.relu() @ p.W2.weight.double().T + p.W2.bias.double()
        return all_columns[..., :n]
    if part == "factorized_dense":
        A = q.relu() @ p.W_a.weight.double().T + p.W_a.bias.double()
        B = q.relu() @ p.W_b.weight.double().T + p.W_b.bias.double()
        outer = A.unsqueeze(-1) * B.unsqueeze(-2)  # (B, H, n, a, b)
        return outer.flatten(-2)[..., :n]
    return torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    attention = build("synthesizer", form=form, rank=5)

    def expected(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        parts = [logits(attention, part, q, k) for part in form.split("+")]
        return averaged(sum(parts).exp(), v, mask)

    assert_defined(attention, expected, d_v=9)


@pytest.mark.parametrize(("max_len", "a"), [(64, 8), (1025, 25), (96, 8), (13, 1)])
def test_default_factor(max_len: int, a: int) -> None:
    part = build("synthesizer", form="factorized_dense", max_len=max_len).parts["factorized_dense"]
    assert (part.W_a.out_features, part.W_b.out_features) == (a, max_len // a)


def test_official_masks_pairs_only_beside_a_dot_product() -> None:
    q, k, v = qkv()
    mask = mask_of("prefix")
    pure = build("synthesizer", form="random", profile="official")
    assert torch.equal(pure(q, k, v, mask), pure(q, k, v))
    mixed = build("synthesizer", profile="official")
    strict = build("synthesizer")
    strict.load_state_dict(mixed.state_dict())
    out = mixed(q, k, v, mask)
    # Subtracting 1e10 rounds the scores of valid pairs of a float64 row to nothing less than 1e-6.
    assert difference(out, strict(q, k, v, mask), mask) < 1e-5
    padded_row = out[1, :, -1]  # its constant cancels: attention over everything
    assert difference(padded_row, strict(q, k, v)[1, :, -1]) < 1e-5


@pytest.mark.parametrize(("score", "wins"), [(0.9e10, False), (1.1e10, True)])
def test_official_subtracts_1e10_from_a_masked_score(score: float, wins: bool) -> None:
    """A padded key with a larger score is attended to, as in the official code."""
    q, k, v = (torch.zeros_like(t) for t in qkv())
    q[..., 0], k[..., -1, 0] = 1.0, score * q.shape[-1] ** 0.5
    v[..., -1, :] = 1.0
    mask = torch.ones(q.shape[0], q.shape[2], dtype=torch.bool)
    mask[:, -1] = False
    out = build("synthesizer", profile="official")(q, k, v, mask)
    assert torch.equal(out[:, :, 0].round(), torch.full_like(out[:, :, 0], float(wins)))


def test_official_reshapes_the_dense_part() -> None:
    n_max, n = 16, 10
    attention = build("synthesizer", form="dense", profile="official", max_len=n_max)
    part = attention.parts["dense"].W2
    q, k, v = qkv(n=n)
    flat = (q.relu() @ part.weight.double().T + part.bias.double()).transpose(1, 2)
    expected = flat.reshape(2, 2, n, n_max)[..., :n].softmax(-1) @ v
    assert difference(attention(q, k, v), expected) < 1e-12
    strict = build("synthesizer", form="dense", max_len=n_max)
    strict.load_state_dict(attention.state_dict())
    assert difference(strict(q, k, v), expected) > 1e-3


def test_dropout() -> None:
    q, k, v = qkv()
    v = torch.eye(64, dtype=torch.float64).expand(2, 2, 64, 64)  # the output shows the weights
    for profile, shared in (("strict", False), ("official", True)):
        torch.manual_seed(0)
        attention = build("synthesizer", profile=profile, dropout=0.25)
        A = attention(q, k, v)
        dropped = attention.train()(q, k, v)
        kept = dropped != 0
        assert kept.double().mean().item() == pytest.approx(0.75, abs=0.02)
        assert difference(dropped[kept], A[kept] / 0.75) < 1e-12
        assert torch.equal(kept, kept[:1, :1].expand_as(kept)) == shared


def test_init() -> None:
    torch.manual_seed(0)
    table = build("synthesizer").parts["random"].R
    bound = math.sqrt(3 / (2 * 128))
    assert 0.99 * bound < table.abs().max() <= bound
    assert table.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)
    dense = build("synthesizer", form="dense").parts["dense"].W2
    assert dense.weight.abs().max() <= math.sqrt(6 / (32 + 128))
    assert 0 < dense.bias.abs().max() < 1e-5
