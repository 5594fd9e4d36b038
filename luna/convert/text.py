"""A text file as batches of a language model, for both stages of a decoder."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from luna.base import LunaError
from luna.convert.running import evaluating, own_loss


class TextFile:
    """Blocks of `length` tokens, in batches; the file's end is held out.

    path      of the text, in UTF-8
    encode    token ids of a text
    length    tokens of a block
    batch     blocks of a batch
    held_out  part of the blocks that `evaluate` scores, at least one of them
    seed      of the order of the blocks
    """

    def __init__(
        self,
        path: str | Path,
        encode: Callable[[str], Sequence[int]],
        *,
        length: int,
        batch: int = 8,
        held_out: float = 0.1,
        seed: int = 0,
    ):
        ids = torch.tensor(encode(Path(path).read_text(encoding="utf-8")), dtype=torch.long)
        blocks = ids[: len(ids) // length * length].view(-1, length)
        count = len(blocks) - max(1, round(held_out * len(blocks)))
        if count < 1:
            raise LunaError(
                f"{path} has {len(ids)} tokens, too few for two blocks of {length}, one to train "
                "on and one held out: give a longer text or a smaller length"
            )
        self.blocks = blocks[:count]
        self.batch = batch
        self.seed = seed
        self.held_out = self._batches(blocks[count:])

    def train(self, epoch: int) -> list[dict[str, Tensor]]:
        """Return the batches of an epoch, in an order drawn from the seed and its number alone."""
        g = torch.Generator().manual_seed(1_000_003 * self.seed + epoch)
        return self._batches(self.blocks[torch.randperm(len(self.blocks), generator=g)])

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the mean log likelihood of a held-out token, in nats, and the perplexity."""
        with torch.no_grad(), evaluating(model):
            losses = [float(own_loss(model, b)) * len(b["labels"]) for b in self.held_out]
        loss = sum(losses) / sum(len(b["labels"]) for b in self.held_out)
        return {"log_likelihood": -loss, "perplexity": math.exp(loss)}

    def _batches(self, blocks: Tensor) -> list[dict[str, Tensor]]:
        # The model itself shifts the labels by one token.
        return [{"input_ids": b, "labels": b} for b in blocks.split(self.batch)]
