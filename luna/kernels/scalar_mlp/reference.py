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

# Hidden units kept for backward at most (64 MB in float32); above, they are recomputed.
KEEP_HIDDEN = 2**24


def dense(
    u: Tensor,
    e: Tensor,
    f: Tensor,
    a: Tensor,
    g: Tensor,
    *,
    activation: str = "relu",
    nonneg: bool = False,
    chunk: int = 1_000_000,
) -> Tensor:
    dtype = u.dtype
    if dtype in (torch.float16, torch.bfloat16):
        u = u.float()
    e, f, a, g = (p.to(u.dtype) for p in (e, f, a, g))
    act = ACTIVATIONS[activation]

    def evaluate(u: Tensor) -> Tensor:
        # (G, C, n, w)
        hidden = act(torch.addcmul(f.unsqueeze(2), u[:, None, :, None], e.unsqueeze(2)))
        if e.shape[1] == 1:  # one hidden layer for all channels
            y = hidden.squeeze(1) @ a.mT  # (G, n, L)
        else:
            y = (hidden @ a.unsqueeze(-1)).squeeze(-1).mT
        y = y + g.unsqueeze(1)
        return y.relu() if nonneg else y

    rows = max(1, chunk // a.shape[1])
    hidden_units = u.numel() * e.shape[1] * e.shape[2]
    if torch.is_grad_enabled() and hidden_units > KEEP_HIDDEN:
        out = [
            checkpoint(evaluate, part, use_reentrant=False, preserve_rng_state=False)
            for part in u.split(rows, dim=1)
        ]
    else:
        out = [evaluate(part) for part in u.split(rows, dim=1)]
    return torch.cat(out, dim=1).to(dtype)
