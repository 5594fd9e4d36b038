"""Random objects that a method draws in every forward: samples, rotations."""

from __future__ import annotations

import torch

from luna.base import Attention, Slot


class Redrawn(Attention):
    """New draws in every training step; under strict the same ones in every evaluation, which are
    the model's own: they are in its state dict. Outside strict, evaluation draws anew as well.

    The streams are on the CPU, so that a model draws alike on every device.
    """

    def __init__(self, slot: Slot):
        super().__init__(slot)
        self._generators["evaluation"] = torch.Generator().manual_seed(slot.seed)

    def stream(self) -> torch.Generator:
        if self.training or self.profile != "strict":
            return self.generator("cpu")
        start = torch.Generator()
        start.set_state(self.get_extra_state()["evaluation"])
        return start
