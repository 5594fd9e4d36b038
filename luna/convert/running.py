"""Running a host model, converted or not, on a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from luna.base import LunaError
from luna.convert.layers import position_limit
from luna.convert.swap import describe

ModelInputs = Mapping[str, Tensor] | Tensor  # a model's keywords, with or without labels, or one


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside, because dropout would blur the teacher; each module's mode is restored."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def check_batch(batch: Any) -> None:
    """Refuse what no model takes, in words of a batch and not of the model's inside."""
    if not isinstance(batch, Tensor | Mapping):
        raise LunaError(
            f"a batch is a tensor, or a mapping of the model's keywords to tensors such as "
            f"{{'input_ids': ids}}, got {type(batch).__name__}"
        )
    tensors = {"batch": batch} if isinstance(batch, Tensor) else batch
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise LunaError(f"'{name}' of a batch is of type {type(tensor).__name__}, no tensor")
        if tensor.numel() == 0:
            raise LunaError(f"'{name}' is empty: {tuple(tensor.shape)}")
    if not tensors:
        raise LunaError("a batch has no tensors: give the model's keywords")
    ids = tensors.get("input_ids")
    if ids is not None and (ids.dim() != 2 or ids.is_floating_point()):
        raise LunaError(
            f"'input_ids' are whole numbers of shape (batch, tokens), got {ids.dtype} of shape "
            f"{tuple(ids.shape)}"
        )


def forward(model: nn.Module, batch: ModelInputs, *, labels: bool = False) -> Any:
    """Run the model on a batch; it sees the labels only on request."""
    check_batch(batch)
    device = next(model.parameters()).device
    no_state = {"use_cache": False} if (describe(model) or {}).get("causal") else {}
    if isinstance(batch, Tensor):
        return model(batch.to(device), **no_state)
    if "input_ids" in batch:
        n = batch["input_ids"].shape[1]
        limit = position_limit(model)
        if n > limit:
            raise LunaError(
                f"a text of {n} tokens is longer than the model's {limit} positions: "
                f"truncate to max_length={limit} when tokenising"
            )
    inputs = {k: v.to(device) for k, v in batch.items() if labels or k != "labels"}
    return model(**inputs, **no_state)


def own_loss(model: nn.Module, batch: ModelInputs) -> Tensor:
    """Return the loss that the model itself computes from `labels`."""
    loss = getattr(forward(model, batch, labels=True), "loss", None)
    if loss is None:
        raise LunaError("the model returned no loss: give batches with 'labels', or loss=")
    return loss
