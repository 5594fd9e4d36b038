"""The one normalised linear attention of the project: bidirectional, causal in chunks, streaming.

A kernel method is a feature map: it subclasses :class:`KernelAttention` and says phi and its
width D. Everything else (masks, the causal and the streaming form, the implied matrix) is here,
the sums are in luna/sums.py. What divides N_i = sum_j (phi_q(q_i) . phi_k(k_j)) v_j is the slot's
choice, `normalise`:

    sum   sum_j phi_q(q_i) . phi_k(k_j), kept away from 0: the methods' own
    abs   sum_j |phi_q(q_i)| . |phi_k(k_j)|: another one where features are signed
    rms   the root mean square of N_i over its channels, each of which then has a gain of its own;
          as in TransNormer (Qin et al. 2022, arXiv:2210.10340) and RetNet
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from luna.around import Normalise
from luna.base import AttentionTraits, LunaError, Mask, Slot, nearest, positive
from luna.kernels import mapped
from luna.kernels.linear_blocks import Maps, blocked_sums
from luna.kernels.rms_norm import rms_norm
from luna.streaming import StreamingAttention
from luna.sums import State, causal_linear_sums, continued_sums, denominator, linear_sums

NORMALISE = get_args(Normalise)
SMALLEST_RMS = 1e-6  # divisors of normalise=rms
LONG = 2048  # tokens from which blocks have been measured to be faster, on a CPU


class KernelAttention(StreamingAttention):
    """Attention with weights proportional to phi_q(q_i) . phi_k(k_j).

    A subclass sets `feature_dim` and implements :meth:`phi` (or `phi_q` and `phi_k` where they
    differ); one whose normaliser is another overrides :meth:`den`.
    `start` is the position of the first row, for features that depend on it.

    After a forward in eval mode `dead_fraction` holds the fraction of real queries whose divisor is
    at its limit, so that their output is close to 0: a 0-dim tensor, read when needed.
    """

    declared = StreamingAttention.declared.but(cross_form=True, normalise_form=True)
    tokenwise: bool = False  # phi of a token depends on that token and its position alone
    sees_padding: bool = False  # padding is attended like any token, as in some public codes
    signed: bool = False  # features may be negative, so may the denominator
    rms_of_all_heads: bool = False  # what divides with normalise="rms" is one number for all heads
    scale_free: ClassVar[bool] = True  # a positive constant on phi changes nothing
    fused_map: ClassVar[str | None] = None  # phi in luna/kernels/mapped

    feature_dim: int  # D
    dead_fraction: Tensor | None = None

    def __init__(
        self,
        slot: Slot,
        *,
        eps: float = 1e-6,
        chunk: int = 128,
        signed: bool | None = None,
        normalise: str | None = None,
    ):
        super().__init__(slot)
        positive(self.name, eps=eps)
        self.eps, self.chunk = eps, chunk
        self.signed = self.signed if signed is None else signed
        self.normalise = normalise or slot.normalise
        if self.normalise not in NORMALISE:
            raise LunaError(
                f"attention.normalise must be one of {', '.join(NORMALISE)}, got "
                f"{self.normalise!r}{nearest(self.normalise, NORMALISE)}"
            )
        self.absolute = self.normalise == "abs" and self.signed
        self.gain = None
        if self.normalise == "rms":
            self.gain = nn.Parameter(torch.ones(slot.n_heads, 1, slot.head_dim))

    def _traits(self) -> AttentionTraits:
        facts: AttentionTraits = super()._traits()
        if self.signed:
            facts = facts.but(convex=False)
        if self.absolute or self.normalise == "rms":
            facts = facts.but(row_stochastic=False, convex=False)
        if self.normalise == "rms":  # its divisor depends on the values
            reasons = {**facts.exempt, "d_v": "its gains belong to channels"}
            facts = facts.but(has_matrix=False, exempt=reasons)
        return facts

    def phi(self, x: Tensor, mask: Mask, start: int = 0) -> Tensor:
        """Features (B, H, n, D) of x (B, H, n, d); those of padded keys are zeroed afterwards."""
        raise NotImplementedError(f"{type(self).__name__} must implement phi()")

    def phi_q(self, q: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return self.phi(q, mask, start)

    def phi_k(self, k: Tensor, mask: Mask, start: int = 0) -> Tensor:
        return self.phi(k, mask, start)

    def den(self, c: Tensor) -> Tensor:
        """The divisor of a query's weighted sum of values, c being the sum of its weights."""
        return denominator(c, self.eps, self.signed and not self.absolute)

    def divide(self, N: Tensor, c: Tensor, mask: Mask = None, factor: float = 1.0) -> Tensor:
        """The outputs of a query's weighted sum of values N (B, H, n, e) and sum of weights c
        (B, H, n). `factor` is what is still missing in N, where a root mean square divides it."""
        least, divisor = self.eps, c
        if self.gain is not None:
            if N.shape[-1] != self.head_dim:
                raise LunaError(
                    f"normalise='rms' has a gain for each of {self.head_dim} channels of a head, "
                    f"and the values have {N.shape[-1]}"
                )
            least = SMALLEST_RMS / factor
            out, divisor = rms_norm(N, self.gain, least, of_all_heads=self.rms_of_all_heads)
        else:
            out = N / self.den(c).unsqueeze(-1)
        self.watch(divisor, mask, least)
        return out

    def features(self, q: Tensor, k: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        return self.phi_q(q, None if self.sees_padding else mask), self._key_features(k, mask)

    def _key_features(self, k: Tensor, mask: Mask) -> Tensor:
        mask = None if self.sees_padding else mask
        phi_k = self.phi_k(k, mask)
        if mask is not None:  # after the map: phi(0) is rarely 0
            phi_k = phi_k * mask[:, None, :, None].to(phi_k.dtype)
        return phi_k

    def map_parameters(self) -> tuple[Tensor, ...]:
        """The parameters of `fused_map`."""
        return ()

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        if self.fused_map is not None and self._runs_fused(q):
            return self._by_kernels(self.fused_map, q, k, v, mask)
        return self.divide(*self._sums(q, k, v, mask), mask)

    def is_fused(self, device: str) -> bool:
        if self.fused_map is None or self.profile != "strict" or self.absolute:
            return False
        return mapped.is_default(self.fused_map, device, causal=self.causal)

    def _runs_fused(self, q: Tensor) -> bool:
        return self.is_fused(q.device.type) and mapped.takes(q)

    def _by_kernels(self, name: str, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        divided = self.gain is None
        options: dict[str, Any] = {"causal": self.causal, "eps": self.eps, "divided": divided}
        out, c = mapped.mapped_attention(name, q, k, v, mask, *self.map_parameters(), **options)
        if not divided:
            return self.divide(out, c, mask)
        self.watch(c, mask, self.eps)
        return out

    def cross(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Mask) -> Tensor:
        """Uses all features at once: blocks and fused kernels are for one sequence."""
        phi_q, phi_k = self.phi_q(q, None), self._key_features(k, key_mask)
        return self.divide(*linear_sums(phi_q, phi_k, v, absolute=self.absolute))

    def watch(self, c: Tensor, mask: Mask, eps: float) -> None:
        """Keep how many queries are dead; an exported graph keeps nothing."""
        if not (self.training or torch.compiler.is_exporting()):
            self.dead_fraction = count_dead(c, mask, eps)

    def _sums(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        if self._in_blocks(q):
            queries = mask if self.profile == "strict" else None
            return blocked_sums(q, k, v, self._maps(), mask, queries, causal=self.causal)
        phi_q, phi_k = self.features(q, k, mask)
        if self.causal:
            return causal_linear_sums(phi_q, phi_k, v, self.chunk, absolute=self.absolute)
        return linear_sums(phi_q, phi_k, v, absolute=self.absolute)

    def _in_blocks(self, q: Tensor) -> bool:
        long = q.device.type == "cpu" and q.shape[2] >= LONG
        blocks = self.tokenwise and long and not self.absolute
        return blocks and not torch.compiler.is_compiling()

    def zeroes_padding(self, q: Tensor) -> bool:
        return self._in_blocks(q) or self._runs_fused(q)

    def _maps(self) -> Maps:
        """phi_q and phi_k as functions of their parameters, which backward calls again."""
        sides = _Sides(self)
        used = {name: p for name, p in sides.named_parameters() if p.requires_grad}

        def phi(side: str, x: Tensor, at: slice, parameters: Sequence[Tensor]) -> Tensor:
            named = dict(zip(used, parameters, strict=True))
            return torch.func.functional_call(sides, named, (side, x, at.start))

        return Maps(partial(phi, "phi_q"), partial(phi, "phi_k"), tuple(used.values()))

    def causal_from(
        self, state: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask
    ) -> tuple[Any, Tensor]:
        if state is None:  # in parallel, by whatever evaluation is the fastest
            phi_k = self._key_features(k, mask)
            z = (phi_k.abs() if self.absolute else phi_k).sum(-2)
            state = State(phi_k.mT @ v, z, k.shape[2])
            return state, self.attend(q, k, v, mask, None)
        phi_q, phi_k = self.phi_q(q, None, state.t), self.phi_k(k, None, state.t)
        sums, N, c = continued_sums(state[:2], phi_q, phi_k, v, self.chunk, absolute=self.absolute)
        return State(*sums, state.t + k.shape[2]), self.divide(N, c)

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        phi_q, phi_k = self.features(q, k, mask)
        A = sizes = torch.einsum("bhid,bhjd->bhij", phi_q, phi_k)
        if self.absolute:
            sizes = torch.einsum("bhid,bhjd->bhij", phi_q.abs(), phi_k.abs())
        if self.causal:
            A, sizes = A.tril(), sizes.tril()
        return A / self.den(sizes.sum(-1, keepdim=True))


class _Sides(nn.Module):
    """A method's two feature maps as a module's forward, whose parameters can be given to it."""

    def __init__(self, method: KernelAttention):
        super().__init__()
        self.method = method

    def forward(self, side: Literal["phi_q", "phi_k"], x: Tensor, start: int) -> Tensor:
        return getattr(self.method, side)(x, None, start)


def count_dead(c: Tensor, mask: Mask, eps: float) -> Tensor:
    """The fraction of real queries whose weights sum to |c| <= eps, c (B, H, n)."""
    dead = c.detach().abs() <= eps
    if mask is None:
        return dead.float().mean()
    real = mask.unsqueeze(1)  # (B, 1, n)
    return (dead & real).sum() / (real.sum() * c.shape[1]).clamp(min=1)
