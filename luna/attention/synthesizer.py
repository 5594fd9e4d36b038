"""Synthesizer: attention weights that are learned, or read off one token, instead of compared.

    A = softmax(sum of the parts of `form`)      o = A v

    random              R[:n, :n], R (H, n_max, n_max)
    factorized_random   R1[:n] R2[:, :n], R1 (H, n_max, r), R2 (H, r, n_max)
    dense               W2 relu(q_i) + b2, W2: d -> n_max shared by the heads, first n columns
    factorized_dense    A_i[j // b] B_i[j mod b], A = W_a relu(q) + b_a in R^a, B likewise in R^b,
                        a b = n_max, a its divisor closest to the root from below
    dot                 q_i . k_j / sqrt(d)

The paper's dense forms apply W1 x + b1 first: here the caller's query projection is that layer.
`form` joins parts with "+"; all five models of the Long Range Arena run random+dot, whatever their
configuration files say.

`official`   padding is masked, with -1e10, only where the dot product is kept; the dense part is
             reshaped, not transposed, to (B, H, n, n_max), which mixes heads with positions; one
             dropout pattern serves all examples and heads
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luna.base import (
    KEY_BIAS,
    Attention,
    AttentionTraits,
    LunaError,
    Mask,
    Paper,
    Slot,
    at_least,
    register,
)
from luna.dropout import dropout
from luna.weighted import largest

MASKED = 1e10  # subtracted by the official code


class Sizes(NamedTuple):
    n_heads: int
    head_dim: int
    n_max: int
    rank: int
    reshaped: bool  # the official quirk


class Random(nn.Module):
    def __init__(self, s: Sizes):
        super().__init__()
        self.R = _table(s.n_heads, s.n_max, s.n_max)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        n = q.shape[-2]
        return self.R[:, :n, :n].to(q.dtype).unsqueeze(0)


class FactorizedRandom(nn.Module):
    def __init__(self, s: Sizes):
        super().__init__()
        self.R1 = _table(s.n_heads, s.n_max, s.rank)
        self.R2 = _table(s.n_heads, s.rank, s.n_max)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        n = q.shape[-2]
        return (self.R1[:, :n].to(q.dtype) @ self.R2[..., :n].to(q.dtype)).unsqueeze(0)


class Dense(nn.Module):
    def __init__(self, s: Sizes):
        super().__init__()
        self.reshaped = s.reshaped
        self.W2 = _dense(s.head_dim, s.n_max)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        n = q.shape[-2]
        columns = None if self.reshaped else n
        W, b = (t[:columns].to(q.dtype) for t in (self.W2.weight, self.W2.bias))
        B = F.linear(q.relu(), W, b)
        if self.reshaped:  # (B, n, H, n_max) read as (B, H, n, n_max)
            B = B.transpose(1, 2).reshape(B.shape)
        return B[..., :n]


class FactorizedDense(nn.Module):
    def __init__(self, s: Sizes):
        super().__init__()
        self.a = next(a for a in range(math.isqrt(s.n_max), 0, -1) if s.n_max % a == 0)
        self.b = s.n_max // self.a
        self.W_a, self.W_b = _dense(s.head_dim, self.a), _dense(s.head_dim, self.b)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        n, hidden = q.shape[-2], q.relu()
        A, B = (
            F.linear(hidden, *(p.to(q.dtype) for p in W.parameters())) for W in (self.W_a, self.W_b)
        )
        j = torch.arange(n, device=q.device)
        return A[..., j // self.b] * B[..., j % self.b]  # (B, H, n, n)


class Dot(nn.Module):
    def __init__(self, s: Sizes):
        super().__init__()
        self.head_dim = s.head_dim

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * self.head_dim**-0.5) @ k.mT


PARTS: dict[str, Callable[[Sizes], nn.Module]] = {
    "random": Random,
    "factorized_random": FactorizedRandom,
    "dense": Dense,
    "factorized_dense": FactorizedDense,
    "dot": Dot,
}


@register("synthesizer")
class Synthesizer(Attention):
    title = "Synthesizer"
    family = "softmax and sparse"
    marker = ">"
    paper = Paper(
        "Synthesizer: Rethinking Self-Attention for Transformer Models",
        2021,
        "https://arxiv.org/abs/2005.00743",
    )
    complexity = "O(n² e)"
    profiles = ("strict", "official")
    declared = Attention.declared.but(
        idle=KEY_BIAS,
        holes_are_time=True,
        uses_dropout=True,
        equivariant=False,
        bound_to_max_len=True,
        linear_in_n=False,
    )

    def __init__(self, slot: Slot, *, form: str = "random+dot", rank: int = 32):
        super().__init__(slot)
        names = form.split("+")
        at_least("synthesizer", 1, rank=rank)
        if not set(names) <= set(PARTS) or len(set(names)) < len(names) or names == ["dot"]:
            raise LunaError(
                f"synthesizer.form must join different parts of {', '.join(PARTS)} with '+', "
                f"not dot alone, got {form!r}"
            )
        official = self.profile == "official"
        sizes = Sizes(slot.n_heads, slot.head_dim, slot.max_len, rank, reshaped=official)
        self.parts = nn.ModuleDict({name: PARTS[name](sizes) for name in names})

    def _traits(self) -> AttentionTraits:
        if "dot" in self.parts:
            return self.declared
        return self.declared.but(compares=False, idle={})

    @classmethod
    def letters(cls, profile: str, *, form: str = "random+dot", **_: Any) -> str:
        """The random parts read nothing, the dense ones a query each, the product both."""
        if "dot" in form:
            return "qkvo"
        return "qvo" if "dense" in form else "vo"

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        """(B, H, n, n), or (1, H, n, n) where no part depends on the input."""
        first, *rest = (part(q, k) for part in self.parts.values())
        return sum(rest, first)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        A = self._weights(self.logits(q, k), mask)
        p, training = self.slot.dropout, self.training
        if self.profile == "official":
            return A * dropout(torch.ones_like(A[:1, :1]), p, training) @ v
        return dropout(A, p, training) @ v

    def _weights(self, B: Tensor, mask: Mask) -> Tensor:
        if mask is None:
            return B.softmax(-1)
        if self.profile == "official":
            pair = mask[:, None, :, None] & mask[:, None, None, :]
            return (B - MASKED * ~pair if "dot" in self.parts else B).softmax(-1)
        pad = ~mask[:, None, None, :]
        # A finite minimum and a second fill, so that a row without any key is 0 and not NaN.
        return B.masked_fill(pad, torch.finfo(B.dtype).min).softmax(-1).masked_fill(pad, 0)

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        B = self.logits(q, k).expand(len(q), -1, -1, -1)
        if mask is not None and self.profile != "official":
            B = B.masked_fill(~mask[:, None, None, :], float("-inf"))
        elif mask is not None and "dot" in self.parts:
            B = B - MASKED * ~(mask[:, None, :, None] & mask[:, None, None, :])
        E = (B - largest(B)).exp()
        return E / E.sum(-1, keepdim=True).clamp_min(torch.finfo(E.dtype).tiny)


def _table(*shape: int) -> nn.Parameter:
    """Xavier-uniform with JAX's fans of a 3-d shape: the first dimension is a receptive field."""
    bound = math.sqrt(6 / (shape[0] * (shape[1] + shape[2])))
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


def _dense(d_in: int, d_out: int) -> nn.Linear:
    linear = nn.Linear(d_in, d_out)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.normal_(linear.bias, std=1e-6)
    return linear
