"""Text from a network that predicts the next byte: `lra predict RUN PROMPT --generate 200`."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from lra.base.errors import UserError
from lra.data.loader import Batch
from lra.data.task import Task
from lra.model.network import Network


class Predicts(Protocol):
    """A trained network, as far as text needs it (lra/results/trained.py)."""

    @property
    def network(self) -> Network: ...
    @property
    def task(self) -> Task: ...
    def logits(self, batch: Batch) -> Tensor: ...


@torch.no_grad()
def generate(
    trained: Predicts, prompt: str, length: int, *, temperature: float = 1.0, seed: int = 0
) -> str:
    """Continue a text by so many bytes. Each is drawn from the network's distribution, made sharper
    by a temperature below 1; 0 takes the most likely one. The network sees as many of the last
    bytes as it was trained on."""
    if not (trained.task.causal and trained.task.classes == trained.task.vocab):
        raise UserError(
            f"task '{trained.task.name}' predicts no next byte: generate from a run of task=bytes"
        )
    if not prompt:
        raise UserError("there is nothing to continue: give a prompt of at least one letter")
    if not 0 <= temperature < float("inf"):
        raise UserError(f"a temperature of {temperature} is out of range: it must be at least 0")
    ids = torch.from_numpy(trained.task.tokenize(prompt).astype("int64"))
    draws = torch.Generator().manual_seed(seed)
    for _ in range(length):
        shown = ids[None, -trained.network.max_len :]
        logits = trained.logits(Batch(shown, None, shown))[0, -1]
        ids = torch.cat([ids, _drawn(logits, temperature, draws)])
    return str(trained.task.decode(ids.numpy()))


def _drawn(logits: Tensor, temperature: float, draws: torch.Generator) -> Tensor:
    logits[0] = -torch.inf  # padding is no byte
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    return torch.multinomial((logits / temperature).softmax(-1), 1, generator=draws)
