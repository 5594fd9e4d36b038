"""Linear attention whose keys carry a log weight a_j: A_ij ~ phi_q(i) . (e^(a_j) phi_k(j) + floor).

Exponential features (Performer, Hedgehog, RFF of the softmax kernel) overflow unless the keys'
largest exponent is subtracted. One constant for all keys cancels in the normalised output, but in a
causal attention it would be read off the future: where a feature underflows, or a floor is added,
later keys would change earlier rows. So the exponent stays apart from the feature, and

    bidirectional   subtracts the largest a_j of the valid keys
    causal          subtracts, at row i, the largest a_j with j <= i: row i is what the
                    bidirectional form makes of its prefix
    streaming       rescales the state whenever a larger weight arrives

Every exponential below has an exponent <= 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from luna.base import Mask
from luna.linear import KernelAttention

TINY = 1e-20  # denominator of positive features: it only has to keep 0 / 0 away


def largest(a: Tensor) -> Tensor:
    """max_j a_j (..., 1), or 0 where no key is valid (a = -inf at padding)."""
    top = a.amax(-1, keepdim=True)
    return top.masked_fill(top.isneginf(), 0)


def decay(old: Tensor, new: Tensor) -> Tensor:
    """e^(old - new), old <= new. The clamp is for prefixes without a valid key (sums are 0)."""
    return (old - new).clamp_max(0).exp()


class WeightedState(NamedTuple):
    S: Tensor  # (B, H, D, e)
    z: Tensor  # (B, H, D)
    top: Tensor  # (B, H) largest log weight so far; S and z are in units of e^top
    values: Tensor  # (B, H, e) sum of v, which the floor multiplies
    t: int | Tensor  # keys seen; (B, 1, 1) where padding was among them


def causal_weighted_sums(
    phi_q: Tensor,
    phi_k: Tensor,
    a: Tensor,
    v: Tensor,
    *,
    floor: float = 0.0,
    chunk: int = 128,
    state: WeightedState | None = None,
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor, Tensor]:
    """S, z and their unit after these tokens, which follow those of `state`; then N (B, H, n, e)
    and c (B, H, n) of o = N / den(c), like `luna.sums.causal_linear_sums`.

    phi_q, phi_k (B, H, n, D), a (B, H, n), v (B, H, n, e); at padding a is -inf, and v is 0.
    """
    n = v.shape[-2]
    C = min(chunk, n)
    pad = -n % C
    top = a.cummax(-1).values
    if state is not None:
        top = torch.maximum(top, state.top.unsqueeze(-1))
    top = top.masked_fill(top.isneginf(), 0)  # (B, H, n)
    floor_c: Tensor | int = 0
    floor_N: Tensor | int = 0
    if floor:
        keys, values = (~a.isneginf()).cumsum(-1), v.cumsum(-2)
        if state is not None:
            keys, values = keys + state.t, values + state.values.unsqueeze(-2)
        whole = floor * phi_q.sum(-1)  # (B, H, n) what a query gives to every key alike
        floor_c, floor_N = whole * keys, whole.unsqueeze(-1) * values

    phi_q, phi_k, v = (F.pad(t, (0, 0, 0, pad)).unflatten(-2, (-1, C)) for t in (phi_q, phi_k, v))
    a = F.pad(a, (0, pad), value=float("-inf")).unflatten(-1, (-1, C))  # (B, H, n/C, C)
    top = torch.cat([top, top[..., -1:].expand(*top.shape[:-1], pad)], -1).unflatten(-1, (-1, C))
    end = top[..., -1]  # (B, H, n/C) unit of each chunk's sums
    first = top[..., 0, 0] if state is None else state.top
    before = torch.cat([first.unsqueeze(-1), end[..., :-1]], -1)  # unit of all chunks before

    weighted = phi_k * (a - end.unsqueeze(-1)).exp().unsqueeze(-1)
    chunk_S, chunk_z = weighted.mT @ v, weighted.sum(-2)  # (B, H, n/C, D, e) and (B, H, n/C, D)
    S = [torch.zeros_like(chunk_S[:, :, 0]) if state is None else state.S]
    z = [torch.zeros_like(chunk_z[:, :, 0]) if state is None else state.z]
    g = decay(before, end).unsqueeze(-1)  # (B, H, n/C, 1)
    for g_i, S_i, z_i in zip(*(t.unbind(2) for t in (g, chunk_S, chunk_z)), strict=True):
        S.append(S[-1] * g_i.unsqueeze(-1) + S_i)
        z.append(z[-1] * g_i + z_i)

    later = torch.ones(C, C, dtype=torch.bool, device=v.device).triu(1)
    exponent = a.unsqueeze(-2) - top.unsqueeze(-1)  # (B, H, n/C, C, C)
    A = (phi_q @ phi_k.mT) * exponent.masked_fill(later, float("-inf")).exp()
    carried = decay(before.unsqueeze(-1), top)  # (B, H, n/C, C)
    c = carried * (phi_q @ torch.stack(z[:-1], 2).unsqueeze(-1)).squeeze(-1) + A.sum(-1)
    N = carried.unsqueeze(-1) * (phi_q @ torch.stack(S[:-1], 2)) + A @ v
    N, c = N.flatten(2, 3)[..., :n, :] + floor_N, c.flatten(2, 3)[..., :n] + floor_c
    return (S[-1], z[-1], end[..., -1]), N, c


class WeightedKernelAttention(KernelAttention):
    """A subclass implements :meth:`weigh` instead of `phi_k`; with `weighted = False` it is a plain
    :class:`KernelAttention` and implements `phi_k`."""

    weighted: bool = True
    floor: float = 0.0

    def weigh(self, k: Tensor) -> tuple[Tensor, Tensor]:
        """(phi, a), (B, H, n, D) and (B, H, n): the feature of key j is e^(a_j) phi_j."""
        raise NotImplementedError(f"{type(self).__name__} must implement weigh()")

    def phi_k(self, k: Tensor, mask: Mask, start: int = 0) -> Tensor:
        phi, a = self._weigh(k, mask)
        return phi * (a - largest(a)).exp().unsqueeze(-1) + self.floor

    def _weigh(self, k: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        phi, a = self.weigh(k)
        return phi, a if mask is None else a.masked_fill(~mask[:, None, :], float("-inf"))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        if not (self.weighted and self.causal):
            return super().attend(q, k, v, mask, x)
        return self.causal_from(None, q, k, v, mask)[1]

    def causal_from(
        self, state: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask
    ) -> tuple[Any, Tensor]:
        if not self.weighted:
            return super().causal_from(state, q, k, v, mask)
        phi_q, (phi_k, a) = self.phi_q(q, mask), self._weigh(k, mask)
        sums, N, c = causal_weighted_sums(
            phi_q, phi_k, a, v, floor=self.floor, chunk=self.chunk, state=state
        )
        values, t = v.sum(-2), k.shape[2] if mask is None else mask.sum(-1)[:, None, None]
        if state is not None:
            values, t = values + state.values, t + state.t
        return WeightedState(*sums, values, t), self.divide(N, c, mask)

    def _matrix(self, q: Tensor, k: Tensor, mask: Mask, x: Tensor | None) -> Tensor:
        if not (self.weighted and self.causal):
            return super()._matrix(q, k, mask, x)
        phi_q, (phi_k, a) = self.phi_q(q, mask), self._weigh(k, mask)
        top = torch.stack([largest(a[..., : i + 1])[..., 0] for i in range(a.shape[-1])], -1)
        A = torch.einsum("bhid,bhjd->bhij", phi_q, phi_k)
        A = A * (a.unsqueeze(-2) - top.unsqueeze(-1)).tril().exp()
        A = A + self.floor * phi_q.sum(-1, keepdim=True)
        valid = (~a.isneginf()).unsqueeze(-2)
        A = (A * valid).tril()
        return A / self.den(A.sum(-1, keepdim=True))
