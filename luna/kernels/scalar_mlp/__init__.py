"""L scalar MLPs of every scalar of a batch: psi_l(u) = sum_r a_lr s(e_lr u + f_lr) + g_l.

Shapes, in this folder:

    u (G, N)        scalars; G groups with parameters of their own (1, or one per head)
    e, f (G, C, w)  first layers: C = L for separate MLPs, C = 1 for one hidden layer shared by all
    a (G, L, w)     second layers
    g (G, L)
    out (G, N, L)

`dense` evaluates the definition, for any activation. `piecewise` is exact for relu and leaky_relu,
in time and memory independent of w (README.md beside this file has the derivation); `compiled` is
the same in one pass of machine code, on the CPU, and `triton` on a GPU. `auto` takes these two
where they apply, `triton` after luna/kernels/checked.py has compared it with `piecewise`. Few
values without gradients, such as those of one token that is decoded, are evaluated as defined.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from luna.base import LunaError
from luna.kernels import checked, cpu
from luna.kernels.scalar_mlp import piecewise, reference
from luna.kernels.scalar_mlp.piecewise import SLOPES
from luna.kernels.scalar_mlp.reference import ACTIVATIONS, OUTPUTS

Activation = Literal["relu", "leaky_relu", "gelu", "silu", "tanh", "sigmoid", "softplus", "sin"]
Evaluate = Literal["auto", "dense", "piecewise", "compiled", "triton"]
Nonneg = bool | Literal["softplus", "exp"]  # see OUTPUTS

FEW = 2048  # values: making the table of `piecewise` takes longer than evaluating the definition
COMPARED = 2**16  # scalars at most of a group on which `triton` is compared with `piecewise`

__all__ = [
    "ACTIVATIONS",
    "OUTPUTS",
    "SLOPES",
    "Activation",
    "Evaluate",
    "Nonneg",
    "at_least_single",
    "check",
    "evaluator",
    "over_groups",
    "scalar_mlp",
]


def check(evaluate: Evaluate, activation: Activation) -> None:
    """Refuse an evaluation that does not fit the activation, or whose package is missing."""
    if evaluate in ("piecewise", "compiled", "triton") and activation not in SLOPES:
        raise LunaError(
            f"evaluate='{evaluate}' needs a piecewise linear activation ({', '.join(SLOPES)}), "
            f"not '{activation}': use evaluate='auto'"
        )
    if evaluate == "compiled" and not cpu.AVAILABLE:
        raise LunaError("evaluate='compiled' needs numba: pip install 'luna-lra[fast]'")
    if evaluate == "triton" and not checked.TRITON:
        raise LunaError("evaluate='triton' needs triton: pip install 'luna-lra[triton]' on Linux")


@functools.cache
def _warn_without_numba() -> None:
    logging.getLogger("luna").warning(
        "numba is not installed; on a CPU LUNA is several times faster with it: "
        "pip install 'luna-lra[fast]'"
    )


def evaluator(evaluate: Evaluate, activation: Activation, device: str = "cpu") -> Evaluate:
    """The name of the evaluation that `evaluate` means for this activation on such a device."""
    if activation not in SLOPES or evaluate == "dense":
        return "dense"
    if evaluate == "piecewise" or device == "meta":  # which has shapes only
        return "piecewise"
    if evaluate == "triton":
        if device == "cuda" or checked.INTERPRETED:
            return "triton"
        raise LunaError(f"evaluate='triton' needs a GPU, got {device}: use evaluate='auto'")
    if device != "cpu":
        if evaluate == "compiled":
            raise LunaError(f"evaluate='compiled' needs a CPU, got {device}: use evaluate='auto'")
        right = device == "cuda" and checked.TRITON and "triton" not in checked.LEFT_OUT
        return "triton" if right else "piecewise"
    if not cpu.AVAILABLE:
        _warn_without_numba()
        return "piecewise"
    return "compiled"


def scalar_mlp(
    u: Tensor,
    e: Tensor,
    f: Tensor,
    a: Tensor,
    g: Tensor,
    *,
    activation: Activation = "relu",
    nonneg: bool = False,
    evaluate: Evaluate = "auto",
    chunk: int = 1_000_000,
) -> Tensor:
    """psi of every scalar and channel, (G, N) -> (G, N, L); `nonneg` adds a final relu.

    `chunk` bounds the scalars (times channels) handled at once, and so the transient memory; it
    does not change the result. Half precision is computed in float32 and returned as it came.
    """
    if evaluate != "auto":
        check(evaluate, activation)
    elif u.shape[1] * len(g[0]) <= FEW and not torch.is_grad_enabled():  # a token at a time
        evaluate = "dense"
    name = evaluator(evaluate, activation, u.device.type)
    options: dict[str, Any] = {"activation": activation, "nonneg": nonneg, "chunk": chunk}
    if u.dim() != 2 or not u.is_floating_point():
        raise LunaError(f"scalars (G, N) are needed, got {u.dtype} {tuple(u.shape)}")
    piecewise.check_mlps(len(u), e, f, a, g)
    tensors = [at_least_single(t) for t in (u, e, f, a, g)]
    if name == "triton" and evaluate == "auto" and not _triton_is_right(*tensors, **options):
        name = "piecewise"
    return _function(name)(*tensors, **options).to(u.dtype)


def at_least_single(t: Tensor) -> Tensor:
    """Half precision as float32, the rest as it is."""
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


def over_groups(u: Tensor, G: int, channels: Callable[[Tensor], Tensor]) -> Tensor:
    """`channels`, which maps scalars (G, N) to (G, N, L), over u (B, H, n, M): (B, H, n, M, L)."""
    if G == 1:
        return channels(u.reshape(1, -1)).view(*u.shape, -1)
    y = channels(u.transpose(0, 1).reshape(G, -1))
    return y.view(G, len(u), *u.shape[2:], -1).transpose(0, 1)


def _function(name: Evaluate) -> Callable[..., Tensor]:
    if name == "compiled":
        from luna.kernels.scalar_mlp.compiled import compiled  # imports numba

        return compiled
    if name == "triton":
        from luna.kernels.scalar_mlp.gpu import gpu  # imports triton

        return gpu
    return piecewise.piecewise if name == "piecewise" else reference.dense


def _triton_is_right(*tensors: Tensor, **options: Any) -> bool:
    def by_triton(*tensors: Tensor) -> Tensor:
        return _function("triton")(*tensors, **options)[:, -COMPARED:]

    def by_piecewise(u: Tensor, *mlps: Tensor) -> Tensor:
        return piecewise.piecewise(u[:, -COMPARED:], *mlps, **options)

    return checked.is_right("triton", by_triton, by_piecewise, tensors, *options.values())
