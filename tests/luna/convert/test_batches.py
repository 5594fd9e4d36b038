"""Batches that a model cannot take are refused with the remedy."""

from __future__ import annotations

import pytest
import torch

from luna.base import LunaError
from luna.convert.batches import forward, memory_advice, own_loss

from .kit import POSITIONS, bert, comes_again, text


def test_a_text_longer_than_the_position_table():
    with pytest.raises(LunaError, match=r"41 tokens .* 40 positions"):
        forward(bert(), text((POSITIONS + 1,)))


def test_labels_of_another_task_and_none_at_all():
    batch, model = comes_again(4), bert(num_labels=2)
    with pytest.raises(LunaError, match=r"labels go from 0 to 2, .* 2 classes"):
        own_loss(model, batch | {"labels": torch.tensor([0, 1, 2, 0])})
    with pytest.raises(LunaError, match="no loss"):
        own_loss(model, {"input_ids": batch["input_ids"]})


@pytest.mark.parametrize(("size", "advice"), [(16, "batches of 8"), (1, "too large")])
def test_out_of_gpu_memory_names_the_batch_to_try(size, advice):
    with pytest.raises(LunaError, match=advice), memory_advice(comes_again(size)):
        raise torch.cuda.OutOfMemoryError
