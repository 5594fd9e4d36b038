"""What torch's FLOP counter does not count as this project does.

Modules that are counted by their mathematical definition, not by the work of their code: a fast
evaluation must not make a method look smaller than its mathematics, nor a blocked one larger; and
torch sees no product where a method contracts in the log domain. What the code executes is recorded
beside the definition.

Operators that are products and that torch counts as 0, each with its FLOPs. An operator of your own
gets its FLOPs by `torch.utils.flop_counter.register_flop_formula`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

if TYPE_CHECKING:  # a network that has none of these does not import them
    from lra.model.rotary import Rotary
    from luna.attention.informer import Informer
    from luna.attention.longformer import Longformer
    from luna.attention.lotformer import LOTFormer
    from luna.feature_maps.learned import Channels

aten = torch.ops.aten
Shape = torch.Size


# ---------------------------------------------------------------------- modules: FLOPs of a forward


def channels(module: Channels, u: Tensor, *_: Any) -> int:
    """LUNA's scalar MLPs as dense layers, whatever `evaluate` is: per scalar and channel a linear
    layer 1 -> w, of which there is one where the channels share it, and one w -> 1."""
    hidden_layers, width = module.e.shape[1:]
    return u.numel() * 2 * width * (hidden_layers + module.g.shape[1])


def longformer(module: Longformer, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
    """2 (d + e) for each of n tokens and each key of its window; a global token is a key and a row
    of n more. The code computes whole chunks and cuts the band out."""
    n = q.shape[-2]
    n_globals = sum(g < n for g in module.global_tokens)
    keys = min(module.left + 1 + module.right, n) + 2 * n_globals
    return len(q) * module.n_heads * 2 * n * keys * (q.shape[-1] + v.shape[-1])


def lotformer(module: LOTFormer, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
    """4 n R (d + e) of products, and for both plans 5 per entry and half-step of Sinkhorn, a
    matrix-vector product in the log domain: without it the method's main cost would not count."""
    entries = len(q) * module.n_heads * q.shape[-2] * module.R
    return entries * (4 * (q.shape[-1] + v.shape[-1]) + 10 * module.half_steps)


def informer(module: Informer, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
    """2 n U d of the sampled scores, 2 u n (d + e) of the active rows. The code computes these, but
    the sampled scores without gradient."""
    n, d, e = q.shape[-2], q.shape[-1], v.shape[-1]
    U = module.count(n)
    return len(q) * module.n_heads * n * (2 * U * d + 2 * min(U, n) * (d + e))


def rotary(module: Rotary, x: Tensor, *_: Any) -> int:
    """A product of each pair of channels with a 2 x 2 rotation: 4 FLOPs per channel. The code
    multiplies and adds element by element."""
    return 4 * x.numel()


DEFINITIONS: dict[str, Callable[..., int]] = {
    "luna.feature_maps.learned.Channels": channels,
    "luna.attention.longformer.Longformer": longformer,
    "luna.attention.lotformer.LOTFormer": lotformer,
    "luna.attention.informer.Informer": informer,
    "lra.model.rotary.Rotary": rotary,
}


def definition(module: nn.Module) -> Callable[..., int] | None:
    """Find the formula, (module, *inputs) -> FLOPs, of a module counted by its definition."""
    for cls in type(module).__mro__:
        if formula := DEFINITIONS.get(f"{cls.__module__}.{cls.__qualname__}"):
            return formula
    return None


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


OPERATORS: dict[Any, Callable[..., int]] = {
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
    aten.linalg_inv_ex: lambda A, *_, **__: 2 * math.prod(A) * A[-1],
}
