"""Attention modules of timm, which has no registry of attention functions: a module is replaced by
one with the same children under the same names, so that checkpoints of the original still load."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from luna.base import LunaError
from luna.convert.host import ConvertedLayer


class TimmLinearAttention(nn.Module):
    """The steps of timm.layers.Attention: qkv, norms of q and k, attention, merge of heads, norm,
    gate, projection. ViT-B/16 has no `norm` and `gate`, other models have."""

    qkv: nn.Module
    q_norm: nn.Module
    k_norm: nn.Module
    proj: nn.Module
    proj_drop: nn.Module
    norm: nn.Module | None
    gate: nn.Module | None
    luna_layer: ConvertedLayer

    def __init__(self, original: Any):
        super().__init__()
        self.n_heads: int = original.num_heads
        self.head_dim: int = original.head_dim
        self.scale: float = original.scale
        for name, child in original.named_children():
            self.add_module(name, child)
        self.norm = getattr(original, "norm", None)
        self.gate = getattr(original, "gate", None)
        self.training = original.training
        self.__dict__["original"] = original  # not as a submodule, which would be saved twice

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        if attn_mask is not None or is_causal:
            raise LunaError("converted timm attention takes neither attn_mask nor is_causal")
        B, n, _ = x.shape
        q, k, v = self.qkv(x).reshape(B, n, 3, self.n_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)  # (B, H, n, d)
        out, _ = self.luna_layer(q, k, v, None, scaling=self.scale)
        out = out.transpose(1, 2).flatten(2)  # (B, n, H d)
        if self.norm is not None:
            out = self.norm(out)
        if self.gate is not None:
            out = out * self.gate(x).sigmoid()
        return self.proj_drop(self.proj(out))
