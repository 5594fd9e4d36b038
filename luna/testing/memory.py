"""How much memory a computation takes, seen from its operators and not from the system."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode


class Sizes(TorchDispatchMode):
    """Records every tensor that an operator returns inside the block, backward included: its shape,
    and the most bytes that such tensors held at once. What an operator needs for itself while it
    runs is not seen: it depends on the algorithm that a library has chosen for this processor."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[torch.Size] = []
        self.peak = 0
        self._alive: dict[StorageWeakRef, int] = {}  # bytes of each storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        flat = out if isinstance(out, tuple | list) else (out,)
        tensors = [t for t in flat if isinstance(t, Tensor)]
        self.shapes += [t.shape for t in tensors]
        storages = [t.untyped_storage() for t in tensors]
        self._alive = {kept: size for kept, size in self._alive.items() if not kept.expired()}
        self._alive |= {StorageWeakRef(storage): storage.nbytes() for storage in storages}
        self.peak = max(self.peak, sum(self._alive.values()))
        return out

    @property
    def largest(self) -> int:
        """Elements of the largest of them."""
        return max(shape.numel() for shape in self.shapes)
