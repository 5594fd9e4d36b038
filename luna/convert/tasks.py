"""What a run asks of a task, whether its examples are texts (glue.py) or images (images.py)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from luna.base import LunaError, nearest
from luna.convert.batches import Batch, Batches, forward
from luna.convert.metrics import Metric
from luna.convert.recipe import Recipe

HELD_OUT = "held_out"  # the part of train that selects, under select=train_split


class Processor(Protocol):
    """How a checkpoint wants its inputs: a tokenizer, or an image size and its normalisation."""

    def save_pretrained(self, folder: Any, /) -> Any: ...


class Data(Protocol):
    """A task's examples, as one run sees them."""

    @property
    def labels(self) -> Mapping[str, Tensor]:
        """Labels of every split that is scored; the first split is the result."""

    @property
    def n_train(self) -> int: ...

    def train(self, epoch: int) -> Batches:
        """Drawn from seed and epoch alone."""

    def evaluation(self, split: str) -> Iterable[Batch]:
        """In the order of `labels`."""

    def check(self, model: nn.Module) -> None:
        """A LunaError unless the model can take these examples."""

    @property
    def loss(self) -> Callable[[nn.Module, Batch], Tensor] | None:
        """None: the model's own."""


class Task(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def metric(self) -> Metric: ...

    @property
    def auto_model(self) -> str:
        """The class of transformers that loads a checkpoint of this task."""

    @property
    def files(self) -> str:
        """What the folder of such a checkpoint holds."""

    def processor(self, source: str) -> Processor:
        """The tokenizer or image normalisation of the checkpoint `source`."""

    def classes(self, data: str | Path | None) -> tuple[str, ...] | None:
        """Their names in the order of the head; None for a regression."""

    def fingerprint(self, data: str | Path | None) -> str | None:
        """A fingerprint of data that the task's name does not determine."""

    def check_head(self, names: Sequence[str], data: str | Path | None) -> None:
        """A LunaError if the checkpoint's classes are not this task's, as far as names tell."""

    def open(
        self, data: str | Path | None, processor: Any, recipe: Recipe, *, seed: int
    ) -> Data: ...


def task(name: str) -> Task:
    """By its name on the command line."""
    from luna.convert.glue import TASKS as GLUE
    from luna.convert.images import TASKS as IMAGES

    known: dict[str, Task] = {**GLUE, **IMAGES}
    if name == "wnli":
        raise LunaError("WNLI is left out, as in the published tables: its dev set is adversarial")
    if name not in known:
        raise LunaError(f"unknown task '{name}'{nearest(name, known)}")
    return known[name]


def predict(model: nn.Module, batches: Iterable[Batch]) -> Tensor:
    """One answer for each example, in order: the class, or the number of a regression."""
    found = []
    with torch.no_grad():
        for batch in batches:
            logits = forward(model, batch).logits.float().cpu()
            found.append(logits.squeeze(-1) if logits.shape[-1] == 1 else logits.argmax(-1))
    return torch.cat(found)


def hold_out(n: int) -> tuple[list[int], list[int]]:
    """Numbers of the examples to train on and of a tenth to select on, the same in every run."""
    if n < 2:
        raise LunaError("select=train_split needs at least 2 training examples")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).tolist()
    k = max(1, n // 10)
    return sorted(order[k:]), sorted(order[:k])


def unnamed(names: Sequence[str]) -> bool:
    """Whether a checkpoint's classes are numbers, the names that transformers gives by default."""
    return all(re.fullmatch(r"(LABEL_)?\d+", name) for name in names)
