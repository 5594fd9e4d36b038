"""What torch's FLOP counter does not count as this project does.

A module that defines `flops` is counted by its mathematical definition, not by the work of its
code: a fast evaluation must not make a method look smaller than its mathematics, nor a blocked one
larger; and torch sees no product where a method works element by element. What the code executes is
recorded beside the definition. A plug-in declares its own in the same way:

    def flops(self, q, k, v, *_):
        return 4 * len(q) * self.n_heads * q.shape[-2] * self.window * q.shape[-1]

A recurrence also multiplies its state by decays, number by number. No method's paper counts these
products, and a budget leaves them out; `elementwise`, with the arguments of `flops`, says how many
there are, and they are recorded beside FLOPs.

Operators that are products and that torch counts as 0, or complex and counted as real, each with
its FLOPs. An operator of your own gets its FLOPs by
`torch.utils.flop_counter.register_flop_formula`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

aten = torch.ops.aten
Shape = torch.Size


def definition(module: nn.Module) -> Callable[..., int] | None:
    """Find the formula, (module, *inputs) -> FLOPs of a forward pass, of a module counted by its
    definition."""
    return getattr(type(module), "flops", None)


def decays(module: nn.Module) -> Callable[..., int] | None:
    """Find the formula, (module, *inputs) -> products of its state with decays, of a recurrence."""
    return getattr(type(module), "elementwise", None)


# ---------------------------------------------------------------------- operators, by their shapes


def _fft(share: float) -> Callable[..., int]:
    """5 N log2 N for length N (Cooley and Tukey), half of it where one side is real."""

    def formula(x: Shape, dim: list[int], *_: Any, out_shape: Shape, **__: Any) -> int:
        longer = max(x, out_shape, key=math.prod)
        points = math.prod(longer[d] for d in dim)
        return math.ceil(share * 5 * math.prod(longer) * math.log2(max(points, 2)))

    return formula


def _pinv(A: Shape, *_: Any, **__: Any) -> int:
    """An SVD, 4 m^2 n + 8 m n^2 + 9 n^3 for m >= n (Golub and Van Loan, 5.4.5), and one product."""
    batch = math.prod(A[:-2])
    n, m = sorted(A[-2:])
    return batch * (4 * m * m * n + 8 * m * n * n + 9 * n**3 + 2 * m * n * n)


def _real_or_complex(operator: Any) -> Callable[..., int]:
    """torch's count of a product, four times as much where its factors are complex: a complex
    multiply-add is four real ones."""

    def formula(*args: Any, **kwargs: Any) -> int:
        tensors = [a for a in args if isinstance(a, Tensor)]
        return flop_registry[operator](*args, **kwargs) * (4 if tensors[-1].is_complex() else 1)

    formula._get_raw = True  # type: ignore[attr-defined]  # tensors, not their shapes
    return formula


OPERATORS: dict[Any, Callable[..., int]] = {
    **{op: _real_or_complex(op) for op in (aten.mm, aten.bmm, aten.addmm, aten.baddbmm)},
    # What F.scaled_dot_product_attention is on a CPU; on meta it is two products.
    aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(
        q, k, v
    ),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda grad, q, k, v, *_, **__: sdpa_backward_flop_count(grad, q, k, v)
    ),
    aten.mv: lambda A, *_, **__: 2 * math.prod(A),
    aten.addmv: lambda y, A, *_, **__: 2 * math.prod(A),
    aten.dot: lambda x, *_, **__: 2 * math.prod(x),
    aten._cdist_forward: lambda x, y, *_, out_shape, **__: 3 * math.prod(out_shape) * x[-1],
    aten._fft_c2c: _fft(1),
    aten._fft_r2c: _fft(0.5),
    aten._fft_c2r: _fft(0.5),
    aten.linalg_pinv: _pinv,
    # LU, 2 n^3 / 3, and two triangular solves per column of B.
    aten._linalg_solve_ex: lambda A, B, *_, **__: (
        2 * math.prod(A) * A[-1] // 3 + 2 * math.prod(B) * A[-1]
    ),
    # A column of B is n^2 / 2 multiply-adds.
    aten.linalg_solve_triangular: lambda A, B, *_, **__: math.prod(B) * A[-1],
    aten.linalg_inv_ex: lambda A, *_, **__: 2 * math.prod(A) * A[-1],
}
