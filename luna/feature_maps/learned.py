"""LUNA's learned feature map: projections of a token, each passed through scalar functions.

    u_i = w_i . x + beta_i                       i = 1..M
    phi_{iL+l}(x) = h(x) M^(-1/2) psi_l(u_i)     l = 1..L

With psi_l scalar MLPs and h = 1 this is the paper's listing; the envelope h is in envelope.py, the
kernels of the ablation are in bank.py. There are G groups of parameters: one per layer, or one per
head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from luna.base import Slot
from luna.feature_maps.envelope import Envelope
from luna.feature_maps.headwise import HeadwiseLinear
from luna.feature_maps.options import LunaOptions
from luna.kernels.scalar_mlp import OUTPUTS, over_groups, scalar_mlp


class FeatureMap(nn.Module):
    """phi: x (B, H, n, d) -> (B, H, n, M L)."""

    signed: bool  # features may be negative
    eps: float = 1e-6  # of the denominator

    def __init__(self, slot: Slot, options: LunaOptions):
        super().__init__()
        self.feature_dim = options.feature_dim

    def forward(self, x: Tensor, mask: Tensor | None, keys: bool = False) -> Tensor:
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
    mean_square: Tensor
    batches: Tensor

    def __init__(self, groups: int, L: int):
        super().__init__()
        self.register_buffer("mean_square", torch.zeros(groups, L))
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def forward(self, y: Tensor, mask: Tensor | None) -> Tensor:
        square = self._batch_mean_square(y, mask) if self.training else self.mean_square
        rms = (square + self.eps).sqrt()  # (G, L)
        gain = (self.target / (rms + self.eps)).clamp(max=1)
        return y * gain[:, None, None, :].to(y.dtype)

    def _batch_mean_square(self, y: Tensor, mask: Tensor | None) -> Tensor:
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


class LearnedFeatures(FeatureMap):
    """The map above; D = M L, projection-major."""

    def __init__(self, slot: Slot, options: LunaOptions):
        super().__init__(slot, options)
        G, M = options.groups(slot), options.M
        self.projections = Projections(options, G, slot.head_dim, M)
        self.channels = Channels(slot, options)
        self.rms = nn.ModuleList(ChannelRMS(G, options.L) for _ in range(options.statistics))
        self.envelope = None if options.envelope == "none" else Envelope(slot, options)
        self.scale = M**-0.5
        any_sign = self.envelope is not None and options.envelope_squash == "none"
        self.signed = self.channels.signed or any_sign

    def forward(self, x: Tensor, mask: Tensor | None, keys: bool = False) -> Tensor:
        u = self.projections(x)  # (B, H, n, M)
        if not self.rms:
            y = self.channels(u, self.scale)  # (B, H, n, M, L)
        else:
            y = self.rms[-1 if keys else 0](self.channels(u), mask) * self.scale
        if self.envelope is not None:
            y = y * self.envelope(x).unsqueeze(-2)
        return y.flatten(-2)
