"""PolaFormer: linear attention on the signed parts of q and k, raised to learned powers.

    u+ = relu(u / s)^p     u- = relu(-u / s)^p     s = softplus(tau)     p = 1 + alpha sigmoid(rho)
    K = [k+, k-]    same signs Q_s = [q+, q-]    opposite signs Q_o = [q-, q+]    each 2d wide

k carries a learned position embedding. The first half of the values' channels is read by the
same-sign stream, the second half by the opposite-sign stream, each a normalised linear attention.
A depthwise convolution of the values is added, and a linear gate on the hidden states multiplies
the sum (ZacharyMeng/PolaFormer, models/pola_pvt.py). The code of its LRA runs is not public: masks
and the one-dimensional local branch are this library's.

`strict`     denominators are max(c, 1e-6); the local branch is off, as the slot has its own
`published`  denominators are c + 1e-6 n; the local branch is on
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from luna.base import Attention, LunaError, Mask, Paper, Slot, at_least, register, zero_padding
from luna.local import LocalBranch
from luna.sums import linear_sums

EPS = 1e-6


def signed_parts(u: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """relu(u)^p and relu(-u)^p by one power: pow is what the features cost."""
    magnitude = u.abs() ** p
    return magnitude.masked_fill(u <= 0, 0), magnitude.masked_fill(u >= 0, 0)


@register("polaformer")
class PolaFormer(Attention):
    title = "PolaFormer"
    family = "learned kernels"
    marker = "s"
    paper = Paper(
        "PolaFormer: Polarity-aware Linear Attention for Vision Transformers",
        2025,
        "https://arxiv.org/abs/2501.15061",
    )
    complexity = "O(n d²)"
    profiles = ("strict", "published")
    declared = Attention.declared.but(
        holes_are_time=True,
        needs_x=True,  # for the gate
        has_matrix=False,  # there are two, one per half of the values: streams()
        row_stochastic=False,  # the gate rescales every output
        convex=False,
        equivariant=False,  # the position embedding
        bound_to_max_len=True,
        exempt={
            "d_v": "the gate is as wide as head_dim, and each half of v has a matrix of its own"
        },
    )

    def __init__(self, slot: Slot, *, alpha: float = 3.0):
        super().__init__(slot)
        at_least("polaformer", 0, alpha=alpha)
        H, d = self.n_heads, self.head_dim
        self.alpha = alpha
        self.E = nn.Parameter(torch.zeros(H, self.max_len, d))  # added to k
        self.tau = nn.Parameter(torch.zeros(H, 1, d))  # s = ln 2 at the start
        self.rho = nn.Parameter(torch.zeros(H, 1, d))  # p = 1 + alpha / 2 at the start
        self.gate = nn.Linear(H * d, H * d)
        self.local = LocalBranch("conv1d", H, d) if self.profile == "published" else None

    def powers(self) -> Tensor:
        """p (H, 1, d), within (1, 1 + alpha)."""
        return 1 + self.alpha * self.rho.sigmoid()

    def features(self, q: Tensor, k: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Tensor]:
        """Q_s, Q_o and K, each (B, H, n, 2d)."""
        n = q.shape[-2]
        E, s, p = (t.to(q.dtype) for t in (self.E[:, :n], softplus(self.tau), self.powers()))
        q, k = q / s, (k + E) / s
        (q_plus, q_minus), (k_plus, k_minus) = signed_parts(q, p), signed_parts(k, p)
        K = torch.cat([k_plus, k_minus], -1)
        K = zero_padding(K, mask)  # at padding k is E, not 0
        return torch.cat([q_plus, q_minus], -1), torch.cat([q_minus, q_plus], -1), K

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        if v.shape[-1] != self.head_dim or v.shape[-1] % 2:
            raise LunaError(
                f"polaformer halves its values, and its gate is as wide as head_dim="
                f"{self.head_dim}: their width must be that, and even, got {v.shape[-1]}"
            )
        v = zero_padding(v, mask)
        Q_s, Q_o, K = self.features(q, k, mask)
        halves = []
        for Q, half in zip((Q_s, Q_o), v.chunk(2, dim=-1), strict=True):
            N, c = linear_sums(Q, K, half)
            halves.append(N / self._denominator(c).unsqueeze(-1))
        out = torch.cat(halves, -1)
        if self.local is not None:
            out = out + self.local(v)
        assert x is not None  # forward() asks for it
        if x.shape[-1] != self.gate.in_features:
            raise LunaError(
                f"polaformer's gate needs hidden states of width n_heads * head_dim = "
                f"{self.gate.in_features}, got {x.shape[-1]}"
            )
        gate = linear(x.to(q.dtype), *(p.to(q.dtype) for p in self.gate.parameters()))
        return out * gate.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def streams(self, q: Tensor, k: Tensor, mask: Mask = None) -> tuple[Tensor, Tensor]:
        """The matrices (B, H, n, n) that the first and the second half of the values see, before
        the local branch and the gate."""
        q, k, _, _ = self._enter(q, k, k, mask)
        with self._precision(q.device):
            Q_s, Q_o, K = self.features(q, k, mask)
            weights = (Q @ K.mT for Q in (Q_s, Q_o))
            same, opposite = (A / self._denominator(A.sum(-1)).unsqueeze(-1) for A in weights)
        return same, opposite

    def _denominator(self, c: Tensor) -> Tensor:
        return c + EPS * c.shape[-1] if self.profile == "published" else c.clamp_min(EPS)
