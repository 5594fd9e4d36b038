"""How much memory a computation takes, seen from its operators and not from the system."""

from __future__ import annotations

from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Sizes(TorchDispatchMode):
    """Records every tensor that an operator returns inside the block, backward included: its shape,
    and the most bytes that such tensors held at once. What an operator needs for itself while it
    runs is not seen: it depends on the algorithm that a library has chosen for this processor."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[torch.Size] = []
        self.peak = 0
        self._alive: dict[int, ref[torch.UntypedStorage]] = {}
        self._bytes = 0  # of all that are alive

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        flat = out if isinstance(out, tuple | list) else (out,)
        tensors = [t for t in flat if isinstance(t, Tensor)]
        self.shapes += [t.shape for t in tensors]
        for t in tensors:
            self._follow(t.untyped_storage())
        self.peak = max(self.peak, self._bytes)
        return out

    def _follow(self, storage: torch.UntypedStorage) -> None:
        """Count a storage until it is freed. Each says when: to ask all of them after each operator
        would take longer than what a loop over tokens computes."""
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive:
            return

        def freed(_: object) -> None:
            del self._alive[key]
            self._bytes -= size

        self._alive[key] = ref(storage, freed)
        self._bytes += size

    @property
    def largest(self) -> int:
        """Elements of the largest of them."""
        return max(shape.numel() for shape in self.shapes)
