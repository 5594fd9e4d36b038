"""The network, from token ids to logits: embedding, encoder, pooling, head."""

from __future__ import annotations

import typing
from typing import Any

from torch import Tensor, nn

from lra.base.config import Model, Pooling, Protocol
from lra.base.errors import UserError
from lra.data.arrays import Scale
from lra.model.backbone import Encoder, SlotPlace
from lra.model.embedding import Embedding
from lra.model.heads import POOLINGS, Classifier, DualClassifier
from luna.base import autocast_off


class TaskShape(typing.Protocol):
    """What a network needs to know about its task; the tasks of lra.data have these attributes."""

    @property
    def classes(self) -> int: ...
    @property
    def vocab(self) -> int: ...  # ids are 0 .. vocab - 1
    @property
    def stack(self) -> int: ...  # ids per token
    @property
    def per_token(self) -> bool: ...  # a label per token
    @property
    def causal(self) -> bool: ...  # no token sees what comes behind it
    @property
    def dual(self) -> bool: ...  # an example is a pair of texts
    @property
    def grid(self) -> tuple[int, int] | None: ...  # rows and columns of an image task's tokens
    @property
    def scale(self) -> Scale | None: ...  # of inputs that can be read as numbers
    @property
    def channels(self) -> int: ...  # numbers of a token, in place of an id; 0: ids


class Network(nn.Module):
    """ids (B, n), or (B, 2, n) for pairs -> logits (B, classes); mask like ids, True = real. For a
    task with a label per token -> (B, tokens, classes). Of tokens that are numbers (B, n, C)."""

    def __init__(
        self,
        task: TaskShape,
        attention: dict[str, Any],
        model: Model,
        protocol: Protocol,
        seed: int,
    ):
        super().__init__()
        style = protocol.style
        self.dual, self.channels = task.dual, task.channels
        self.max_len = protocol.data.pad_to
        self.embedding = Embedding(
            protocol.data.vocab,
            model.d_model,
            self.max_len,
            style,
            model.dropout,
            task.stack,
            task.scale,
        )
        place = SlotPlace(
            self.embedding.max_len, protocol.profile, seed, task.grid, style.pooling is Pooling.cls
        )
        self.encoder = Encoder(attention, model, style, place)
        self.pool = POOLINGS[style.pooling]
        self.head: nn.Module
        if task.dual:
            self.head = DualClassifier(model.d_model, model.mlp_dim, task.classes, style)
        else:
            widths = [model.mlp_dim >> layer for layer in range(style.hidden_layers)]
            self.head = Classifier(model.d_model, widths, task.classes, style)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        n = ids.shape[-2] if self.channels else ids.shape[-1]
        if n > self.max_len:
            raise UserError(
                f"an example has {n} ids, the network was built for {self.max_len}: "
                "raise protocol.data.pad_to"
            )
        if self.dual:  # both texts go through the one encoder together: (B, 2, n) -> (2 B, n)
            ids, mask = ids.flatten(0, 1), None if mask is None else mask.flatten(0, 1)
        x, mask = self.embedding(ids, mask)
        x = self.encoder(x, mask)
        with autocast_off(x.device):  # the residual stream is float32; logits in half precision tie
            pooled = self.pool(x, mask)
            return self.head(pooled.unflatten(0, (-1, 2)) if self.dual else pooled)
