"""Calling a model with a batch, and mistakes that would otherwise surface as an index error deep
inside it.

A batch is a mapping of the model's keywords (with or without `labels`) or one tensor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from luna.base import LunaError
from luna.convert.layers import position_limit
from luna.convert.swap import describe

ModelInputs = Mapping[str, Tensor] | Tensor


class Batches(Protocol):
    """The batches of an epoch: a list or a loader that can be iterated repeatedly."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[ModelInputs]: ...


def forward(model: nn.Module, batch: ModelInputs, *, labels: bool = False) -> Any:
    """The model's output; it sees the labels only on request."""
    _check(model, batch, labels=labels)
    device = next(model.parameters()).device
    no_state = {"use_cache": False} if (describe(model) or {}).get("causal") else {}
    with memory_advice(batch):
        if isinstance(batch, Tensor):
            return model(batch.to(device), **no_state)
        inputs = {k: v for k, v in batch.items() if labels or k != "labels"}
        return model(**{k: v.to(device) for k, v in inputs.items()}, **no_state)


def own_loss(model: nn.Module, batch: ModelInputs) -> Tensor:
    """The loss that the model itself computes from `labels`."""
    loss = getattr(forward(model, batch, labels=True), "loss", None)
    if loss is None:
        raise LunaError("the model returned no loss: give batches with 'labels', or loss=")
    return loss


def _check(model: nn.Module, batch: ModelInputs, *, labels: bool) -> None:
    if isinstance(batch, Tensor):
        return
    if "input_ids" in batch:
        n, limit = batch["input_ids"].shape[1], position_limit(model)
        if n > limit:
            raise LunaError(
                f"a text of {n} tokens is longer than the model's {limit} positions: "
                f"truncate to max_length={limit} when tokenising"
            )
    classes = getattr(getattr(model, "config", None), "num_labels", None)
    targets = batch.get("labels") if labels else None
    if targets is None or classes in (None, 1) or targets.is_floating_point() or not len(targets):
        return
    if targets.ndim > 1:  # a language model's: one token per position
        return
    if int(targets.max()) >= classes or int(targets.min()) < 0:
        raise LunaError(
            f"labels go from {int(targets.min())} to {int(targets.max())}, the model's head has "
            f"{classes} classes: load the checkpoint with num_labels of the task"
        )


@contextlib.contextmanager
def memory_advice(batch: ModelInputs) -> Iterator[None]:
    """Where GPU memory runs out inside, suggest a batch size."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        n = len(batch if isinstance(batch, Tensor) else next(iter(batch.values())))
        advice = f"try batches of {n // 2}" if n > 1 else "the model is too large for this GPU"
        raise LunaError(f"no GPU memory left for a batch of {n}: {advice}") from error
