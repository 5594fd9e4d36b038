"""The definition of the scalar MLPs, in chunks, with the hidden units recomputed in backward."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "leaky_relu": F.leaky_relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "sin": torch.sin,
}

CLAMP = 15.0  # of the exponential output
THRESHOLD = 20.0  # from which torch's softplus is its input


# What passes the MLPs' outputs on, by the option `nonneg`. The last two cannot be 0: where relu
# features of a head die, they keep a gradient.
OUTPUTS: dict[bool | str, Callable[[Tensor], Tensor]] = {
    False: lambda y: y,
    True: torch.relu,
    "softplus": F.softplus,
    "exp": lambda y: y.clamp(max=CLAMP).exp(),
}

KEEP = 2**24  # hidden units kept for backward at most (64 MB in float32); above, recomputed
# Hidden units at once on a CPU: what its caches hold is three times faster than what they do not.
CPU_BLOCK = 2**21


def dense(u: Tensor, *mlps: Tensor, activation: str, nonneg: bool, chunk: int) -> Tensor:
    """psi (G, N, L) as it is defined; see `scalar_mlp` for the arguments."""
    e, f, a, g = (p.to(u.dtype) for p in mlps)
    act = ACTIVATIONS[activation]

    def evaluate(u: Tensor) -> Tensor:
        z = torch.addcmul(f.unsqueeze(2), u[:, None, :, None], e.unsqueeze(2))  # (G, C, n, w)
        hidden = act(z)
        if e.shape[1] == 1:  # one hidden layer for all channels
            y = hidden.squeeze(1) @ a.mT  # (G, n, L)
        else:
            y = (hidden @ a.unsqueeze(-1)).squeeze(-1).mT
        y = y + g.unsqueeze(1)
        return y.relu() if nonneg else y

    def recompute(u: Tensor) -> Tensor:
        return checkpoint(evaluate, u, use_reentrant=False, preserve_rng_state=False)

    width = e.numel()  # hidden units of one row of u
    rows = chunk // a.shape[1]
    if u.device.type == "cpu":
        rows = min(rows, CPU_BLOCK // width)
    run = recompute if torch.is_grad_enabled() and u.shape[1] * width > KEEP else evaluate
    return torch.cat([run(part) for part in u.split(max(1, rows), dim=1)], dim=1)
