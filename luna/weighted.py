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

from luna.linear import KernelAttention, count_dead

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
    t: int | Tensor  # keys seen; (B, 1) where padding was among them


def causal_weighted_sums(
    phi_q: Tensor, phi_k: Tensor, a: Tensor, v: Tensor, *, floor: float = 0.0, chunk: int = 128
) -> tuple[Tensor, Tensor]:
    """N (B, H, n, e) and c (B, H, n) of o = N / den(c), like `luna.sums.causal_linear_sums`.

    phi_q, phi_k (B, H, n, D), a (B, H, n), v (B, H, n, e); at padding a is -inf, and v is 0.
    """
    n = v.shape[-2]
    C = min(chunk, n)
    pad = -n % C
    top = a.cummax(-1).values
    top = top.masked_fill(top.isneginf(), 0)  # (B, H, n)
    whole = floor * phi_q.sum(-1)  # (B, H, n) what a query gives to every key alike
    floor_c = whole * (~a.isneginf()).cumsum(-1) if floor else 0
    floor_N = whole.unsqueeze(-1) * v.cumsum(-2) if floor else 0

    phi_q, phi_k, v = (F.pad(t, (0, 0, 0, pad)).unflatten(-2, (-1, C)) for t in (phi_q, phi_k, v))
    a = F.pad(a, (0, pad), value=float("-inf")).unflatten(-1, (-1, C))  # (B, H, n/C, C)
    top = torch.cat([top, top[..., -1:].expand(*top.shape[:-1], pad)], -1).unflatten(-1, (-1, C))
    end = top[..., -1]  # (B, H, n/C) unit of each chunk's sums

    weighted = phi_k * (a - end.unsqueeze(-1)).exp().unsqueeze(-1)
    S, z = _prefix_sums(weighted.mT @ v, weighted.sum(-2), end)  # of all chunks before
    before = torch.cat([top[..., :1, 0], end[..., :-1]], -1).unsqueeze(-1)  # their unit

    later = torch.ones(C, C, dtype=torch.bool, device=v.device).triu(1)
    exponent = a.unsqueeze(-2) - top.unsqueeze(-1)  # (B, H, n/C, C, C)
    A = (phi_q @ phi_k.mT) * exponent.masked_fill(later, float("-inf")).exp()
    carried = decay(before, top)  # (B, H, n/C, C)
    c = carried * (phi_q @ z.unsqueeze(-1)).squeeze(-1) + A.sum(-1)
    N = carried.unsqueeze(-1) * (phi_q @ S) + A @ v

    return N.flatten(2, 3)[..., :n, :] + floor_N, c.flatten(2, 3)[..., :n] + floor_c


def _prefix_sums(S: Tensor, z: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
    """From each chunk's own S (B, H, N, D, e) and z (B, H, N, D), in units of e^unit (B, H, N): the
    sums of all chunks before it, in the unit of the last of them."""
    sums_S, sums_z = [torch.zeros_like(S[:, :, 0])], [torch.zeros_like(z[:, :, 0])]
    for i in range(S.shape[2] - 1):
        g = decay(unit[..., max(i - 1, 0)], unit[..., i]).unsqueeze(-1)  # (B, H, 1)
        sums_S.append(sums_S[-1] * g.unsqueeze(-1) + S[:, :, i])
        sums_z.append(sums_z[-1] * g + z[:, :, i])
    return torch.stack(sums_S, 2), torch.stack(sums_z, 2)


class WeightedKernelAttention(KernelAttention):
    """A subclass implements :meth:`weigh` instead of `phi_k`; with `weighted = False` it is a plain
    :class:`KernelAttention` and implements `phi_k`."""

    weighted: bool = True
    floor: float = 0.0

    def weigh(self, k: Tensor, start: int = 0) -> tuple[Tensor, Tensor]:
        """(phi, a), (B, H, n, D) and (B, H, n): the feature of key j is e^(a_j) phi_j."""
        raise NotImplementedError(f"{type(self).__name__} must implement weigh()")

    def phi_k(self, k: Tensor, mask: Tensor | None, start: int = 0) -> Tensor:
        phi, a = self._weigh(k, mask, start)
        return phi * (a - largest(a)).exp().unsqueeze(-1) + self.floor

    def _weigh(self, k: Tensor, mask: Tensor | None, start: int = 0) -> tuple[Tensor, Tensor]:
        phi, a = self.weigh(k, start)
        return phi, a if mask is None else a.masked_fill(~mask[:, None, :], float("-inf"))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, x: Tensor | None
    ) -> Tensor:
        if not (self.weighted and self.causal):
            return super().attend(q, k, v, mask, x)
        phi_q, (phi_k, a) = self.phi_q(q, mask), self._weigh(k, mask)
        N, c = causal_weighted_sums(phi_q, phi_k, a, v, floor=self.floor, chunk=self.chunk)
        if not self.training:
            self.dead_fraction = count_dead(c, mask, self.eps)
        return N / self.den(c).unsqueeze(-1)

    def step(self, state: Any, q_t: Tensor, k_t: Tensor, v_t: Tensor) -> tuple[Any, Tensor]:
        if not (self.weighted and self.causal):
            return super().step(state, q_t, k_t, v_t)
        dtype = v_t.dtype
        q, k, v = self._enter_step(state, q_t, k_t, v_t)
        start = state.t if state else 0
        with self._precision(q):
            phi_q, (phi_k, a) = self.phi_q(q, None, start).squeeze(2), self.weigh(k, start)
            state = self._update(state, phi_k.squeeze(2), a.squeeze(2), v.squeeze(2))
            whole = self.floor * phi_q.sum(-1)  # (B, H)
            c = (phi_q * state.z).sum(-1) + whole * state.t
            N = (phi_q.unsqueeze(-2) @ state.S).squeeze(-2) + whole.unsqueeze(-1) * state.values
            out = N / self.den(c).unsqueeze(-1)
        return state, out.to(dtype)

    def _state(self, k: Tensor, v: Tensor, mask: Tensor | None) -> Any:
        if not (self.weighted and self.causal):
            return super()._state(k, v, mask)
        phi_k, a = self._weigh(k, mask)
        top = largest(a)  # (B, H, 1)
        phi_k = phi_k * (a - top).exp().unsqueeze(-1)
        t = k.shape[2] if mask is None else mask.sum(-1, keepdim=True)
        return WeightedState(phi_k.mT @ v, phi_k.sum(-2), top.squeeze(-1), v.sum(-2), t)

    @staticmethod
    def _update(state: WeightedState | None, phi_k: Tensor, a: Tensor, v: Tensor) -> WeightedState:
        if state is None:
            return WeightedState(phi_k.unsqueeze(-1) * v.unsqueeze(-2), phi_k, a, v, 1)
        top = torch.maximum(state.top, a)
        g = decay(state.top, top).unsqueeze(-1)  # (B, H, 1)
        new = phi_k * decay(a, top).unsqueeze(-1)
        return WeightedState(
            state.S * g.unsqueeze(-1) + new.unsqueeze(-1) * v.unsqueeze(-2),
            state.z * g + new,
            top,
            state.values + v,
            state.t + 1,
        )

    def _matrix(self, q: Tensor, k: Tensor, mask: Tensor | None, x: Tensor | None) -> Tensor:
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
