"""Initialisation of linear layers in the published codes. Attentions initialise themselves."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from lra.base.config import Init

TRUNCATED_STD = 0.87962566103423978  # std of a standard normal truncated at +-2


def xavier(linear: nn.Linear, parts: int = 1) -> None:
    """Xavier-uniform for each of the `parts` stacked in one layer; biases N(0, 1e-6)."""
    with torch.no_grad():
        for weight in linear.weight.chunk(parts):
            nn.init.xavier_uniform_(weight)
    if linear.bias is not None:
        nn.init.normal_(linear.bias, std=1e-6)


def lecun(linear: nn.Linear) -> None:
    """Truncated normal of variance 1 / fan_in, zero biases."""
    std = 1 / math.sqrt(linear.in_features) / TRUNCATED_STD
    nn.init.trunc_normal_(linear.weight, std=std, a=-2 * std, b=2 * std)
    nn.init.zeros_(linear.bias)


def keep(linear: nn.Linear, parts: int = 1) -> None:
    """Keep U(-1/sqrt(fan_in), 1/sqrt(fan_in)), which nn.Linear has already drawn."""


# google-research/long-range-arena is flax.
ENCODER: dict[Init, Callable[..., None]] = {Init.torch: keep, Init.flax: xavier}
HEAD: dict[Init, Callable[[nn.Linear], None]] = {Init.torch: keep, Init.flax: lecun}
