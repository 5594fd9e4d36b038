"""LUNA's attention in machine code, on the CPU: blocks of tokens, features never stored.

Forward goes over the keys once, phi(K)^T V and phi(K)^T 1 growing, and over the queries once.
Backward does the same with features computed anew: over the queries for dS, dz, over the keys for
dk, dv. A block's features live in cache; what is kept between the passes is the output, the
denominators, and S and z of each head.

    N_i = S^T phi(q_i)   c_i = z . phi(q_i)   o_i = N_i / den(c_i)
    dN_i = do_i / den    dc_i = -(do_i . o_i) / den where |c_i| > eps, else 0
    dphi(q_i) = S dN_i + z dc_i      dS = sum_i phi(q_i) dN_i^T      dz = sum_i phi(q_i) dc_i
    dphi(k_j) = dS v_j + dz          dv_j = dS^T phi(k_j)

`absolute`: z and c are sums of |phi|, and what comes from them to phi is multiplied by its sign.

Sums over units (luna/kernels/units.py) are taken in an order that does not depend on the number of
threads. Causal attention has no kernel of its own: causal_on_cpu.py.
"""

from __future__ import annotations

from torch import Tensor

from luna.kernels import cpu
from luna.kernels.luna_attention.numba_blocks import Maps
from luna.kernels.luna_attention.numba_kernels import (
    keys_backward_kernel,
    keys_kernel,
    queries_backward_kernel,
    queries_kernel,
)
from luna.kernels.rows import rows_of
from luna.kernels.scalar_mlp.by_numba import grid
from luna.kernels.units import SEGMENT, sum_parts

PARTS = 32  # at most, of the units, with parameter gradients of their own


def forward(arguments: tuple, results: tuple[Tensor, ...], _: int) -> None:
    q, k, v, mask, W, bias, keys, table, causal, output, eps, divided, absolute = arguments
    assert not causal
    out, c, S, z = results
    units = _units(q)
    maps = _maps(W, bias, keys, table)
    mask = mask.numpy()

    # S and z of each unit, then of each head.
    S_units = S.new_empty(units, *S.shape[2:])
    z_units = z.new_empty(units, z.shape[2])
    sums = cpu.arrays(S_units, z_units)
    cpu.run(keys_kernel, units, rows_of(k), rows_of(v), mask, maps, output, absolute, *sums)
    S.copy_(_per_head(S_units, q))
    z.copy_(_per_head(z_units, q))

    sums = cpu.arrays(S, z)
    cpu.run(
        queries_kernel,
        units,
        rows_of(q),
        mask,
        maps,
        output,
        *sums,
        eps,
        divided,
        absolute,
        rows_of(out),
        c.numpy(),
    )


def backward(arguments: tuple, gradients: tuple[Tensor, ...], _: int) -> None:
    grad, q, k, v, mask, W, bias, keys, table, out, c, S, z, *options = arguments
    _, output, eps, divided, absolute = options
    dq, dk, dv, dW, dbias, dtable = gradients
    G = len(W)
    units = _units(q)
    parts = G * min(units // G, max(1, PARTS // G))
    maps = _maps(W, bias, keys, table)
    mask = mask.numpy()
    # The gradients of the parameters, one for each part; both passes add to them.
    shared = [t.new_zeros(parts, *t.shape[1:]) for t in (W, bias, table)]
    shared_arrays = cpu.arrays(*shared)

    dS_units = S.new_empty(units, *S.shape[2:])
    dz_units = z.new_empty(units, z.shape[2])
    cpu.run(
        queries_backward_kernel,
        parts,
        rows_of(grad),
        rows_of(q),
        mask,
        maps,
        output,
        *cpu.arrays(S.mT.contiguous(), z),
        eps,
        divided,
        absolute,
        rows_of(out),
        *cpu.arrays(c, dS_units, dz_units),
        rows_of(dq),
        *shared_arrays,
    )
    dS = _per_head(dS_units, q).contiguous()
    dz = _per_head(dz_units, q).contiguous()
    cpu.run(
        keys_backward_kernel,
        parts,
        rows_of(k),
        rows_of(v),
        mask,
        maps,
        output,
        absolute,
        *cpu.arrays(dS, dS.mT.contiguous(), dz),
        rows_of(dk),
        rows_of(dv),
        *shared_arrays,
    )
    for of_parts, total in zip(shared, (dW, dbias, dtable), strict=True):
        sum_parts(*cpu.arrays(of_parts.view(G, parts // G, -1), total.view(G, -1)))


def _maps(W: Tensor, bias: Tensor, keys: Tensor, table: Tensor) -> Maps:
    return Maps(*cpu.arrays(W.contiguous(), bias.contiguous(), table, *grid(keys)))


def _units(q: Tensor) -> int:
    B, H, n, _ = q.shape
    return B * H * -(-n // SEGMENT)


def _per_head(parts: Tensor, q: Tensor) -> Tensor:
    """Sums of units (units, ...) as sums of heads (B, H, ...)."""
    B, H = q.shape[:2]
    totals = parts.new_empty(H, B, *parts.shape[1:])
    sum_parts(*cpu.arrays(parts.view(B * H, len(parts) // (B * H), -1), totals.view(B * H, -1)))
    return totals.transpose(0, 1)
