"""Batches into models, and the mistakes that would otherwise surface as an index error deep inside.

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

Batch = Mapping[str, Tensor] | Tensor


class Batches(Protocol):
    """A list or a loader: an epoch's batches, as often as they are asked for."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Batch]: ...


def forward(model: nn.Module, batch: Batch, *, labels: bool = False) -> Any:
    """The model's output; labels are given to it only on request."""
    check(model, batch, labels=labels)
    device = next(model.parameters()).device
    with memory_advice(batch):
        if isinstance(batch, Tensor):
            return model(batch.to(device))
        given = {k: v for k, v in batch.items() if labels or k != "labels"}
        return model(**{k: v.to(device) for k, v in given.items()})


def check(model: nn.Module, batch: Batch, *, labels: bool = False) -> None:
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
    given = batch.get("labels") if labels else None
    if given is None or classes in (None, 1) or given.is_floating_point() or not len(given):
        return
    if int(given.max()) >= classes or int(given.min()) < 0:
        raise LunaError(
            f"labels go from {int(given.min())} to {int(given.max())}, the model's head has "
            f"{classes} classes: load the checkpoint with num_labels of the task"
        )


def size(batch: Batch) -> int:
    return len(batch if isinstance(batch, Tensor) else next(iter(batch.values())))


@contextlib.contextmanager
def memory_advice(batch: Batch) -> Iterator[None]:
    """Out of GPU memory, said with the batch size to try."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        n = size(batch)
        advice = f"try batches of {n // 2}" if n > 1 else "the model is too large for this GPU"
        raise LunaError(f"no GPU memory left for a batch of {n}: {advice}") from error
