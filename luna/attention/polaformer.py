"""PolaFormer: linear attention on the signed parts of q and k, raised to learned powers.

    u+ = relu(u / s)^p     u- = relu(-u / s)^p     s = softplus(tau)     p = 1 + alpha sigmoid(rho)
    K = [k+, k-]    same signs Q_s = [q+, q-]    opposite signs Q_o = [q-, q+]    each 2d wide

k carries a learned position embedding. The first half of the values' channels is read by the
same-sign stream, the second half by the opposite-sign stream, each a normalised linear attention.
A depthwise convolution of the values is added, and a linear gate on the hidden states multiplies
the sum (ZacharyMeng/PolaFormer, models/pola_pvt.py). The code of its LRA runs is not public: masks
and the one-dimensional local branch are this library's.

`strict`     denominators are max(c, 1e-6); the local branch is off, as the slot has its own
`published`  denominators are c + 1e-6 n; the local branch is on, conv1d unless the option says
             otherwise
"""

from __future__ import annotations

from math import isqrt
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from luna.base import Attention, LunaError, Paper, Slot, at_least, register, zero_padding
from luna.local import LocalBranch
from luna.sums import linear_sums

EPS = 1e-6

Gate = Literal["none", "q", "x"]
Local = Literal["none", "conv1d", "conv2d"]


def signed_parts(u: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """relu(u)^p and relu(-u)^p by one power: pow is what the features cost."""
    magnitude = u.abs() ** p
    return magnitude.masked_fill(u <= 0, 0), magnitude.masked_fill(u >= 0, 0)


@register("polaformer")
class PolaFormer(Attention):
    paper = Paper(
        title="PolaFormer: Polarity-aware Linear Attention for Vision Transformers",
        year=2025,
        url="https://arxiv.org/abs/2501.15061",
    )
    complexity = "O(n d²)"
    profiles = ("strict", "published")
    needs_x = True  # of gate=x; an instance with another gate does without
    has_matrix = False  # there are two, one per half of the values: streams()
    row_stochastic = False  # the gate rescales every output
    convex = False
    equivariant = False  # the position embedding
    bound_to_max_len = True
    exempt: ClassVar[dict[str, str]] = {
        "d_v": "the gate is as wide as head_dim, and each half of v has a matrix of its own"
    }

    def __init__(
        self, slot: Slot, *, alpha: float = 3.0, gate: Gate = "x", local: Local | None = None
    ):
        super().__init__(slot)
        at_least("polaformer", 0, alpha=alpha)
        H, d = self.n_heads, self.head_dim
        self.alpha = alpha
        self.E = nn.Parameter(torch.zeros(H, self.max_len, d))  # added to k
        self.tau = nn.Parameter(torch.zeros(H, 1, d))  # s = ln 2 at the start
        self.rho = nn.Parameter(torch.zeros(H, 1, d))  # p = 1 + alpha / 2 at the start

        self.gate_of = gate
        self.needs_x = gate == "x"  # type: ignore[misc]
        self.gate = None if gate == "none" else nn.Linear(H * d, H * d)

        local = local or ("conv1d" if self.profile == "published" else "none")
        self.local = None if local == "none" else LocalBranch(local, H, d, self._grid(local))

    def _grid(self, local: Local) -> tuple[int, int]:
        side = isqrt(self.max_len)
        if local == "conv2d" and side * side != self.max_len:
            raise LunaError(
                f"polaformer.local='conv2d' needs a square grid of max_len tokens, "
                f"got max_len={self.max_len}: use 'conv1d', or dwc=conv2d for other grids"
            )
        return (side, side)

    def powers(self) -> Tensor:
        """p (H, 1, d), within (1, 1 + alpha)."""
        return 1 + self.alpha * self.rho.sigmoid()

    def features(self, q: Tensor, k: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Q_s, Q_o and K, each (B, H, n, 2d)."""
        n = q.shape[-2]
        E, s, p = (t.to(q.dtype) for t in (self.E[:, :n], softplus(self.tau), self.powers()))
        q, k = q / s, (k + E) / s
        (q_plus, q_minus), (k_plus, k_minus) = signed_parts(q, p), signed_parts(k, p)
        K = torch.cat([k_plus, k_minus], -1)
        K = zero_padding(K, mask)  # at padding k is E, not 0
        return torch.cat([q_plus, q_minus], -1), torch.cat([q_minus, q_plus], -1), K

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, x: Tensor | None
    ) -> Tensor:
        self._check_width(v.shape[-1])
        v = zero_padding(v, mask)
        Q_s, Q_o, K = self.features(q, k, mask)
        halves = []
        for Q, half in zip((Q_s, Q_o), v.chunk(2, dim=-1), strict=True):
            N, c = linear_sums(Q, K, half)
            halves.append(N / self._denominator(c).unsqueeze(-1))
        out = torch.cat(halves, -1)
        if self.local is not None:
            out = out + self.local(v)
        if self.gate is None:
            return out
        if self.gate_of == "q" or x is None:  # x is None only then: forward() asks for it
            x = q.transpose(1, 2).flatten(2)
        return out * self._gates(self.gate, x.to(q.dtype))

    def streams(self, q: Tensor, k: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The matrices (B, H, n, n) that the first and the second half of the values see, before
        the local branch and the gate."""
        q, k, _ = self._enter(q, k, k, mask)
        with self._precision(q):
            Q_s, Q_o, K = self.features(q, k, mask)
            weights = (Q @ K.mT for Q in (Q_s, Q_o))
            same, opposite = (A / self._denominator(A.sum(-1)).unsqueeze(-1) for A in weights)
        return same, opposite

    def _denominator(self, c: Tensor) -> Tensor:
        return c + EPS * c.shape[-1] if self.profile == "published" else c.clamp_min(EPS)

    def _check_width(self, d_v: int) -> None:
        if d_v % 2:
            raise LunaError(f"polaformer halves the values: their width must be even, got {d_v}")
        if d_v != self.head_dim and (self.gate is not None or self.local is not None):
            raise LunaError(
                f"polaformer's gate and local branch are as wide as head_dim={self.head_dim}, the "
                f"values have {d_v}: use gate='none' and local='none', or values of that width"
            )

    def _gates(self, gate: nn.Linear, x: Tensor) -> Tensor:
        """(B, H, n, d), linear in the hidden states, or in the queries of all heads joined."""
        if x.shape[-1] != gate.in_features:
            raise LunaError(
                f"polaformer.gate='x' needs hidden states of width n_heads * head_dim = "
                f"{gate.in_features}, got {x.shape[-1]}: use gate='q'"
            )
        g = linear(x, gate.weight.to(x.dtype), gate.bias.to(x.dtype))
        return g.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
