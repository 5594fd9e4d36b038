"""What a conversion needs from a task, whether its examples are texts (glue.py) or images
(images.py)."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from luna.base import LunaError
from luna.convert.loop import Batches
from luna.convert.recipe import ConversionRecipe
from luna.convert.running import ModelInputs, forward
from luna.convert.tasks.metrics import Metric

HELD_OUT = "held_out"  # the part of train that chooses the best epoch, under select=train_split

Example = tuple[Any, float]  # the sentences or the path of an image; the class or the score


class ConversionData(ABC):
    """The examples of a task in one run: `examples` to train on, and those of every split that is
    scored, of which the first gives the result."""

    def __init__(
        self,
        task: Any,
        folder: str | Path | None,
        processor: Any,
        recipe: ConversionRecipe,
        seed: int,
    ):
        self.task, self.folder, self.processor = task, folder, processor
        self.recipe, self.seed = recipe, seed
        self.evaluations: dict[str, Any] = {}  # batches of a split, where they are kept
        examples, self.scored = task.read(folder)
        self.examples = examples[: recipe.train_examples]
        if recipe.select == "train_split":
            n = len(self.examples)
            if n < 2:
                raise LunaError("select=train_split needs at least 2 training examples")
            # The same tenth in every run.
            order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).tolist()
            k = max(1, n // 10)
            self.scored[HELD_OUT] = [self.examples[i] for i in sorted(order[:k])]
            self.examples = [self.examples[i] for i in sorted(order[k:])]
        self.labels = {split: labels_of(examples) for split, examples in self.scored.items()}

    @abstractmethod
    def train(self, epoch: int) -> Batches:
        """Return the batches of an epoch, drawn from the seed and its number alone."""

    @abstractmethod
    def evaluation(self, split: str) -> Iterable[ModelInputs]:
        """Return batches in the order of `labels`."""


class ConversionTask(ABC):
    name: str
    metric: Metric
    data: type[ConversionData]
    auto_model: str  # the class of transformers that loads a checkpoint of this task
    files: str  # what the folder of such a checkpoint contains

    @abstractmethod
    def read(self, data: str | Path | None) -> tuple[list[Example], dict[str, list[Example]]]:
        """Read the examples to train on and, by split, those that are scored."""

    @abstractmethod
    def processor(self, source: str, *, offline: bool = False) -> Any:
        """Load how the checkpoint `source` wants its inputs: a tokenizer or an image processor.
        `offline`, the hub is not asked for what is not here."""

    @abstractmethod
    def classes(self, data: str | Path | None) -> tuple[str, ...] | None:
        """Name the classes in the order of the head's outputs; None for a regression."""

    def fingerprint(self, data: str | Path | None) -> str | None:
        """Return a fingerprint of data that the task's name does not determine."""
        return None

    def check_head(self, names: Sequence[str], data: str | Path | None) -> None:
        """Refuse a checkpoint whose classes are not this task's in the same order: the hub's MNLI
        models come in every order."""
        classes = self.classes(data)
        by_default = all(re.fullmatch(r"(LABEL_)?\d+", name) for name in names)
        if classes in (None, ("0", "1")) or by_default:
            return
        for i, (theirs, ours) in enumerate(zip(names, classes or (), strict=True)):
            if theirs.lower().replace("-", "_") != ours.lower().replace("-", "_"):
                raise LunaError(
                    f"the checkpoint's class {i} is '{theirs}', that of '{self.name}' is '{ours}': "
                    "give a model finetuned on it (stage=teacher makes one)"
                )


def predict(model: nn.Module, batches: Iterable[ModelInputs]) -> Tensor:
    """Return one answer per example, in order: the class, or the score of a regression."""
    answers = []
    with torch.no_grad():
        for batch in batches:
            logits = forward(model, batch).logits.float().cpu()
            answers.append(logits.squeeze(-1) if logits.shape[-1] == 1 else logits.argmax(-1))
    return torch.cat(answers)


def labels_of(examples: Sequence[Example]) -> Tensor:
    """Return int64 classes or float32 scores."""
    return torch.tensor([label for _, label in examples])


def split_into_batches(order: Sequence[int], size: int) -> list[list[int]]:
    return [list(order[i : i + size]) for i in range(0, len(order), size)]
