"""The cost of each torch operation: FLOPs of products, elements of everything else.

Every operation that a network runs is one of three kinds:

    product       a sum of products over an index (matrix products, convolutions, attention,
                  Fourier transforms, factorisations): FLOPs by a formula, a multiply-add being 2
    element-wise  one per element that it computes, or that a reduction reads: additions,
                  exponentials, comparisons, sums; several for an operation made of several
    move          views, copies, gathers, new tensors: nothing is computed

FLOPs and elements are different units and are never added. The cost of an unknown operation is
`None`, and the count reports it (`Count.uncounted`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count


class OpWork(NamedTuple):
    flops: int = 0
    elements: int = 0


Rule = Callable[[Any, Any, Any], OpWork]  # (args, kwargs, out)


@functools.cache
def rule(func: torch._ops.OpOverload) -> Rule | None:
    """The function that counts a call of an operation; None for an unknown one."""
    packet, name = func._overloadpacket, str(func._overloadpacket)
    if packet in flop_registry:
        known = flop_registry[packet]
        return lambda args, kwargs, out: OpWork(_real(out) * known(*args, **kwargs, out_val=out))
    if name in PRODUCTS:
        return lambda args, kwargs, out: OpWork(_real(out) * PRODUCTS[name](out, *args))
    if name in MOVES or func.is_view:
        return lambda args, kwargs, out: OpWork()
    if name in FORMULAS:
        return lambda args, kwargs, out: OpWork(elements=FORMULAS[name](out, *args))
    if name in SEVERAL or torch.Tag.reduction in func.tags:
        times = SEVERAL.get(name, 1)
        return lambda args, kwargs, out: OpWork(elements=times * _largest(args))
    if torch.Tag.pointwise in func.tags or name in POINTWISE:
        return lambda args, kwargs, out: OpWork(elements=_largest(out))
    return None


def moved(*tensors: Any) -> int:
    """Elements that an operation reads and writes."""
    return sum(t.numel() for t in tree_iter(tensors) if isinstance(t, Tensor))


def _largest(tensors: Any) -> int:
    """Elements of the largest tensor: the input of a reduction, or any output of the others."""
    return max((t.numel() for t in tree_iter(tensors) if isinstance(t, Tensor)), default=0)


def _real(out: Any) -> int:
    """A complex multiply-add is four real ones."""
    return 4 if any(t.is_complex() for t in tree_iter(out) if isinstance(t, Tensor)) else 1


# ---------------------------------------------------------------------- products

# Those that torch.utils.flop_counter has no formula for: (out, *args) -> FLOPs.


def _sdpa(out: Any, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
    return sdpa_flop_count(q.shape, k.shape, v.shape)


def _sdpa_backward(out: Any, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
    return sdpa_backward_flop_count(grad.shape, q.shape, k.shape, v.shape)


def _fft(real: bool) -> Callable[..., int]:
    """5 N log2 N for a transform of length N, half of it where one side is real (Cooley and
    Tukey). It is divided by `_real`, which multiplies every product."""

    def formula(out: Tensor, x: Tensor, dim: list[int], *_: Any) -> int:
        long = out if out.numel() > x.numel() else x
        points = math.prod(long.shape[d] for d in dim)
        flops = 5 * long.numel() * math.log2(max(points, 2)) / (2 if real else 1)
        return math.ceil(flops / _real(out))

    return formula


def _svd(out: Any, A: Tensor, *_: Any) -> int:
    """U, S and V: 4 m^2 n + 8 m n^2 + 9 n^3 for m >= n (Golub and Van Loan, 5.4.5)."""
    n, m = sorted(A.shape[-2:])
    return A[..., 0, 0].numel() * (4 * m * m * n + 8 * m * n * n + 9 * n**3)


def _pinv(out: Any, A: Tensor, *_: Any) -> int:
    """An SVD and one product."""
    return _svd(out, A) + 2 * A.numel() * min(A.shape[-2:])


def _qr(out: Any, A: Tensor, *_: Any) -> int:
    """Householder, with Q formed: 4 (m^2 n - m n^2 + n^3 / 3) (Golub and Van Loan, 5.2.2)."""
    m, n = A.shape[-2:]
    return A[..., 0, 0].numel() * 4 * (3 * (m * m * n - m * n * n) + n**3) // 3


def _solve(out: Any, A: Tensor, B: Tensor, *_: Any) -> int:
    """LU, 2 n^3 / 3, and two triangular solves per column of B."""
    n = A.shape[-1]
    return A[..., 0, 0].numel() * 2 * n**3 // 3 + 2 * B.numel() * n


PRODUCTS: dict[str, Callable[..., int]] = {
    # What F.scaled_dot_product_attention is on a CPU; on meta it is two products.
    "aten._scaled_dot_product_flash_attention_for_cpu": _sdpa,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _sdpa_backward,
    "aten.mv": lambda out, A, x: 2 * A.numel(),
    "aten.addmv": lambda out, y, A, x, *_: 2 * A.numel(),
    "aten.dot": lambda out, x, y: 2 * x.numel(),
    "aten.vdot": lambda out, x, y: 2 * x.numel(),
    "aten._cdist_forward": lambda out, x, y, *_: 3 * out.numel() * x.shape[-1],
    "aten._fft_c2c": _fft(real=False),
    "aten._fft_r2c": _fft(real=True),
    "aten._fft_c2r": _fft(real=True),
    "aten._linalg_svd": _svd,
    "aten.linalg_pinv": _pinv,
    "aten.linalg_qr": _qr,
    "aten._linalg_solve_ex": _solve,
    "aten.linalg_inv_ex": lambda out, A, *_: 2 * A.numel() * A.shape[-1],
    "aten.linalg_cholesky_ex": lambda out, A, *_: A.numel() * A.shape[-1] // 3,
}


# ---------------------------------------------------------------------- element-wise


def _names(words: str) -> Iterable[str]:
    return (f"aten.{word}" for word in words.split())


def _log2(n: int) -> int:
    return max(1, math.ceil(math.log2(max(n, 2))))


# The number of element-wise operations that each of these is made of.
SEVERAL = {
    **dict.fromkeys(_names("_softmax _safe_softmax _log_softmax"), 5),  # max, -, exp, sum, /
    **dict.fromkeys(_names("_softmax_backward_data _log_softmax_backward_data"), 4),
    **dict.fromkeys(_names("logsumexp logcumsumexp"), 4),
    **dict.fromkeys(_names("native_layer_norm native_group_norm _fused_rms_norm"), 7),
    **dict.fromkeys(_names("native_layer_norm_backward native_group_norm_backward"), 11),
    # A scan or a scattered sum adds each element once.
    **dict.fromkeys(_names("cumsum cumprod cummax cummin"), 1),
    **dict.fromkeys(_names("index_add scatter_add scatter_reduce embedding_dense_backward"), 1),
    **dict.fromkeys(_names("_embedding_bag_dense_backward"), 1),
}

# (out, *args) -> elements. Sorting n elements takes n log2 n comparisons, a search log2 n.
FORMULAS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(
        _names("sort argsort topk kthvalue msort median"),
        lambda out, x, *_: x.numel() * _log2(max(x.shape, default=1)),
    ),
    "aten.searchsorted": lambda out, keys, x, *_: x.numel() * _log2(keys.shape[-1]),
    "aten.bucketize": lambda out, x, keys, *_: x.numel() * _log2(keys.shape[-1]),
    # luna/kernels/scalar_mlp: a search per scalar, a multiply-add per scalar and channel.
    "luna.piecewise_linear": lambda out, u, keys, *_: (
        u.numel() * _log2(keys.shape[-1]) + 2 * out[0].numel()
    ),
    "luna.piecewise_linear_backward": lambda out, grad, u, *_: 4 * grad.numel(),
}

# Element-wise operations that torch does not tag as pointwise, random numbers among them.
POINTWISE = frozenset(
    _names(
        "floor_divide elu_backward softplus_backward hardtanh_backward leaky_relu_backward "
        "native_dropout native_dropout_backward bernoulli bernoulli_ rand randn randint uniform_ "
        "normal_ rand_like randn_like tril triu _cdist_backward"
    )
)

# Nothing is computed. `clone` is here because torch tags it as pointwise.
MOVES = frozenset(
    _names(
        "_to_copy _unsafe_view _reshape_alias alias arange as_strided cat clone constant_pad_nd "
        "copy copy_ detach diag_embed diagonal_backward embedding empty empty_like empty_strided "
        "expand_copy eye fill fill_ flip full full_like gather index index_copy index_fill "
        "index_put index_put_ index_select lift_fresh lift_fresh_copy linspace masked_scatter "
        "new_empty new_empty_strided new_full new_ones new_zeros ones ones_like permute_copy "
        "repeat repeat_interleave roll scalar_tensor scatter select_backward select_scatter "
        "slice_backward slice_scatter split_with_sizes_copy stack take unfold_backward zero_ "
        "zeros zeros_like _local_scalar_dense resize_ set_ _conj_physical view_as_complex "
        "view_as_real reflection_pad1d replication_pad1d _pin_memory"
    )
)
