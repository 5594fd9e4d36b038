"""Dropout on a CPU from 16 random bits a number, which takes half as long as torch's.

A number is dropped with probability p, rounded to a multiple of 2^-16. The bits are those of whole
64-bit words of torch's default generator, which draws one after the other: a seed gives the same
mask on any CPU with any number of threads, and a stored state goes on with the next. GPUs and
torch.compile keep torch's.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

PARTS = 2**16  # that p is a whole number of
BLOCK = 2**19  # weights of attention at a time: 2 MB


def dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    if not training or x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p, training)
    return _Dropout.apply(x, round(p * PARTS)) if p else x


class Dropout(nn.Dropout):
    """Of x (B, n, E). `tied` drops a channel of all tokens of an example, or of none."""

    def __init__(self, p: float, *, tied: bool = False):
        super().__init__(p)
        self.tied = tied

    def forward(self, x: Tensor) -> Tensor:
        if self.tied and self.training and self.p:
            return x * dropout(torch.ones_like(x[:, :1]), self.p, self.training)
        return dropout(x, self.p, self.training)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        bits = words.view(torch.int16)[: x.numel()].view(x.shape)  # -2^15 .. 2^15 - 1
        stays = (bits >= min(dropped - PARTS // 2, PARTS // 2 - 1)).view(torch.uint8)
        ctx.scale = PARTS / (PARTS - dropped) if dropped < PARTS else 0.0
        ctx.save_for_backward(stays)
        return x.mul(stays).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.mul(*ctx.saved_tensors).mul_(ctx.scale), None


def attend(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, p: float, *, causal: bool = False
) -> Tensor:
    """softmax(q k^T / sqrt(d)) v, its weights dropped with probability p. `visible` says which keys
    a query sees, or is added to the scores; without it `causal` hides the keys after a query.
    On a CPU weights are dropped in blocks, and computed and drawn again in backward."""
    if p == 0 or q.device.type != "cpu" or torch.compiler.is_compiling():
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=visible, dropout_p=p, is_causal=causal
        )
    (B, H, n, d), m = q.shape, k.shape[2]
    bias = q.new_zeros(1) if visible is None else visible
    if causal:
        bias = torch.ones(n, m, dtype=torch.bool).tril()
    if bias.dtype == torch.bool:
        bias = q.new_zeros(bias.shape).masked_fill_(~bias, float("-inf"))

    def block(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        q, k, bias = (t.flatten(0, 1) for t in (q * d**-0.5, k.mT, bias))
        weights = torch.baddbmm(bias, q, k).softmax(-1)
        return dropout(weights, p).unflatten(0, (-1, H)) @ v

    examples, rows = max(1, BLOCK // (H * n * m)), max(1, BLOCK // (H * m))
    parts = [t.split(examples) for t in (q, k, v, bias.expand(B, H, n, m))]
    out = []
    for q, k, v, bias in zip(*parts, strict=True):
        blocks = zip(q.split(rows, 2), bias.split(rows, 2), strict=True)
        again = [checkpoint(block, q, k, v, bias, use_reentrant=False) for q, bias in blocks]
        out.append(torch.cat(again, 2))
    return torch.cat(out)
