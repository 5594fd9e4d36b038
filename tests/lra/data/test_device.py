"""Batches gathered on a device are those of the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lra.base.config import Mask, Pad
from lra.data.device import DeviceLoader
from lra.data.loader import Loader

from .test_loader import Fake, rules


@pytest.mark.parametrize("task", ["numbers", "pairs", "pictures"])
def test_batches_on_the_device_are_the_same(task: str, fake: Fake):
    split = fake(task).split("train")
    for mask, pad in ((m.name, p.name) for m in Mask for p in Pad):
        for rank in range(2):
            options: dict[str, Any] = {"rules": rules(mask, pad), "steps": 9, "world": 2}
            plain = Loader(split, 8, rank=rank, **options)
            held = DeviceLoader(split, 8, rank=rank, device=torch.device("cpu"), **options)
            for ours, theirs in zip(held, plain, strict=True):
                assert torch.equal(ours.ids, theirs.ids)
                assert torch.equal(ours.labels, theirs.labels)
                assert (ours.mask is None) == (theirs.mask is None)
                assert ours.mask is None or torch.equal(ours.mask, theirs.mask)
