"""timm's attention has no function registry: its module is replaced by one that holds the same
objects under the same names, so checkpoints of the original stay loadable."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from luna.base import LunaError
from luna.convert.host import run


class TimmLinearAttention(nn.Module):
    """In the order of timm.layers.Attention: qkv, q and k norm, attention, heads merged, norm,
    gate, projection. `norm` and `gate` are absent from ViT-B/16 and present elsewhere."""

    qkv: nn.Module
    q_norm: nn.Module
    k_norm: nn.Module
    proj: nn.Module
    proj_drop: nn.Module
    norm: nn.Module | None
    gate: nn.Module | None

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
        self.__dict__["original"] = original  # not a submodule: nothing of it is saved twice

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        if attn_mask is not None or is_causal:
            raise LunaError("converted timm attention takes neither attn_mask nor is_causal")
        B, n, _ = x.shape
        q, k, v = self.qkv(x).reshape(B, n, 3, self.n_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)  # (B, H, n, d)
        out, _ = run(self, q, k, v, None, scaling=self.scale)
        out = out.transpose(1, 2).flatten(2)  # (B, n, H d)
        if self.norm is not None:
            out = self.norm(out)
        if self.gate is not None:
            out = out * self.gate(x).sigmoid()
        return self.proj_drop(self.proj(out))
