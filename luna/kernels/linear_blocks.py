"""The sums of linear attention in blocks of tokens: features are made where they are used.

    N_i = sum_j (phi(q_i) . phi(k_j)) v_j      c_i = sum_j phi(q_i) . phi(k_j)

of all keys j, or those with j <= i. `luna.linear` makes all features first, n D numbers a side,
and autograd keeps them with whatever phi computed on its way. Here a block of tokens is mapped,
used while it lies in cache and thrown away, and mapped again in backward, by autograd. With
V = [v 1], S = phi(K)^T V and the gradients G = [dN dc], R = phi(Q)^T G,

    all keys    dphi(Q) = G S^T             dphi(K) = V R^T             dV = phi(K) R
    causal      dphi(Q) = G S^T + dA phi(K) dphi(K) = V R^T + dA^T phi(Q) dV = phi(K) R + A^T G

A = tril(phi(Q) phi(K)^T) and dA = tril(G V^T) stay inside a block, and S and R are the sums
over the blocks before and after it. At padding V is 0, and G where
padded queries receive nothing. Kept for backward: q, k, v and S; causal, S at every block.
A backward that shall itself be differentiated (create_graph) takes all features at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from luna.base import Mask, autocast_off, zero_padding
from luna.heads import clear_padding, memory_for, side_by_side
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
    q: Tensor, k: Tensor, v: Tensor, maps: Maps, keys: Mask, queries: Mask, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """N (B, H, n, e), 0 outside of `queries`, and c (B, H, n), as `luna.sums.linear_sums` of all
    features, those of keys outside of `keys` being 0."""
    return _BlockedSums.apply(maps, (keys, queries), causal, q, k, v, *maps.parameters)


class _BlockedSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        maps: Maps,
        masks: tuple[Mask, Mask],
        causal: bool,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *parameters: Tensor,
    ):
        N = torch.empty_like(v)
        c = v.new_empty(v.shape[:3])
        V = _with_ones(v, masks[0])
        S = torch.zeros((), dtype=v.dtype, device=v.device)
        states = []  # S (B, H, D, e + 1) of all keys, or before each block
        for at in _blocks(v, causal):
            phi_k = maps.k(k[:, :, at], at, parameters)
            if causal:
                states.append(S.expand(*v.shape[:2], phi_k.shape[-1], V.shape[-1]))
                phi_q = maps.q(q[:, :, at], at, parameters)
                sums = phi_q @ states[-1] + (phi_q @ phi_k.mT).tril() @ V[:, :, at]
                N[:, :, at], c[:, :, at] = sums[..., :-1], sums[..., -1]
            S = S + phi_k.mT @ V[:, :, at]
        if not causal:
            states = [S]
            for at in _blocks(v, causal):
                sums = maps.q(q[:, :, at], at, parameters) @ S
                N[:, :, at], c[:, :, at] = sums[..., :-1], sums[..., -1]
        ctx.save_for_backward(q, k, v, *parameters, *states)
        ctx.maps, ctx.masks, ctx.causal = maps, masks, causal
        clear_padding(N.transpose(1, 2), masks[1])
        return N, c

    @staticmethod
    def backward(ctx, dN: Tensor, dc: Tensor):
        with autocast_off(dN.device):
            gradients = _backward_at_once if torch.is_grad_enabled() else _backward_in_blocks
            inputs = ctx.saved_tensors
            states = 3 + len(ctx.maps.parameters)
            return None, None, None, *gradients(ctx, dN, dc, inputs[:states], inputs[states:])


def _blocks(v: Tensor, causal: bool) -> Iterator[slice]:
    n = v.shape[2]
    block = CAUSAL_BLOCK if causal else BLOCK
    return (slice(i, min(i + block, n)) for i in range(0, n, block))


def _with_ones(v: Tensor, mask: Mask) -> Tensor:
    V = F.pad(v, (0, 1), value=1)
    clear_padding(V.transpose(1, 2), mask)
    return V


def _backward_in_blocks(
    ctx, dN: Tensor, dc: Tensor, inputs: Sequence[Tensor], states: Sequence[Tensor]
) -> list[Tensor | None]:
    q, k, v, *parameters = inputs
    V = _with_ones(v, ctx.masks[0])
    G = torch.cat([dN, dc.unsqueeze(-1)], -1)
    clear_padding(G.transpose(1, 2), ctx.masks[1])
    dq, dk, dv = side_by_side(memory_for(q, v), q, v)
    trained = [p for p in parameters if p.requires_grad]
    totals = [torch.zeros_like(p) for p in trained]

    @torch.enable_grad()
    def mapped(phi: Map, x: Tensor, at: slice) -> tuple[Tensor, Tensor, Tensor]:
        """A block's features with their graph and without, and the leaf that they come from."""
        leaf = x[:, :, at].detach().requires_grad_()
        features = phi(leaf, at, parameters)
        return features, features.detach(), leaf

    def through(features: Tensor, leaf: Tensor, gradient: Tensor, into: Tensor) -> None:
        """Backward through the map of one block."""
        dx, *parts = torch.autograd.grad(features, [leaf, *trained], gradient, allow_unused=True)
        into.copy_(dx)
        for total, part in zip(totals, parts, strict=True):
            if part is not None:
                total += part

    blocks = list(_blocks(v, ctx.causal))
    R = torch.zeros_like(states[0])
    if ctx.causal:
        for at, S in zip(reversed(blocks), reversed(states), strict=True):
            (phi_q, Q, x_q), (phi_k, K, x_k) = mapped(ctx.maps.q, q, at), mapped(ctx.maps.k, k, at)
            A, dA = (Q @ K.mT).tril(), (G[:, :, at] @ V[:, :, at].mT).tril()  # (B, H, C, C)
            dv[:, :, at] = K @ R[..., :-1] + A.mT @ G[:, :, at, :-1]
            through(phi_q, x_q, G[:, :, at] @ S.mT + dA @ K, dq[:, :, at])
            through(phi_k, x_k, V[:, :, at] @ R.mT + dA.mT @ Q, dk[:, :, at])
            R = R + Q.mT @ G[:, :, at]
    else:
        for at in blocks:
            phi, Q, x = mapped(ctx.maps.q, q, at)
            R += Q.mT @ G[:, :, at]
            through(phi, x, G[:, :, at] @ states[0].mT, dq[:, :, at])
        for at in blocks:
            phi, K, x = mapped(ctx.maps.k, k, at)
            dv[:, :, at] = K @ R[..., :-1]
            through(phi, x, V[:, :, at] @ R.mT, dk[:, :, at])
    clear_padding(dv.transpose(1, 2), ctx.masks[0])
    sums = iter(totals)
    return [dq, dk, dv, *(next(sums) if p.requires_grad else None for p in parameters)]


def _backward_at_once(
    ctx, dN: Tensor, dc: Tensor, inputs: Sequence[Tensor], states: Any
) -> list[Tensor | None]:
    """Take all features where the gradients shall be differentiated again: blocks have no graph."""
    # Aliases: q, k and v may be one tensor, and each wants its own share of the gradient.
    inputs = [t.view_as(t) for t in inputs]
    q, k, v, *parameters = inputs
    everything = slice(0, v.shape[2])
    phi_q, phi_k = ctx.maps.q(q, everything, parameters), ctx.maps.k(k, everything, parameters)
    keys, queries = ctx.masks
    dN, dc = zero_padding(dN, queries), zero_padding(dc.unsqueeze(-1), queries).squeeze(-1)
    phi_k = zero_padding(phi_k, keys)
    sums = (causal_linear_sums if ctx.causal else linear_sums)(phi_q, phi_k, v)
    wanted = [t for t in inputs if t.requires_grad]
    gradients = iter(
        torch.autograd.grad(sums, wanted, (dN, dc), create_graph=True, allow_unused=True)
    )
    return [next(gradients) if t.requires_grad else None for t in inputs]
