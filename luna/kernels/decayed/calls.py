"""Linear attention with decays for GPUs, in Triton: each block of tokens is a program of its own.

Within a block let G_i = g_0,1 + ... + g_0,i and K_i = g_1,i + ... + g_1,last, and V = [v 1]. From
the state S before a block and R behind it, and the masked product within,

    [N c]_i = phi(q_i) (e^G_i S + e^K_i R) + sum_j M_ij phi(q_i) . phi(k_j) V_j
    S' = e^G_last S + sum_j e^(G_last - G_j) phi(k_j) V_j^T      the same of R with K_1 - K_j

Backward has the same states, T and U, of queries and the gradients [dN dc] of their sums:

    dphi(q_i) = (e^G_i S + e^K_i R) [dN dc]_i + sum_j dA_ij phi(k_j)      dA = M ([dN dc] V^T)
    dphi(k_j) = (e^(G_last - G_j) T + e^(K_1 - K_j) U) V_j + sum_i dA_ij phi(q_i)
    dv_j = (e^(G_last - G_j) T + e^(K_1 - K_j) U)^T phi(k_j) + sum_i M_ij phi(q_i) . phi(k_j) dN_i

A decay g_0,t stands in the weights of all pairs j < t <= i: its gradient is the sum over them of
the weight times the weight's gradient. Of a query in the block and all earlier keys that sum is a
part of phi(q_i) . dphi(q_i), of a key and later queries one of phi(k_j) . dphi(k_j), and of pairs
across the block e^G_last <S, T>. The first less the second, summed over whole sequences, would be
shorter, but there rounding errors add up: with 2,000 tokens gates had gradients wrong by 1e-4. The
same for g_1 with i <= t < j.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from luna.kernels.compiled import PASSES, STATES
from luna.kernels.decayed.passes import (
    keys_backward_kernel,
    keys_kernel,
    queries_backward_kernel,
    queries_kernel,
    states_kernel,
)
from luna.kernels.decayed.silu_map import MAP
from luna.kernels.linear_triton.calls import rows_of
from luna.kernels.linear_triton.shape import Shape, precisions, sizes_of


@functools.cache
def shape_of(
    d: int, e: int, block: int, causal: bool, eps: float, double: bool, **precision: Any
) -> Shape:
    widths = sizes_of(1, d, d, e, ordered=False, causal_in_half=False)  # D = dP
    widths["BLOCK"] = tl.constexpr(block)
    options = {"groups": 1, "signed": False, "absolute": False, "causal": causal, "eps": eps}
    options |= {"divided": True, "dtype": tl.float64 if double else tl.float32, **precision}
    given = {name: tl.constexpr(value) for name, value in options.items()}
    return Shape(map=MAP, **widths, **given)


class Call:
    """One call: its shape, and how it is cut up."""

    def __init__(self, q: Tensor, v: Tensor, directions: int, eps: float, block: int):
        B, H, n, self.d = q.shape
        double = v.dtype == torch.float64
        self.e, self.directions = v.shape[3], directions
        self.shape = shape_of(
            *(self.d, self.e, block, directions == 1, eps, double), **precisions(v)
        )
        self.heads, self.blocks = B * H, triton.cdiv(n, block)
        self.units = self.heads * self.blocks
        self.sizes = (H, n, block, 1)

    def forward(self, inputs: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> None:
        """Fill out, c, S and z."""
        q, k, v, mask, g = inputs
        out, c, S, z = results
        mask, g = mask.contiguous(), g.contiguous()
        own = self._own(g)
        with torch.cuda.device_of(v):
            self._run(keys_kernel, rows_of(k), rows_of(v), g, mask, own, self.sizes)
            self._add_up(own, S, z, before=0)
            rows = rows_of(q), rows_of(k), rows_of(v)
            self._run(queries_kernel, *rows, g, mask, (S, z), rows_of(out), c, self.sizes)

    def backward(
        self,
        grad: Tensor,
        inputs: tuple[Tensor, ...],
        results: tuple[Tensor, ...],
        gradients: tuple[Tensor, ...],
    ) -> Tensor:
        """Fill the gradients of q, k and v; return that of g."""
        q, k, v, mask, g = inputs
        out, c, S, z = results
        dq, dk, dv = gradients
        mask, g = mask.contiguous(), g.contiguous()
        own, dc = self._own(g), torch.empty_like(c)
        T, t = torch.empty_like(S), torch.empty_like(z)
        dg = torch.empty_like(g)
        rows = rows_of(grad), rows_of(q), rows_of(k), rows_of(v)
        with torch.cuda.device_of(v):
            self._run(
                queries_backward_kernel,
                *(*rows, rows_of(out), g, mask, (S, z, c), (*own, dc, dg)),
                *(rows_of(dq), self.sizes),
            )
            self._add_up(own, T, t, before=1)
            self._run(
                keys_backward_kernel,
                *(*rows, g, mask, (T, t, c, dc), (S, z), dg),
                *(rows_of(dk), rows_of(dv), self.sizes),
            )
        return dg

    def _run(self, kernel: Any, *arguments: Any) -> None:
        s = self.shape
        kernel[(self.units,)](*arguments, s=s, num_warps=s.warps, **PASSES)

    def _own(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """Memory for what each block alone adds to the states, and by how much it lets them fall,
        in each direction."""
        rows = self.directions, self.units
        return g.new_empty(*rows, self.d * (self.e + 1)), g.new_empty(rows)

    def _add_up(self, own: tuple[Tensor, Tensor], S: Tensor, z: Tensor, *, before: int) -> None:
        """Fill S, z with the states that arrive at each block: from earlier ones in the direction
        `before`, from later ones in the other."""
        for direction in range(self.directions):
            views = (*own, S, z)
            states_kernel[(self.heads, self.d)](
                *(t[direction] for t in views),
                self.blocks,
                LATER=direction != before,
                s=self.shape,
                **STATES,
            )
