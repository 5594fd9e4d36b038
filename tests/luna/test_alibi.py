"""Attention whose scores fall with the distance."""

from __future__ import annotations

import pytest
import torch

import luna
from luna.attention.softmax import alibi_slopes

from .kit import qkv

H, D, N = 2, 8, 9
METHODS = [(name, profile) for name in ("softmax", "kernelized") for profile in ("strict",)]
METHODS += [("softmax", "published"), ("softmax", "official")]


def build(name: str, **options: object) -> luna.Attention:
    return luna.build(name, n_heads=H, head_dim=D, max_len=N, **options).double().eval()


@pytest.mark.parametrize("n_heads", [1, 2, 8, 12])
def test_slopes_are_those_of_the_papers_code(n_heads: int):
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    theirs = bloom.build_alibi_tensor(torch.ones(1, 2), n_heads, torch.float32)  # (H, 1, 2)
    torch.testing.assert_close(alibi_slopes(n_heads), theirs[:, 0, 1])


@pytest.mark.parametrize(("name", "profile"), METHODS)
def test_weights_fall_exponentially_with_the_distance(name: str, profile: str):
    q, k, v = qkv(2, H, N, D)
    distance = (torch.arange(N)[:, None] - torch.arange(N)).abs().double()
    A = build(name, profile=profile).matrix(q, k)
    A = A * (-distance * torch.tensor([2.0**-4, 2.0**-8])[:, None, None]).exp()
    if name == "softmax":
        A = A / A.sum(-1, keepdim=True)
    found = build(name, profile=profile, alibi=True)
    torch.testing.assert_close(found.matrix(q, k), A)
    torch.testing.assert_close(found(q, k, v), A @ v)


def test_the_causal_form_sees_the_past_and_streams():
    q, k, v = qkv(2, H, N, D)
    mask = torch.ones(2, N, dtype=torch.bool)
    mask[0, 2:4] = mask[1, :1] = False
    attention = build("softmax", alibi=True, causal=True)
    torch.testing.assert_close(attention(q, k, v, mask), attention.matrix(q, k, mask) @ v)
    whole = attention(q, k, v)
    later = torch.ones(N, N, dtype=torch.bool).triu(1)
    assert (attention.matrix(q, k)[:, :, later] == 0).all()
    half = build("softmax", alibi=True)(q[:, :, :5], k[:, :, :5], v[:, :, :5])
    torch.testing.assert_close(whole[:, :, 4], half[:, :, 4])  # the last of five sees the same five
    state, start = attention.steps(None, q[:, :, :4], k[:, :, :4], v[:, :, :4])
    out = [*start.unbind(2)]
    for t in range(4, N):
        state, out_t = attention.step(state, q[:, :, t], k[:, :, t], v[:, :, t])
        out.append(out_t)
    torch.testing.assert_close(torch.stack(out, 2), whole)


def test_it_is_refused_by_name_where_there_are_no_single_weights():
    for name in luna.names():
        if not luna.get(name).alibi_form:
            with pytest.raises(luna.LunaError, match=f"'{name}' has no ALiBi form"):
                luna.build(name, n_heads=H, head_dim=D, max_len=N, alibi=True)
    q, k, v = qkv(1, H, N, D)
    with pytest.raises(luna.LunaError, match="alibi=True: distances are those within one sequence"):
        build("softmax", alibi=True)(q[:, :, :3], k, v)


@pytest.mark.parametrize("name", ["softmax", "kernelized"])
def test_distances_are_of_stored_places_padding_included(name: str):
    q, k, v = qkv(1, H, N, D)
    mask = torch.tensor([[True, False, True, True, False, True, True, False, False]])
    attention = build(name, alibi=True)
    out = attention(q, k, v, mask)
    torch.testing.assert_close(out, attention.matrix(q, k, mask) @ v)
    noise = torch.randn_like(v).masked_fill(mask[:, None, :, None], 0)
    torch.testing.assert_close(attention(q + noise, k + noise, v + noise, mask), out)
    assert out.isfinite().all()
