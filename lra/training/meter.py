"""Loss and hits of a training or an evaluation, over all of its processes."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from torch import Tensor

from lra.metrics.classes import Accuracy
from lra.metrics.metric import Metric


class Meter:
    """Sums loss and hits over what is scored, on the device; only reading them synchronises."""

    def __init__(self) -> None:
        self.sums: Tensor | None = None  # loss, hits, scored labels, examples

    def update(self, loss: Tensor, hits: Tensor, scored: Tensor, examples: int) -> None:
        """Add a batch: its mean loss, how many of its scored labels were met, and counts."""
        count = torch.full_like(scored, examples)  # new_tensor would wait for a GPU
        sums = [loss.detach().double() * scored, hits, scored, count]
        now = torch.stack([value.double() for value in sums])
        self.sums = now if self.sums is None else self.sums.to(now.device) + now

    def read(self, trainer: pl.Trainer | None = None) -> Measured:
        """Read loss and counts, over all processes."""
        if self.sums is None:
            return Measured(float("nan"), 0, 0, 0)
        sums = self.sums
        if trainer is not None and trainer.world_size > 1:
            sums = sums.clone()
            torch.distributed.all_reduce(sums)
        loss, hits, scored, examples = sums.tolist()
        return Measured(loss / scored, int(hits), int(scored), int(examples))


class Measured(NamedTuple):
    loss: float  # mean over what is scored
    hits: int  # right answers; of targets that are no classes always 0
    scored: int  # examples, or their scored tokens
    examples: int

    def counts(self, metric: Metric) -> dict[str, int]:
        """Give the counts as a record has them: `right` where the score follows from it."""
        counts = {"examples": self.examples, "scored": self.scored}
        return counts | ({"right": self.hits} if isinstance(metric, Accuracy) else {})


def of_each_process(trainer: Any, value: Any) -> list[Any]:
    """Gather a value of every process of a run, by rank: a checkpoint is one file for all."""
    values = [value] * trainer.world_size
    if trainer.world_size > 1:
        torch.distributed.all_gather_object(values, value)
    return values
