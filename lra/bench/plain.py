"""Attentions straight from their formulas, in as few lines of PyTorch as possible. The library's
speed and results are compared with theirs.

They have no masks, no causal forms and no half precision, and lengths are multiples of all blocks.
Each takes the built method and uses its parameters and random draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

WHOLE = 256  # a multiple of every default block, chunk and number of landmarks below
Plain = Callable[[Any, Tensor, Tensor, Tensor, Tensor], Tensor]


def normalised(phi_q: Tensor, phi_k: Tensor, v: Tensor, eps: float = 1e-6) -> Tensor:
    S, z = torch.einsum("bhnd,bhne->bhde", phi_k, v), phi_k.sum(-2)
    c = torch.einsum("bhnd,bhd->bhn", phi_q, z).clamp_min(eps)
    return torch.einsum("bhnd,bhde->bhne", phi_q, S) / c.unsqueeze(-1)


def linear(a: Any, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    return normalised(F.elu(q) + 1, F.elu(k) + 1, v)


def performer_relu(a: Any, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    return normalised(q.relu() + a.feature_eps, k.relu() + a.feature_eps, v)


def performer(a: Any, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    def features(x: Tensor, over: tuple[int, ...]) -> Tensor:
        x = x * a.head_dim**-0.25
        s = x @ a.Omega.mT - x.square().sum(-1, keepdim=True) / 2
        return a.m**-0.5 * (s - s.detach().amax(over, keepdim=True)).exp() + a.floor

    return normalised(features(q, (-1,)), features(k, (-1, -2)), v)


def cosformer(a: Any, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    n = q.shape[-2]
    theta = math.pi / 2 * torch.arange(1, n + 1, device=q.device).unsqueeze(-1) / a.P

    def features(x: Tensor) -> Tensor:
        return torch.cat([x.relu() * theta.sin(), x.relu() * theta.cos()], -1)

    return normalised(features(q), features(k), v)


def rff(a: Any, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    def features(x: Tensor) -> Tensor:
        u = x @ (a.map.Omega.mT * a.head_dim**-0.25)
        return torch.cat([u.sin(), u.cos()], -1) / u.shape[-1] ** 0.5

    phi_q, phi_k = features(q), features(k)
    S, c = phi_k.mT @ v, torch.einsum("bhnd,bhd->bhn", phi_q, phi_k.sum(-2))
    c = torch.where(c < 0, c.clamp_max(-a.eps), c.clamp_min(a.eps))
    return phi_q @ S / c.unsqueeze(-1)


def hedgehog(a: Any, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    def features(x: Tensor, linear: Any) -> Tensor:
        y = torch.einsum("bhnd,hed->bhne", x, linear.weight) + linear.bias.unsqueeze(-2)
        return torch.cat([y.softmax(-1), (-y).softmax(-1)], -1)

    return normalised(features(q, a.map_q), features(k, a.map_k), v)


def t2r(a: Any, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    def features(x: Tensor) -> Tensor:
        return (torch.einsum("bhnd,hed->bhne", x, a.map.weight) + a.map.bias.unsqueeze(-2)).relu()

    return normalised(features(q), features(k), v)


def uniform(a: Any, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    return v.mean(-2, keepdim=True).expand_as(v)


def linformer(a: Any, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    K, V = a.E @ k, a.E @ v
    return (q @ K.mT / a.head_dim**0.5).softmax(-1) @ V


def local(a: Any, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    q, k, v = (t.unflatten(-2, (-1, a.block)) for t in (q, k, v))
    return ((q @ k.mT / a.head_dim**0.5).softmax(-1) @ v).flatten(2, 3)


def longformer(a: Any, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    """Blocks of half a window, each with its neighbours, and the band as a mask."""
    n, c = q.shape[-2], max(a.left, a.right)

    def around(t: Tensor) -> Tensor:
        return F.pad(t, (0, 0, c, c)).unfold(-2, 3 * c, c).mT  # (B, H, n/c, 3c, .)

    j = torch.arange(3 * c, device=q.device) - c
    i = torch.arange(c, device=q.device).view(-1, 1)
    band = (j - i >= -a.left) & (j - i <= a.right)
    start = torch.arange(0, n, c, device=q.device).view(-1, 1, 1)
    band = band & (j + start >= 0) & (j + start < n)
    scores = q.unflatten(-2, (-1, c)) @ around(k).mT / a.head_dim**0.5
    return (scores.masked_fill(~band, float("-inf")).softmax(-1) @ around(v)).flatten(2, 3)


def iterative_inverse(A: Tensor, steps: int) -> Tensor:
    eye = torch.eye(A.shape[-1], device=A.device)
    Z = A.mT / A.sum(-2).amax(-1)[..., None, None]
    for _ in range(steps):
        X = A @ Z
        Z = 0.25 * Z @ (13 * eye - X @ (15 * eye - X @ (7 * eye - X)))
    return Z


def nystrom(a: Any, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    q, k = q * a.head_dim**-0.25, k * a.head_dim**-0.25
    q_, k_ = (t.unflatten(-2, (a.landmarks, -1)).mean(-2) for t in (q, k))
    Z = iterative_inverse((q_ @ k_.mT).softmax(-1), a.inverse_steps)
    return (q @ k_.mT).softmax(-1) @ Z @ ((q_ @ k.mT).softmax(-1) @ v)


def skyformer(a: Any, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    n, m = q.shape[-2], a.landmarks
    ids = a.ids(None, n, q.device)[0]
    q, k = q * a.bandwidth_dim**-0.25, k * a.bandwidth_dim**-0.25
    z = torch.cat([q, k], -2)[:, :, ids]

    def kernel(s: Tensor, t: Tensor) -> Tensor:
        norms = s.square().sum(-1).unsqueeze(-1) + t.square().sum(-1).unsqueeze(-2)
        return (s @ t.mT - norms / 2).exp()

    M = kernel(z, z) + a.ridge * torch.eye(m, device=q.device)
    delta = M.sum(-1, keepdim=True).rsqrt()
    Z = iterative_inverse(delta * M * delta.mT, a.inverse_steps)
    K = (kernel(k, z) * delta.mT) @ Z * delta.mT
    return kernel(q, z) @ (K.mT @ v)


def informer(a: Any, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    n, d = q.shape[-2:]
    U, u = a.counts(n)
    with torch.no_grad():
        drawn = torch.rand(n, U, generator=a.stream(), dtype=torch.float32)
        sampled = k[:, :, (drawn * n).long().to(q.device)]  # (B, H, n, U, d)
        scores = torch.einsum("bhnd,bhnud->bhnu", q, sampled)
        top = (
            (scores.amax(-1) - scores.mean(-1)).topk(u).indices.unsqueeze(-1).expand(-1, -1, -1, d)
        )
    active = (q.gather(2, top) @ k.mT / d**0.5).softmax(-1) @ v
    return v.mean(-2, keepdim=True).expand_as(v).scatter(2, top, active)


def lotformer(a: Any, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    """Sinkhorn in the logarithm, every half-step stored for the backward pass."""
    n, Z = q.shape[-2], a.pivots * a.head_dim**-0.5

    def plan(S: Tensor) -> Tensor:
        rows, columns = (-math.log(size) for size in S.shape[-2:])
        f, g = torch.zeros_like(S[..., :1]), torch.zeros_like(S[..., :1, :])
        for t in range(a.half_steps):
            if t % 2 == 0:
                f = rows - (S + g).logsumexp(-1, keepdim=True)
            else:
                g = columns - (S + f).logsumexp(-2, keepdim=True)
        return (S + f + g).exp()

    return n * a.R * (plan(q @ Z.mT / a.eps) @ (plan(Z @ k.mT / a.eps) @ v))


def polaformer(a: Any, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    s, p = F.softplus(a.tau), 1 + a.alpha * a.rho.sigmoid()
    q, k = q / s, (k + a.E) / s
    (qp, qm), (kp, km) = ((t.relu() ** p, (-t).relu() ** p) for t in (q, k))
    K = torch.cat([kp, km], -1)
    halves = zip((torch.cat([qp, qm], -1), torch.cat([qm, qp], -1)), v.chunk(2, -1), strict=True)
    out = torch.cat([normalised(Q, K, half) for Q, half in halves], -1)
    gate = F.linear(x, a.gate.weight, a.gate.bias).unflatten(-1, (a.n_heads, -1)).transpose(1, 2)
    return out * gate


PLAIN: dict[str, Plain] = {
    f.__name__: f
    for f in (cosformer, hedgehog, informer, linear, linformer, local, longformer, lotformer,
              nystrom, performer, performer_relu, polaformer, rff, skyformer, t2r, uniform)
}  # fmt: skip
