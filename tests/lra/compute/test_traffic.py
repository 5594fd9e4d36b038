"""Bytes that a training step writes."""

from __future__ import annotations

import torch

from lra.compute.traffic import BytesMode, bytes_of_step
from lra.settings.compose import compose

WORDS = ("task=listops", "task.source=tiny", "model.n_layers=1", "compute=off")


def test_a_view_writes_nothing():
    x = torch.zeros(10, 20)
    with BytesMode() as written:
        x.mT.reshape(20, 10)[3:].unsqueeze(0)
    assert written.number == 0
    with BytesMode() as written:
        x.exp()  # 200 numbers of 4 bytes
        x.mT.contiguous()
    assert written.number == 2 * 800


def test_it_grows_with_the_batch_and_with_the_square_of_what_attends():
    def size(*more: str) -> int:
        return bytes_of_step(compose([*WORDS, *more]))

    short = ("protocol.data.max_length=256", "protocol.data.pad_to=256")
    long = ("protocol.data.max_length=1024", "protocol.data.pad_to=1024")
    method = "attention=linear"
    batch = size(method, *short, "protocol.recipe.batch=4")
    assert size(method, *short, "protocol.recipe.batch=8") == 2 * batch
    assert 3.5 < size(method, *long) / size(method, *short) < 4.5
