"""L scalar MLPs of every scalar of a batch: psi_l(u) = sum_r a_lr s(e_lr u + f_lr) + g_l.

Shapes, in this folder:

    u (G, N)        scalars; G groups with parameters of their own (1, or one per head)
    e, f (G, C, w)  first layers: C = L for separate MLPs, C = 1 for one hidden layer shared by all
    a (G, L, w)     second layers
    g (G, L)
    out (G, N, L)

`dense` evaluates the definition, for any activation. `piecewise` is exact for relu and leaky_relu,
in time and memory independent of w (README.md beside this file has the derivation); `compiled` is
the same in one pass of machine code. `auto` takes the fastest that applies.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Literal

from torch import Tensor

from luna.base import LunaError
from luna.kernels import cpu
from luna.kernels.scalar_mlp import piecewise, reference
from luna.kernels.scalar_mlp.piecewise import SLOPES
from luna.kernels.scalar_mlp.reference import ACTIVATIONS

Activation = Literal["relu", "leaky_relu", "gelu", "silu", "tanh", "sigmoid", "softplus", "sin"]
Evaluate = Literal["auto", "dense", "piecewise", "compiled"]

__all__ = ["ACTIVATIONS", "SLOPES", "Activation", "Evaluate", "evaluator", "scalar_mlp"]


def evaluator(evaluate: Evaluate, activation: Activation, device: str = "cpu") -> Evaluate:
    """The name of the evaluation that `evaluate` means for this activation on such a device."""
    if evaluate in ("piecewise", "compiled") and activation not in SLOPES:
        raise LunaError(
            f"evaluate='{evaluate}' needs a piecewise linear activation ({', '.join(SLOPES)}), "
            f"not '{activation}': use evaluate='auto'"
        )
    if evaluate == "compiled" and not cpu.available():
        raise LunaError("evaluate='compiled' needs numba: pip install 'luna-lra[fast]'")
    if activation not in SLOPES or evaluate == "dense":
        return "dense"
    if device != "cpu":  # compiled code is for the CPU
        return "piecewise"
    if evaluate == "auto" and not cpu.available():
        _say_what_is_missing()
    return "compiled" if evaluate != "piecewise" and cpu.available() else "piecewise"


@functools.cache
def _say_what_is_missing() -> None:
    logging.getLogger("luna").warning(
        "numba is not installed, LUNA's scalar MLPs are evaluated about twice as slowly without: "
        "pip install 'luna-lra[fast]'"
    )


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
    run = EVALUATORS[evaluator(evaluate, activation, u.device.type)]
    return run(u, e, f, a, g, activation=activation, nonneg=nonneg, chunk=chunk)


def _compiled(*tensors: Tensor, **options) -> Tensor:
    from luna.kernels.scalar_mlp.compiled import compiled  # imports numba

    return compiled(*tensors, **options)


EVALUATORS: dict[str, Callable[..., Tensor]] = {
    "dense": reference.dense,
    "piecewise": piecewise.piecewise,
    "compiled": _compiled,
}
