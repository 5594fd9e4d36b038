"""The sums of linear attention in blocks of tokens: features are made where they are used.

    N_i = sum_j (phi(q_i) . phi(k_j)) v_j      c_i = sum_j phi(q_i) . phi(k_j)

of all keys j, or those with j <= i. `luna.linear` makes all features first, n D numbers a side,
and autograd keeps them with whatever phi computed on its way. Here a block of tokens is mapped,
used while it lies in cache and thrown away, and mapped again in backward, by autograd. With
V = [v 1], S = phi(K)^T V and the gradients G = [dN dc], R = phi(Q)^T G,

    all keys    dphi(Q) = G S^T             dphi(K) = V R^T             dV = phi(K) R
    causal      dphi(Q) = G S^T + dA phi(K) dphi(K) = V R^T + dA^T phi(Q) dV = phi(K) R + A^T G

A = tril(phi(Q) phi(K)^T) and dA = tril(G V^T) stay inside a block, and S and R are the sums
over the blocks before and after it. Kept for backward: q, k, v and S; causal, S at every block.
A backward that shall itself be differentiated (create_graph) takes all features at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from luna.base import autocast_off
from luna.sums import causal_linear_sums, linear_sums

BLOCK = 512  # tokens: 64 KB a head of features at D = 32
CAUSAL_BLOCK = 64  # fewer: products inside a block grow with its square

Parameters = Sequence[Tensor]
Map = Callable[[Tensor, slice, Parameters], Tensor]


@dataclass(frozen=True)
class Maps:
    """phi_q and phi_k: a block of tokens (B, H, C, d), where it stands, parameters -> (B, H, C, D).
    The features of a token depend on that token and its place alone."""

    q: Map
    k: Map
    parameters: Parameters  # all that may need a gradient


def blocked_sums(
    q: Tensor, k: Tensor, v: Tensor, maps: Maps, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """N (B, H, n, e) and c (B, H, n), as `luna.sums.linear_sums` of all features."""
    sums, block = (_CausalSums, CAUSAL_BLOCK) if causal else (_Sums, BLOCK)
    return sums.apply(maps, block, q, k, v, *maps.parameters)


def _blocks(n: int, block: int) -> Iterator[slice]:
    return (slice(i, min(i + block, n)) for i in range(0, n, block))


def _with_ones(v: Tensor) -> Tensor:
    return F.pad(v, (0, 1), value=1)


class _Gradients:
    """Gradients of q, k, v, filled block by block, and of the trained parameters, added up."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, parameters: Parameters):
        self.q, self.k, self.v = (torch.empty_like(t) for t in (q, k, v))
        self.of = [p for p in parameters if p.requires_grad]
        self.parameters = [torch.zeros_like(p) if p.requires_grad else None for p in parameters]

    def through(self, phi: Tensor, x: Tensor, dphi: Tensor, into: Tensor) -> None:
        """Backward through the map of one block."""
        dx, *rest = torch.autograd.grad(phi, [x, *self.of], dphi, allow_unused=True)
        into.copy_(dx)
        totals = (total for total in self.parameters if total is not None)
        for total, part in zip(totals, rest, strict=True):
            if part is not None:
                total += part

    def all(self) -> tuple[Any, ...]:
        return None, None, self.q, self.k, self.v, *self.parameters


@torch.enable_grad()
def _mapped(phi: Map, x: Tensor, at: slice, parameters: Parameters) -> tuple[Tensor, Tensor]:
    """A block's features, and the leaf that they come from."""
    leaf = x[:, :, at].detach().requires_grad_()
    return phi(leaf, at, parameters), leaf


def _incoming(dN: Tensor, dc: Tensor, at: slice) -> Tensor:
    return torch.cat([dN[:, :, at], dc[:, :, at].unsqueeze(-1)], -1)  # (B, H, C, e + 1)


def _backward_in_blocks(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Take all features where the gradients shall be differentiated again: blocks have no graph."""

    @functools.wraps(backward)
    def either(ctx, dN: Tensor, dc: Tensor):
        with autocast_off(dN.device):
            if torch.is_grad_enabled():
                return _backward_at_once(ctx, dN, dc)
            return backward(ctx, dN, dc)

    return either


def _backward_at_once(ctx, dN: Tensor, dc: Tensor) -> tuple[Any, ...]:
    q, k, v, *rest = ctx.saved_tensors
    parameters = rest[len(rest) - len(ctx.maps.parameters) :]
    # Aliases: q, k and v may be one tensor, and each wants its own share of the gradient.
    q, k, v, *parameters = (t.view_as(t) for t in (q, k, v, *parameters))
    everything = slice(0, v.shape[2])
    phi_q, phi_k = ctx.maps.q(q, everything, parameters), ctx.maps.k(k, everything, parameters)
    sums = (causal_linear_sums if ctx.causal else linear_sums)(phi_q, phi_k, v)
    inputs = q, k, v, *parameters
    wanted = [t for t in inputs if t.requires_grad]
    gradients = iter(
        torch.autograd.grad(sums, wanted, (dN, dc), create_graph=True, allow_unused=True)
    )
    return None, None, *(next(gradients) if t.requires_grad else None for t in inputs)


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx, maps: Maps, block: int, q: Tensor, k: Tensor, v: Tensor, *parameters: Tensor):
        n = v.shape[2]
        S = torch.zeros((), dtype=v.dtype, device=v.device)  # (B, H, D, e + 1)
        for at in _blocks(n, block):
            S = S + maps.k(k[:, :, at], at, parameters).mT @ _with_ones(v[:, :, at])
        N, c = torch.empty_like(v), v.new_empty(v.shape[:3])
        for at in _blocks(n, block):
            sums = maps.q(q[:, :, at], at, parameters) @ S
            N[:, :, at], c[:, :, at] = sums[..., :-1], sums[..., -1]
        ctx.save_for_backward(q, k, v, S, *parameters)
        ctx.maps, ctx.block, ctx.causal = maps, block, False
        return N, c

    @staticmethod
    @_backward_in_blocks
    def backward(ctx, dN: Tensor, dc: Tensor):
        q, k, v, S, *parameters = ctx.saved_tensors
        maps, gradients, R = ctx.maps, _Gradients(q, k, v, parameters), torch.zeros_like(S)
        for at in _blocks(v.shape[2], ctx.block):
            phi, x = _mapped(maps.q, q, at, parameters)
            G = _incoming(dN, dc, at)
            R += phi.detach().mT @ G
            gradients.through(phi, x, G @ S.mT, gradients.q[:, :, at])
        for at in _blocks(v.shape[2], ctx.block):
            phi, x = _mapped(maps.k, k, at, parameters)
            gradients.v[:, :, at] = phi.detach() @ R[..., :-1]
            gradients.through(phi, x, _with_ones(v[:, :, at]) @ R.mT, gradients.k[:, :, at])
        return gradients.all()


class _CausalSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx, maps: Maps, block: int, q: Tensor, k: Tensor, v: Tensor, *parameters: Tensor):
        N, c = torch.empty_like(v), v.new_empty(v.shape[:3])
        S = torch.zeros((), dtype=v.dtype, device=v.device)
        states = []  # S (B, H, D, e + 1) before each block
        for at in _blocks(v.shape[2], block):
            phi_q = maps.q(q[:, :, at], at, parameters)
            phi_k = maps.k(k[:, :, at], at, parameters)
            V = _with_ones(v[:, :, at])
            S = S.expand(*V.shape[:2], phi_k.shape[-1], V.shape[-1])
            states.append(S)
            sums = phi_q @ S + (phi_q @ phi_k.mT).tril() @ V
            N[:, :, at], c[:, :, at] = sums[..., :-1], sums[..., -1]
            S = S + phi_k.mT @ V
        ctx.save_for_backward(q, k, v, *states, *parameters)
        ctx.maps, ctx.block, ctx.causal = maps, block, True
        return N, c

    @staticmethod
    @_backward_in_blocks
    def backward(ctx, dN: Tensor, dc: Tensor):
        q, k, v, *rest = ctx.saved_tensors
        blocks = list(_blocks(v.shape[2], ctx.block))
        states, parameters = rest[: len(blocks)], rest[len(blocks) :]
        maps, gradients = ctx.maps, _Gradients(q, k, v, parameters)
        R = torch.zeros_like(states[0])
        for at, S in zip(reversed(blocks), reversed(states), strict=True):
            phi_q, x_q = _mapped(maps.q, q, at, parameters)
            phi_k, x_k = _mapped(maps.k, k, at, parameters)
            Q, K = phi_q.detach(), phi_k.detach()
            V, G = _with_ones(v[:, :, at]), _incoming(dN, dc, at)
            A, dA = (Q @ K.mT).tril(), (G @ V.mT).tril()  # (B, H, C, C)
            gradients.v[:, :, at] = K @ R[..., :-1] + A.mT @ G[..., :-1]
            gradients.through(phi_q, x_q, G @ S.mT + dA @ K, gradients.q[:, :, at])
            gradients.through(phi_k, x_k, V @ R.mT + dA.mT @ Q, gradients.k[:, :, at])
            R = R + Q.mT @ G
        return gradients.all()
