"""timm's ViT, recognised by the attributes of its attention: timm itself is not needed."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import LunaError
from luna.convert import attention_maps, convert, describe, distill, feature_parameters, revert


class Attention(nn.Module):
    """A stand-in with the attributes and the call of timm.layers.Attention."""

    def __init__(self, *, qk_norm: bool, norm: bool, gate: bool):
        super().__init__()
        self.num_heads, self.head_dim, self.scale = 2, 6, 6**-0.5
        self.fused_attn = True
        self.qkv = nn.Linear(12, 36)
        self.q_norm = nn.LayerNorm(6) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(6) if qk_norm else nn.Identity()
        self.attn_drop, self.proj_drop = nn.Dropout(0.2), nn.Dropout(0.0)
        self.proj = nn.Linear(12, 12)
        self.norm = nn.LayerNorm(12) if norm else nn.Identity()
        self.gate = nn.Linear(12, 12) if gate else None

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 6)).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        o = self.norm(o.transpose(1, 2).flatten(2))
        if self.gate is not None:
            o = o * self.gate(x).sigmoid()
        return self.proj_drop(self.proj(o))


class Block(nn.Module):
    def __init__(self, **options: bool):
        super().__init__()
        self.attn = Attention(**options)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attn(x, attn_mask=None, is_causal=False)


class VisionTransformer(nn.Module):
    def __init__(self, **options: bool):
        super().__init__()
        self.pos_embed = nn.Parameter(torch.randn(1, 10, 12))
        self.blocks = nn.Sequential(Block(**options), Block(**options))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x + self.pos_embed).mean(1)


def model(**options: bool) -> VisionTransformer:
    torch.manual_seed(0)
    made = VisionTransformer(**{"qk_norm": True, "norm": True, "gate": True} | options)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.3 * torch.randn_like(p))  # norms and gates that do something
    return made.eval()


X = torch.randn(3, 10, 12, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("options", [{}, {"qk_norm": False, "norm": False, "gate": False}])
def test_softmax_is_the_identity_names_stay_revert_is_exact_and_stage_1_works(options):
    host = model(**options)
    before, expected = copy.deepcopy(host.state_dict()), host(X)
    torch.testing.assert_close(convert(host, "softmax")(X), expected, atol=1e-6, rtol=0)
    student = convert(host, "hedgehog")
    assert not torch.equal(student(X), expected)
    state = student.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in before.items())
    assert state.keys() - before.keys() == feature_parameters(student).keys()
    report = distill(student, [X], steps=20, evaluate_every=10)
    assert report.after.mean() < report.before.mean()
    assert [m.shape for m in attention_maps(student, X).student] == [(3, 2, 10, 10)] * 2
    back = revert(student)
    assert torch.equal(back(X), expected)
    assert (back.state_dict().keys(), describe(back)) == (before.keys(), None)


def test_masks_are_refused_and_other_families_by_name():
    layer = convert(model(), "t2r").blocks[0].attn
    with pytest.raises(LunaError, match="neither attn_mask nor is_causal"):
        layer(X, attn_mask=torch.ones(3, 1, 10, 10))
    other = model()
    other.blocks[1].attn = type("EvaAttention", (Attention,), {})(qk_norm=0, norm=0, gate=0)
    with pytest.raises(LunaError, match=r"blocks\.1\.attn \(EvaAttention\)"):
        convert(other, "t2r")
