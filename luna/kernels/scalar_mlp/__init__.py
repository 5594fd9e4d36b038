"""L scalar MLPs of every scalar of a batch: psi_l(u) = sum_r a_lr s(e_lr u + f_lr) + g_l.

Shapes, in this folder:

    u (G, N)        scalars; G groups with parameters of their own (1, or one per head)
    e, f (G, C, w)  first layers: C = L for separate MLPs, C = 1 for one hidden layer shared by all
    a (G, L, w)     second layers
    g (G, L)
    out (G, N, L)

`dense` evaluates the definition, for any activation. `piecewise` is exact for relu and leaky_relu,
in time and memory independent of w (README.md beside this file has the derivation), and `auto`
takes it where it applies. Few values without gradients, such as those of one token that is decoded,
are evaluated as defined.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from luna.base import LunaError
from luna.kernels import cpu
from luna.kernels.scalar_mlp.operator import SLOPES as SLOPES
from luna.kernels.scalar_mlp.operator import check_mlps, look_up, tables
from luna.kernels.scalar_mlp.reference import ACTIVATIONS as ACTIVATIONS
from luna.kernels.scalar_mlp.reference import OUTPUTS as OUTPUTS
from luna.kernels.scalar_mlp.reference import dense

Activation = Literal["relu", "leaky_relu", "gelu", "silu", "tanh", "sigmoid", "softplus", "sin"]
Evaluate = Literal["auto", "dense", "piecewise"]
Nonneg = bool | Literal["softplus", "exp"]  # see OUTPUTS

FEW = 2048  # values: making the table of `piecewise` takes longer than evaluating the definition


@functools.cache
def _warn_without_numba() -> None:
    logging.getLogger("luna").warning(
        "numba is not installed; on a CPU LUNA is several times faster with it: pip install numba"
    )


def evaluator(evaluate: Evaluate, activation: Activation) -> Literal["dense", "piecewise"]:
    """The name of the evaluation that `evaluate` means for this activation."""
    if evaluate == "piecewise" and activation not in SLOPES:
        raise LunaError(
            f"evaluate='{evaluate}' needs a piecewise linear activation ({', '.join(SLOPES)}), "
            f"not '{activation}': use evaluate='auto'"
        )
    return "dense" if activation not in SLOPES or evaluate == "dense" else "piecewise"


def scalar_mlp(
    u: Tensor,
    *mlps: Tensor,
    activation: Activation = "relu",
    nonneg: bool = False,
    evaluate: Evaluate = "auto",
    chunk: int = 1_000_000,
) -> Tensor:
    """psi of every scalar and channel, (G, N) -> (G, N, L), of the MLPs e, f, a, g; `nonneg` adds a
    final relu.

    `chunk` bounds the scalars (times channels) that `dense` handles at once, and so the transient
    memory; it does not change the result. Half precision is computed in float32 and returned as it
    came.
    """
    if u.dim() != 2 or not u.is_floating_point():
        raise LunaError(f"scalars (G, N) are needed, got {u.dtype} {tuple(u.shape)}")
    check_mlps(len(u), *mlps)
    if evaluate == "auto" and u.shape[1] * mlps[-1].shape[1] <= FEW and not torch.is_grad_enabled():
        evaluate = "dense"  # a token at a time
    name = evaluator(evaluate, activation)
    scalars, e, f, a, g = (at_least_single(t) for t in (u, *mlps))
    if name == "dense":
        y = dense(scalars, e, f, a, g, activation=activation, nonneg=nonneg, chunk=chunk)
    else:
        if u.device.type == "cpu" and not (cpu.AVAILABLE or torch.compiler.is_compiling()):
            _warn_without_numba()
        keys, table = tables(e, f, a, g, SLOPES[activation], scalars.dtype)
        y, _ = look_up(scalars.contiguous(), keys, table, nonneg)
    return y.to(u.dtype)


def at_least_single(t: Tensor) -> Tensor:
    """Half precision as float32, the rest as it is."""
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


def over_groups(u: Tensor, G: int, channels: Callable[[Tensor], Tensor]) -> Tensor:
    """`channels`, which maps scalars (G, N) to (G, N, L), over u (B, H, n, M): (B, H, n, M, L)."""
    if G == 1:
        return channels(u.reshape(1, -1)).view(*u.shape, -1)
    y = channels(u.transpose(0, 1).reshape(G, -1))
    return y.view(G, len(u), *u.shape[2:], -1).transpose(0, 1)
