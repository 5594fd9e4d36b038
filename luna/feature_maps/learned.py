"""LUNA's learned feature map: projections of a token, each passed through scalar functions.

    u_i = w_i . x + beta_i                       i = 1..M
    phi_{iL+l}(x) = h(x) M^(-1/2) psi_l(u_i)     l = 1..L

With psi_l scalar MLPs and h = 1 this is the paper's listing; the kernels of the ablation are in
bank.py. There are G groups of parameters: one per layer, or one per head. The envelope h of
eq. phi-def-scalarenv and of the kernel ablation is

    scalar  h: R^d -> R       phi = h(x) psi          h = s(g . x + b)
    norm    h: R^d -> R       phi = h(x) psi          h = s(g |x|^2 + b)
    vector  h: R^d -> R^L     phi = h_l(x) psi_l      h in [0, 1]^L, s = sigmoid

with s = sigmoid, softplus, exp, or none, which leaves h any sign. `norm` starts at
g = -1 / (2 sqrt(d)), b = 0: with s = exp, gaussian projections and psi(u) = exp(d^(-1/4) u), phi is
then Performer's positive feature map. A positive scalar envelope cancels for queries in the
normalised output: only h(k_j) acts, as a weight of the key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import Mask, Slot
from luna.feature_maps.headwise import HeadwiseLinear
from luna.feature_maps.options import LunaOptions, Squash
from luna.kernels.scalar_mlp import OUTPUTS, over_groups, scalar_mlp

SQUASH: dict[Squash, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "exp": OUTPUTS["exp"],
    "none": OUTPUTS[False],
}


class FeatureMap(nn.Module):
    """phi: x (B, H, n, d) -> (B, H, n, M L), built from a slot and LUNA's options."""

    signed: bool  # features may be negative
    eps: float = 1e-6  # of the denominator

    def forward(self, x: Tensor, mask: Mask, keys: bool = False) -> Tensor:
        raise NotImplementedError


def freeze(module: nn.Module) -> None:
    """Make buffers of a module's own parameters: they stay in checkpoints and are never trained,
    not even by a stage of conversion that trains all parameters of a map."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        delattr(module, name)
        module.register_buffer(name, parameter.detach())


class Projections(HeadwiseLinear):
    """u = W x + beta, W ~ N(0, 1) / sqrt(d) and beta = 0 at the start. Frozen ones stay there;
    gaussian ones, of the same draw, are the w ~ N(0, I) of the paper's theorems."""

    def __init__(self, options: LunaOptions, n_maps: int, d_in: int, d_out: int):
        super().__init__(n_maps, d_in, d_out)
        if options.projections != "learned":
            freeze(self)
        if options.projections == "gaussian":
            self.weight.mul_(d_in**0.5)

    def reset_parameters(self) -> None:
        assert self.bias is not None
        nn.init.normal_(self.weight, std=self.d_in**-0.5)
        nn.init.zeros_(self.bias)


class Channels(nn.Module):
    """psi_1..psi_L: MLPs of one scalar with a hidden layer each, or one hidden layer for all of
    them, initialised as the linear layers they are: u (B, H, n, M) -> (B, H, n, M, L)."""

    def __init__(self, slot: Slot, options: LunaOptions):
        super().__init__()
        G, L, w = options.groups(slot), options.L, options.hidden
        C = 1 if options.shared_channels else L
        self.e = nn.Parameter(torch.empty(G, C, w).uniform_(-1, 1))
        self.f = nn.Parameter(torch.empty(G, C, w).uniform_(-1, 1))
        self.a = nn.Parameter(torch.empty(G, L, w).uniform_(-(w**-0.5), w**-0.5))
        self.g = nn.Parameter(torch.empty(G, L).uniform_(-(w**-0.5), w**-0.5))
        if options.psi == "frozen":
            freeze(self)
        self.activation, self.nonneg = options.activation, options.nonneg
        # The fused kernels have no features: where features are asked for, another way is taken.
        self.evaluate = "auto" if options.evaluate == "fused" else options.evaluate
        self.chunk = options.chunk
        self.signed = not options.nonneg

    def flops(self, u: Tensor, *_: Any) -> int:
        """The scalar MLPs as dense layers, whatever `evaluate` is: per scalar and channel a linear
        layer 1 -> w, of which there is one where the channels share it, and one w -> 1."""
        hidden_layers, width = self.e.shape[1:]
        return u.numel() * 2 * width * (hidden_layers + self.g.shape[1])

    def forward(self, u: Tensor, scale: float = 1.0) -> Tensor:
        """`scale` multiplies the result at no cost: relu(s y) = s relu(y) for s > 0."""
        if isinstance(self.nonneg, str):
            return OUTPUTS[self.nonneg](self._evaluate(u, 1.0)) * scale
        return self._evaluate(u, scale)

    def _evaluate(self, u: Tensor, scale: float) -> Tensor:
        def channels(rows: Tensor) -> Tensor:
            return scalar_mlp(
                rows,
                *(self.e, self.f, self.a * scale, self.g * scale),
                activation=self.activation,
                nonneg=self.nonneg is True,
                evaluate=self.evaluate,
                chunk=self.chunk,
            )

        return over_groups(u, len(self.g), channels)


class ChannelRMS(nn.Module):
    """Shrinks channels whose root mean square over real tokens exceeds 0.1: the listing's option.

    The listing takes the statistic of each call, mixing padding in, so that an evaluation depends
    on its batch. Here padding is left out and evaluation uses a running average.
    """

    target, eps, momentum = 0.1, 1e-6, 0.1
    over_batch = True  # a batch in pieces, or forward twice, has another statistic
    mean_square: Tensor
    batches: Tensor

    def __init__(self, groups: int, L: int):
        super().__init__()
        self.register_buffer("mean_square", torch.zeros(groups, L))
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def forward(self, y: Tensor, mask: Mask) -> Tensor:
        square = self._batch_mean_square(y, mask) if self.training else self.mean_square
        rms = (square + self.eps).sqrt()  # (G, L)
        gain = (self.target / (rms + self.eps)).clamp(max=1)
        return y * gain[:, None, None, :].to(y.dtype)

    def _batch_mean_square(self, y: Tensor, mask: Mask) -> Tensor:
        B, _, n, M, _ = y.shape
        real = y.new_ones(B, n) if mask is None else mask.to(y.dtype)
        square = torch.einsum("bhnml,bn->hl", y.square(), real)
        if len(self.mean_square) == 1:
            square = square.mean(0, keepdim=True)
        square = square / (real.sum() * M).clamp(min=1)
        with torch.no_grad():
            weight = torch.where(self.batches == 0, 1.0, self.momentum) * (real.sum() > 0)
            self.mean_square.lerp_(square.to(self.mean_square.dtype), weight)
            self.batches.add_((real.sum() > 0).long())
        return square


class Envelope(nn.Module):
    """h(x): (B, H, n, d) -> (B, H, n, 1 or L), after one hidden relu layer where asked for."""

    def __init__(self, slot: Slot, options: LunaOptions):
        super().__init__()
        G, hidden = options.groups(slot), options.envelope_hidden
        self.of_norm = options.envelope == "norm"
        d = 1 if self.of_norm else slot.head_dim
        self.hidden = HeadwiseLinear(G, d, hidden) if hidden else None
        self.out = HeadwiseLinear(G, hidden or d, options.L if options.envelope == "vector" else 1)
        assert self.out.bias is not None
        nn.init.zeros_(self.out.bias)
        if self.of_norm and not hidden:
            nn.init.constant_(self.out.weight, -0.5 * slot.head_dim**-0.5)
        self.squash = SQUASH[options.envelope_squash]

    def forward(self, x: Tensor) -> Tensor:
        if self.of_norm:
            x = x.square().sum(-1, keepdim=True)  # (B, H, n, 1)
        if self.hidden is not None:
            x = self.hidden(x).relu()
        return self.squash(self.out(x))


class LearnedFeatures(FeatureMap):
    """The map above; D = M L, projection-major."""

    def __init__(self, slot: Slot, options: LunaOptions):
        super().__init__()
        G, M = options.groups(slot), options.M
        self.projections = Projections(options, G, slot.head_dim, M)
        self.channels = Channels(slot, options)
        # One statistic each for q and k of one map, or one in all.
        statistics = 2 if options.ch_rms is True and options.tie_qk else bool(options.ch_rms)
        self.rms = nn.ModuleList(ChannelRMS(G, options.L) for _ in range(statistics))
        self.envelope = None if options.envelope == "none" else Envelope(slot, options)
        self.scale = M**-0.5
        any_sign = self.envelope is not None and options.envelope_squash == "none"
        self.signed = self.channels.signed or any_sign

    def forward(self, x: Tensor, mask: Mask, keys: bool = False) -> Tensor:
        u = self.projections(x)  # (B, H, n, M)
        if not self.rms:
            y = self.channels(u, self.scale)  # (B, H, n, M, L)
        else:
            y = self.rms[-1 if keys else 0](self.channels(u), mask) * self.scale
        if self.envelope is not None:
            y = y * self.envelope(x).unsqueeze(-2)
        return y.flatten(-2)
