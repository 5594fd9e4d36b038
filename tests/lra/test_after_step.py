"""Methods with a schedule of their own hear of optimiser steps, not of batches or forwards."""

from __future__ import annotations

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import luna
from lra.config import Clip, Recipe, Schedule
from lra.data.loader import Batch
from lra.module import LRAModule


class Tiny(nn.Module):
    """Attends twice per batch, as the dual encoder of Retrieval does."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 8)
        self.attention = luna.build("performer", n_heads=1, head_dim=8, max_len=4, m=4, redraw=2)

    def forward(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        x = self.embed(ids).unsqueeze(1)
        for _ in range(2):
            x = self.attention(x, x, x, mask)
        return x.mean((1, 2))


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize(("accumulate", "steps"), [(1, 6), (2, 3)])
def test_optimiser_steps_are_counted(accumulate: int, steps: int) -> None:
    recipe = Recipe(
        batch=2, steps=6, warmup=1, schedule=Schedule.constant, lr=0.1, betas=[0.9, 0.98],
        eps=1e-9, weight_decay=0.0, clip=Clip.none, clip_at=1.0,
    )  # fmt: skip
    network = Tiny()
    draws = []
    network.attention.redraw = lambda generator=None: draws.append(network.attention.age)
    batch = Batch(torch.ones(2, 4).long(), None, torch.zeros(2).long())
    loader = DataLoader([batch] * 6, batch_size=None)
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=1, accumulate_grad_batches=accumulate, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        limit_val_batches=1, log_every_n_steps=1,
    )  # fmt: skip
    trainer.fit(LRAModule(network, recipe, classes=8), loader, loader)
    assert trainer.global_step == steps
    assert network.attention.age == steps
    assert draws == list(range(2, steps + 1))  # age is not reset by the stand-in
