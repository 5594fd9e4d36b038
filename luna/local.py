"""The slot's local branch: a depthwise convolution of the values, added to any method's output.

    conv1d       kernel 5, one filter per head channel, shared over heads, bias
    conv2d       the same on the token grid, 5 x 5 (PolaFormer, LOTFormer's vision models)
    conv1d_long  kernel 33, one filter per head, shared over its channels, no bias (Nyströmformer)

An option of the slot and of no method, because on images it may carry more accuracy than the kernel
does: a comparison in which one method alone has it says nothing about attention.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import LunaError, Mask, nearest, zero_padding


class Kind(NamedTuple):
    kernel: tuple[int, ...]  # in both directions alike
    per_head: bool  # one filter per head rather than one per channel; then without a bias


KINDS = {
    "conv1d": Kind((5,), per_head=False),
    "conv2d": Kind((5, 5), per_head=False),
    "conv1d_long": Kind((33,), per_head=True),
}


class LocalBranch(nn.Module):
    """Args:

    kind      one of KINDS
    grid      (height, width) of the tokens, row by row; conv2d needs it
    causal    see no later token; conv2d has no causal form
    cls       position 0 is the CLS token, outside the sequence or grid: left out, it receives 0
    """

    def __init__(
        self,
        kind: str,
        n_heads: int,
        head_dim: int,
        grid: tuple[int, int] | None = None,
        *,
        causal: bool = False,
        cls: bool = False,
    ):
        super().__init__()
        if kind not in KINDS:
            raise LunaError(f"unknown local branch '{kind}'{nearest(str(kind), KINDS)}")
        self.kind, self.causal, self.cls = kind, causal, cls
        self.kernel, self.per_head = KINDS[kind]
        self.grid = None
        if len(self.kernel) == 2:
            if grid is None:
                raise LunaError(f"dwc={kind} needs a grid of tokens, and this task has none")
            if causal:
                raise LunaError(f"dwc={kind} has no causal form: use conv1d or conv1d_long")
            self.grid = tuple(grid)
        filters = n_heads if self.per_head else head_dim
        bound = torch.Size(self.kernel).numel() ** -0.5  # as nn.Conv1d and nn.Conv2d begin
        self.weight = nn.Parameter(torch.empty(filters, 1, *self.kernel).uniform_(-bound, bound))
        self.bias = None
        if not self.per_head:
            self.bias = nn.Parameter(torch.empty(filters).uniform_(-bound, bound))

    def forward(self, v: Tensor, mask: Mask = None) -> Tensor:
        """(B, H, n, e) -> (B, H, n, e); padding enters no sum and receives 0."""
        v = zero_padding(v, mask)
        out = F.pad(self._convolve(v[:, :, 1:]), (0, 0, 1, 0)) if self.cls else self._convolve(v)
        return zero_padding(out, mask)

    def _convolve(self, v: Tensor) -> Tensor:
        """One convolution over the H e channels of all heads."""
        _, H, n, e = v.shape
        if n == 0:  # a CLS token alone
            return v
        weight = self.weight.to(v.dtype)
        if self.per_head:
            weight = weight.repeat_interleave(e, 0)
        else:
            weight = weight.repeat(H, *[1] * (weight.dim() - 1))
        bias = None if self.bias is None else self.bias.to(v.dtype).repeat(H)
        x = v.mT.flatten(1, 2)  # (B, H e, n)
        if self.grid is not None:
            h, w = self.grid
            if h * w != n:
                raise LunaError(f"dwc={self.kind}: {n} tokens do not fill a grid of {h} x {w}")
            x = x.unflatten(-1, (h, w))
        k, conv = self.kernel[0], F.conv1d if self.grid is None else F.conv2d
        sides = (k - 1, 0) if self.causal else (k // 2, k // 2) * len(self.kernel)
        y = conv(F.pad(x, sides), weight, bias, groups=H * e)
        return y.flatten(2).unflatten(1, (H, e)).mT
