"""Short float32 runs of what has machine code for a CPU: outputs, and the norms of gradients.

They are compared to rounding, so that sums in another order raise nothing. Where numba is missing
torch computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import luna
from luna.kernels.rms_norm import rms_norm
from luna.kernels.scalar_mlp import scalar_mlp

from .compare import Numbers
from .made import norm_of
from .of_network import by_formula, waves

B, H, N, WIDTH = 2, 2, 160, 8  # tokens of three causal blocks


def given(*shape: int, shift: float) -> Tensor:
    return waves(*shape, shift=shift).float().requires_grad_()


def seen(out: Tensor, inputs: Sequence[Tensor]) -> Numbers:
    weights = waves(*out.shape, shift=0.5).float()
    gradients = torch.autograd.grad(out, inputs, weights)
    return {
        "norm": norm_of([out]),
        "first": out.detach().flatten()[:8].double().tolist(),
        "gradients": [norm_of([g]) for g in gradients],
    }


def attended(name: str, n: int = N, **options: object) -> Numbers:
    """An attention of which two examples end at different tokens."""
    sizes = {"n_heads": H, "head_dim": WIDTH, "max_len": n}
    attention = by_formula(luna.build(name, **sizes, **options))
    q, k, v = (given(B, H, n, WIDTH, shift=i) for i in range(3))
    mask = torch.arange(n) < torch.tensor([[n], [n // 2 + 3]])
    return seen(attention(q, k, v, mask), [q, k, v, *attention.parameters()])


LUNA = {"M": 4, "L": 3, "hidden": 8}


def luna_attention() -> Numbers:
    return {
        "all tokens": attended("luna", evaluate="fused", **LUNA),
        "causal": attended("luna", evaluate="fused", causal=True, **LUNA),
    }


def scalar_mlps() -> Numbers:
    """More values than FEW, so that they are looked up in a table."""
    u = given(1, 4000, shift=0.2)
    parameters = [given(1, *shape, shift=i) for i, shape in enumerate([(3, 8)] * 3 + [(3,)])]
    out = scalar_mlp(u, *parameters, activation="relu", evaluate="piecewise")
    return seen(out, [u, *parameters])


def rms_norms() -> Numbers:
    x, gain = given(B, H, N, WIDTH, shift=0.1), given(H, 1, WIDTH, shift=0.9)
    numbers = {}
    for of_all_heads in (False, True):
        out, rms = rms_norm(x, gain, 1e-3, of_all_heads=of_all_heads)
        numbers[f"of all heads {of_all_heads}"] = seen(out, [x, gain]) | {"rms": norm_of([rms])}
    return numbers


def linear_blocks() -> Numbers:
    """More tokens than a block has."""
    return {
        "all tokens": attended("linear", 600),
        "causal": attended("linear", causal=True),
    }


def mapped() -> Numbers:
    """More tokens than a unit has; values wider than a vector of any processor and not."""
    return {
        "linear": attended("linear", 1100),
        "t2r": attended("t2r", r=12),
    }


# By name: the method whose integer stands for the kernel, and what measures it.
KERNELS: dict[str, tuple[str, Callable[[], Numbers]]] = {
    "luna_attention": ("luna", luna_attention),
    "scalar_mlp": ("luna", scalar_mlps),
    "rms_norm": ("linear", rms_norms),
    "linear_blocks": ("linear", linear_blocks),
    "mapped": ("linear", mapped),
}
