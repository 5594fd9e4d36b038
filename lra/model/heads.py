"""From the encoder's output to logits: poolings, and classifiers of single texts and of pairs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from lra.base.config import Interaction, Pooling, Style
from lra.model import init


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over the real tokens; 0 for an example without any."""
    if mask is None:
        return x.mean(1)
    real = mask.unsqueeze(-1)  # (B, n, 1)
    return (x * real).sum(1) / real.sum(1).clamp_min(1)


def mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over all stored positions, padding included, as in every public LRA code."""
    return x.mean(1)


def first(x: Tensor, mask: Tensor | None) -> Tensor:
    """Position 0: the CLS token where there is one, else the first token."""
    return x[:, 0]


POOLINGS: dict[Pooling, Callable[[Tensor, Tensor | None], Tensor]] = {
    Pooling.masked_mean: masked_mean,
    Pooling.mean: mean,
    Pooling.cls: first,
    Pooling.first: first,
    Pooling.none: lambda x, mask: x,
}


class Classifier(nn.Sequential):
    """pooled (B, E) -> hidden widths with ReLU between -> logits (B, classes); no dropout. Tokens
    (B, n, E) -> (B, n, classes)."""

    def __init__(self, d_in: int, hidden: list[int], classes: int, style: Style):
        widths = [d_in, *hidden, classes]
        layers: list[nn.Module] = []
        for a, b in pairwise(widths):
            linear = nn.Linear(a, b)
            init.HEAD[style.init](linear)
            layers += [linear, nn.ReLU()]
        super().__init__(*layers[:-1])


INTERACTIONS: dict[Interaction, tuple[int, Callable[[Tensor, Tensor], tuple[Tensor, ...]]]] = {
    Interaction.concat: (2, lambda a, b: (a, b)),
    Interaction.nli: (4, lambda a, b: (a, b, a * b, a - b)),
}


class DualClassifier(nn.Module):
    """pooled pairs (B, 2, E) -> logits; a second hidden layer has half the width of the first."""

    def __init__(self, d_model: int, hidden: int, classes: int, style: Style):
        super().__init__()
        parts, self.features = INTERACTIONS[style.interaction]
        widths = [hidden >> layer for layer in range(style.dual_hidden_layers)]
        self.classifier = Classifier(parts * d_model, widths, classes, style)

    def forward(self, pooled: Tensor) -> Tensor:
        a, b = pooled.unbind(1)
        return self.classifier(torch.cat(self.features(a, b), -1))
