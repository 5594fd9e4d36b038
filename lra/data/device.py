"""Batches gathered on the device that trains, which holds all examples: a step then waits for no
data, and nothing but the numbers of its examples crosses over."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lra.base.config import Mask
from lra.data.arrays import Split
from lra.data.loader import Batch, Loader

HELD_ON = {"cuda"}  # types of device that hold the examples
SHARE = 4  # of the free memory, one part in so many is the most that a split may take
BLOCK = 4096  # texts read at once


def fits(split: Split, device: torch.device) -> bool:
    """Say if the examples of a split are held on the device."""
    if device.type not in HELD_ON:
        return False
    free, _ = torch.cuda.mem_get_info(device) if device.type == "cuda" else (2**30, 0)
    place = 4 * split.layout.channels or 2  # bytes
    return SHARE * (split.texts * split.width * place + split.labels.nbytes) <= free


class DeviceLoader(Loader):
    """Gives the batches of Loader, bit by bit, on a device."""

    def __init__(self, split: Split, *arguments: Any, device: torch.device, **options: Any):
        super().__init__(split, *arguments, **options)
        self.device = device
        self.channels = split.layout.channels
        shape = (split.texts, split.width, *([self.channels] if self.channels else []))
        kept = torch.float32 if self.channels else torch.int16
        self._ids = torch.empty(shape, dtype=kept, device=device)
        # Where the first 0 of each text is: masks that hide nothing are left out, and asking the
        # device for that would wait for it.
        self._first_zero = np.empty(split.texts, np.int64)
        for start in range(0, split.texts, BLOCK):
            rows = split.stored(np.arange(start, min(start + BLOCK, split.texts)))
            end = start + len(rows)
            if self.channels:  # whose masks follow from lengths alone
                self._ids[start:end] = torch.from_numpy(rows)
                continue
            self._ids[start:end] = torch.from_numpy(rows.astype(np.uint16).view(np.int16))
            zeros = np.pad(rows == 0, ((0, 0), (0, 1)), constant_values=True)
            self._first_zero[start:end] = zeros.argmax(1)
        self._stored_labels = torch.from_numpy(np.array(split.labels)).to(device)

    def _send(self, numbers: np.ndarray) -> Tensor:
        sent = torch.from_numpy(np.ascontiguousarray(numbers, np.int64))
        if self.device.type == "cuda":
            sent = sent.pin_memory()
        return sent.to(self.device, non_blocking=True)

    def batch(self, index: np.ndarray) -> Batch:
        index, lengths, width = self._share(index)
        rows = self.split.rows(index)  # (B,), or (B, 2) of a dual task
        ids = self._ids[self._send(rows), :width]
        if self.channels:
            ids = F.pad(ids, (0, 0, 0, width - ids.shape[1]))
        else:
            ids = F.pad(ids.long() & 0xFFFF, (0, width - ids.shape[-1]))  # read as uint16
        labels = self._typed(self._stored_labels[self._send(index)], width)
        return Batch(ids, self._mask(ids, rows, lengths, width), labels)

    def _mask(
        self, ids: Tensor, rows: np.ndarray, lengths: np.ndarray, width: int
    ) -> Tensor | None:
        policy = self.rules.mask
        real = self._first_zero[rows] if policy is Mask.nonzero else lengths
        if policy is Mask.none or (real >= width).all():
            return None
        if policy is Mask.nonzero:
            return ids != 0
        positions = torch.arange(width, device=self.device)
        return positions < self._send(lengths).unsqueeze(-1)
