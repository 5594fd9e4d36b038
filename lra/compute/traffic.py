"""How many bytes the operators of a training step write, counted like FLOPs on the meta device.
Kernels keep some of it in cache, so it is a measure and no bound."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lra.base.config import Mask
from lra.compute.compiler import without_compiler
from lra.compute.count import MetaMode, build
from lra.model.network import Network
from lra.settings.experiment import Experiment
from lra.settings.run import Run


class BytesMode(TorchDispatchMode):
    """Adds up what operators write; a view writes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            results = out if isinstance(out, tuple | list) else [out]
            self.number += sum(
                t.numel() * t.element_size() for t in results if isinstance(t, Tensor)
            )
        return out


def bytes_of_step(run: Run | Experiment) -> int:
    """Of a batch, forward and backward, in float32."""
    masked = run.protocol.data.mask is not Mask.none
    with without_compiler():
        try:
            per_example = _written(build(run, "meta"), masked)
        except (NotImplementedError, RuntimeError):  # its shapes depend on values
            per_example = _written(build(run, "cpu"), masked)
    return per_example * run.protocol.recipe.batch


def _written(network: Network, masked: bool) -> int:
    device = next(network.parameters()).device
    shape = (1, 2, network.max_len) if network.dual else (1, network.max_len)
    ids = torch.zeros(shape, dtype=torch.long, device=device)
    mask = torch.ones(shape, dtype=torch.bool, device=device) if masked else None
    with BytesMode() as written, MetaMode():
        network.train()(ids, mask).sum().backward()
    return written.number
