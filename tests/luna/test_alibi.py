"""Attention whose scores fall with the distance."""

from __future__ import annotations

import pytest
import torch

import luna
from luna.attention.softmax import alibi_slopes

from .kit import difference, mask_of, qkv

H, D, N = 2, 8, 9


def build(name: str, **options: object) -> luna.Attention:
    return luna.build(name, n_heads=H, head_dim=D, max_len=N, **options).double().eval()


@pytest.mark.parametrize("n_heads", [1, 2, 8, 12])
def test_slopes_are_those_of_the_papers_code(n_heads: int):
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    theirs = bloom.build_alibi_tensor(torch.ones(1, 2), n_heads, torch.float32)  # (H, 1, 2)
    torch.testing.assert_close(alibi_slopes(n_heads), theirs[:, 0, 1])


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("softmax", "strict"),
        ("softmax", "published"),
        ("softmax", "official"),
        ("kernelized", "strict"),
    ],
)
def test_weights_fall_exponentially_with_the_distance(name: str, profile: str):
    """The distances are those of stored places, padding included."""
    q, k, v = qkv(2, H, N, D)
    mask = mask_of("scatter", n=N)
    distance = (torch.arange(N)[:, None] - torch.arange(N)).abs().double()
    A = build(name, profile=profile).matrix(q, k, mask)
    A = A * (-distance * torch.tensor([2.0**-4, 2.0**-8])[:, None, None]).exp()
    if name == "softmax":
        A = A / A.sum(-1, keepdim=True)
    assert difference(build(name, profile=profile, alibi=True)(q, k, v, mask), A @ v, mask) < 1e-6


def test_the_causal_form_sees_the_past_and_streams():
    q, k, v = qkv(2, H, N, D)
    mask = mask_of("scatter", n=N)  # whose first token is padding
    attention, whole = build("softmax", alibi=True, causal=True), build("softmax", alibi=True)
    rows = [whole(*(t[:, :, : i + 1] for t in (q, k, v)), mask[:, : i + 1]) for i in range(N)]
    expected = torch.stack([out[:, :, -1] for out in rows], 2)
    assert difference(attention(q, k, v, mask), expected) < 1e-12
    assert difference(attention.matrix(q, k, mask) @ v, expected) < 1e-12
    state, start = attention.steps(None, q[:, :, :4], k[:, :, :4], v[:, :, :4])
    out = [*start.unbind(2)]
    for t in range(4, N):
        state, out_t = attention.step(state, q[:, :, t], k[:, :, t], v[:, :, t])
        out.append(out_t)
    assert difference(torch.stack(out, 2), attention(q, k, v)) < 1e-12


def test_it_is_refused_by_name_where_there_are_no_single_weights():
    for name in luna.names():
        if not luna.registry.mixes(name) and not luna.get(name).declared.alibi_form:
            with pytest.raises(luna.LunaError, match=f"'{name}' has no ALiBi form"):
                luna.build(name, n_heads=H, head_dim=D, max_len=N, alibi=True)
    q, k, v = qkv(1, H, N, D)
    with pytest.raises(luna.LunaError, match="alibi=True: distances are those within one sequence"):
        build("softmax", alibi=True)(q[:, :, :3], k, v)
